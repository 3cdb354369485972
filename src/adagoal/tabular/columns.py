"""One column per goal: tables of values and policies that grow with the states and with the goals found.

All goals never seen so far look the same and share column 0; a goal gets a column of its own, a copy of that one,
when it is seen for the first time.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import Counts
from adagoal.core.schema import Array, Schema, check_arrays
from adagoal.core.types import Actions, Longs


def one_each(goals: Longs | None, n_states: int) -> tuple[Longs, Longs]:
    """(goals [G], column [S]) of estimates with one column per goal, seen or not; column -1 is that of no goal."""
    chosen = np.arange(n_states) if goals is None else goals
    column = np.full(n_states, -1)
    column[chosen] = np.arange(len(chosen))
    return chosen, column


class Columns:
    """What the certified estimates know about every goal."""

    TABLES = ("V", "Y", "optimistic", "probing", "best", "returned")
    ROWS = ("goal_state", "D", "upper", "gap", "stale", "polished")

    SCHEMA: ClassVar[Schema] = {
        **dict.fromkeys(("V", "Y"), Array("float64", ("R", "C"), low=0, finite=False)),
        **dict.fromkeys(("optimistic", "best", "returned"), Array("int16", ("R", "C"), low=0, high="A")),
        "probing": Array("int16", ("R", "C"), low=-1, high="A"),
        "goal_state": Array("int64", ("C",), low=-1, below="R"),
        **dict.fromkeys(("D", "upper", "gap"), Array("float64", ("C",), low=0, finite=False)),
        "stale": Array("bool", ("C",)),
        "polished": Array("float64", ("C",), low=0),
        "column": Array("int64", ("R",), low=0, below="C"),
        "_is_goal": Array("bool", ("R",)),
    }
    """What a checkpoint holds; R states, fewer than the counts have where some were found since the last plan."""

    def __init__(self, counts: Counts, state_bound: int, cap: float, goals: Longs | None) -> None:
        states, actions = counts.n_states, counts.n_actions
        self.counts, self.cap = counts, cap
        self.n_goals = state_bound if goals is None else len(goals)
        """How many goals there are, at most: as long as one is missing, column 0 stands for it"""
        self._is_goal = np.ones(states, bool) if goals is None else np.isin(np.arange(states), goals)
        self._all_states = goals is None
        self._room = 1
        self.column = np.zeros(states, np.int64)
        """[S] column of every state as a goal; 0 for those never seen"""
        self.V = np.zeros((states, 1))
        """[S, columns] lower bounds"""
        self.Y = np.full((states, 1), cap)
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

    @property
    def goals(self) -> Longs:
        """[G] the goal space."""
        return np.flatnonzero(self._is_goal)

    def add_rows(self) -> None:
        """Rows for states that the counts made room for."""
        states, actions = self.counts.n_states, self.counts.n_actions
        if states == len(self.column):
            return
        fill = {"V": 0.0, "Y": self.cap, "optimistic": 0, "probing": -1, "best": actions, "returned": actions}
        for name, value in (fill | {"column": 0, "_is_goal": self._all_states}).items():
            array = getattr(self, name)
            room = [(0, states - len(array))] + [(0, 0)] * (array.ndim - 1)
            setattr(self, name, np.pad(array, room, constant_values=value))

    def add_columns(self) -> None:
        """Columns for the goals seen for the first time."""
        for state in np.flatnonzero(self.counts.seen & self._is_goal & (self.column == 0)):
            self._add_column(int(state))

    def _add_column(self, state: int) -> None:
        columns = len(self.D)
        if columns == self._room:
            self._room = 2 * columns
        for name in (*self.TABLES, *self.ROWS):
            array = getattr(self, name)
            wide = array.base if array.base is not None and array.base.shape[-1] == self._room else None
            if wide is None:
                wide = np.empty((*array.shape[:-1], self._room), array.dtype)
                wide[..., :columns] = array
            wide[..., columns] = wide[..., 0]
            setattr(self, name, wide[..., : columns + 1])
        self.column[state], self.goal_state[-1] = columns, state
        self.V[state, -1] = self.Y[state, -1] = 0.0
        if state == self.counts.start:
            self.D[-1] = self.upper[-1] = self.gap[-1] = 0.0
        if columns == self.n_goals:
            self.D[0] = np.inf  # no goal is left unseen

    def offered(self, table: Actions, j: int) -> Actions:
        """[1, S] a column of a table of actions; the reset stands in for those that a state does not have."""
        actions, A = table[:, j].copy(), self.counts.n_actions
        own = np.flatnonzero(actions < A)
        actions[own[self.counts.absent[own * A + actions[own]]]] = A
        return actions[None]

    def column_state(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint."""
        return {name: getattr(self, name) for name in (*self.TABLES, *self.ROWS, "column", "_is_goal")}

    def restore_columns(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The inverse of :meth:`column_state`; the counts are restored already."""
        sizes = check_arrays(self.SCHEMA, arrays, {"A": self.counts.n_actions})
        column, goal_state, is_goal = arrays["column"], arrays["goal_state"], arrays["_is_goal"]
        shown = np.flatnonzero(column)
        known = len(self._is_goal)
        if not (
            known <= sizes["R"] <= self.counts.n_states
            and goal_state[0] == -1
            and len(shown) == sizes["C"] - 1
            and np.array_equal(goal_state[column[shown]], shown)
            and self.counts.seen[shown].all()
            and np.array_equal(is_goal[:known], self._is_goal)
            and (is_goal[known:] == self._all_states).all()
        ):
            raise ValueError("the columns and the goals do not belong together")
        for name in self.column_state():
            setattr(self, name, np.array(arrays[name]))
        self._room = len(self.D)
