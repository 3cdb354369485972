"""How the interval of every goal shrank: a few snapshots of a run, kept for its report.

A snapshot is taken whenever the steps have grown by a quarter, so that a run of any length has a few dozen. Numbers are
single precision: they are drawn, and nothing is concluded from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import ArraySchema, ArraySpec
from adagoal.core.types import Longs

if TYPE_CHECKING:
    from adagoal.core.run import GoalEstimates

SNAPSHOT_STEP_GROWTH = 1.25
GOAL_UNSEEN, GOAL_OPEN, GOAL_DONE, GOAL_BEYOND = range(4)
"""How a goal stood: never seen, error above epsilon, error at most epsilon, or D beyond the radius."""

BOUNDS_HISTORY_SCHEMA: ArraySchema = {
    "past_steps": ArraySpec("int64", ("F",), low=0, increasing=True),
    "past_episodes": ArraySpec("int64", ("F",), low=0),
    "past_goals": ArraySpec("int64", ("P",), low=0, increasing=True),
    "past_lower": ArraySpec("float32", ("F", "P"), low=0, finite=False),
    "past_upper": ArraySpec("float32", ("F", "P"), low=0, finite=False),
    "past_stand": ArraySpec("int8", ("F", "P"), low=GOAL_UNSEEN, high=GOAL_BEYOND),
}
"""F snapshots of P goals."""


class BoundsHistory:
    """Snapshots of the bounds of all goals; there may be more goals in a later one."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.episodes: list[int] = []
        self.goals: Longs = np.zeros(0, np.int64)
        self._snapshot_rows: dict[str, list[NDArray[Any]]] = {"past_lower": [], "past_upper": [], "past_stand": []}

    def is_snapshot_due(self, steps: int) -> bool:
        """Whether it is time for the next snapshot."""
        return not self.steps or (steps > self.steps[-1] and steps >= SNAPSHOT_STEP_GROWTH * self.steps[-1])

    def take_snapshot(self, steps: int, episodes: int, answer: GoalEstimates) -> None:
        """Take a snapshot."""
        self.goals = np.array(answer.goals, np.int64)
        columns = answer.column[self.goals]
        D, E, seen = answer.D[columns], answer.E[columns], answer.goal_state[columns] >= 0
        bounds = np.tile(np.array([[0.0], [np.inf]]), len(self.goals))
        for place in np.flatnonzero(seen):
            bounds[:, place] = answer.distance_bounds(int(self.goals[place]))
        stand = np.where(answer.L >= D, np.where(answer.epsilon < E, GOAL_OPEN, GOAL_DONE), GOAL_BEYOND)
        self.steps.append(steps)
        self.episodes.append(episodes)
        for name, row in zip(self._snapshot_rows, (*bounds, np.where(seen, stand, GOAL_UNSEEN)), strict=True):
            self._snapshot_rows[name].append(row.astype(BOUNDS_HISTORY_SCHEMA[name].dtype))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of :data:`BOUNDS_HISTORY_SCHEMA`."""
        empty = {"past_lower": 0.0, "past_upper": np.inf, "past_stand": GOAL_UNSEEN}
        tables = {
            name: np.full((len(rows), len(self.goals)), empty[name], BOUNDS_HISTORY_SCHEMA[name].dtype)
            for name, rows in self._snapshot_rows.items()
        }
        for name, rows in self._snapshot_rows.items():
            for table_row, row in zip(tables[name], rows, strict=True):
                table_row[: len(row)] = row
        times = {"past_steps": np.array(self.steps, np.int64), "past_episodes": np.array(self.episodes, np.int64)}
        return {**times, "past_goals": self.goals, **tables}

    @staticmethod
    def from_arrays(arrays: dict[str, NDArray[Any]]) -> BoundsHistory:
        """From arrays that keep to the schema."""
        past = BoundsHistory()
        past.steps, past.episodes = arrays["past_steps"].tolist(), arrays["past_episodes"].tolist()
        past.goals = np.array(arrays["past_goals"])
        past._snapshot_rows = {name: list(np.array(arrays[name])) for name in past._snapshot_rows}
        return past
