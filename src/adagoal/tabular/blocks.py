"""Blocks of goals, swept side by side: each is copied out of the tables, improved, and put back.

No two blocks have a goal in common, and a lower bound does not look at an upper one. So what comes out does not depend
on how many threads there are, nor on which of them is first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait

import numba
import numpy as np

from adagoal.core.types import Actions, Floats, Longs
from adagoal.planning.model import Block, Empirical

Sweep = Callable[[Empirical, Block, Floats, Actions], tuple[Floats, Actions]]
"""A function of a backend that improves one bound."""


def improve(sweep: Sweep, model: Empirical, given: Block, block: Longs, values: Floats, policy: Actions) -> None:
    """The columns ``block`` of two tables [columns, S], after a backend's sweeps of one bound."""
    value_part, policy_part = sweep(model, given, *gather(values, policy, given.order, block))
    scatter(value_part, policy_part, given.order, block, values, policy)


def side_by_side(jobs: Sequence[Callable[[], None]], threads: Executor | None) -> None:
    """Do all jobs, in these threads or without any. None of them is left running, whatever is raised."""
    if threads is None:
        for job in jobs:
            job()
        return
    begun = [threads.submit(job) for job in jobs]
    try:
        for one in begun:
            one.result()
    finally:
        wait(begun)


@numba.njit(cache=True, nogil=True)
def gather(values, policy, order, block):  # type: ignore[no-untyped-def]
    """Two parts [S, B]: the columns of a block of two tables [columns, S], at the states of ``order``; anything
    elsewhere."""
    shape = values.shape[1], len(block)
    value_part, policy_part = np.empty(shape, values.dtype), np.empty(shape, policy.dtype)
    for s in order:
        for b in range(len(block)):
            value_part[s, b], policy_part[s, b] = values[block[b], s], policy[block[b], s]
    return value_part, policy_part


@numba.njit(cache=True, nogil=True)
def scatter(value_part, policy_part, order, block, values, policy):  # type: ignore[no-untyped-def]
    """Put them back."""
    for b in range(len(block)):
        for s in order:
            values[block[b], s], policy[block[b], s] = value_part[s, b], policy_part[s, b]
