"""Numerical kernels of the certified linear bounds, one goal at a time. V, Y: [S].

All that is known about theta is a :class:`Region`: |<theta* - theta, v>| <= ||root^T v|| for the vectors v =
phi_f(x), and root^T row_sums[x] = 0, so that f may be shifted by a constant: f is centred at f(s) against
cancellation. Two more bounds on p f need no data: with ``simplex`` it lies between the smallest and the largest phi_i
f, else between the smallest and the largest f on the support.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from adagoal.core.types import Bools, Floats, Ints, Longs


class Region(NamedTuple):
    """Where theta* lies: centre and width of every linear function of it."""

    theta: Floats
    """[d] the centre; <theta, row_sums[x]> = 1"""
    root: Floats
    """[d, k] the radius included: <theta* - theta, v> lies within +-||root^T v||"""


class Features(NamedTuple):
    """The arrays of a :class:`~adagoal.core.mixture.LinearMixture` that the sweeps read."""

    indptr: Longs
    successors: Ints
    features: Floats
    terminal: Bools
    start: int
    simplex: bool


@numba.njit(cache=True, nogil=True)
def tally(successor, count, support, indptr, successors, total):  # type: ignore[no-untyped-def]
    """Counts by place of the features (``total`` [nnz]); returns how many transitions have no place there."""
    lost = 0
    for x in range(len(support)):
        for k in range(support[x]):
            place = -1
            for j in range(indptr[x], indptr[x + 1]):
                if successors[j] == successor[x, k]:
                    place = j
                    break
            if place < 0:
                lost += count[x, k]
            else:
                total[place] = count[x, k]
    return lost


@numba.njit(cache=True, nogil=True, inline="always")
def _interval(x, centre, features, region, f, phi):  # type: ignore[no-untyped-def]
    """Bounds [low, up] on p_x f; f is centred at the number ``centre``."""
    d = len(phi)
    least, most = np.inf, -np.inf
    phi[:] = 0.0
    for j in range(features.indptr[x], features.indptr[x + 1]):
        value = f[features.successors[j]] - centre
        least = min(least, value)
        most = max(most, value)
        for i in range(d):
            phi[i] += features.features[j, i] * value
    if features.simplex:
        least, most = phi.min(), phi.max()
    mean, square = 0.0, 0.0
    for i in range(d):
        mean += region.theta[i] * phi[i]
    for c in range(region.root.shape[1]):
        along = 0.0
        for i in range(d):
            along += region.root[i, c] * phi[i]
        square += along * along
    width = math.sqrt(square)
    return centre + max(mean - width, least), centre + min(mean + width, most)


@numba.njit(cache=True, nogil=True)
def lower_sweep(order, goal, features, region, cap, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise.

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + Low_sa(V) }, 0 at the goal; the reset is action A. Where V(s) is
    1 + V(start) or more, nothing can rise, and the policy resets.
    """
    A = (len(features.indptr) - 1) // len(V)
    phi = np.empty(len(region.theta))
    rise = 0.0
    for s in order:
        best, action = 1.0 + V[features.start], A
        for a in range(0 if features.terminal[s] or V[s] >= best else A):
            low, _ = _interval(s * A + a, V[s], features, region, V, phi)
            if 1.0 + low < best:
                best, action = 1.0 + low, a
        policy[s] = action
        best = min(best, cap)
        if s != goal and best > V[s]:
            rise = max(rise, best - V[s])
            V[s] = best
    return rise


@numba.njit(cache=True, nogil=True)
def upper_sweep(order, goal, features, region, cap, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``; where Y falls, the policy takes the action. Returns the fall.

    T_up Y(s) = min{ 1 + Y(start), min_a 1 + Up_sa(Y) }, 0 at the goal. The reset is tried in every state.
    """
    A = (len(features.indptr) - 1) // len(Y)
    phi = np.empty(len(region.theta))
    fall = 0.0
    top = min(cap, 1.0 + Y[features.start])
    for s in range(len(Y)):
        if Y[s] > top:
            Y[s] = top
            policy[s] = A
    for s in order:
        if features.terminal[s] or s == goal:
            continue
        for a in range(A):
            _, up = _interval(s * A + a, Y[s], features, region, Y, phi)
            if 1.0 + up < Y[s]:
                fall = max(fall, Y[s] - 1.0 - up)
                Y[s] = 1.0 + up
                policy[s] = a
    return fall
