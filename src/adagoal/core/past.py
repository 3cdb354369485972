"""How the interval of every goal shrank: a few snapshots of a run, kept for its report.

A snapshot is taken whenever the steps have grown by a quarter, so that a run of any length has a few dozen. Numbers are
single precision: they are drawn, and nothing is concluded from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import Array, Schema
from adagoal.core.types import Longs

if TYPE_CHECKING:
    from adagoal.core.run import Answer

GROWTH = 1.25
UNSEEN, OPEN, DONE, BEYOND = range(4)
"""How a goal stood: never seen, error above epsilon, error at most epsilon, or D beyond the radius."""

SCHEMA: Schema = {
    "past_steps": Array("int64", ("F",), low=0, rising=True),
    "past_episodes": Array("int64", ("F",), low=0),
    "past_goals": Array("int64", ("P",), low=0, rising=True),
    "past_lower": Array("float32", ("F", "P"), low=0, finite=False),
    "past_upper": Array("float32", ("F", "P"), low=0, finite=False),
    "past_stand": Array("int8", ("F", "P"), low=UNSEEN, high=BEYOND),
}
"""F snapshots of P goals."""


class Past:
    """Snapshots of the bounds of all goals; there may be more goals in a later one."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.episodes: list[int] = []
        self.goals: Longs = np.zeros(0, np.int64)
        self._rows: dict[str, list[NDArray[Any]]] = {"past_lower": [], "past_upper": [], "past_stand": []}

    def due(self, steps: int) -> bool:
        """Whether it is time for the next snapshot."""
        return not self.steps or (steps > self.steps[-1] and steps >= GROWTH * self.steps[-1])

    def add(self, steps: int, episodes: int, answer: Answer) -> None:
        """Take a snapshot."""
        self.goals = np.array(answer.goals, np.int64)
        columns = answer.column[self.goals]
        D, E, seen = answer.D[columns], answer.E[columns], answer.goal_state[columns] >= 0
        bounds = np.tile(np.array([[0.0], [np.inf]]), len(self.goals))
        for place in np.flatnonzero(seen):
            bounds[:, place] = answer.bounds(int(self.goals[place]))
        stand = np.where(answer.L >= D, np.where(answer.epsilon < E, OPEN, DONE), BEYOND)
        self.steps.append(steps)
        self.episodes.append(episodes)
        for name, row in zip(self._rows, (*bounds, np.where(seen, stand, UNSEEN)), strict=True):
            self._rows[name].append(row.astype(SCHEMA[name].type))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of :data:`SCHEMA`."""
        empty = {"past_lower": 0.0, "past_upper": np.inf, "past_stand": UNSEEN}
        tables = {
            name: np.full((len(rows), len(self.goals)), empty[name], SCHEMA[name].type)
            for name, rows in self._rows.items()
        }
        for name, rows in self._rows.items():
            for table_row, row in zip(tables[name], rows, strict=True):
                table_row[: len(row)] = row
        times = {"past_steps": np.array(self.steps, np.int64), "past_episodes": np.array(self.episodes, np.int64)}
        return {**times, "past_goals": self.goals, **tables}

    @staticmethod
    def of(arrays: dict[str, NDArray[Any]]) -> Past:
        """From arrays that keep to the schema."""
        past = Past()
        past.steps, past.episodes = arrays["past_steps"].tolist(), arrays["past_episodes"].tolist()
        past.goals = np.array(arrays["past_goals"])
        past._rows = {name: list(np.array(arrays[name])) for name in past._rows}
        return past
