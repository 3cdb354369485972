"""VISGO, value iteration with slight goal optimism (Tarbouriech et al. 2021): how LAE and VALAE plan.

For a set K of usable pairs and a goal g, with the empirical rows p of n samples each,

    Q(s, a) = max{ 0, 1 + n/(n + 1) p V - max{ root sqrt(Var(p, V) iota / n), flat iota / n } },
    V(g) = 0,   V(s) = min{ cap, 1 + V(s0), min_a Q(s, a) }  elsewhere.

What n/(n + 1) takes away goes to the goal. Where ``flat`` is at least 2 root^2 times the largest V the operator is
monotone (lemma C.2 of Cai et al. 2022), so that values rise from zero to its fixed point in any order of the states.
"""

from __future__ import annotations

import math

import numba
import numpy as np

MAX_VISGO_SWEEPS = 20_000
"""Sweeps per goal, at most; values are optimistic before."""


@numba.njit(cache=True, nogil=True)
def solve_visgo(kernel, n, iota, usable, goals, root, flat, precision, cap):  # type: ignore[no-untyped-def]
    """V [B, S], from below, up to a residual of ``precision``, and its greedy policy [B, S]; goals [B], n, iota [X].

    Ties go to the lowest action, and to any action before the reset.
    """
    n_sets, n_states = len(goals), len(kernel.terminal)
    n_actions = kernel.support.shape[0] // n_states
    values = np.zeros((n_sets, n_states))
    policy = np.full((n_sets, n_states), n_actions, np.int16)
    for b in range(n_sets):
        V = values[b]
        for _ in range(MAX_VISGO_SWEEPS):
            change = 0.0
            for s in range(n_states):
                if s == goals[b]:
                    continue
                best, chosen = np.inf, n_actions
                for a in range(n_actions):
                    x = s * n_actions + a
                    if not usable[x]:
                        continue
                    mean, square = 0.0, 0.0
                    for k in range(kernel.support[x]):
                        v = V[kernel.successor[x, k]]
                        mean += kernel.p[x, k] * v
                        square += kernel.p[x, k] * v * v
                    tries, rate = max(n[x], 1), iota[x] / max(n[x], 1)
                    bonus = max(root * math.sqrt(max(square - mean * mean, 0.0) * rate), flat * rate)
                    q = max(0.0, 1.0 + mean * tries / (tries + 1.0) - bonus)
                    if q < best:
                        best, chosen = q, a
                if 1.0 + V[kernel.start] < best:
                    best, chosen = 1.0 + V[kernel.start], n_actions
                best = min(best, cap)
                change = max(change, abs(best - V[s]))
                V[s], policy[b, s] = best, chosen
            if change <= precision:
                break
    return values, policy
