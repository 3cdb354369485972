"""Compiled graph and chain algorithms of the exact solver; value iteration is in planning/value_iteration.py."""

from __future__ import annotations

import numpy as np

from adagoal.core.compiled_code import compiled
from adagoal.core.types import Actions, Bools, Floats, Ints, Longs
from adagoal.planning.model_arrays import SparseModel, TargetGoals


@compiled
def reversed_edges(model: SparseModel) -> tuple[Longs, Ints]:
    """Predecessors of every state, by all actions but the reset, as (indptr [S + 1], sources)."""
    n_states = model.terminal.size
    rows = model.indptr[:: (model.indptr.size - 1) // n_states]  # one row per state: its actions are adjacent
    indptr = np.zeros(n_states + 2, np.int64)
    sources = np.empty(0, np.int32)
    # Two passes: count the edges, then store them. The last source of an edge to each state finds duplicates.
    for fill in (False, True):
        last = np.full(n_states, -1, np.int32)
        for s in range(n_states):
            for k in range(rows[s], rows[s] if model.terminal[s] else rows[s + 1]):
                successor = model.successors[k]
                if last[successor] != s:
                    last[successor] = s
                    if fill:
                        sources[indptr[successor + 1]] = s
                        indptr[successor + 1] += 1
                    else:
                        indptr[successor + 2] += 1
        if not fill:
            indptr = np.cumsum(indptr)
            sources = np.empty(indptr[-1], np.int32)
    return indptr[:-1], sources


@compiled
def breadth_first_hops(indptr: Longs, neighbours: Ints, sources: Longs, limit: float) -> Floats:
    """Fewest edges from any of the sources [S]; infinite if no path has at most ``limit`` of them."""
    distance = np.full(indptr.size - 1, np.inf)
    queue = np.empty(distance.size, np.int32)
    for i in range(sources.size):
        distance[sources[i]], queue[i] = 0.0, sources[i]
    head, tail = 0, sources.size
    while head < tail and distance[queue[head]] < limit:
        state = queue[head]
        head += 1
        for k in range(indptr[state], indptr[state + 1]):
            if distance[neighbours[k]] == np.inf:
                distance[neighbours[k]] = distance[state] + 1.0
                queue[tail] = neighbours[k]
                tail += 1
    return distance


@compiled
def hop_counts_to_goals(model: SparseModel, indptr: Longs, sources: Ints, targets: TargetGoals, limit: float) -> Floats:
    """Fewest steps from s to g [S, G], directly or after an immediate reset: a lower bound on V*.

    Infinite if no path without a reset has at most ``limit`` steps. ``indptr`` and ``sources`` are the
    :func:`reversed_edges`.
    """
    counts = np.empty((indptr.size - 1, targets.size))
    states = np.empty(indptr.size - 1, np.int64)  # of one goal
    for g in range(targets.size):
        n = 0
        for s in range(targets.column.shape[0]):
            for k in range(targets.column.shape[1]):
                if targets.column[s, k] == g:
                    states[n] = s
                    n += 1
        distance = breadth_first_hops(indptr, sources, states[:n], limit)
        # States without a short path stay infinite, although they may reset: no sweep visits them.
        by_reset = 1.0 + distance[model.start] if model.reset else np.inf
        for s in range(distance.size):
            counts[s, g] = min(distance[s], by_reset) if distance[s] < np.inf else np.inf
    return counts


@compiled
def policy_rows(model: SparseModel, actions: Actions, goal: Bools) -> tuple[Longs, Ints, Floats]:
    """Rows (indptr [S + 1], successors, probabilities) of a stationary policy [S]; those of ``goal`` [S] are empty."""
    n_states = actions.size
    n_actions = (model.indptr.size - 1) // n_states
    indptr = np.zeros(n_states + 1, np.int64)
    successors = np.empty(model.successors.size + n_states, np.int32)
    probabilities = np.empty(successors.size)
    end = 0
    for s in range(n_states):
        if not goal[s] and (model.terminal[s] or actions[s] == n_actions):
            successors[end], probabilities[end] = model.start, 1.0
            end += 1
        elif not goal[s]:
            x = s * n_actions + actions[s]
            for k in range(model.indptr[x], model.indptr[x + 1]):
                successors[end], probabilities[end] = model.successors[k], model.probabilities[k]
                end += 1
        indptr[s + 1] = end
    return indptr, successors[:end].copy(), probabilities[:end].copy()


@compiled
def almost_sure_states(model: SparseModel, goal: Bools) -> Bools:
    """States from which some policy reaches ``goal`` [S] with probability one, as a mask [S].

    This is the largest set in which a policy can stay while the goal remains reachable. States from which the actions
    that stay inside the set cannot lead to the goal are removed until nothing changes.
    """
    indptr, successors = model.indptr, model.successors
    n_states = model.terminal.size
    n_actions = (indptr.size - 1) // n_states
    inside = np.ones(n_states, np.bool_)
    while True:
        attracted = goal.copy()
        grew = True
        while grew:
            grew = False
            for s in range(n_states):
                if attracted[s]:
                    continue
                # The reset stays inside the set: the start is attracted.
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


@compiled
def eliminate_states(p: Floats, out: Floats) -> Floats:
    """Expected steps [n] of a chain that moves by p [n, n] (diagonal ignored) and ends with probability ``out`` [n].

    Elimination of states without subtractions (Grassmann, Taksar, Heyman 1985): every entry of the result is accurate
    to a few units of rounding, however large it is. Overwrites its arguments.
    """
    n = out.size
    cost = np.ones(n)
    leaving = np.empty(n)
    for k in range(n - 1, -1, -1):
        # not 1 - p[k, k], which would cancel
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


@compiled
def evaluate_one_period(model: SparseModel, goal: Bools, actions: Actions) -> tuple[float, float]:
    """Play H stages of a policy [H, S] and the closing reset: (expected steps, probability of the goal)."""
    indptr, start = model.indptr, model.start
    horizon, n_states = actions.shape
    n_actions = (indptr.size - 1) // n_states
    mass = np.zeros(n_states)
    mass[start] = 1.0
    steps = success = 0.0
    # Forward: the distribution of the state, without the mass that has reached the goal.
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
        success += moved[goal].sum()
        moved[goal] = 0.0
        mass = moved
    return steps + mass.sum(), success
