"""One column per goal: tables of values and policies that grow with the states and with the goals found.

All goals never seen so far look the same and share column 0, whose goal is to reach any of them. So do goals that were
seen, as long as more than L + epsilon transitions lead there from the start: they lie beyond the radius for sure. What
bounds the distance to the nearest of them from below bounds that to each. A goal gets a column of its own, a copy of
that one, when a way is found that is short enough.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from adagoal.core.environment import OTHER_GOALS
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Longs

UPPER_START_FACTOR = 1.25
"""Upper bounds start at this multiple of C: a policy whose value they cannot bound by C yet may get a better bound."""
MAX_THREADS = 16
"""At most."""
MAX_RESERVED_VALUES = 2**27
"""Values of a table that there is room for at once: memory that nobody has touched yet costs nothing."""
NO_KNOWN_PATH = 2**62
"""Hops to a state to which no way is known."""


class GoalTable:
    """What the certified estimates know about every goal."""

    TABLE_NAMES = ("V", "Y", "optimistic", "probing", "best", "returned")
    ROW_NAMES = ("goal_state", "D", "upper", "gap", "stale", "polished")

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **dict.fromkeys(("V", "Y"), ArraySpec("float64", ("R", "C"), low=0, finite=False)),
        **dict.fromkeys(("optimistic", "best", "returned"), ArraySpec("int16", ("R", "C"), low=0, high="A")),
        "probing": ArraySpec("int16", ("R", "C"), low=-1, high="A"),
        "goal_state": ArraySpec("int64", ("C",), low=-1, below="N"),
        **dict.fromkeys(("D", "upper", "gap"), ArraySpec("float64", ("C",), low=0, finite=False)),
        "stale": ArraySpec("bool", ("C",)),
        "polished": ArraySpec("float64", ("C",), low=0),
        "column": ArraySpec("int64", ("N",), low=0, below="C"),
        "_is_goal": ArraySpec("bool", ("N",)),
    }
    """What a checkpoint holds; R states and N goals, fewer than there are where some were found since the last plan."""

    def __init__(self, counts: TransitionCounts, cap: float, space: GoalSpace) -> None:
        states, actions = counts.n_states, counts.n_actions
        self.counts, self.cap, self.space = counts, cap, space
        self._is_goal = np.isin(np.arange(space.n_goal_numbers), space.goal_numbers)
        self.goals = np.flatnonzero(self._is_goal)
        """[G] the goal space"""
        self._thread_pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1))
        self._column_capacity = 1
        self._n_known_transitions = -1
        """Different transitions observed at the last look for goals"""
        self._hop_counts = np.zeros(0, np.int64)
        """[S] how many of them lead to each state at least"""
        self._known_support = np.zeros(0, np.int64)
        """[X] how many of them each pair has"""
        self._wide_arrays: dict[str, NDArray[Any]] = {}
        """The tables and rows with room for more columns, each column in one piece: a backup reads no other one"""
        self.column = np.zeros(space.n_goal_numbers, np.int64)
        """[N] column of every goal; 0 for those never seen, or only far away"""
        self.V = np.zeros((states, 1))
        """[S, columns] lower bounds"""
        self.Y = np.full((states, 1), UPPER_START_FACTOR * cap)
        """[S, columns] upper bounds"""
        self.optimistic = np.zeros((states, 1), np.int16)
        """[S, columns] greedy for V: what exploration plays"""
        self.probing = np.full((states, 1), -1, np.int16)
        """[S, columns] greedy for the sub-optimality bound, -1 where there is none"""
        self.best = np.full((states, 1), actions, np.int16)
        """[S, columns] the policy of Y"""
        self.returned = self.best.copy()
        """[S, columns] the policy that ``upper`` and ``gap`` speak of"""
        self.goal_state = np.full(1, -1)
        """[columns] the goal of every column, -1 for column 0"""
        self.D = np.zeros(1)
        self.upper = np.full(1, np.inf)
        self.gap = np.full(1, np.inf)
        self.stale = np.ones(1, bool)
        """[columns] not planned with the latest counts"""
        self.polished = np.zeros(1)
        """[columns] the step count at the last exact plan"""

    def add_rows(self) -> None:
        """Rows for states that the counts made room for, and places for goals that were found."""
        states, actions = self.counts.n_states, self.counts.n_actions
        self.space.grow_states(states)
        if self.space.n_goal_numbers != len(self.column):
            self.column = np.pad(self.column, (0, self.space.n_goal_numbers - len(self.column)))
            self._is_goal = np.isin(np.arange(self.space.n_goal_numbers), self.space.goal_numbers)
            self.goals = np.flatnonzero(self._is_goal)
        if states == len(self.V):
            return
        fill = {
            "V": 0.0,
            "Y": UPPER_START_FACTOR * self.cap,
            "optimistic": 0,
            "probing": -1,
            "best": actions,
            "returned": actions,
        }
        for name, value in fill.items():
            array = getattr(self, name)
            wide = np.pad(array, [(0, states - len(array)), (0, 0)], constant_values=value)
            setattr(self, name, np.asfortranarray(wide))
        self._wide_arrays.clear()
        self._column_capacity = len(self.D)  # the room of a shorter table would be too wide: ROOM is a number of values

    def add_columns(self) -> None:
        """Columns for the goals to one of whose states a short way was found."""
        edges = int(self.counts.support.sum())
        if edges == self._n_known_transitions:
            return
        self._n_known_transitions = edges
        self._hop_counts = _pad_to_size(self._hop_counts, self.counts.n_states, NO_KNOWN_PATH)
        self._known_support = _pad_to_size(self._known_support, len(self.counts.support), 0)
        shorten_hop_counts(
            self._hop_counts, self._known_support, self.counts.start, self.counts.successor, self.counts.support
        )
        near = self._hop_counts <= self.cap - 1
        found = np.zeros(len(self.column) + 1, bool)  # the last entry is for -1
        found[self.space.goals_of_states[: self.counts.n_states][near]] = True
        known = len(self.D)
        for goal in np.flatnonzero(found[:-1] & (self.column == 0)):
            self._add_column(int(goal))
        if len(self.D) > known:
            self.zero_at_goals(np.arange(known, len(self.D)))

    def block_columns(self, block: Longs) -> Longs:
        """[S, W] the places in ``block`` of the goals of every state, -1 where there is none: what a sweep reads."""
        if not self.space.members_complete:
            self.zero_at_goals(block[block > 0])  # some of their states may be new
        found: Longs = block_positions(block, len(self.D), self.column, self.space.goals_of_states)
        return found

    def goals_of_states(self) -> Longs:
        """[S, W] the goals of every state, REST for those that share column 0."""
        if len(self.D) > self.space.goal_bound:
            return self.space.goals_of_states
        own = np.append(np.where(self.column > 0, np.arange(len(self.column)), OTHER_GOALS), -1)
        found: Longs = own[self.space.goals_of_states]
        return found

    def zero_at_goals(self, columns: Longs) -> None:
        """Both bounds are zero in the states of a goal."""
        at = self.space.columns_of_states(self.goal_state[columns])
        state, place = np.nonzero(at >= 0)
        column = columns[at[state, place]]
        self.V[state, column] = self.Y[state, column] = 0.0

    def _add_column(self, goal: int) -> None:
        columns = len(self.D)
        if columns == self._column_capacity:
            self._column_capacity = min(
                max(2 * columns, MAX_RESERVED_VALUES // len(self.V)),
                self.space.goal_bound + 1,
                self.space.n_goal_numbers + 1,
            )
            self._wide_arrays.clear()
        for name in (*self.TABLE_NAMES, *self.ROW_NAMES):
            if name not in self._wide_arrays:
                table = getattr(self, name)
                self._wide_arrays[name] = np.empty((*table.shape[:-1], self._column_capacity), table.dtype, order="F")
                self._wide_arrays[name][..., :columns] = table
        for name, wide in self._wide_arrays.items():
            wide[..., columns] = wide[..., 0]
            setattr(self, name, wide[..., : columns + 1])
        self.column[goal], self.goal_state[-1] = columns, goal
        if goal in self.space.goals_of_states[self.counts.start]:
            self.D[-1] = self.upper[-1] = self.gap[-1] = 0.0
        if columns == self.space.goal_bound:
            self.D[0] = np.inf  # no goal is left unseen

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """[lower, upper]: the best policy takes at least lower, the returned one at most upper expected steps."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def proven_policy(self, goal: int, table: Actions) -> Actions:
        """[1, S] the goal's column of ``table``, the policies that ``upper`` speaks of; of ``optimistic`` as long as
        nothing is proven. The reset stands in for actions that a state does not have, and for all actions in states
        that were never met, whose masks are unknown."""
        j, A = self.column[goal], self.counts.n_actions
        actions = (table if np.isfinite(self.upper[j]) else self.optimistic)[:, j].copy()
        if not np.isfinite(self.upper[j]):
            actions[~self.counts.seen[: len(actions)]] = A
        own = np.flatnonzero(actions < A)
        actions[own[self.counts.absent[own * A + actions[own]]]] = A
        return actions[None]

    def table_state(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint."""
        return {name: getattr(self, name) for name in (*self.TABLE_NAMES, *self.ROW_NAMES, "column", "_is_goal")}

    def restore_table(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The inverse of :meth:`table_state`; the counts are restored already."""
        sizes = check_arrays(self.ARRAY_SCHEMA, arrays, {"A": self.counts.n_actions})
        column, goal_state, is_goal = arrays["column"], arrays["goal_state"], arrays["_is_goal"]
        shown = np.flatnonzero(column)
        self.space.grow_states(self.counts.n_states)
        if not (
            len(self.V) <= sizes["R"] <= self.counts.n_states
            and (len(column) == sizes["R"] if self.space.goals_are_states else len(column) <= self.space.n_goal_numbers)
            and goal_state[0] == -1
            and len(shown) == sizes["C"] - 1
            and np.array_equal(goal_state[column[shown]], shown)
            and np.isin(shown, self.space.goals_of_states[: self.counts.n_states][self.counts.seen]).all()
            and np.array_equal(is_goal, np.isin(np.arange(len(is_goal)), self.space.goal_numbers))
        ):
            raise ValueError("the columns and the goals do not belong together")
        for name in self.table_state():
            setattr(self, name, np.array(arrays[name], order="F"))
        self.goals = np.flatnonzero(self._is_goal)
        self._column_capacity, self._n_known_transitions = len(self.D), -1
        self._hop_counts, self._known_support = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._wide_arrays.clear()


def _pad_to_size(array: Longs, size: int, fill: int) -> Longs:
    return array if size == len(array) else np.pad(array, (0, size - len(array)), constant_values=fill)


@numba.njit(cache=True, nogil=True)
def shorten_hop_counts(hops, known, start, successor, support):  # type: ignore[no-untyped-def]
    """hops [S] <- the fewest observed transitions that lead to each state from the start, after new ones were seen.

    ``known`` [X] is the support at the last look, and becomes that of today. Only what has become shorter is touched.
    """
    actions, size = len(support) // len(hops), len(hops) + 1
    queue, waiting, first, last = np.empty(size, np.int64), np.zeros(len(hops), np.bool_), 0, 0
    hops[start] = 0
    for x in range(len(support)):
        s = x // actions
        if known[x] != support[x] and not waiting[s]:
            queue[last], waiting[s], last = s, True, last + 1
        known[x] = support[x]
    while first != last:
        s = queue[first]
        first, waiting[s] = (first + 1) % size, False
        for x in range(s * actions, (s + 1) * actions):
            for k in range(support[x]):
                y = successor[x, k]
                if hops[s] + 1 < hops[y]:
                    hops[y] = hops[s] + 1
                    if not waiting[y]:
                        queue[last], waiting[y], last = y, True, (last + 1) % size


@numba.njit(cache=True, nogil=True)
def block_positions(block, columns, column, at):  # type: ignore[no-untyped-def]
    """[S, W] the places in ``block`` of the goals ``at`` [S, W] every state, -1 where there is none."""
    place, found = np.full(columns, -1), np.full(at.shape, -1)
    for b in range(len(block)):
        place[block[b]] = b
    for s in range(at.shape[0]):
        for k in range(at.shape[1]):
            if at[s, k] >= 0:
                found[s, k] = place[column[at[s, k]]]
    return found
