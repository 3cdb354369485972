"""Names of states, their cells on a map, and how observations are read: ``view.json`` beside the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import file_io
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.file_formats import COUNT_SCHEMA, nullable_schema, object_schema
from adagoal.core.file_io import FileContents
from adagoal.core.types import GridLayout, resolve_number
from adagoal.envs import observation_keys
from adagoal.runs.folder_reader import FolderFiles

MAX_MAP_CELLS = 10_000_000  # a forged map could otherwise allocate all memory


@dataclass(frozen=True)
class StateMetadata:
    """The start state, names of states, their cells on a map, and how observations are read."""

    start: int | None = None
    labels: tuple[str, ...] = ()
    layout: GridLayout | None = None
    observation_space: dict[str, Any] | None = None  # see :class:`adagoal.core.types.ObservedStates`

    file_name = "view.json"

    def numbered_label(self, state: int) -> str:
        """Return the state's number, with its name if it has one, as plain text."""
        return f"{state} {to_single_line(self.labels[state])}" if state < len(self.labels) else str(state)

    @staticmethod
    def from_env(env: TabularEnv) -> StateMetadata:
        """Return what an environment says about its states."""
        observed = env.observed_states() if hasattr(env, "observed_states") else None
        return StateMetadata(
            env.start, tuple(env.labels), env.layout, None if observed is None else observed.key_format
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        layout: dict[str, Any] | None = None
        if self.layout is not None:
            walls = np.argwhere(self.layout.walls).tolist()
            layout = {"shape": list(self.layout.shape), "cells": self.layout.cells.tolist(), "walls": walls}
            layout["marks"] = {to_single_line(name): cells.tolist() for name, cells in self.layout.marks.items()}
        # Labels are text from user code; a terminal or a browser would obey control characters in them.
        labels = [to_single_line(label) for label in self.labels]
        return {"start": self.start, "labels": labels, "layout": layout, "space": self.observation_space}

    def file_contents(self) -> FileContents:
        """Return the file."""
        return {self.file_name: file_io.json_content(self.to_dict())}


def read_state_metadata(files: FolderFiles, n_states: int) -> StateMetadata:
    """Read the metadata of ``n_states`` states."""
    data = files.load_json(StateMetadata.file_name, _metadata_schema())
    path = files.folder / StateMetadata.file_name
    with file_io.report_read_errors(path):
        layout = None if data["layout"] is None else _parse_layout(**data["layout"])
        _check_observation_space(data["space"])
    # The report and policies index states by these tables, so tables of another run must be refused here.
    too_few_cells = layout is not None and len(layout.cells) < n_states
    if too_few_cells or len(data["labels"]) > n_states or not 0 <= (data["start"] or 0) < n_states:
        raise InputError(f"{path}: damaged, or not of this run (it is not about its {n_states} states)")
    return StateMetadata(data["start"], tuple(data["labels"]), layout, data["space"])


def _metadata_schema() -> dict[str, Any]:
    def pairs(minimum: int) -> dict[str, Any]:
        number = {"type": "integer", "minimum": minimum, "maximum": 2**31}
        return {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": number}}

    # Cells begin at -1, because a state that is not on the map has the cell (-1, -1).
    marks = {"type": "object", "additionalProperties": pairs(0)}
    layout = object_schema(shape=pairs(1)["items"], cells=pairs(-1), walls=pairs(0), marks=marks)
    return object_schema(
        start=nullable_schema(COUNT_SCHEMA),
        labels={"type": "array", "items": {"type": "string"}},
        layout=nullable_schema(layout),
        space=nullable_schema({"type": "object"}),
    )


def _parse_layout(
    shape: list[int], cells: list[list[int]], walls: list[list[int]], marks: dict[str, list[list[int]]]
) -> GridLayout:
    rows, columns = shape
    if rows * columns > MAX_MAP_CELLS:
        raise ValueError(f"a map of {rows} x {columns} cells is too large")
    cell_array, wall_array = (np.array(pairs, np.int64).reshape(-1, 2) for pairs in (cells, walls))
    mark_arrays = {to_single_line(name): np.array(pairs, np.int64).reshape(-1, 2) for name, pairs in marks.items()}
    for pairs in (cell_array, wall_array, *mark_arrays.values()):
        if (pairs >= np.array(shape)).any():
            raise ValueError("a cell lies outside of the map")
    blocked = np.zeros((rows, columns), bool)
    blocked[tuple(wall_array.T)] = True
    return GridLayout((rows, columns), cell_array, blocked, mark_arrays)


def _check_observation_space(space: Any) -> None:
    if space is not None and space.get("kind") == "states":
        if not isinstance(space.get("first"), int):
            raise ValueError("observations are not counted from a whole number")
    elif space is not None:
        try:
            observation_keys.make_key_reader(space)
        # The description comes from the file: a forged one has any type, and any depth of nesting.
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("it does not say how observations are read") from None


class StateFinder:
    """Finds the number of a state by its observation; the lookup table is made on the first call."""

    def __init__(self, view: StateMetadata, digests: NDArray[np.uint8] | None, n_states: int) -> None:
        self._metadata, self._digests, self._n_states = view, digests, n_states
        self._lookup: Callable[[Any], int | None] | None = None

    def __reduce__(self) -> Any:
        # Without the lookup: it is a closure, which cannot be pickled.
        return StateFinder, (self._metadata, self._digests, self._n_states)

    def __call__(self, observation: Any) -> int | None:
        """Return the state, None for an observation that was never seen."""
        if self._lookup is None:
            self._lookup = self._make_lookup()
        try:
            return self._lookup(observation)
        except InputError:
            raise
        # An object of any class may be passed here, and reading it may raise anything.
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
        # A row of zeros is a state without an observation, such as a virtual start.
        known = {row.tobytes(): state for state, row in enumerate(digests) if row.any()}
        read = observation_keys.make_key_reader(view.observation_space)
        return lambda observation: known.get(observation_keys.hash_state_key(read(observation)))
