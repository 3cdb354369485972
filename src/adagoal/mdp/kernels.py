"""Compiled loops of the exact solver. Arrays in, arrays out; goals are the innermost axis.

All loops take a model as the arrays of :class:`adagoal.worlds.model.TabularMDP` and the flag ``reset``: whether
the reset action exists (assumption ``assumption_reset``).

A pair (s, a) that stays in s with probability p_ss is eliminated exactly: waiting until it leaves costs
1 / (1 - p_ss) steps, so that

    Q(s, a) = (1 + sum_{s' != s} p(s' | s, a) V(s')) / sum_{s' != s} p(s' | s, a),

with the leaving probability summed, not subtracted from one: nothing cancels where it is tiny.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adagoal.core.types import Actions, Bools, Floats, Ints, Longs


@njit(cache=True)
def hop_counts(indptr: Longs, sources: Ints, start: int, reset: bool, goals: Longs) -> Floats:
    """[S, G]: the fewest steps with which luck could lead from s to g; infinite where no path exists.

    ``indptr`` and ``sources`` are the reversed graph: the states with an edge to s.
    """
    n_states = indptr.size - 1
    hops = np.full((n_states, goals.size), np.inf)
    queue = np.empty(n_states, np.int64)
    for column in range(goals.size):
        queue[0] = goals[column]
        hops[goals[column], column] = 0.0
        head, tail = 0, 1
        while head < tail:
            state = queue[head]
            head += 1
            next_hop = hops[state, column] + 1.0
            for k in range(indptr[state], indptr[state + 1]):
                if hops[sources[k], column] == np.inf:
                    hops[sources[k], column] = next_hop
                    queue[tail] = sources[k]
                    tail += 1
            if reset and state == start:
                for other in range(n_states):
                    if hops[other, column] == np.inf:
                        hops[other, column] = next_hop
                        queue[tail] = other
                        tail += 1
    return hops


@njit(cache=True)
def closure(indptr: Longs, neighbours: Ints, members: Bools) -> Bools:
    """[S]: the states that a graph leads to from the members, themselves included."""
    reached = members.copy()
    stack = [np.int64(s) for s in range(members.size) if members[s]]
    while len(stack) > 0:
        state = stack.pop()
        for k in range(indptr[state], indptr[state + 1]):
            if not reached[neighbours[k]]:
                reached[neighbours[k]] = True
                stack.append(np.int64(neighbours[k]))
    return reached


@njit(cache=True)
def almost_sure(
    indptr: Longs, successors: Ints, terminal: Bools, n_actions: int, start: int, reset: bool, goal: int
) -> Bools:
    """[S]: the states from which some policy reaches the goal with probability one.

    The greatest set that can be kept for ever while the goal stays within reach: states from which the
    actions that stay inside the set cannot lead to the goal are taken away until nothing changes.
    """
    n_states = terminal.size
    inside = np.ones(n_states, np.bool_)
    while True:
        attracted = np.zeros(n_states, np.bool_)
        attracted[goal] = True
        grew = True
        while grew:
            grew = False
            for s in range(n_states):
                if attracted[s]:
                    continue
                attracted[s] = reset and attracted[start]
                for a in range(0 if terminal[s] else n_actions):
                    stays, approaches = True, False
                    for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                        stays &= inside[successors[k]]
                        approaches |= attracted[successors[k]]
                    attracted[s] |= stays and approaches
                grew |= attracted[s]
        if (attracted == inside).all():
            return inside
        inside = attracted


@njit(cache=True)
def sweep(
    indptr: Longs,
    successors: Ints,
    probabilities: Floats,
    terminal: Bools,
    n_actions: int,
    start: int,
    reset: bool,
    goals: Longs,
    V: Floats,
    tolerance: float,
    max_sweeps: int,
) -> Floats:
    """Gauss-Seidel value iteration on V [S, G] in place; returns each goal's largest change in the last sweep.

    The change of a sweep bounds the Bellman residual of the values that it leaves, because no value that
    an update has read moved by more.
    """
    n_states, n_goals = V.shape
    best = np.empty(n_goals)
    q = np.empty(n_goals)
    change = np.empty(n_goals)
    for iteration in range(max_sweeps):
        change[:] = 0.0
        for i in range(n_states):
            s = i if iteration % 2 == 0 else n_states - 1 - i
            if reset and s != start:
                best[:] = 1.0 + V[start]
            else:
                best[:] = np.inf
            for a in range(0 if terminal[s] else n_actions):
                leaving = 0.0
                q[:] = 1.0
                for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                    if successors[k] != s:
                        p = probabilities[k]
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


@njit(cache=True)
def improve(
    indptr: Longs,
    successors: Ints,
    probabilities: Floats,
    terminal: Bools,
    n_actions: int,
    start: int,
    reset: bool,
    goals: Longs,
    V: Floats,
    actions: Actions,
    margin: float,
    halt: float,
) -> int:
    """Greedy actions [S, G] with respect to V [S, G], in place; returns how many changed.

    An action is replaced only by one that is better by the relative ``margin``; an action of -1 by any.
    Entries where V is infinite, and the goal itself, get the reset. ``halt`` is the probability with which
    every step is the last (see ``solve._start_policy``).
    """
    n_states, n_goals = V.shape
    q = np.empty(n_actions + 1)
    changed = 0
    for s in range(n_states):
        for g in range(n_goals):
            if goals[g] == s or V[s, g] == np.inf:
                actions[s, g] = n_actions
                continue
            q[n_actions] = 1.0 + (1.0 - halt) * V[start, g] if reset and s != start else np.inf
            for a in range(n_actions):
                cost, leaving = 1.0, halt
                for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                    if successors[k] != s:
                        leaving += (1.0 - halt) * probabilities[k]
                        cost += (1.0 - halt) * probabilities[k] * V[successors[k], g]
                q[a] = cost / leaving if leaving > 0.0 and not terminal[s] else np.inf
            choice = actions[s, g]
            best = q[choice] if choice >= 0 else np.inf
            for a in range(n_actions + 1):
                if q[a] < best * (1.0 - margin):
                    choice, best = a, q[a]
            changed += choice != actions[s, g]
            actions[s, g] = choice
    return changed


@njit(cache=True)
def eliminate(p: Floats, out: Floats) -> Floats:
    """Expected steps [n] until a chain ends that moves by p [n, n] (diagonal ignored) and ends with ``out`` [n].

    Elimination of states without a subtraction (Grassmann, Taksar, Heyman 1985): every entry of the
    result is accurate to a few units of rounding, however large it is. Overwrites its arguments.
    """
    n = out.size
    cost = np.ones(n)
    leaving = np.empty(n)
    for k in range(n - 1, -1, -1):
        leaving[k] = p[k, :k].sum() + out[k]
        for i in range(k):
            if p[i, k] > 0.0:
                share = p[i, k] / leaving[k]
                for j in range(k):
                    if j != i:
                        p[i, j] += share * p[k, j]
                out[i] += share * out[k]
                cost[i] += share * cost[k]
    for k in range(n):
        cost[k] = (cost[k] + (p[k, :k] * cost[:k]).sum()) / leaving[k]
    return cost


@njit(cache=True)
def one_period(
    indptr: Longs,
    successors: Ints,
    probabilities: Floats,
    terminal: Bools,
    n_actions: int,
    start: int,
    goal: int,
    actions: Actions,
) -> tuple[float, float]:
    """One period of an H-step policy [H, S] and its closing reset: (expected steps, probability of the goal)."""
    horizon, n_states = actions.shape
    mass = np.zeros(n_states)
    mass[start] = 1.0
    steps = success = 0.0
    for h in range(horizon):
        moved = np.zeros(n_states)
        for s in range(n_states):
            if mass[s] == 0.0:
                continue
            steps += mass[s]
            a = actions[h, s]
            if terminal[s] or a == n_actions:
                moved[start] += mass[s]
            else:
                for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                    moved[successors[k]] += mass[s] * probabilities[k]
        success += moved[goal]
        moved[goal] = 0.0
        mass = moved
    return steps + mass.sum(), success
