"""The rest of a run, rehearsed in the world that its counts describe: what it will cost, before it is paid.

The same method goes on from a copy of what it knows, in a compiled simulator of the empirical model. The run itself
learns nothing from that and is not changed; a slow environment is not asked for a single step. A pair that was never
tried is taken for one that leads nowhere, and one that was tried twice for one that always does the same: while pairs
have few tries it is too early for a rehearsal.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adagoal import methods
from adagoal.core.counts import TransitionCounts
from adagoal.core.run import ExplorationRun
from adagoal.core.status import Status
from adagoal.loop import run_exploration
from adagoal.runs.progress import extrapolate_total_steps
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelSimulator

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
