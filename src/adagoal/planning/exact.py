"""Bellman operators of a known model for all goals at once, V: [S, G] with goals innermost.

A pair (s, a) that stays in s with probability p_ss is eliminated exactly: waiting until it leaves costs
1 / (1 - p_ss) steps, so that

    Q(s, a) = (1 + sum_{s' != s} p(s' | s, a) V(s')) / sum_{s' != s} p(s' | s, a),

with the leaving probability summed, not subtracted from one: nothing cancels where it is tiny.
"""

from __future__ import annotations

import numba
import numpy as np

from adagoal.core.types import Actions, Floats, Longs
from adagoal.planning.model import Sparse

BLOCK = 64
"""Goals that are swept together; a block of values stays in the cache."""


def exact(model: Sparse, goals: Longs, V: Floats, tolerance: float, sweeps: int) -> tuple[Floats, Floats]:
    """V [S, G] after value iteration from V, and a bound [G] on each goal's Bellman residual.

    A goal is finished once its residual is at most ``tolerance``; infinite entries of V stay as they are.
    """
    residual = np.zeros(goals.size)
    for first in range(0, goals.size, BLOCK):
        block = slice(first, first + BLOCK)
        values = np.ascontiguousarray(V[:, block])
        residual[block] = sweep(model, goals[block], values, tolerance, sweeps)
        V[:, block] = values
    return V, residual


@numba.njit(cache=True)
def sweep(model: Sparse, goals: Longs, V: Floats, tolerance: float, sweeps: int) -> Floats:
    """Gauss-Seidel value iteration on V [S, G] in place; returns each goal's largest change in the last sweep.

    The change of a sweep bounds the Bellman residual of the values that it leaves, because no value that
    an update has read moved by more.
    """
    indptr, successors, start = model.indptr, model.successors, model.start
    n_states, n_goals = V.shape
    n_actions = (indptr.size - 1) // n_states
    best = np.empty(n_goals)
    q = np.empty(n_goals)
    change = np.empty(n_goals)
    for iteration in range(sweeps):
        change[:] = 0.0
        for i in range(n_states):
            s = i if iteration % 2 == 0 else n_states - 1 - i
            if model.reset and s != start:
                best[:] = 1.0 + V[start]
            else:
                best[:] = np.inf
            for a in range(0 if model.terminal[s] else n_actions):
                leaving = 0.0
                q[:] = 1.0
                for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                    if successors[k] != s:
                        p = model.probabilities[k]
                        leaving += p
                        row = V[successors[k]]
                        for g in range(n_goals):
                            q[g] += p * row[g]
                if leaving > 0.0:
                    for g in range(n_goals):
                        best[g] = min(best[g], q[g] / leaving)
            for g in range(n_goals):
                if goals[g] == s:
                    best[g] = 0.0
                if abs(best[g] - V[s, g]) > change[g]:  # false for inf - inf
                    change[g] = abs(best[g] - V[s, g])
                V[s, g] = best[g]
        if change.max() <= tolerance:
            break
    return change


@numba.njit(cache=True)
def improve(model: Sparse, goals: Longs, V: Floats, actions: Actions, margin: float, halt: float) -> int:
    """Greedy actions [S, G] with respect to V [S, G], in place; returns how many changed.

    An action is replaced only by one that is better by the relative ``margin``; an action of -1 by any.
    Entries where V is infinite, and the goal itself, get the reset. ``halt`` is the probability with which
    every step is the last (see ``_start_policy`` in :mod:`adagoal.mdp.solve`).
    """
    indptr, successors, probabilities, start = model.indptr, model.successors, model.probabilities, model.start
    n_states, n_goals = V.shape
    n_actions = (indptr.size - 1) // n_states
    q = np.empty(n_actions + 1)
    changed = 0
    for s in range(n_states):
        for g in range(n_goals):
            if goals[g] == s or V[s, g] == np.inf:
                actions[s, g] = n_actions
                continue
            q[n_actions] = 1.0 + (1.0 - halt) * V[start, g] if model.reset and s != start else np.inf
            for a in range(n_actions):
                cost, leaving = 1.0, halt
                for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                    if successors[k] != s:
                        leaving += (1.0 - halt) * probabilities[k]
                        cost += (1.0 - halt) * probabilities[k] * V[successors[k], g]
                q[a] = cost / leaving if leaving > 0.0 and not model.terminal[s] else np.inf
            choice = actions[s, g]
            best = q[choice] if choice >= 0 else np.inf
            for a in range(n_actions + 1):
                if q[a] < best * (1.0 - margin):
                    choice, best = a, q[a]
            changed += choice != actions[s, g]
            actions[s, g] = choice
    return changed
