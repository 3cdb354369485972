"""Compiled loops of the exact solver over graphs and single policies; those over all goals are in planning/exact.py."""

from __future__ import annotations

import numpy as np
from numba import njit

from adagoal.core.types import Actions, Bools, Floats, Ints, Longs
from adagoal.planning.model import Sparse


@njit(cache=True)
def hop_counts(model: Sparse, indptr: Longs, sources: Ints, goals: Longs) -> Floats:
    """[S, G]: the fewest steps with which luck could lead from s to g; infinite where no path exists.

    ``indptr`` [S + 1] and ``sources`` are the reversed graph: the states with an edge to s.
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
            if model.reset and state == model.start:
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
def almost_sure(model: Sparse, goal: int) -> Bools:
    """[S]: the states from which some policy reaches the goal with probability one.

    The greatest set that can be kept for ever while the goal stays within reach: states from which the
    actions that stay inside the set cannot lead to the goal are taken away until nothing changes.
    """
    indptr, successors = model.indptr, model.successors
    n_states = model.terminal.size
    n_actions = (indptr.size - 1) // n_states
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
                attracted[s] = model.reset and attracted[model.start]
                for a in range(0 if model.terminal[s] else n_actions):
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
def one_period(model: Sparse, goal: int, actions: Actions) -> tuple[float, float]:
    """One period of an H-step policy [H, S] and its closing reset: (expected steps, probability of the goal)."""
    indptr, start = model.indptr, model.start
    horizon, n_states = actions.shape
    n_actions = (indptr.size - 1) // n_states
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
            if model.terminal[s] or a == n_actions:
                moved[start] += mass[s]
            else:
                for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                    moved[model.successors[k]] += mass[s] * model.probabilities[k]
        success += moved[goal]
        moved[goal] = 0.0
        mass = moved
    return steps + mass.sum(), success
