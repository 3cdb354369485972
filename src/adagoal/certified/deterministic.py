"""Bounds where every pair has led to one place so far: numbers of hops (docs/theory-sharper.md, lemma 12).

In such a part of the world a policy follows one path, unless something happens that was never seen before. Lemma 3b
bounds the unseen mass of all pairs of a quiet window together: sum_x m_x kappa_x <= log, kappa_x = ln(1/(1 - q_x)). A
path without a circle meets each pair once. So it loses no more than the worst of its pairs would lose alone, with
kappa_x = log/m_x: the unseen mass counts once, and not at every step of the way. With d(s) the hops from the start to s
over known pairs, left(s) those from s to the goal, and s' the place to which the pair x of s leads,

    V*(s0)    >=  min{ min over x of  d(s) + 1 + (1 - kappa_x) left(s'),   the same towards pairs that are not known,
                       min over x of  (1 - chi) (d(s) + 1 - c) + c (1/kappa_x - 1/2) },   c the hops of a circle
                                                                                          through x,
    V^pi(s0)  <=  n + (1/phi - 1) (n + 1),    phi = exp(-log/theta),

for the policy pi that goes along the fewest hops n over pairs that were tried theta times. A pair is known if it has
one successor and kappa_x is at most the cut chi.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Bools, Floats, Longs
from adagoal.planning.model_arrays import goal_holds_state

LOSS_CUTS = (0.5, 0.25, 0.125)
"""The cuts chi that are tried."""
MIN_WINDOW_LOG = 1e-6
"""Of the logarithm of a window: a delta beyond 1, in a check that is made to fail, has none."""
LOSS_RATIO = 1.1
"""Tries are rounded down to powers of this number: theta."""
NO_PATH = 2**30
"""Hops to a state that is not reached."""


class DeterministicMap(NamedTuple):
    """The pairs that have led to one place, and where they lead."""

    start: int
    to: Longs
    """[X] the successor, -1 where a pair has several, or none"""
    loss: Floats
    """[X] log/m: how much of what comes after it a pair can lose, at most"""
    closed: Bools
    """[S] states in which nothing but the reset is allowed"""
    absent: Bools
    """[X] pairs that do not exist"""
    before: Longs
    """[X + 1 ...] the pairs that lead to state s stand at before[first[s]] to before[first[s + 1]]"""
    first: Longs
    """[S + 1]"""


def read_deterministic_map(counts: TransitionCounts, visits: Floats, log: float) -> DeterministicMap | None:
    """The map of the counts; None where the start itself is not on it. ``visits`` [X]: inside the quiet window."""
    known = (counts.support == 1) & (visits > 0.0) & ~counts.absent
    own = slice(counts.start * counts.n_actions, (counts.start + 1) * counts.n_actions)
    if counts.terminal[counts.start] or not (known | counts.absent)[own].all():
        return None
    to = np.where(known, counts.successor[:, 0], -1).astype(np.int64)
    loss = np.where(known, max(log, MIN_WINDOW_LOG) / np.maximum(visits, 1.0), np.inf)
    pairs = np.flatnonzero(known)
    before = pairs[np.argsort(to[pairs], kind="stable")]
    first = np.concatenate([[0], np.cumsum(np.bincount(to[pairs], minlength=counts.n_states))])
    return DeterministicMap(counts.start, to, loss, counts.terminal, counts.absent, before, first)


@numba.njit(cache=True, nogil=True)
def hops_from_start(world, most):  # type: ignore[no-untyped-def]
    """[S] hops from the start over pairs that lose at most this much."""
    states, actions = len(world.closed), len(world.to) // len(world.closed)
    hops, queue = np.full(states, NO_PATH), np.empty(states, np.int64)
    hops[world.start], queue[0] = 0, world.start
    done, last = 0, 1
    while done < last:
        s = queue[done]
        done += 1
        for x in range(s * actions, (s + 1) * actions if not world.closed[s] else s * actions):
            if world.loss[x] <= most and hops[world.to[x]] == NO_PATH:
                hops[world.to[x]], queue[last] = hops[s] + 1, world.to[x]
                last += 1
    return hops


@numba.njit(cache=True, nogil=True)
def hops_to_states(world, ends, most):  # type: ignore[no-untyped-def]
    """[S] hops to the nearest of the states ``ends`` [S] over pairs that lose at most this much."""
    states, actions = len(world.closed), len(world.to) // len(world.closed)
    hops, queue = np.full(states, NO_PATH), np.empty(states, np.int64)
    done, last = 0, 0
    for s in range(states):
        if ends[s]:
            hops[s], queue[last] = 0, s
            last += 1
    while done < last:
        y = queue[done]
        done += 1
        for i in range(world.first[y], world.first[y + 1]):
            x = world.before[i]
            s = x // actions
            if world.loss[x] <= most and hops[s] == NO_PATH and not world.closed[s]:
                hops[s], queue[last] = hops[y] + 1, s
                last += 1
    return hops


@numba.njit(cache=True, nogil=True)
def _least_path_value(world, d, r, most, extra):  # type: ignore[no-untyped-def]
    """min over pairs of d(s) + 1 + (1 - kappa_x)(r(s') + extra)."""
    actions, least = len(world.to) // len(world.closed), np.inf
    for x in range(len(world.to)):
        s = x // actions
        if world.loss[x] <= most and d[s] < NO_PATH and r[world.to[x]] < NO_PATH and not world.closed[s]:
            least = min(least, d[s] + 1.0 + (1.0 - world.loss[x]) * (r[world.to[x]] + extra))
    return least


@numba.njit(cache=True, nogil=True)
def least_value_elsewhere(world, d, most):  # type: ignore[no-untyped-def]
    """What a path takes at least that leads to a pair that is not known, or into a circle."""
    states, actions = len(world.closed), len(world.to) // len(world.closed)
    unknown, least = np.zeros(states, np.bool_), np.inf
    for x in range(len(world.to)):
        s = x // actions
        if d[s] == NO_PATH or world.closed[s] or world.absent[x]:
            continue
        if not world.loss[x] <= most:
            unknown[s] = True
            continue
        circle = 1.0 + max(d[s] - d[world.to[x]], 1.0 if world.to[x] != s else 0.0)
        outside = (1.0 - most) * max(d[s] + 1.0 - circle, 0.0)
        least = min(least, outside + circle * (1.0 / max(world.loss[x], 1e-12) - 0.5))
    if unknown[world.start]:
        return 1.0
    return min(least, _least_path_value(world, d, hops_to_states(world, unknown, most), most, 1.0))


def hop_lower_bounds(world: DeterministicMap, column: Longs, columns: Longs, floor: Floats) -> Floats:
    """[goals] lower bounds on V*(s0) for the goals of some columns; ``floor`` [goals] is known already.

    ``column`` [S, W] are the columns of the goals of every state, -1: none.
    """
    found = floor.copy()
    for most in LOSS_CUTS:
        d = hops_from_start(world, most)
        _raise_goal_bounds(world, column, columns, d, most, least_value_elsewhere(world, d, most), found)
    return found


@numba.njit(cache=True, nogil=True)
def _raise_goal_bounds(world, column, columns, d, most, limit, found):  # type: ignore[no-untyped-def]
    """Raise the bounds ``found`` [goals] by those of one cut, where no path elsewhere takes less than ``limit``."""
    for i in range(len(columns)):
        ends = _states_of_column(column, columns[i])
        if limit > found[i] and not ends[world.start]:
            found[i] = max(
                found[i], min(limit, _least_path_value(world, d, hops_to_states(world, ends, most), most, 0.0))
            )


@numba.njit(cache=True, nogil=True)
def _states_of_column(column, j):  # type: ignore[no-untyped-def]
    """[S] the states of the goal of column j."""
    found = np.zeros(len(column), np.bool_)
    for s in range(len(column)):
        found[s] = goal_holds_state(column, s, j)
    return found


def hop_upper_bounds(world: DeterministicMap, column: Longs, columns: int) -> tuple[Floats, Floats]:
    """(upper bounds, the largest loss of the pairs behind each), both [columns], for the policies of
    :func:`write_hop_policies`.

    ``column`` [S, W] are the columns of the goals of every state, -1: none.
    """
    best, behind = np.full(columns, np.inf), np.zeros(columns)
    finite = world.loss[np.isfinite(world.loss)]
    losses = [LOSS_RATIO**level for level in np.unique(np.ceil(np.log(finite) / math.log(LOSS_RATIO)))]
    _lower_goal_bounds(world, column, np.array(losses), best, behind)
    return best, behind


@numba.njit(cache=True, nogil=True)
def _lower_goal_bounds(world, column, losses, best, behind):  # type: ignore[no-untyped-def]
    """The bounds ``best`` [columns], and which of the ``losses`` is ``behind`` [columns] each."""
    for most in losses:
        d, near = hops_from_start(world, most), np.full(len(best), NO_PATH)
        for s in range(len(column)):
            for j in column[s]:
                if j >= 0:
                    near[j] = min(near[j], d[s])
        for j in range(len(best)):
            bound = near[j] + math.expm1(most) * (near[j] + 1.0)
            if near[j] < NO_PATH and bound < best[j]:
                best[j], behind[j] = bound, most


@numba.njit(cache=True, nogil=True)
def write_hop_policies(world, column, columns, behind, table):  # type: ignore[no-untyped-def]
    """Put policies to the goals of some columns into their rows of ``table`` [columns, S]: along the fewest hops over
    pairs that lose at most what is ``behind`` [goals] the bound, and never more of them than after a reset."""
    actions = len(world.to) // len(world.closed)
    for i in range(len(columns)):
        r = hops_to_states(world, _states_of_column(column, columns[i]), behind[i])
        for s in range(len(world.closed)):
            least, action = NO_PATH, 0
            for a in range(actions):
                x = s * actions + a
                if world.loss[x] <= behind[i] and r[world.to[x]] < least:
                    least, action = r[world.to[x]], a
            reset = world.closed[s] or r[s] > r[world.start] + 1 or r[s] == 0
            table[columns[i], s] = actions if reset else action
