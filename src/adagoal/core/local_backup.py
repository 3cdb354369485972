"""One lower bound, backed up at one state: what an agent does on its way (docs/theory.md, lemmas 1, 4 and 5).

With m and Var the mean and variance of V over the observed successors of a pair, C the cap and r = l/n its radius,

    Low  = m - r m - 1.02 max{ sqrt(2 r max(Var, 2 r (0.01 C)^2)), 0.01 Var/C },
           and at least (1-q) V(s') where s' is the only successor observed,
           or, in a large world, max{ min V, m - sqrt(2 r' Var) - r' (m - min V) } where all successors are known,
    V(s) <- max{ V(s), min{ C, 1 + V(s0), min_a 1 + Low_sa(V) } }.

A local backup takes n and the successors as they are at this moment; q may be an older bound on the mass of successors
never observed, because what has been observed only grows. The radius r' of lemma 2 and the frequencies that go with it
are those of the last plan. Sweeps over all states (:mod:`adagoal.planning.simd_sweeps`) use
the same Low for many goals at once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from adagoal.core.types import Actions, Bools, Floats

FINEST_LEVEL, LEVEL_RATIO = 1e-2, 1.5
N_LEVELS = 2 + math.ceil(-2.0 * math.log(FINEST_LEVEL) / math.log(LEVEL_RATIO))
"""The levels t of lemma 1: 0, and from FINEST times the cap to 1/FINEST times the cap with this ratio."""
NEAREST_LEVEL_FACTOR = (math.sqrt(LEVEL_RATIO) + 1.0 / math.sqrt(LEVEL_RATIO)) / 2.0
"""What the nearest level can cost: r t + Var/(2t) is at most this multiple of its least value sqrt(2 r Var)."""
VECTOR_MATH_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"nnan", "nsz"},
}
"""There is no NaN here, so that min and max are single instructions; sums are not reordered."""


class LocalLowerBounds(NamedTuple):
    """Lower bounds that an episode raises on its way and follows; one column for every goal."""

    V: Floats
    """[columns, S] lower bounds, 0 at the goal"""
    probe: Actions
    """[columns, S] actions that go before the greedy ones while probing, -1: none"""
    probing: bool
    q: Floats
    """[X] bounds on the mass of successors never observed"""
    log: float
    """l: the radius of a pair with n tries is l/n"""
    complete: Bools
    """[X] pairs of which all successors are known, and whose bounds are those of lemma 2"""
    p: Floats
    """[X, K] their frequencies, at the last plan"""
    r: Floats
    """[X] and the radius that goes with them"""
    cap: float
    """C"""
    start: int
    n_actions: int
    """A"""


@numba.njit(**VECTOR_MATH_OPTIONS)
def closed_form_low(mean, variance, r, cap, sure):  # type: ignore[no-untyped-def]
    """Low_x of lemma 4; ``sure`` is 1 - q where the pair has a single successor and 0 elsewhere."""
    width = math.sqrt(2.0 * r * NEAREST_LEVEL_FACTOR**2 * max(variance, 2.0 * r * (FINEST_LEVEL * cap) ** 2))
    if 8.0 * r < FINEST_LEVEL**2:  # elsewhere no variance of numbers between 0 and C is as large
        width = max(width, variance * (NEAREST_LEVEL_FACTOR * FINEST_LEVEL / cap))
    return max(mean * (1.0 - r) - width, sure * mean)


@numba.njit(**VECTOR_MATH_OPTIONS)
def closed_form_low_complete(mean, variance, least, r):  # type: ignore[no-untyped-def]
    """Low_x of lemma 4 where all successors are known; ``least`` is the smallest value of them."""
    return max(mean - math.sqrt(2.0 * r * variance) - r * (mean - least), least)


@numba.njit(**VECTOR_MATH_OPTIONS)
def _greedy_backup(state, V, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """T_low V(s) for the bounds V [S] of one column, off its goal, and the greedy action; A is the reset."""
    s, A = np.uintp(state), np.uintp(local.n_actions)
    best, action = min(local.cap, 1.0 + V[local.start]), np.int64(A)
    for a in range(local.n_actions):
        x = s * A + np.uintp(a)
        value = 1.0
        if n[x] == 0 and support[x] == 1:
            continue  # the state does not have this action: it is the reset
        if support[x] == 1:
            value += closed_form_low(V[np.uintp(successor[x, 0])], 0.0, local.log / n[x], local.cap, 1.0 - local.q[x])
        elif local.complete[x]:
            m, square, own, least = 0.0, 0.0, V[s], np.inf
            for k in range(min(support[x], local.p.shape[1])):  # the user may be wrong about their number
                d = V[np.uintp(successor[x, k])] - own
                m += local.p[x, k] * d
                square += local.p[x, k] * d * d
                least = min(least, d)
            value += closed_form_low_complete(m + own, max(square - m * m, 0.0), least + own, local.r[x])
        elif support[x] > 1:
            m, square, own, scale = 0.0, 0.0, V[s], 1.0 / n[x]
            for k in range(support[x]):
                d = V[np.uintp(successor[x, k])] - own
                m += count[x, k] * d
                square += count[x, k] * d * d
            m, square = m * scale, square * scale
            value += closed_form_low(m + own, max(square - m * m, 0.0), local.log * scale, local.cap, 0.0)
        if value < best:
            best, action = value, np.int64(a)
    return best, action


@numba.njit(**VECTOR_MATH_OPTIONS)
def backup_state(state, column, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """Raise V at a state off the goal where not only the reset is allowed; returns the action to take, A: the reset."""
    V = local.V[column]
    best, action = _greedy_backup(state, V, local, successor, count, support, n)
    if best > V[state]:
        V[state] = best
    if local.probing and local.probe[column, state] >= 0:
        return np.int64(local.probe[column, state])
    return action


@numba.njit(**VECTOR_MATH_OPTIONS)
def greedy_action_table(columns, states, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """[1, S, columns] the actions of :func:`backup_state` in these states, for those who cannot ask on the way."""
    actions = np.zeros((1, local.V.shape[1], len(columns)), np.int16)
    for j in range(len(columns)):
        column = columns[j]
        for s in states:
            action = _greedy_backup(s, local.V[column], local, successor, count, support, n)[1]
            probed = local.probing and local.probe[column, s] >= 0
            actions[0, s, j] = local.probe[column, s] if probed else action
    return actions
