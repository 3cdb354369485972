"""How all columns of the certified estimates stand, or those of a block: one compiled loop each.

A small run asks for it thousands of times, and every call of NumPy takes as long as a loop over a thousand columns.
V, Y and their policies are tables [columns, S] here, D, upper, gap, E, stale and polished rows [columns].
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np

from adagoal.core.types import Actions, Floats, Longs
from adagoal.planning.model_arrays import EmpiricalModel, GoalBlock


@numba.njit(cache=True, nogil=True)
def goal_error(D, upper, gap, L):  # type: ignore[no-untyped-def]
    """What one goal lacks for the definition ``def_MGE``."""
    return max(min(upper - D, gap), upper - L)


@numba.njit(cache=True, nogil=True)
def goal_errors(D, upper, gap, L, cap):  # type: ignore[no-untyped-def]
    """[columns] E: what they lack, 0 at least, where no upper bound is above the cap."""
    E = np.empty(len(D))
    for j in range(len(D)):
        E[j] = max(goal_error(D[j], min(upper[j], cap), gap[j], L), 0.0)
    return E


@numba.njit(cache=True, nogil=True)
def stale_candidates(stale, wanted, D, E, L, epsilon):  # type: ignore[no-untyped-def]
    """The stale columns that are open or ``wanted`` [columns so far], and which of them are; none if none is wanted."""
    columns, first, any_wanted = np.empty(len(D), np.int64), np.empty(len(D), np.bool_), False
    n = 0
    for j in range(len(D)):
        mine = stale[j] and j < len(wanted) and wanted[j]
        if mine or (stale[j] and D[j] <= L and E[j] > epsilon):
            columns[n], first[n] = j, mine
            any_wanted |= mine
            n += 1
    n = n if any_wanted else 0
    return columns[:n], first[:n]


@numba.njit(cache=True, nogil=True)
def select_foremost(columns, first, E, most):  # type: ignore[no-untyped-def]
    """So many of the columns, in their order: the ``first`` ones first, then those of largest error."""
    chosen, n = np.empty(most + 1, np.int64), 0  # places in columns, the best one first
    for i in range(len(columns)):
        k = n
        while k > 0:
            other = chosen[k - 1]
            if first[i] < first[other] or (first[i] == first[other] and E[columns[i]] <= E[columns[other]]):
                break
            chosen[k] = other
            k -= 1
        chosen[k], n = i, min(n + 1, most)
    taken, found, m = np.zeros(len(columns), np.bool_), np.empty(n, np.int64), 0
    for k in range(n):
        taken[chosen[k]] = True
    for i in range(len(columns)):
        if taken[i]:
            found[m] = columns[i]
            m += 1
    return found


@numba.njit(cache=True, nogil=True)
def worst_column(D, E, L):  # type: ignore[no-untyped-def]
    """The column of largest error within the radius, the first one of several."""
    found, most = 0, -np.inf
    for j in range(len(D)):
        error = E[j] if D[j] <= L else -1.0
        if error > most:
            found, most = j, error
    return found


@numba.njit(cache=True, nogil=True)
def record_if_better(j, value, bound, L, D, upper, gap, best, returned):  # type: ignore[no-untyped-def]
    """Return the policy of Y, with this value and this gap, instead of the recorded one, where that leaves less to be
    done for column j."""
    if goal_error(D[j], value, bound, L) < goal_error(D[j], upper[j], gap[j], L):
        upper[j], gap[j] = value, bound
        for s in range(best.shape[1]):
            returned[j, s] = best[j, s]


@numba.njit(cache=True, nogil=True)
def record_sweep_results(block, order, start, L, cap, whole, V, Y, D, upper, gap, best, returned):  # type: ignore[no-untyped-def]
    """What a sweep of the columns ``block`` has found, from the start; ``whole``: Y is nowhere above the cap."""
    for j in block:
        D[j] = max(D[j], V[j, start])
        proper = Y[j, start] <= cap - 1.0
        if proper and not whole:
            for s in order:
                proper &= Y[j, s] <= cap
        if proper:
            record_if_better(j, Y[j, start], np.inf, L, D, upper, gap, best, returned)


@numba.njit(cache=True, nogil=True)
def columns_due_for_duals(block, steps, D, E, polished, L, epsilon, within, need, growth):  # type: ignore[no-untyped-def]
    """The columns of ``block`` that are open, with an error ``within`` reach, and were polished long enough ago.

    That is so once the steps have grown by the square of the error, in epsilons, in the range of the first two numbers
    of ``growth``; by the third one where the error is less than the share ``need`` of the largest.
    """
    least, most, later = growth
    largest, found, n = 0.0, np.empty(len(block), np.int64), 0
    for j in range(len(D)):
        if D[j] <= L:
            largest = max(largest, E[j])
    for j in block:
        factor = later if E[j] < need * largest else min(max((E[j] / epsilon) ** 2, least), most)
        if D[j] <= L and epsilon < E[j] <= within and steps >= factor * polished[j]:
            found[n] = j
            n += 1
    return found[:n]


# Blocks of goals, swept side by side: each is copied out of the tables, improved, and put back.
#
# No two blocks have a goal in common, and a lower bound does not look at an upper one. So what comes out does not
# depend on how many threads there are, nor on which of them is first.


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
