"""Lower bounds backed up at one state: what the agent does at every step (docs/theory.md, lemma 5).

    V(s) <- max{ V(s), min{ C, 1 + V(s0), min_a 1 + Low_sa(V) } }

with Low of :mod:`adagoal.core.operators`. :mod:`adagoal.certified.sweeps` uses the same Low for many goals at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.operators import VECTOR_MATH_OPTIONS, closed_form_low, closed_form_low_complete
from adagoal.core.types import Actions, Bools, Floats


class LocalLowerBounds(NamedTuple):
    """Lower bounds that an episode raises and follows, one row per column of estimates."""

    V: Floats  # [columns, S] lower bounds, 0 at the goal
    probe: Actions  # [columns, S] actions that replace the greedy ones while probing, -1: none
    probing: bool
    q: Floats  # [X] bounds on the mass of successors never observed
    log: float  # l: the radius of a pair with n tries is l/n
    complete: Bools  # [X] pairs whose successors are all known; their bounds use lemma 2
    p: Floats  # [X, K] frequencies of these pairs at the last plan
    r: Floats  # [X] radii of these pairs at the last plan
    cap: float  # C
    start: int
    n_actions: int  # A


@compiled_helper(**VECTOR_MATH_OPTIONS)
def _greedy_backup(state, V, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """Return T_low V(s) for the bounds V [S] of one column, off its goal, and the greedy action; A is the reset."""
    # n and the successors are those of the moment, because lemma 1 holds for all n at once. The bound q may be that of
    # the last plan, because the set of observed successors only grows; so may p and r, by lemma 2.
    # Unsigned indices: for signed ones Numba adds a test for negative numbers to every access.
    s, A = np.uintp(state), np.uintp(local.n_actions)
    best, action = min(local.cap, 1.0 + V[local.start]), np.int64(A)
    for a in range(local.n_actions):
        x = s * A + np.uintp(a)
        value = 1.0
        # Absent pairs are stored as the reset, with one successor and no tries. The radius l/n would divide by 0.
        if n[x] == 0 and support[x] == 1:
            continue
        if support[x] == 1:
            value += closed_form_low(V[np.uintp(successor[x, 0])], 0.0, local.log / n[x], local.cap, 1.0 - local.q[x])
        elif local.complete[x]:
            # Differences from V(s) are small, so mean(d^2) - mean(d)^2 loses fewer digits. It may still come out
            # negative, hence the max with 0 before the square root.
            m, square, own, least = 0.0, 0.0, V[s], np.inf
            # If the user declared too few successors (`branching`), p is narrower than the support.
            for k in range(min(support[x], local.p.shape[1])):
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


@compiled(**VECTOR_MATH_OPTIONS)
def backup_state(state, column, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """Raise V at a state and return the action to take, A for the reset. The state is neither a goal nor terminal."""
    V = local.V[column]
    best, action = _greedy_backup(state, V, local, successor, count, support, n)
    # Only upwards: both numbers are lower bounds, so the larger one is, and D never falls.
    if best > V[state]:
        V[state] = best
    if local.probing and local.probe[column, state] >= 0:
        return np.int64(local.probe[column, state])
    return action


@compiled(**VECTOR_MATH_OPTIONS)
def greedy_action_table(columns, states, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """Return [1, S, columns]: the actions of :func:`backup_state` in these states, for workers in other processes."""
    # Workers count nothing, so they cannot back up bounds on the way.
    actions = np.zeros((1, local.V.shape[1], len(columns)), np.int16)
    for j in range(len(columns)):
        column = columns[j]
        for s in states:
            action = _greedy_backup(s, local.V[column], local, successor, count, support, n)[1]
            probed = local.probing and local.probe[column, s] >= 0
            actions[0, s, j] = local.probe[column, s] if probed else action
    return actions
