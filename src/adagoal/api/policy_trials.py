"""The policies of a run, played in the environment itself: measured steps beside certified ones.

Where no exact model is known there is nothing to audit against; playing is the evidence that is left. The number of
steps to a goal is counted as in the theory: from s0, every reset on the way one step, the reset after the goal none.
A true certificate of any goal is contradicted with probability :data:`FALSE_CONTRADICTION_PROBABILITY` at most, however
few the attempts are (see :mod:`adagoal.api.policy_trials`).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adagoal.api import explore as api
from adagoal.core.argument_checks import check_integer
from adagoal.core.confidence_bounds import find_boundary, log_wealth
from adagoal.core.environment import ExplorationPlan, TabularEnv
from adagoal.core.errors import InputError
from adagoal.core.goal_space import memberships_from_sets
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Floats
from adagoal.envs import env_factory, registry
from adagoal.runs.result import Certificate, Result, load_result

PATIENCE_FACTOR = 100
"""An attempt is given up after so many times the steps that were certified (or the radius, where nothing is)."""
MAX_ATTEMPT_STEPS = 10**6
"""And after so many in any case: a number in a file is no reason to play for days."""
FALSE_CONTRADICTION_PROBABILITY = 0.01
"""How often true certificates are contradicted, all goals together."""


@dataclass(frozen=True)
class Trial:
    """Attempts to reach one goal with its policy."""

    goal: int
    label: str
    certificate: Certificate
    steps: Floats
    """Steps of each attempt ``[n]``; infinite where it was given up."""
    patience: float
    """Steps after which an attempt was given up."""
    rest: float
    """A bound on the expected steps from anywhere that comes with the certificate; infinite where none does."""
    alpha: float = FALSE_CONTRADICTION_PROBABILITY
    """This goal's share of the probability of a false contradiction."""

    @property
    def mean(self) -> float:
        return float(self.steps.mean())

    @functools.cached_property
    def interval(self) -> tuple[float, float]:
        """An interval that holds the expected steps with probability 1 - alpha, for any number of attempts."""
        return mean_steps_interval(self.steps, self.patience, self.rest, self.alpha)

    @property
    def agrees(self) -> bool:
        """Whether the interval meets the certificate [lower, upper]."""
        low, high = self.interval
        return low <= self.certificate.upper and high >= self.certificate.lower

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        finite = [value if math.isfinite(value) else None for value in (self.mean, *self.interval, *self.certificate)]
        names = ("mean", "low", "high", "lower", "upper")
        facts = {"goal": self.goal, "label": self.label, "attempts": len(self.steps)}
        gave_up = int(np.isinf(self.steps).sum())
        return facts | dict(zip(names, finite, strict=True)) | {"gave_up": gave_up, "agrees": self.agrees}


class TrialOptions(NamedTuple):
    """How every goal is tried."""

    episodes: int
    alpha: float
    rng: np.random.Generator


def play(
    run: str | Path | Result,
    goals: Sequence[int | str] | None = None,
    episodes: int = 100,
    *,
    seed: int = 0,
    env: api.EnvOverride = None,
    trust: bool = False,
    step_timeout: float | None = None,
) -> list[Trial]:
    """Try the policies of a run in its environment, ``episodes`` times each; nothing is saved.

    Parameters
    ----------
    run: the folder of the run; or its result, where the environment numbers its states by itself.
    goals: which of the result's goals; all by default.
    env: the environment, for a run on an object or on code that is not installed (or ``trust`` the folder's word).
    step_timeout: as in :func:`adagoal.explore`.
    """
    check_integer("episodes", episodes, 1, 10**9)
    check_integer("seed", seed, 0, 2**31 - 1)
    result = run if isinstance(run, Result) else load_result(run)
    chosen = result.goals if goals is None else _select_goals(result, goals)
    tries = TrialOptions(
        episodes, FALSE_CONTRADICTION_PROBABILITY / max(len(chosen), 1), random_stream(seed, StreamPurpose.TRIAL)
    )
    with contextlib.ExitStack() as stack:
        if isinstance(run, Result):
            world, counts = _make_fresh_env(result, env, trust, step_timeout)
        else:
            session = stack.enter_context(api.open_restored_session(Path(run), env, trust, step_timeout))
            world, counts = session.run.env, session.run.counts
        world.reset_with_seed(seed)
        return [_try_goal(result, goal, tries, world, counts) for goal in chosen]


def _select_goals(result: Result, goals: Any) -> list[int]:
    """Goals of the result, given by numbers or names."""
    if not isinstance(goals, Sequence) or isinstance(goals, str):
        raise InputError(f"must be a list of goals, got {goals!r}", "goals")
    try:
        numbers = [result.goal(goal) if isinstance(goal, str) else goal for goal in goals]
    except InputError as error:
        raise InputError(error.reason, "goals") from None
    for number in numbers:
        if number not in result.goals:
            raise InputError(f"{number} is not among the {len(result.goals)} goals of the result", "goals")
    return numbers


def _make_fresh_env(
    result: Result, env: api.EnvOverride, trust: bool, step_timeout: float | None
) -> tuple[TabularEnv, TransitionCounts]:
    """The world of a result, made again."""
    setting = result.setting
    again = env_factory.first_env_of_vector(api.resolve_env(setting, env, result.model, trust))
    arguments = setting.env_args if isinstance(again, str) else {}
    world, _ = registry.make_single_env(again, arguments, setting.start_seed, setting.max_states, step_timeout)
    if world.initial_states != world.state_bound:
        text = f"the states of {world.name} have their numbers from the run: give the folder of the run"
        raise InputError(text, "run")
    return world, TransitionCounts(world.initial_states, world.n_actions, world.start)


def _try_goal(result: Result, goal: int, tries: TrialOptions, world: TabularEnv, counts: TransitionCounts) -> Trial:
    policy, certificate = result.policy(goal), result.certificate(goal)
    known = math.isfinite(certificate.upper)
    patience = math.ceil(
        min(PATIENCE_FACTOR * max(certificate.upper if known else result.radius, 1.0), MAX_ATTEMPT_STEPS)
    )
    states = result.members(goal)
    steps = [_play_attempt(policy.actions, states, patience, world, counts, tries.rng) for _ in range(tries.episodes)]
    named = result.goal_names is not None or goal < len(result.view.labels)
    label = result.goal_label(goal) if named else ""
    # a certified policy needs at most radius + 1 + epsilon steps from anywhere (lemmas 6 and M4), half of that margin
    # being for a reset that is only believed; a policy of several stages starts again after the last of them
    anywhere = 2.0 * (result.radius + 1.0 + result.setting.epsilon)
    rest = anywhere if policy.stationary else len(policy.actions) + 1.0 + certificate.upper
    return Trial(goal, label, certificate, np.array(steps), patience, rest if known else math.inf, tries.alpha)


def _play_attempt(
    table: Actions,
    states: list[int],
    patience: int,
    world: TabularEnv,
    counts: TransitionCounts,
    rng: np.random.Generator,
) -> float:
    """Steps of one attempt from s0; a policy of T > 1 stages starts again, after a reset, until it arrives."""
    stages, taken = len(table), 0
    while taken < patience:
        policy = np.full((stages, counts.n_states, 1), world.n_actions, np.int16)  # states it does not know: reset
        policy[:, : table.shape[1], 0] = table
        never = np.full(len(counts.n), np.iinfo(np.int64).max)
        limit, at = stages if stages > 1 else patience, memberships_from_sets([states], counts.n_states)
        plan = ExplorationPlan(policy, np.zeros(1, np.int64), limit, never, at)
        outcome = world.rollout(plan, np.ones(1), counts, rng, patience, 1)
        taken += outcome.steps
        if any(outcome.reached):
            return float(taken - (world.start not in states))
    return math.inf


# What few attempts of a heavy-tailed number of steps say about its mean: a confidence interval by betting.
#
# Let T >= 0 be the steps of one attempt, cut off at some number M where it was given up, and mu its mean. Neither a
# normal approximation nor a variance is of use: three attempts may all be short where the fourth takes a hundred times
# as long. Two gamblers bet against a hypothesis instead (:mod:`adagoal.core.confidence_bounds`): whoever starts with 1
# and plays a fair or losing game holds 1/alpha or more in the end with probability at most alpha; a hypothesis under
# which that happened is rejected.
#
# *mu <= m.* The wealth prod_i (1 + b (T_i/m - 1)), 0 <= b <= 1, never has an expectation above 1, because E T <= m;
# cutting T off only lowers it. The least m that is not rejected is the lower end. (With b = 1 one attempt with
# T >= m/alpha rejects m, which is Markov's inequality: an attempt that was given up counts for as much as it should.)
#
# *mu >= m.* Rare long attempts that were never seen may carry any mean, unless something bounds them. For a certified
# policy something does: from wherever it stands it needs at most R further steps in expectation. So
# Z = min(T, R) + R [T > R] has E Z >= mu and lies in [0, 2R], and the wealth prod_i (1 - b (Z_i - m)/(2R - m)) is fair
# or losing where E Z >= m. The largest m that is not rejected is the upper end; without such an R there is none.


def mean_steps_interval(steps: Floats, patience: float, rest: float, alpha: float) -> tuple[float, float]:
    """An interval that holds the mean with probability 1 - alpha, for any number of attempts.

    ``steps`` [n] is infinite where an attempt was given up after ``patience``; ``rest`` bounds the expected
    further steps from anywhere, and may be infinite.
    """
    goal = math.log(2.0 / alpha)
    steps, times = np.unique(steps, return_counts=True)
    T = np.minimum(steps, patience)
    most = float(np.average(T, weights=times))
    low = find_boundary(lambda m: log_wealth(T / m - 1.0, times) >= goal, most) if most > 0.0 else 0.0
    if not math.isfinite(rest):
        return low, math.inf
    bound = 2.0 * rest
    Z = np.where(steps > rest, bound, np.minimum(steps, rest))

    def large(m: float) -> bool:
        return log_wealth((m - Z) / (bound - m), times) < goal

    high = find_boundary(large, bound * (1.0 - 1e-9))
    return low, high if high < bound * (1.0 - 1e-6) else math.inf
