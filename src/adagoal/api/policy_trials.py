"""``adagoal.play``: play the policies of a run in its environment, and compare the steps with the certificates.

This is the evidence that remains when no exact model is known to audit against. Steps to a goal are counted as in the
theory: from s0, every reset on the way is one step, and the reset after the goal does not count. A true certificate of
any goal is contradicted with probability :data:`FALSE_CONTRADICTION_PROBABILITY` at most, also with few attempts.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adagoal.api import explore as api
from adagoal.core.array_types import Actions, Floats
from adagoal.core.confidence_bounds import clopper_pearson_interval, find_boundary, log_wealth
from adagoal.core.environment import NO_LIMIT, ExplorationPlan, RolloutOutcome, TabularEnv
from adagoal.core.errors import InputError
from adagoal.core.goal_space import memberships_from_sets
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.validation import check_integer
from adagoal.envs import registry
from adagoal.runs.load_result import load_result
from adagoal.runs.result import Certificate, Result, numbers_states_as_met

FALSE_CONTRADICTION_PROBABILITY = 0.01  # that a true certificate is contradicted, all goals together


@dataclass(frozen=True)
class Trial:
    """Attempts to reach one goal with its policy."""

    goal: int
    label: str
    certificate: Certificate
    steps: Floats  # of each attempt, [n]; infinite if it was given up
    patience: float  # steps after which an attempt is given up
    rest: float  # certified bound on the expected steps from any state; infinite without a certificate
    alpha: float = FALSE_CONTRADICTION_PROBABILITY  # this goal's share of the probability of a false contradiction

    @property
    def mean(self) -> float:
        return float(self.steps.mean())

    @functools.cached_property
    def interval(self) -> tuple[float, float]:
        """Interval that holds the expected steps with probability 1 - alpha, for any number of attempts."""
        return mean_steps_interval(self.steps, self.patience, self.rest, self.alpha)

    @property
    def agrees(self) -> bool:
        """Whether the interval intersects the certificate [lower, upper]."""
        low, high = self.interval
        return low <= self.certificate.upper and high >= self.certificate.lower

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        finite = [value if math.isfinite(value) else None for value in (self.mean, *self.interval, *self.certificate)]
        names = ("mean", "low", "high", "lower", "upper")
        facts = {"goal": self.goal, "label": self.label, "attempts": len(self.steps)}
        gave_up = int(np.isinf(self.steps).sum())
        return facts | dict(zip(names, finite, strict=True)) | {"gave_up": gave_up, "agrees": self.agrees}


class ReachTrial(Trial):
    """Attempts of k steps each to reach one goal; the certificate bounds the probability of success."""

    @property
    def mean(self) -> float:
        """The share of attempts that reached the goal."""
        return float(np.isfinite(self.steps).mean())

    @functools.cached_property
    def interval(self) -> tuple[float, float]:
        """Interval that holds the probability of success with probability 1 - alpha."""
        return clopper_pearson_interval(int(np.isfinite(self.steps).sum()), len(self.steps), 1.0 - self.alpha)


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
    """Play each policy of a run ``episodes`` times in the run's environment; nothing is saved.

    Parameters
    ----------
    run: the folder of the run, or its result. A result of an environment whose states are numbered as they are met
        needs its folder as well.
    goals: goals of the result; all by default.
    episodes: number of attempts for each goal.
    seed: of the random numbers.
    env: the environment, for a run on an object or on code that is not installed. ``trust`` runs the folder's code.
    step_timeout: as in :func:`adagoal.explore`.

    Examples
    --------
    >>> [trial] = adagoal.play(result, goals=[1], episodes=10)
    >>> len(trial.steps), trial.agrees
    (10, True)
    """
    check_integer("episodes", episodes, 1, 10**9)
    check_integer("seed", seed, 0, 2**31 - 1)
    result = run if isinstance(run, Result) else load_result(run)
    chosen = result.goals if goals is None else _select_goals(result, goals)
    # A union bound over the goals: together they contradict a true certificate with this probability at most.
    alpha = FALSE_CONTRADICTION_PROBABILITY / max(len(chosen), 1)
    with contextlib.ExitStack() as stack:
        made = _make_new_env(result, env, trust, step_timeout) if isinstance(run, Result) else None
        if made is None:
            folder = run.saved_folder() if isinstance(run, Result) else Path(run)
            session = stack.enter_context(api.open_restored_session(folder, env, trust, step_timeout))
            made = session.run.env, session.run.counts
        tabular_env, counts = made
        # A restored environment continues the random numbers of the run; the trials should depend on their seed only.
        tabular_env.reset_with_seed(seed)
        player = _PolicyPlayer(tabular_env, counts, random_stream(seed, StreamPurpose.TRIAL))
        return [_try_goal(result, goal, episodes, alpha, player) for goal in chosen]


def _select_goals(result: Result, goals: Any) -> list[int]:
    if not isinstance(goals, Sequence) or isinstance(goals, str):
        raise InputError(f"must be a list of goals, got {goals!r}", "goals")
    try:
        numbers = [result.goal(goal) if isinstance(goal, str) else goal for goal in goals]
    except InputError as error:
        raise InputError(error.reason, "goals") from None
    for goal, number in zip(goals, numbers, strict=True):
        if number not in result.goals:
            raise InputError(f"{goal!r} is not among the {len(result.goals)} goals of the result", "goals")
    return numbers


def _make_new_env(
    result: Result, env: api.EnvOverride, trust: bool, step_timeout: float | None
) -> tuple[TabularEnv, TransitionCounts] | None:
    """Make the environment of a result, or return None if only its folder knows the numbers of the states."""
    if "observations" in result.arrays:
        return None
    setting = result.setting
    source = registry.first_env_of_vector(api.resolve_env(setting, env, result.model, trust))
    arguments = setting.env_args if isinstance(source, str) else {}
    made, _ = registry.make_single_env(source, arguments, setting.start_seed, setting.max_states, step_timeout)
    # States that are numbered as they are found would get other numbers than in the policy.
    is_numbered_when_met = made.initial_states != made.state_bound or numbers_states_as_met(result)
    return None if is_numbered_when_met else (made, TransitionCounts(made.initial_states, made.n_actions, made.start))


def _try_goal(result: Result, goal: int, episodes: int, alpha: float, player: _PolicyPlayer) -> Trial:
    policy, certificate = result.policy(goal), result.certificate(goal)
    has_label = result.goal_names is not None or goal < len(result.view.labels)
    label, states, within = result.goal_label(goal) if has_label else "", result.members(goal), result.setting.within
    player.choose_policy(policy.actions, states, one_attempt=within is not None)
    if within is not None:
        attempts = [player.play_once() for _ in range(episodes)]
        return ReachTrial(goal, label, certificate, np.array(attempts), within, math.inf, alpha)
    is_certified = math.isfinite(certificate.upper)
    expected = max(certificate.upper if is_certified else result.radius, 1.0)
    # The steps after which an attempt is given up. At most a million: a number in a file must not cause days of play.
    patience = math.ceil(min(100 * expected, 10**6))
    steps = [player.play_until_reached(patience) for _ in range(episodes)]
    # A certified policy needs at most radius + 1 + epsilon steps from any state (lemmas 6 and M4). The factor 2 is a
    # margin for a reset that is only inferred (lemma 10). A policy of several stages starts again after its last stage.
    from_anywhere = 2.0 * (result.radius + 1.0 + result.setting.epsilon)
    rest = from_anywhere if policy.stationary else len(policy.actions) + 1.0 + certificate.upper
    return Trial(goal, label, certificate, np.array(steps), patience, rest if is_certified else math.inf, alpha)


class _PolicyPlayer:
    """Plays policies in an environment, one at a time."""

    def __init__(self, env: TabularEnv, counts: TransitionCounts, rng: np.random.Generator) -> None:
        self.env, self.counts, self.rng = env, counts, rng

    def choose_policy(self, table: Actions, states: list[int], one_attempt: bool) -> None:
        """Play the policy [T, S] for the goal ``states`` from now on; in ``one_attempt`` a reset ends an episode."""
        self._table, self._states, self._one_attempt = table, states, one_attempt
        self._plans: dict[int, ExplorationPlan] = {}  # by the number of known states

    def play_until_reached(self, patience: int) -> float:
        """Steps of one attempt from s0; a policy of T > 1 stages starts again, after a reset, until it arrives."""
        stages, taken = len(self._table), 0
        while taken < patience:
            outcome = self._roll_out(stages if stages > 1 else patience, patience)
            taken += outcome.steps
            # The rollout includes the reset after the goal, which does not count. A goal that holds s0 takes 0 steps.
            if any(outcome.reached):
                return float(taken - (self.env.start not in self._states))
        return math.inf

    def play_once(self) -> float:
        """Steps of one attempt of a policy for one attempt; infinite if it misses the goal."""
        steps, ended = 0, False
        # A rollout may end at a new state; the next one continues the episode.
        while not ended:
            outcome = self._roll_out(len(self._table), NO_LIMIT)
            steps, ended = steps + outcome.steps, len(outcome.reached) > 0
        return float(steps - (self.env.start not in self._states)) if outcome.reached[0] else math.inf

    def _roll_out(self, max_episode_steps: int, max_steps: int) -> RolloutOutcome:
        """Play one episode."""
        table, n_states = self._table, self.counts.n_states
        # An attempt may discover states, for which the policy has no action but the reset.
        if n_states not in self._plans:
            policy = np.full((len(table), n_states, 1), self.env.n_actions, np.int16)
            policy[:, : table.shape[1], 0] = table
            # A run ends a rollout to plan again when a pair was tried often enough. A trial must not end then.
            no_count_limit = np.full(len(self.counts.n), np.iinfo(np.int64).max)
            goal_states, goal = memberships_from_sets([self._states], n_states), np.zeros(1, np.int64)
            arrays = policy, goal, max_episode_steps, no_count_limit, goal_states
            self._plans[n_states] = ExplorationPlan(*arrays, reset_ends_episode=self._one_attempt)
        return self.env.rollout(self._plans[n_states], np.ones(1), self.counts, self.rng, (max_steps, 1))


def mean_steps_interval(steps: Floats, patience: float, rest: float, alpha: float) -> tuple[float, float]:
    """Interval that holds the mean mu of the steps T with probability 1 - alpha, for any number of attempts.

    ``steps [n]`` are infinite if an attempt was given up after ``patience``. ``rest`` is R, a bound on the expected
    further steps from any state; it may be infinite.

    T is heavy-tailed: three attempts may be short and the fourth take a hundred times as long, so neither a normal
    approximation nor a variance helps. Each end is a test by betting (:mod:`adagoal.core.confidence_bounds`): a wealth
    that starts at 1, and that the hypothesis expects never to grow, reaches 2/alpha with probability alpha/2 at most.

    *Lower end: mu <= m.* The wealth prod_i (1 + b (T_i/m - 1)), 0 <= b <= 1, is expected not to grow, because E T <= m.
    Giving an attempt up only lowers it. The lower end is the smallest m that is not rejected. With b = 1, one attempt
    with T >= 2m/alpha rejects m, which is Markov's inequality.

    *Upper end: mu >= m.* Rare long attempts that were not seen may carry any mean, unless R bounds them. Then
    Z = min(T, R) + R [T > R] has E Z >= mu and lies in [0, 2R], and the wealth prod_i (1 - b (Z_i - m)/(2R - m)) is
    expected not to grow if E Z >= m. The upper end is the largest m that is not rejected, and infinite without R.
    """
    threshold = math.log(2.0 / alpha)
    # Equal attempts are grouped: the search evaluates the wealth many times, and attempts have few different lengths.
    steps, times = np.unique(steps, return_counts=True)
    T = np.minimum(steps, patience)
    mean = float(np.average(T, weights=times))
    low = find_boundary(lambda m: log_wealth(T / m - 1.0, times) >= threshold, mean) if mean > 0.0 else 0.0
    if not math.isfinite(rest):
        return low, math.inf
    # T itself has no upper bound, and a test of mu >= m needs one. Z has one.
    bound = 2.0 * rest
    Z = np.where(steps > rest, bound, np.minimum(steps, rest))
    # The search ends short of 2R, where the bet divides by zero. If nothing was rejected, there is no upper end.
    high = find_boundary(lambda m: log_wealth((m - Z) / (bound - m), times) < threshold, bound * (1.0 - 1e-9))
    return low, high if high < bound * (1.0 - 1e-6) else math.inf
