"""What a whole run will cost, from its beginning: steps, seconds, memory.

Whenever its steps have doubled, the rest of the run is rehearsed in the world that it has seen so far
(:mod:`adagoal.runs.cost_estimate`). Once two rehearsals in a row say about the same, with hardly a new state between
them, the world is known well enough and the cost can be told: usually after a tenth of the run. Where nothing can be
rehearsed, the steps come from :func:`adagoal.runs.progress_display.extrapolate_total_steps`, once a quarter of them is
done.

A known model is stepped in the rehearsal as in the run, so that the rest will take as long as it took to rehearse. An
environment may be slower, and so is a run that keeps its steps. There the time is taken for b steps + c ln(steps):
steps and what is done for each, and plans, which come whenever the counts have grown by some factor. b and c follow
from the last two doublings of the steps. By then nearly all states within reach are known and their tables are
allocated: the memory is that of this process at its largest so far.
"""

from __future__ import annotations

import bisect
import copy
import math
import resource
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from adagoal import methods
from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun, RunObserver
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.user_code import call_observer
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.loop import run_exploration
from adagoal.runs.progress_display import extrapolate_total_steps, format_duration

FIRST_ESTIMATE_STEPS = 1000
"""Steps before the first rehearsal."""
MAX_SIMULATION_FACTOR, MAX_EXTRAPOLATION_FACTOR = 20, 4
"""A rehearsal may take so many times the steps of the run, an extrapolation so many times."""
STEPS_AGREEMENT_FACTOR, STATES_AGREEMENT_FACTOR = 1.5, 1.1
"""Numbers of steps are about the same up to the first factor, and of states that were seen up to the second."""
MIN_SIMULATION_SECONDS = 5.0
"""Seconds of a rehearsal, or those of the run so far where that is more."""
MAX_COPIED_TABLE_SIZE = 4_000_000
"""Numbers in a table of bounds of which there is to be a second one."""


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a run from its beginning to its end."""

    steps: float
    seconds: float
    bytes: int
    done: float
    """The share of the steps that is done"""

    def __str__(self) -> str:
        return (
            f"about {self.steps:.1e} steps, {format_duration(self.seconds)} and {self.bytes / 1e6:,.0f} MB in all; "
            f"{100 * self.done:.0f}% of the steps are done"
        )


class CostEstimator:
    """An observer that ends a run as soon as its cost can be told; another one is called first."""

    def __init__(self, observe: RunObserver) -> None:
        self.cost_estimate: CostEstimate | None = None
        self._observe = observe
        self._next_estimate_steps = FIRST_ESTIMATE_STEPS  # steps at which the cost is asked for again
        self._last_simulation = (math.inf, 0)  # what the last rehearsal said, and the states that it knew
        self._time_marks: list[tuple[int, float]] = [(0, 0.0)]  # steps and seconds, whenever the steps have grown by 2%

    def __call__(self, run: ExplorationRun) -> bool:
        """Called after every rollout."""
        going = call_observer(self._observe, run)
        if run.steps >= 1.02 * self._time_marks[-1][0]:
            self._time_marks.append((run.steps, run.seconds))
        if run.steps >= self._next_estimate_steps:
            self._next_estimate_steps = 2 * run.steps
            self.cost_estimate = self._estimate_cost(run)
        return going and self.cost_estimate is None

    def _predict_total(self, run: ExplorationRun) -> PredictedCost | None:
        """Steps and seconds of the whole run, where they can be told."""
        columns = len(run.estimates.goal_state)
        method = methods.find_method(run.setting.method)
        if (
            method.uses_goal_rule
            and not run.setting.has_growing_radius
            and columns * run.counts.n_states <= MAX_COPIED_TABLE_SIZE
        ):
            rehearsed = simulate_remaining_run(
                run, MAX_SIMULATION_FACTOR * run.steps, max(MIN_SIMULATION_SECONDS, run.seconds)
            )
            total = math.inf if rehearsed is None else rehearsed.steps
            (last, knew), self._last_simulation = self._last_simulation, (total, int(run.counts.seen.sum()))
            if (
                total < math.inf
                and 1.0 / STEPS_AGREEMENT_FACTOR <= total / last <= STEPS_AGREEMENT_FACTOR
                and self._last_simulation[1] <= STATES_AGREEMENT_FACTOR * knew
            ):
                return rehearsed
        total = extrapolate_total_steps(run.trace, run.estimates.epsilon) or math.inf
        return PredictedCost(total, None) if total <= MAX_EXTRAPOLATION_FACTOR * run.steps else None

    def _estimate_cost(self, run: ExplorationRun) -> CostEstimate | None:
        told = self._predict_total(run)
        if told is None:
            return None
        total, seconds = max(told.steps, float(run.steps)), told.seconds
        if seconds is None or not isinstance(run.env, ModelSimulator) or run.counts.transition_log is not None:
            seconds = self._predict_seconds(run, total)
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return CostEstimate(total, seconds, largest, run.steps / total)

    def _predict_seconds(self, run: ExplorationRun, total: float) -> float:
        """Of a run of so many steps in all, from those so far."""
        steps = run.steps
        last, before = self._seconds_since(steps / 2), self._seconds_since(steps / 4)
        b = max(4.0 * (last - (before - last)) / steps, 0.0)
        c = max(last - b * steps / 2, 0.0) / math.log(2.0)
        return run.seconds + b * (total - steps) + c * math.log(total / steps)

    def _seconds_since(self, steps: float) -> float:
        """Seconds since there were so many steps."""
        place = min(bisect.bisect_left(self._time_marks, (int(steps), 0.0)), len(self._time_marks) - 1)
        return self._time_marks[-1][1] - self._time_marks[place][1]


# The rest of a run, rehearsed in the world that its counts describe: what it will cost, before it is paid.
#
# The same method goes on from a copy of what it knows, in a compiled simulator of the empirical model. The run itself
# learns nothing from that and is not changed; a slow environment is not asked for a single step. A pair that was never
# tried is taken for one that leads nowhere, and one that was tried twice for one that always does the same: while pairs
# have few tries it is too early for a rehearsal.


MIN_MEAN_TRIES_PER_PAIR = 10
"""Of a pair of the states that were seen, in the mean, at least."""


class PredictedCost(NamedTuple):
    """What a run will cost, from its beginning to its end."""

    steps: float
    seconds: float | None
    """With steps that take no longer than in the rehearsal; None where it did not come to its end"""


def simulate_remaining_run(run: ExplorationRun, budget: int, seconds: float) -> PredictedCost | None:
    """What the whole run will cost, None where that cannot be told or is more than the budget.

    A rehearsal that has not come to its end in so many seconds is extrapolated from there.
    """
    counts = run.counts
    there = np.repeat(counts.seen & ~counts.terminal, counts.n_actions) & ~counts.absent
    if counts.n.sum() < MIN_MEAN_TRIES_PER_PAIR * there.sum():
        return None
    twin, end = _copy_run(run), time.monotonic() + seconds
    status = run_exploration(twin, budget, lambda twin: time.monotonic() < end)
    if status.finished:
        return PredictedCost(float(twin.steps), twin.seconds)
    total = None if status is Status.BUDGET else extrapolate_total_steps(twin.trace, run.setting.epsilon)
    return PredictedCost(total, None) if total is not None and total <= budget else None


def _copy_run(run: ExplorationRun) -> ExplorationRun:
    """The same run, in a world of its own."""
    setting = run.setting
    world = ModelSimulator(_empirical_mdp(run.counts))
    for name in ("state_bound", "pair_bound", "start_is_certain", "mixture"):  # what the bounds were told
        setattr(world, name, getattr(run.env, name))
    counts, space = (
        TransitionCounts(run.counts.n_states, run.counts.n_actions, run.counts.start),
        copy.deepcopy(run.goal_space),
    )
    counts.restore(run.counts.state())
    problem = methods.ExplorationProblem(
        world, counts, run.estimates.L, setting.epsilon, setting.delta, space, seed=setting.seed
    )
    estimates = methods.build_estimates(setting.method, problem, setting.method_args)
    estimates.restore(*run.estimates.state())
    return replace(
        run,
        env=world,
        estimates=estimates,
        rng=np.random.default_rng(setting.seed),
        episode_goals=[],
        episode_reached=[],
        trace=list(run.trace),
        bounds_history=copy.deepcopy(run.bounds_history),
        goal_attempts=copy.deepcopy(run.goal_attempts),
        goal_space=space,
    )


def _empirical_mdp(counts: TransitionCounts) -> TabularMDP:
    """The empirical model; a pair never tried leads nowhere."""
    inside, pairs = counts.count > 0, np.arange(len(counts.n))
    successor, count = counts.successor.copy(), np.where(inside, counts.count, 0.0)
    none = counts.n == 0
    successor[none, 0] = np.where(counts.absent, counts.start, pairs // counts.n_actions)[none]
    count[none, 0], inside[none, 0] = 1.0, True
    p = count / count.sum(axis=1, keepdims=True)
    ends, absent = counts.terminal.copy(), counts.absent.copy()
    rows = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
    return TabularMDP(counts.n_states, counts.n_actions, rows, successor[inside], p[inside], counts.start, ends, absent)
