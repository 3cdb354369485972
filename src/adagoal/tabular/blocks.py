"""Blocks of goals, swept side by side: each is copied out of the tables, improved, and put back.

No two blocks have a goal in common, and a lower bound does not look at an upper one. So what comes out does not depend
on how many threads there are, nor on which of them is first.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np

from adagoal.core.types import Actions, Floats, Longs
from adagoal.planning.model import EmpiricalModel, GoalBlock

BoundSweep = Callable[[EmpiricalModel, GoalBlock, Floats, Actions], tuple[Floats, Actions]]
"""A function of a backend that improves one bound."""


def sweep_block(
    sweep: BoundSweep, model: EmpiricalModel, given: GoalBlock, block: Longs, values: Floats, policy: Actions
) -> None:
    """The columns ``block`` of two tables [columns, S], after a backend's sweeps of one bound."""
    value_part, policy_part = sweep(model, given, *gather_block(values, policy, given.order, block))
    scatter_block(value_part, policy_part, given.order, block, values, policy)


@numba.njit(cache=True, nogil=True)
def gather_block(values, policy, order, block):  # type: ignore[no-untyped-def]
    """Return two parts [S, B]: the columns of a block of two tables [columns, S], zero outside the states of ``order``.

    The zeros are never put back. A backend on whole arrays reads them, so they must be numbers.
    """
    shape = values.shape[1], len(block)
    value_part, policy_part = np.zeros(shape, values.dtype), np.zeros(shape, policy.dtype)
    for s in order:
        for b in range(len(block)):
            value_part[s, b], policy_part[s, b] = values[block[b], s], policy[block[b], s]
    return value_part, policy_part


@numba.njit(cache=True, nogil=True)
def scatter_block(value_part, policy_part, order, block, values, policy):  # type: ignore[no-untyped-def]
    """Put them back."""
    for b in range(len(block)):
        for s in order:
            values[block[b], s], policy[block[b], s] = value_part[s, b], policy_part[s, b]
