"""Sweeps with the closed forms of :mod:`adagoal.planning.bounds`, written so that loops over goals become vector code.

A pair with up to four successors, nearly all of them in practice, is one loop over the goals that keeps everything
in registers; more successors are added up in scratch rows first. Indices are unsigned, so that none of them is
checked for counting from the end, and choices are written as selections. tests/test_sweeps.py has the plain version.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from adagoal.core.backup import VECTOR, low, low_known


@numba.njit(**VECTOR)
def up(mean, variance, most, r, q, top):  # type: ignore[no-untyped-def]
    """Up_x of lemma 4."""
    return (1.0 - q) * min(mean + math.sqrt(2.0 * r * variance) + r * (most - mean), most) + q * top


@numba.njit(**VECTOR)
def _successor(x, k, successor, weight, support):  # type: ignore[no-untyped-def]
    """The k-th successor of a pair and its weight; beyond the last one the first with weight zero."""
    inside = k < support[x]
    return np.uintp(successor[x, k if inside else 0]), weight[x, k] if inside else 0.0


@numba.njit(**VECTOR)
def _moments_of_four(own, y0, y1, y2, y3, w0, w1, w2, w3):  # type: ignore[no-untyped-def]
    """Mean and variance of four values; centred at the state's own one against cancellation."""
    d0, d1, d2, d3 = y0 - own, y1 - own, y2 - own, y3 - own
    m = w0 * d0 + w1 * d1 + w2 * d2 + w3 * d3
    return m + own, max(w0 * d0 * d0 + w1 * d1 * d1 + w2 * d2 * d2 + w3 * d3 * d3 - m * m, 0.0)


@numba.njit(**VECTOR)
def _moments(x, s, model, weight, F, mean, variance):  # type: ignore[no-untyped-def]
    """Mean and variance [B] of F [S, B] over any number of successors with their weights [X, K]; centred at F[s]."""
    for b in range(F.shape[1]):
        mean[b] = 0.0
        variance[b] = 0.0
    for k in range(model.support[x]):
        i, w = np.uintp(model.successor[x, k]), weight[x, k]
        for b in range(F.shape[1]):
            d = F[i, b] - F[s, b]
            mean[b] += w * d
            variance[b] += w * d * d
    for b in range(F.shape[1]):
        variance[b] = max(variance[b] - mean[b] * mean[b], 0.0)
        mean[b] += F[s, b]


@numba.njit(**VECTOR)
def largest(x, model, F, most):  # type: ignore[no-untyped-def]
    """The largest value [B] of F >= 0 [S, B] over any number of successors."""
    for b in range(F.shape[1]):
        most[b] = 0.0
    for k in range(model.support[x]):
        i = np.uintp(model.successor[x, k])
        for b in range(F.shape[1]):
            most[b] = max(most[b], F[i, b])


@numba.njit(**VECTOR)
def smallest(x, model, F, least):  # type: ignore[no-untyped-def]
    """The smallest value [B] of F [S, B] over any number of successors."""
    for b in range(F.shape[1]):
        least[b] = np.inf
    for k in range(model.support[x]):
        i = np.uintp(model.successor[x, k])
        for b in range(F.shape[1]):
            least[b] = min(least[b], F[i, b])


@numba.njit(**VECTOR)
def lower_sweep(order, model, block, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise."""
    successor, p, support, r_low, q = model.successor, model.p, model.support, model.r_low, model.q
    B, cap, column = V.shape[1], block.cap, block.column
    A = support.shape[0] // V.shape[0]
    mean, variance, least, best, rise = np.empty(B), np.empty(B), np.empty(B), np.empty(B), np.zeros(B)
    action = np.empty(B, np.int16)
    for state in order:
        s = np.uintp(state)
        for b in range(B):
            best[b] = min(cap, 1.0 + V[model.start, b])
            action[b] = A
        for a in range(0 if model.terminal[s] else A):
            x = s * np.uintp(A) + np.uintp(a)
            r = r_low[x]
            sure = 1.0 - q[x] if support[x] == 1 else 0.0
            if support[x] == 0:
                for b in range(B):
                    action[b] = a if 1.0 < best[b] else action[b]
                    best[b] = min(best[b], 1.0)
            elif model.complete[x]:
                r = model.r[x]
                if support[x] <= 4:
                    i0, w0 = _successor(x, 0, successor, model.p_split, support)
                    i1, w1 = _successor(x, 1, successor, model.p_split, support)
                    i2, w2 = _successor(x, 2, successor, model.p_split, support)
                    i3, w3 = _successor(x, 3, successor, model.p_split, support)
                    for b in range(B):
                        y0, y1, y2, y3 = V[i0, b], V[i1, b], V[i2, b], V[i3, b]
                        m, var = _moments_of_four(V[s, b], y0, y1, y2, y3, w0, w1, w2, w3)
                        value = 1.0 + low_known(m, var, min(min(y0, y1), min(y2, y3)), r)
                        action[b] = a if value < best[b] else action[b]
                        best[b] = min(value, best[b])
                else:
                    _moments(x, s, model, model.p_split, V, mean, variance)
                    smallest(x, model, V, least)
                    for b in range(B):
                        value = 1.0 + low_known(mean[b], variance[b], least[b], r)
                        action[b] = a if value < best[b] else action[b]
                        best[b] = min(value, best[b])
            elif support[x] <= 4:
                i0, w0 = _successor(x, 0, successor, p, support)
                i1, w1 = _successor(x, 1, successor, p, support)
                i2, w2 = _successor(x, 2, successor, p, support)
                i3, w3 = _successor(x, 3, successor, p, support)
                for b in range(B):
                    y0, y1, y2, y3 = V[i0, b], V[i1, b], V[i2, b], V[i3, b]
                    m, var = _moments_of_four(V[s, b], y0, y1, y2, y3, w0, w1, w2, w3)
                    value = 1.0 + low(m, var, r, cap, sure)
                    action[b] = a if value < best[b] else action[b]
                    best[b] = min(value, best[b])
            else:
                _moments(x, s, model, p, V, mean, variance)
                for b in range(B):
                    value = 1.0 + low(mean[b], variance[b], r, cap, sure)
                    action[b] = a if value < best[b] else action[b]
                    best[b] = min(value, best[b])
        for k in range(column.shape[1]):
            if column[s, k] >= 0:
                best[column[s, k]] = 0.0
        for b in range(B):
            policy[s, b] = action[b]
            rise[b] = max(rise[b], best[b] - V[s, b])
            V[s, b] = max(V[s, b], best[b])
    return rise.max()


@numba.njit(**VECTOR)
def upper_sweep(order, model, block, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``, the policy follows where Y falls; returns the largest fall."""
    successor, p, support = model.successor, model.p_split, model.support
    B, column = Y.shape[1], block.column
    A = support.shape[0] // Y.shape[0]
    mean, variance, most, best, fall = np.empty(B), np.empty(B), np.empty(B), np.empty(B), np.zeros(B)
    action = np.empty(B, np.int16)
    top = np.minimum(block.cap, 1.0 + Y[model.start])
    for state in order:
        s = np.uintp(state)
        for b in range(B):
            policy[s, b] = A if Y[s, b] > top[b] else policy[s, b]
            Y[s, b] = min(Y[s, b], top[b])
    for state in order:
        s = np.uintp(state)
        if model.terminal[s]:
            continue
        for b in range(B):
            best[b] = Y[s, b]
            action[b] = policy[s, b]
        for a in range(A):
            x = s * np.uintp(A) + np.uintp(a)
            r, q = model.r[x], model.q[x]
            if support[x] == 0:
                continue
            if support[x] <= 4:
                i0, w0 = _successor(x, 0, successor, p, support)
                i1, w1 = _successor(x, 1, successor, p, support)
                i2, w2 = _successor(x, 2, successor, p, support)
                i3, w3 = _successor(x, 3, successor, p, support)
                for b in range(B):
                    y0, y1, y2, y3 = Y[i0, b], Y[i1, b], Y[i2, b], Y[i3, b]
                    m, var = _moments_of_four(Y[s, b], y0, y1, y2, y3, w0, w1, w2, w3)
                    value = 1.0 + up(m, var, max(max(y0, y1), max(y2, y3)), r, q, top[b])
                    action[b] = a if value < best[b] else action[b]
                    best[b] = min(value, best[b])
            else:
                _moments(x, s, model, p, Y, mean, variance)
                largest(x, model, Y, most)
                for b in range(B):
                    value = 1.0 + up(mean[b], variance[b], most[b], r, q, top[b])
                    action[b] = a if value < best[b] else action[b]
                    best[b] = min(value, best[b])
        for k in range(column.shape[1]):
            b = column[s, k]
            if b >= 0:
                best[b], action[b] = Y[s, b], policy[s, b]
        for b in range(B):
            policy[s, b] = action[b]
            fall[b] = max(fall[b], Y[s, b] - best[b])
            Y[s, b] = best[b]
    return fall.max()
