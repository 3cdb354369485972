"""Numerical kernels of the certified linear bounds. V, Y: [S, B], one column per goal of the block.

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
from numpy.typing import NDArray


class Region(NamedTuple):
    """Where theta* lies: centre and width of every linear function of it."""

    theta: NDArray[np.float64]
    """[d] the centre; <theta, row_sums[x]> = 1"""
    root: NDArray[np.float64]
    """[d, k] the radius included: <theta* - theta, v> lies within +-||root^T v||"""


class Features(NamedTuple):
    """The arrays of a :class:`~adagoal.linear.mixture.LinearMixture` that the sweeps read."""

    indptr: NDArray[np.int64]
    successors: NDArray[np.int32]
    features: NDArray[np.float64]
    terminal: NDArray[np.bool_]
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
def _interval(x, s, features, region, F, phi, mean, width, least, most):  # type: ignore[no-untyped-def]
    """For every column: <theta, phi_f(x)>, its width, and the data-free bounds on p f; f is centred at f(s)."""
    B = F.shape[1]
    d = len(region.theta)
    k = region.root.shape[1]
    phi[:] = 0.0
    for b in range(B):
        least[b] = np.inf
        most[b] = -np.inf
    for j in range(features.indptr[x], features.indptr[x + 1]):
        row = F[features.successors[j]]
        for i in range(d):
            weight = features.features[j, i]
            if weight != 0.0:
                for b in range(B):
                    phi[i, b] += weight * (row[b] - F[s, b])
        if not features.simplex:
            for b in range(B):
                least[b] = min(least[b], row[b])
                most[b] = max(most[b], row[b])
    if features.simplex:
        for i in range(d):
            for b in range(B):
                least[b] = min(least[b], phi[i, b] + F[s, b])
                most[b] = max(most[b], phi[i, b] + F[s, b])
    for b in range(B):
        mean[b] = F[s, b]
        width[b] = 0.0
    for i in range(d):
        for b in range(B):
            mean[b] += region.theta[i] * phi[i, b]
    for c in range(k):
        for b in range(B):
            along = 0.0
            for i in range(d):
                along += region.root[i, c] * phi[i, b]
            width[b] += along * along
    for b in range(B):
        width[b] = math.sqrt(width[b])


@numba.njit(cache=True, nogil=True)
def lower_sweep(order, goal_column, features, region, cap, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise.

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + Low_sa(V) }, 0 at the goal; the reset is action A.
    """
    B = V.shape[1]
    A = (len(features.indptr) - 1) // V.shape[0]
    phi = np.empty((len(region.theta), B))
    mean, width, least, most, best = np.empty((5, B))
    action = np.empty(B, np.int16)
    rise = 0.0
    for s in order:
        for b in range(B):
            best[b] = 1.0 + V[features.start, b]
            action[b] = A
        for a in range(0 if features.terminal[s] else A):
            _interval(s * A + a, s, features, region, V, phi, mean, width, least, most)
            for b in range(B):
                value = 1.0 + max(mean[b] - width[b], least[b])
                if value < best[b]:
                    best[b] = value
                    action[b] = a
        for b in range(B):
            policy[s, b] = action[b]
            value = min(best[b], cap)
            if goal_column[s] != b and value > V[s, b]:
                rise = max(rise, value - V[s, b])
                V[s, b] = value
    return rise


@numba.njit(cache=True, nogil=True)
def upper_sweep(order, goal_column, features, region, cap, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``; where Y falls, the policy takes the action. Returns the fall.

    T_up Y(s) = min{ 1 + Y(start), min_a 1 + Up_sa(Y) }, 0 at the goal. Other states stand at the cap, with the reset.
    """
    B = Y.shape[1]
    A = (len(features.indptr) - 1) // Y.shape[0]
    phi = np.empty((len(region.theta), B))
    mean, width, least, most, best = np.empty((5, B))
    action = np.empty(B, np.int16)
    fall = 0.0
    for s in order:
        for b in range(B):
            best[b] = min(cap, 1.0 + Y[features.start, b])
            action[b] = A
        for a in range(0 if features.terminal[s] else A):
            _interval(s * A + a, s, features, region, Y, phi, mean, width, least, most)
            for b in range(B):
                value = 1.0 + min(mean[b] + width[b], most[b])
                if value < best[b]:
                    best[b] = value
                    action[b] = a
        for b in range(B):
            if goal_column[s] != b and best[b] < Y[s, b]:
                fall = max(fall, Y[s, b] - best[b])
                Y[s, b] = best[b]
                policy[s, b] = action[b]
    return fall
