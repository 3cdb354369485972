"""How states are named, known by their observations, and drawn: ``view.json`` beside the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adagoal.core import files
from adagoal.core.errors import InputError
from adagoal.core.files import Content
from adagoal.core.layout import Layout
from adagoal.core.schema import COUNT, nullable, record
from adagoal.core.text import plain
from adagoal.core.world import World
from adagoal.runs.saved import Files
from adagoal.worlds import keys

FILE = "view.json"
LARGEST = 10_000_000
"""Cells of a map."""
_PAIR = {"type": "array", "minItems": 2, "maxItems": 2, "items": {**COUNT, "maximum": 2**31}}
SCHEMA = record(
    start=nullable(COUNT),
    labels={"type": "array", "items": {"type": "string"}},
    layout=nullable(
        record(
            shape={**_PAIR, "items": {"type": "integer", "minimum": 1, "maximum": 2**31}},
            cells={"type": "array", "items": {**_PAIR, "items": {"type": "integer", "minimum": -1, "maximum": 2**31}}},
            walls={"type": "array", "items": _PAIR},
        )
    ),
    space=nullable({"type": "object"}),
)
"""What ``view.json`` holds."""


@dataclass(frozen=True)
class View:
    """The start state, names of states, their places on a map, and how observations are read."""

    start: int | None = None
    labels: tuple[str, ...] = ()
    layout: Layout | None = None
    space: dict[str, Any] | None = None
    """See :class:`adagoal.core.names.Observed`"""

    def label(self, state: int) -> str:
        """The state's number, with its name if it has one: whatever an environment calls it, plain text."""
        return f"{state} {plain(self.labels[state])}" if state < len(self.labels) else str(state)

    @staticmethod
    def of(world: World) -> View:
        """What a world says about itself."""
        observed = world.observed() if hasattr(world, "observed") else None
        return View(world.start, tuple(world.labels), world.layout, None if observed is None else observed.space)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        layout: dict[str, Any] | None = None
        if self.layout is not None:
            walls = np.argwhere(self.layout.walls).tolist()
            layout = {"shape": list(self.layout.shape), "cells": self.layout.cells.tolist(), "walls": walls}
        labels = [plain(label) for label in self.labels]
        return {"start": self.start, "labels": labels, "layout": layout, "space": self.space}

    def contents(self) -> dict[str, Content]:
        """The file."""
        return {FILE: files.json_content(self.to_dict())}


def stored_view(here: Files, n_states: int) -> View:
    """The view among the files of a result about so many states."""
    data = here.json(FILE, SCHEMA)
    with files.reading(here.folder / FILE):
        layout = None if data["layout"] is None else _layout(**data["layout"])
        _check_space(data["space"])
    few = layout is not None and len(layout.cells) < n_states
    if few or len(data["labels"]) > n_states or not 0 <= (data["start"] or 0) < n_states:
        raise InputError(f"{here.folder / FILE}: damaged, or not of this run (it is not about its {n_states} states)")
    return View(data["start"], tuple(data["labels"]), layout, data["space"])


def _layout(shape: list[int], cells: list[list[int]], walls: list[list[int]]) -> Layout:
    rows, columns = shape
    if rows * columns > LARGEST:
        raise ValueError(f"a map of {rows} x {columns} cells is too large")
    places, solid = (np.array(pairs, np.int64).reshape(-1, 2) for pairs in (cells, walls))
    for pairs in (places, solid):
        if (pairs >= np.array(shape)).any():
            raise ValueError("a cell lies outside of the map")
    blocked = np.zeros((rows, columns), bool)
    blocked[tuple(solid.T)] = True
    return Layout((rows, columns), places, blocked)


def _check_space(space: Any) -> None:
    """What says how observations are read must be readable."""
    if space is not None and space.get("kind") == "states":
        if not isinstance(space.get("first"), int):
            raise ValueError("observations are not counted from a whole number")
    elif space is not None:
        try:
            keys.reader(space)
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("it does not say how observations are read") from None
