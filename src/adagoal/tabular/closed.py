"""Sweeps with the closed forms of :mod:`adagoal.tabular.kernels`, written so that loops over goals become vector code.

All scratch is one row of B goals, rows are taken as views before the loops over goals, and choices are written as
selections. Results are those of the exact sweeps with closed forms in the place of the duals, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

VECTOR: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"nnan", "nsz"}}
"""There is no NaN here, so that min and max are single instructions; sums are not reordered."""


@numba.njit(**VECTOR)
def lower_sweep(order, goal_column, model, cap, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise."""
    B = V.shape[1]
    A = model.support.shape[0] // V.shape[0]
    mean, square, best, rise = np.empty(B), np.empty(B), np.empty(B), np.zeros(B)
    action = np.empty(B, np.int16)
    for s in order:
        own, first, chosen = V[s], V[model.start], policy[s]
        for b in range(B):
            best[b] = min(cap, 1.0 + first[b])
            action[b] = A
        for a in range(0 if model.terminal[s] else A):
            x = s * A + a
            if model.support[x] == 0:
                for b in range(B):
                    action[b] = a if 1.0 < best[b] else action[b]
                    best[b] = min(best[b], 1.0)
                continue
            for b in range(B):
                mean[b] = 0.0
                square[b] = 0.0
            for k in range(model.support[x]):
                if model.successor[x, k] == s:
                    continue  # d is zero
                weight = model.p[x, k]
                row = V[model.successor[x, k]]
                for b in range(B):
                    d = row[b] - own[b]
                    mean[b] += weight * d
                    square[b] += weight * d * d
            r = model.r_low[x]
            sure = 1.0 - model.q[x] if model.support[x] == 1 else 0.0
            for b in range(B):
                m = mean[b] + own[b]
                variance = max(square[b] - mean[b] * mean[b], 0.0)
                value = 1.0 + max(m * (1.0 - r) - math.sqrt(2.0 * r * variance), sure * m)
                action[b] = a if value < best[b] else action[b]
                best[b] = min(value, best[b])
        if goal_column[s] >= 0:
            best[goal_column[s]] = 0.0
        for b in range(B):
            chosen[b] = action[b]
            rise[b] = max(rise[b], best[b] - own[b])
            own[b] = max(own[b], best[b])
    return rise.max()


@numba.njit(**VECTOR)
def upper_sweep(order, goal_column, model, cap, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``, the policy follows where Y falls; returns the largest fall."""
    B = Y.shape[1]
    A = model.support.shape[0] // Y.shape[0]
    mean, square, most, best, fall = np.empty(B), np.empty(B), np.empty(B), np.empty(B), np.zeros(B)
    action = np.empty(B, np.int16)
    top = np.minimum(cap, 1.0 + Y[model.start])
    for s in order:
        own, chosen = Y[s], policy[s]
        for b in range(B):
            chosen[b] = A if own[b] > top[b] else chosen[b]
            own[b] = min(own[b], top[b])
    for s in order:
        if model.terminal[s]:
            continue
        own, chosen = Y[s], policy[s]
        for b in range(B):
            best[b] = own[b]
            action[b] = chosen[b]
        for a in range(A):
            x = s * A + a
            if model.support[x] == 0:
                continue
            for b in range(B):
                mean[b] = 0.0
                square[b] = 0.0
                most[b] = 0.0
            for k in range(model.support[x]):
                weight = model.p_split[x, k]
                row = Y[model.successor[x, k]]
                for b in range(B):
                    d = row[b] - own[b]
                    mean[b] += weight * d
                    square[b] += weight * d * d
                    most[b] = max(most[b], row[b])
            r, q = model.r[x], model.q[x]
            for b in range(B):
                m = mean[b] + own[b]
                variance = max(square[b] - mean[b] * mean[b], 0.0)
                split = m + math.sqrt(2.0 * r * variance) + r * (most[b] - m)
                value = 1.0 + (1.0 - q) * min(split, most[b]) + q * top[b]
                action[b] = a if value < best[b] else action[b]
                best[b] = min(value, best[b])
        if goal_column[s] >= 0:
            best[goal_column[s]] = own[goal_column[s]]
            action[goal_column[s]] = chosen[goal_column[s]]
        for b in range(B):
            chosen[b] = action[b]
            fall[b] = max(fall[b], own[b] - best[b])
            own[b] = best[b]
    return fall.max()
