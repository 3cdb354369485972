"""How states are named, known by their observations, and drawn: ``view.json`` beside the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.types import resolve_number
from adagoal.envs import observation_keys

if TYPE_CHECKING:
    from adagoal.runs.result import Result

from dataclasses import dataclass

from adagoal.core import file_io
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import to_single_line
from adagoal.core.file_formats import COUNT_SCHEMA, nullable_schema, object_schema
from adagoal.core.file_io import FileContent
from adagoal.core.types import GridLayout
from adagoal.runs.folder_reader import FolderFiles

STATE_METADATA_FILE = "view.json"
MAX_MAP_CELLS = 10_000_000
"""Cells of a map."""
_CELL_SCHEMA = {"type": "array", "minItems": 2, "maxItems": 2, "items": {**COUNT_SCHEMA, "maximum": 2**31}}
STATE_METADATA_SCHEMA = object_schema(
    start=nullable_schema(COUNT_SCHEMA),
    labels={"type": "array", "items": {"type": "string"}},
    layout=nullable_schema(
        object_schema(
            shape={**_CELL_SCHEMA, "items": {"type": "integer", "minimum": 1, "maximum": 2**31}},
            cells={
                "type": "array",
                "items": {**_CELL_SCHEMA, "items": {"type": "integer", "minimum": -1, "maximum": 2**31}},
            },
            walls={"type": "array", "items": _CELL_SCHEMA},
        )
    ),
    space=nullable_schema({"type": "object"}),
)
"""What ``view.json`` holds."""


@dataclass(frozen=True)
class StateMetadata:
    """The start state, names of states, their places on a map, and how observations are read."""

    start: int | None = None
    labels: tuple[str, ...] = ()
    layout: GridLayout | None = None
    observation_space: dict[str, Any] | None = None
    """See :class:`adagoal.core.types.ObservedStates`"""

    def numbered_label(self, state: int) -> str:
        """The state's number, with its name if it has one: whatever an environment calls it, plain text."""
        return f"{state} {to_single_line(self.labels[state])}" if state < len(self.labels) else str(state)

    @staticmethod
    def from_env(world: TabularEnv) -> StateMetadata:
        """What a world says about itself."""
        observed = world.observed_states() if hasattr(world, "observed_states") else None
        return StateMetadata(
            world.start, tuple(world.labels), world.layout, None if observed is None else observed.key_format
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        layout: dict[str, Any] | None = None
        if self.layout is not None:
            walls = np.argwhere(self.layout.walls).tolist()
            layout = {"shape": list(self.layout.shape), "cells": self.layout.cells.tolist(), "walls": walls}
        labels = [to_single_line(label) for label in self.labels]
        return {"start": self.start, "labels": labels, "layout": layout, "space": self.observation_space}

    def file_contents(self) -> dict[str, FileContent]:
        """The file."""
        return {STATE_METADATA_FILE: file_io.json_content(self.to_dict())}


def read_state_metadata(here: FolderFiles, n_states: int) -> StateMetadata:
    """The view among the files of a result about so many states."""
    data = here.load_json(STATE_METADATA_FILE, STATE_METADATA_SCHEMA)
    with file_io.report_read_errors(here.folder / STATE_METADATA_FILE):
        layout = None if data["layout"] is None else _parse_layout(**data["layout"])
        _check_observation_space(data["space"])
    few = layout is not None and len(layout.cells) < n_states
    if few or len(data["labels"]) > n_states or not 0 <= (data["start"] or 0) < n_states:
        raise InputError(
            f"{here.folder / STATE_METADATA_FILE}: damaged, or not of this run (it is not about its {n_states} states)"
        )
    return StateMetadata(data["start"], tuple(data["labels"]), layout, data["space"])


def _parse_layout(shape: list[int], cells: list[list[int]], walls: list[list[int]]) -> GridLayout:
    rows, columns = shape
    if rows * columns > MAX_MAP_CELLS:
        raise ValueError(f"a map of {rows} x {columns} cells is too large")
    places, solid = (np.array(pairs, np.int64).reshape(-1, 2) for pairs in (cells, walls))
    for pairs in (places, solid):
        if (pairs >= np.array(shape)).any():
            raise ValueError("a cell lies outside of the map")
    blocked = np.zeros((rows, columns), bool)
    blocked[tuple(solid.T)] = True
    return GridLayout((rows, columns), places, blocked)


def _check_observation_space(space: Any) -> None:
    """What says how observations are read must be readable."""
    if space is not None and space.get("kind") == "states":
        if not isinstance(space.get("first"), int):
            raise ValueError("observations are not counted from a whole number")
    elif space is not None:
        try:
            observation_keys.make_key_reader(space)
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("it does not say how observations are read") from None


# Names in a result: which state an observation is, and the goals as rows of a table.


class StateFinder:
    """The numbers of states by their observations; a table is made when it is first asked."""

    def __init__(self, view: StateMetadata, digests: NDArray[np.uint8] | None, n_states: int) -> None:
        self._metadata, self._digests, self._n_states = view, digests, n_states
        self._lookup: Callable[[Any], int | None] | None = None

    def __reduce__(self) -> Any:
        return StateFinder, (self._metadata, self._digests, self._n_states)

    def __call__(self, observation: Any) -> int | None:
        """The state; None for an observation that was never met."""
        if self._lookup is None:
            self._lookup = self._make_lookup()
        try:
            return self._lookup(observation)
        except InputError:
            raise
        except Exception as error:
            text = f"this is no observation of the environment ({type(error).__name__}: {error})"
            raise InputError(text, "observation") from None

    def _make_lookup(self) -> Callable[[Any], int | None]:
        view, n_states = self._metadata, self._n_states
        if view.observation_space is None:
            return lambda given: resolve_number(given, view.labels, n_states, "state")
        if view.observation_space["kind"] == "states":
            first = view.observation_space["first"]
            return lambda given: resolve_number(index(given) - first, (), n_states, "observation")
        digests = () if self._digests is None else self._digests
        known = {row.tobytes(): state for state, row in enumerate(digests) if row.any()}
        read = observation_keys.make_key_reader(view.observation_space)
        return lambda observation: known.get(observation_keys.hash_state_key(read(observation)))


def goal_table_rows(result: Result) -> list[dict[str, Any]]:
    """One row per goal that was seen, those of the result first; see :meth:`Result.table`."""
    chosen, still = set(result.goals), set(result.open_goals)

    def row(goal: int) -> dict[str, Any]:
        lower, upper = result.certificates[goal]
        return {
            "goal": goal,
            "label": result.goal_label(goal),
            "states": len(result.members(goal)),
            "lower": lower,
            "upper": upper,
            "error": result.errors.get(goal, math.nan),
            "within": goal in chosen,
            "open": goal in still,
        }

    return [row(goal) for goal in (*result.goals, *(g for g in result.certificates if g not in chosen))]
