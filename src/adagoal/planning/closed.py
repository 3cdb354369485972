"""Sweeps with the closed forms of :mod:`adagoal.planning.bounds`, for sixteen goals at a time (:mod:`.lanes`).

A block has a multiple of sixteen goals: :mod:`~adagoal.planning.bounds` fills up those that have not. Indices are
unsigned, so that none of them is checked for counting from the end. tests/test_sweeps.py has the plain version.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from adagoal.core.backup import VECTOR_MATH_OPTIONS, closed_form_low, closed_form_low_complete
from adagoal.planning.lanes import (
    N_LANES,
    broadcast_lanes,
    largest_lane,
    load_lanes,
    replace_lane,
    select_where_less,
    store_lanes,
)


@numba.njit(**VECTOR_MATH_OPTIONS, forceinline=True)
def closed_form_up(mean, variance, most, r, q, top):  # type: ignore[no-untyped-def]
    """Up_x of lemma 4."""
    return (1.0 - q) * min(mean + math.sqrt(2.0 * r * variance) + r * (most - mean), most) + q * top


@numba.njit(**VECTOR_MATH_OPTIONS, forceinline=True)
def _lane_moments(x, first, model, weight, F):  # type: ignore[no-untyped-def]
    """Mean, variance, smallest and largest value of F [S, B] over the successors of a pair, with weights [X, K], for
    the goals from ``first`` on; centred at the first successor against cancellation."""
    centre = load_lanes(F, model.successor[x, 0], first)
    mean, square, least, most = broadcast_lanes(0.0), broadcast_lanes(0.0), centre, centre
    for k in range(1, model.support[x]):
        value = load_lanes(F, model.successor[x, k], first)
        distance = value - centre
        part = distance * weight[x, k]
        mean, square = mean + part, square + part * distance
        least, most = min(least, value), max(most, value)
    return centre + mean, max(square - mean * mean, 0.0), least, most


@numba.njit(**VECTOR_MATH_OPTIONS, forceinline=True)
def _lower_backup(x, first, model, cap, V):  # type: ignore[no-untyped-def]
    """1 + Low_x(V), for the goals from ``first`` on."""
    support = model.support[x]
    if support == 0:
        return broadcast_lanes(1.0)
    if support == 1:
        sure = 1.0 - model.q[x]
        return 1.0 + closed_form_low(
            load_lanes(V, model.successor[x, 0], first), broadcast_lanes(0.0), model.r_low[x], cap, sure
        )
    if model.complete[x]:
        mean, variance, least, _ = _lane_moments(x, first, model, model.p_split, V)
        return 1.0 + closed_form_low_complete(mean, variance, least, model.r[x])
    mean, variance, _, _ = _lane_moments(x, first, model, model.p, V)
    return 1.0 + closed_form_low(mean, variance, model.r_low[x], cap, 0.0)


@numba.njit(**VECTOR_MATH_OPTIONS)
def closed_form_lower_sweep(order, model, block, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise."""
    B, cap, column, step = np.uintp(V.shape[1]), block.cap, block.column, np.uintp(N_LANES)
    A = np.uintp(model.support.shape[0] // V.shape[0])
    rise = broadcast_lanes(0.0)
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), B, step):
            own = load_lanes(V, s, first)
            best, action = min(cap, 1.0 + load_lanes(V, model.start, first)), broadcast_lanes(A)
            for a in range(np.uintp(0) if model.terminal[s] else A):
                value = _lower_backup(s * A + a, first, model, cap, V)
                action = select_where_less(value, best, a, action)
                best = min(value, best)
            for k in range(column.shape[1]):
                lane = np.uintp(column[s, k]) - first
                if lane < step:
                    best = replace_lane(best, lane, 0.0)
            store_lanes(policy, s, first, action)
            rise = max(rise, best - own)
            store_lanes(V, s, first, max(own, best))
    return largest_lane(rise)


@numba.njit(**VECTOR_MATH_OPTIONS)
def closed_form_upper_sweep(order, model, block, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``, the policy follows where Y falls; returns the largest fall."""
    B, column, step = np.uintp(Y.shape[1]), block.column, np.uintp(N_LANES)
    A = np.uintp(model.support.shape[0] // Y.shape[0])
    top = np.minimum(block.cap, 1.0 + Y[model.start : model.start + 1])
    fall = broadcast_lanes(0.0)
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), B, step):
            own, most = load_lanes(Y, s, first), load_lanes(top, 0, first)
            store_lanes(policy, s, first, select_where_less(most, own, A, load_lanes(policy, s, first)))
            store_lanes(Y, s, first, min(own, most))
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), np.uintp(0) if model.terminal[s] else B, step):
            own, most = load_lanes(Y, s, first), load_lanes(top, 0, first)
            best, action = own, load_lanes(policy, s, first)
            for a in range(A):
                x = s * A + a
                if model.support[x] > 0:
                    mean, variance, _, furthest = _lane_moments(x, first, model, model.p_split, Y)
                    value = 1.0 + closed_form_up(mean, variance, furthest, model.r[x], model.q[x], most)
                    action = select_where_less(value, best, a, action)
                    best = min(value, best)
            for k in range(column.shape[1]):
                lane = np.uintp(column[s, k]) - first
                if lane < step:
                    best = replace_lane(best, lane, Y[s, first + lane])
                    action = replace_lane(action, lane, policy[s, first + lane])
            store_lanes(policy, s, first, action)
            fall = max(fall, own - best)
            store_lanes(Y, s, first, best)
    return largest_lane(fall)
