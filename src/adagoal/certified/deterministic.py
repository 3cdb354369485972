"""Bounds in deterministic parts of an environment, from numbers of hops (docs/theory-sharper.md, lemma 12).

If every pair has led to one state so far, a policy follows one path unless something new happens. Lemma 3b bounds the
unseen mass of all pairs in the window together: sum_x m_x kappa_x <= log, kappa_x = ln(1/(1 - q_x)). A path without a
cycle visits each pair once. So it loses no more than its worst pair would lose alone, with kappa_x = log/m_x: the
unseen mass counts once, and not at every step. With d(s) the hops from the start to s over known pairs, left(s) the
hops from s to the goal, and s' the successor of the pair x of s,

    V*(s0)    >=  min{ min over x of  d(s) + 1 + (1 - kappa_x) left(s'),   the same towards pairs that are not known,
                       min over x of  (1 - chi) (d(s) + 1 - c) + c (1/kappa_x - 1/2) },   c the hops of a cycle
                                                                                          through x,
    V^pi(s0)  <=  n + (1/phi - 1) (n + 1),    phi = exp(-log/theta),

for the policy pi along the fewest hops n over pairs that were tried theta times. A pair is known if it has one
successor and kappa_x is at most the cut chi.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from adagoal.certified.goal_table import GoalTable, goal_errors
from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.transition_data import TransitionCounts
from adagoal.planning.model_arrays import EmpiricalModel, goal_holds_state

NO_PATH = 2**30  # hops to a state that is not reached


class DeterministicMap(NamedTuple):
    """The pairs with a single observed successor."""

    start: int
    to: Longs  # [X] the successor, -1 for pairs with none or several
    loss: Floats  # [X] log/m: bound on kappa, infinite for other pairs
    terminal: Bools  # [S] terminal states: only the reset is allowed
    absent: Bools  # [X] pairs that do not exist
    before: Longs  # pairs sorted by successor: those of s are before[first[s] : first[s + 1]]
    first: Longs  # [S + 1]


def read_deterministic_map(counts: TransitionCounts, visits: Floats, log: float) -> DeterministicMap | None:
    """Return the map of the counts, or None if a pair of the start is unknown; ``visits`` [X] inside the window."""
    # An absent pair is stored as the reset, with one successor, but it is no hop.
    known = (counts.support == 1) & (visits > 0.0) & ~counts.absent
    own = slice(counts.start * counts.n_actions, (counts.start + 1) * counts.n_actions)
    if counts.terminal[counts.start] or not (known | counts.absent)[own].all():
        return None
    to = np.where(known, counts.successor[:, 0], -1).astype(np.int64)
    # The logarithm is positive for every delta < 1; tests that expect a failure pass larger ones.
    loss = np.where(known, max(log, 1e-6) / np.maximum(visits, 1.0), np.inf)
    pairs = np.flatnonzero(known)
    before = pairs[np.argsort(to[pairs], kind="stable")]
    first = np.concatenate([[0], np.cumsum(np.bincount(to[pairs], minlength=counts.n_states))])
    return DeterministicMap(counts.start, to, loss, counts.terminal, counts.absent, before, first)


def improve_by_hops(table: GoalTable, model: EmpiricalModel, choose: Callable[[GoalTable, int], Longs]) -> None:
    """Raise lower bounds, and record the policies of hops that leave smaller errors.

    ``choose`` gets the table and the number of known pairs, and returns the columns.
    """
    graph = read_deterministic_map(table.counts, model.window_visits, model.window_log)
    if graph is None:
        return
    columns = choose(table, len(graph.before))
    goals = np.append(table.column, -1)[table.space.goals_of_states[: table.counts.n_states]]
    errors = table.E[columns]
    table.D[columns] = np.minimum(hop_lower_bounds(graph, goals, columns, table.D[columns]), table.cap)
    upper, loss = (a[columns] for a in hop_upper_bounds(graph, goals, len(table.D)))
    new_errors = goal_errors(table.D[columns], upper, np.full(len(columns), np.inf), table.L, np.inf)
    better = (upper <= table.cap - 1.0) & (new_errors < errors)
    write_hop_policies(graph, goals, columns[better], loss[better], table.returned.T)
    table.upper[columns[better]], table.gap[columns[better]] = upper[better], np.inf


@compiled
def hops_from_start(graph, most):  # type: ignore[no-untyped-def]
    """Return [S] the hops from the start over pairs with a loss of at most ``most``, breadth first."""
    states, actions = len(graph.terminal), len(graph.to) // len(graph.terminal)
    hops, queue = np.full(states, NO_PATH), np.empty(states, np.int64)
    hops[graph.start], queue[0] = 0, graph.start
    done, last = 0, 1
    while done < last:
        s = queue[done]
        done += 1
        for x in range(s * actions, (s + 1) * actions if not graph.terminal[s] else s * actions):
            if graph.loss[x] <= most and hops[graph.to[x]] == NO_PATH:
                hops[graph.to[x]], queue[last] = hops[s] + 1, graph.to[x]
                last += 1
    return hops


@compiled_helper
def hops_to_states(graph, ends, most):  # type: ignore[no-untyped-def]
    """Return [S] the hops to the nearest of the states ``ends`` [S] over pairs with a loss of at most ``most``."""
    states, actions = len(graph.terminal), len(graph.to) // len(graph.terminal)
    hops, queue = np.full(states, NO_PATH), np.empty(states, np.int64)
    done, last = 0, 0
    for s in range(states):
        if ends[s]:
            hops[s], queue[last] = 0, s
            last += 1
    while done < last:
        y = queue[done]
        done += 1
        for i in range(graph.first[y], graph.first[y + 1]):
            x = graph.before[i]
            s = x // actions
            if graph.loss[x] <= most and hops[s] == NO_PATH and not graph.terminal[s]:
                hops[s], queue[last] = hops[y] + 1, s
                last += 1
    return hops


@compiled_helper
def _least_path_value(graph, d, r, most, extra):  # type: ignore[no-untyped-def]
    """Return the minimum over pairs of d(s) + 1 + (1 - kappa_x)(r(s') + extra)."""
    actions, least = len(graph.to) // len(graph.terminal), np.inf
    for x in range(len(graph.to)):
        s = x // actions
        if graph.loss[x] <= most and d[s] < NO_PATH and r[graph.to[x]] < NO_PATH and not graph.terminal[s]:
            least = min(least, d[s] + 1.0 + (1.0 - graph.loss[x]) * (r[graph.to[x]] + extra))
    return least


@compiled
def least_value_elsewhere(graph, d, most):  # type: ignore[no-untyped-def]
    """Return a lower bound for paths that lead to an unknown pair or into a cycle."""
    states, actions = len(graph.terminal), len(graph.to) // len(graph.terminal)
    unknown, least = np.zeros(states, np.bool_), np.inf
    for x in range(len(graph.to)):
        s = x // actions
        if d[s] == NO_PATH or graph.terminal[s] or graph.absent[x]:
            continue
        if not graph.loss[x] <= most:
            unknown[s] = True
            continue
        # A step raises d by at most one, so a cycle through x has at least this many hops.
        cycle = 1.0 + max(d[s] - d[graph.to[x]], 1.0 if graph.to[x] != s else 0.0)
        outside = (1.0 - most) * max(d[s] + 1.0 - cycle, 0.0)
        # The floor of the loss only keeps its inverse finite: a larger loss makes the bound smaller, hence safe.
        least = min(least, outside + cycle * (1.0 / max(graph.loss[x], 1e-12) - 0.5))
    # Lemma 12 asks for a start without unknown pairs. One step is needed in any case.
    if unknown[graph.start]:
        return 1.0
    return min(least, _least_path_value(graph, d, hops_to_states(graph, unknown, most), most, 1.0))


def hop_lower_bounds(graph: DeterministicMap, column: Longs, columns: Longs, floor: Floats) -> Floats:
    """Return [goals] lower bounds on V*(s0) for the goals of ``columns``, at least ``floor`` [goals].

    ``column`` [S, W] are the columns of the goals of every state, -1: none.
    """
    bounds = floor.copy()
    # The cuts chi. All bounds hold, so the largest may be taken, and each cut costs a search per goal.
    for most in (0.5, 0.25, 0.125):
        d = hops_from_start(graph, most)
        _raise_goal_bounds(graph, column, columns, d, most, least_value_elsewhere(graph, d, most), bounds)
    return bounds


@compiled
def _raise_goal_bounds(graph, column, columns, d, most, limit, bounds):  # type: ignore[no-untyped-def]
    """Raise the bounds [goals] by those of one cut; no path elsewhere takes less than ``limit``."""
    for i in range(len(columns)):
        ends = _states_of_column(column, columns[i])
        # No search if paths elsewhere are too short for a better bound.
        if limit > bounds[i] and not ends[graph.start]:
            left = hops_to_states(graph, ends, most)
            bounds[i] = max(bounds[i], min(limit, _least_path_value(graph, d, left, most, 0.0)))


@compiled_helper
def _states_of_column(column, j):  # type: ignore[no-untyped-def]
    """Return [S] a mask of the states of the goal of column j."""
    mask = np.zeros(len(column), np.bool_)
    for s in range(len(column)):
        mask[s] = goal_holds_state(column, s, j)
    return mask


def hop_upper_bounds(graph: DeterministicMap, column: Longs, columns: int) -> tuple[Floats, Floats]:
    """Return upper bounds [columns] for the policies of :func:`write_hop_policies`, and the loss [columns] behind each.

    ``column`` [S, W] are the columns of the goals of every state, -1: none.
    """
    best, behind = np.full(columns, np.inf), np.zeros(columns)
    # Every theta gives a bound and costs a search. So losses are rounded up to powers of 1.1 first.
    finite, ratio = graph.loss[np.isfinite(graph.loss)], 1.1
    losses = [ratio**level for level in np.unique(np.ceil(np.log(finite) / math.log(ratio)))]
    _lower_goal_bounds(graph, column, np.array(losses), best, behind)
    return best, behind


@compiled
def _lower_goal_bounds(graph, column, losses, best, behind):  # type: ignore[no-untyped-def]
    """Write the bounds ``best`` [columns] and the loss ``behind`` [columns] each of them."""
    for most in losses:
        d, near = hops_from_start(graph, most), np.full(len(best), NO_PATH)
        for s in range(len(column)):
            for j in column[s]:
                if j >= 0:
                    near[j] = min(near[j], d[s])
        for j in range(len(best)):
            # expm1, because 1/phi - 1 cancels for small losses
            bound = near[j] + math.expm1(most) * (near[j] + 1.0)
            if near[j] < NO_PATH and bound < best[j]:
                best[j], behind[j] = bound, most


@compiled
def write_hop_policies(graph, column, columns, behind, table):  # type: ignore[no-untyped-def]
    """Write policies to the goals of ``columns`` into their rows of ``table`` [columns, S].

    They follow the fewest hops over pairs with a loss of at most ``behind`` [goals], and reset if that is shorter.
    """
    actions = len(graph.to) // len(graph.terminal)
    for i in range(len(columns)):
        r = hops_to_states(graph, _states_of_column(column, columns[i]), behind[i])
        for s in range(len(graph.terminal)):
            least, action = NO_PATH, 0
            for a in range(actions):
                x = s * actions + a
                if graph.loss[x] <= behind[i] and r[graph.to[x]] < least:
                    least, action = r[graph.to[x]], a
            # Lemma 12b resets beyond n + 1 hops. At the goal the action does not matter.
            reset = graph.terminal[s] or r[s] > r[graph.start] + 1 or r[s] == 0
            table[columns[i], s] = actions if reset else action
