"""Unit-cost shortest paths to sets of states, on kernels whose rows may sum to less than one: how the rivals plan.

    V = 0 on the targets,   V(s) = min{ cap, 1 + V(s0), min_a 1 + q(s, a) V }  elsewhere,

over the *usable* pairs, q being the rows of the kernel. What a row misses to one goes to the target, where V = 0.
"""

from __future__ import annotations

import numba
import numpy as np

MAX_PATH_SWEEPS = 5000
"""Sweeps per problem, at most."""


@numba.njit(cache=True, nogil=True)
def solve_shortest_paths(kernel, usable, targets, precision, cap):  # type: ignore[no-untyped-def]
    """V [B, S], from below, up to a residual of ``precision``, and its greedy policy [B, S]; targets [B, S].

    Gauss-Seidel value iteration; ties go to the lowest action, and to any action before the reset.
    """
    n_sets, n_states = targets.shape
    n_actions = kernel.support.shape[0] // n_states
    values = np.zeros((n_sets, n_states))
    policy = np.full((n_sets, n_states), n_actions, np.int16)
    for b in range(n_sets):
        V = values[b]
        for _ in range(MAX_PATH_SWEEPS):
            change = 0.0
            for s in range(n_states):
                if targets[b, s]:
                    continue
                best, chosen = np.inf, n_actions
                for a in range(n_actions):
                    x = s * n_actions + a
                    if usable[x]:
                        q = 1.0
                        for k in range(kernel.support[x]):
                            q += kernel.p[x, k] * V[kernel.successor[x, k]]
                        if q < best:
                            best, chosen = q, a
                if 1.0 + V[kernel.start] < best:
                    best, chosen = 1.0 + V[kernel.start], n_actions
                best = min(best, cap)
                change = max(change, best - V[s])
                V[s], policy[b, s] = best, chosen
            if change <= precision:
                break
    return values, policy
