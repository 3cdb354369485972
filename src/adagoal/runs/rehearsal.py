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
from adagoal.core.counts import Counts
from adagoal.core.run import Run
from adagoal.core.status import Status
from adagoal.loop import explore
from adagoal.runs.progress import expected_total
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelWorld

TRIES = 10
"""Of a pair of the states that were seen, in the mean, at least."""


class Rehearsal(NamedTuple):
    """What a run will cost, from its beginning to its end."""

    steps: float
    seconds: float | None
    """With steps that take no longer than in the rehearsal; None where it did not come to its end"""


def rehearse(run: Run, budget: int, seconds: float) -> Rehearsal | None:
    """What the whole run will cost, None where that cannot be told or is more than the budget.

    A rehearsal that has not come to its end in so many seconds is extrapolated from there.
    """
    counts = run.counts
    there = np.repeat(counts.seen & ~counts.terminal, counts.n_actions) & ~counts.absent
    if counts.n.sum() < TRIES * there.sum():
        return None
    twin, end = _twin(run), time.monotonic() + seconds
    status = explore(twin, budget, lambda twin: time.monotonic() < end)
    if status.finished:
        return Rehearsal(float(twin.steps), twin.seconds)
    total = None if status is Status.BUDGET else expected_total(twin.trace, run.setting.epsilon)
    return Rehearsal(total, None) if total is not None and total <= budget else None


def _twin(run: Run) -> Run:
    """The same run, in a world of its own."""
    setting = run.setting
    world = ModelWorld(_learnt(run.counts))
    for name in ("state_bound", "pair_bound", "sure_start", "mixture"):  # what the bounds were told
        setattr(world, name, getattr(run.world, name))
    counts, space = Counts(run.counts.n_states, run.counts.n_actions, run.counts.start), copy.deepcopy(run.space)
    counts.restore(run.counts.state())
    problem = methods.Problem(world, counts, run.estimates.L, setting.epsilon, setting.delta, space, seed=setting.seed)
    estimates = methods.build(setting.method, problem, setting.method_args)
    estimates.restore(*run.estimates.state())
    return replace(
        run,
        world=world,
        estimates=estimates,
        rng=np.random.default_rng(setting.seed),
        episode_goals=[],
        episode_reached=[],
        trace=list(run.trace),
        past=copy.deepcopy(run.past),
        attempts=copy.deepcopy(run.attempts),
        space=space,
    )


def _learnt(counts: Counts) -> TabularMDP:
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
