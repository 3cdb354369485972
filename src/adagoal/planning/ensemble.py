"""Capped values of all goals in each of M kernels: the planner of the Bayesian estimates.

    V_m = min{ C_m, 1 + V_m(s0), min_a 1 + p_m V_m }  off g,  V_m = 0  on g

V is [M, S + 1, G]: the last state is virtual, and its value stays what it is.
"""

from __future__ import annotations

import numba
import numpy as np

from adagoal.planning.model import goal_holds_state


@numba.njit(cache=True, nogil=True)
def improve_ensemble_values(model, targets, tolerance, sweeps, V, greedy):  # type: ignore[no-untyped-def]
    """V and its greedy policies [M, S, G] after Gauss-Seidel sweeps, forwards and backwards in turn.

    A member is left alone once a sweep has changed it by less than the tolerance.
    """
    change = np.full(V.shape[0], np.inf)
    for i in range(sweeps):
        for m in range(V.shape[0]):
            if change[m] >= tolerance:
                change[m] = _sweep_member(model, m, targets, i % 2 == 1, V[m], greedy[m])
        if change.max() < tolerance:
            break
    return V, greedy


@numba.njit(cache=True, nogil=True)
def _sweep_member(model, m, targets, backwards, V, greedy):  # type: ignore[no-untyped-def]
    """One sweep of V [S + 1, G] in member m, in place; returns the largest change. Ties go to the lowest action."""
    successor, p, atom = model.successor, model.p[m], model.atom[m]
    n_states, n_goals = model.terminal.shape[0], targets.size
    n_actions = model.support.shape[0] // n_states
    best, chosen, mean = np.zeros((3, n_goals))
    change = 0.0
    for i in range(n_states):
        s = n_states - 1 - i if backwards else i
        best[:] = V[model.start]
        chosen[:] = n_actions
        for a in range(-1 if model.terminal[s] else n_actions - 1, -1, -1):
            x = s * n_actions + a
            mean[:] = p[x, p.shape[1] - 1] * V[atom[x]]
            for k in range(model.support[x]):
                q, t = p[x, k], successor[x, k]
                for j in range(n_goals):
                    mean[j] += q * V[t, j]
            for j in range(n_goals):
                chosen[j] = a if mean[j] <= best[j] else chosen[j]
                best[j] = mean[j] if mean[j] <= best[j] else best[j]
        for j in range(n_goals):
            value = 0.0 if goal_holds_state(targets.column, s, j) else min(1.0 + best[j], model.caps[m])
            change = max(change, abs(value - V[s, j]))
            V[s, j] = value
            greedy[s, j] = chosen[j]
    return change
