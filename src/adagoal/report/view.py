"""How states are named and drawn; kept beside the result, so that a report can be written again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adagoal.core import files
from adagoal.core.errors import InputError
from adagoal.core.layout import Layout
from adagoal.core.schema import COUNT, nullable, record
from adagoal.core.text import plain
from adagoal.core.world import World
from adagoal.runs.result import Result
from adagoal.runs.saved import Saved, find, read
from adagoal.worlds import registry

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
            cells={"type": "array", "items": _PAIR},
            walls={"type": "array", "items": _PAIR},
        )
    ),
)
"""What ``view.json`` holds."""


@dataclass(frozen=True)
class View:
    """The start state, names of states, and their places on a map."""

    start: int | None = None
    labels: tuple[str, ...] = ()
    layout: Layout | None = None

    def label(self, state: int) -> str:
        """The state's number, with its name if it has one: whatever an environment calls it, plain text."""
        return f"{state} {plain(self.labels[state])}" if state < len(self.labels) else str(state)

    @staticmethod
    def of(world: World) -> View:
        """What a world says about itself."""
        return View(world.start, tuple(world.labels), world.layout)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        layout: dict[str, Any] | None = None
        if self.layout is not None:
            walls = np.argwhere(self.layout.walls).tolist()
            layout = {"shape": list(self.layout.shape), "cells": self.layout.cells.tolist(), "walls": walls}
        return {"start": self.start, "labels": [plain(label) for label in self.labels], "layout": layout}

    @staticmethod
    def load(folder: Path) -> View | None:
        """The view that is stored in a folder, None where there is none."""
        return read(folder, _stored) if find(folder) is not None else None

    @staticmethod
    def for_result(result: Result, folder: Path) -> View:
        """The stored view or, where there is none, that of the environment built again, or a bare one."""
        stored = View.load(folder)
        if stored is not None:
            return stored.checked(len(result.arrays["visits"]), folder / FILE)
        setting = result.setting
        try:
            env = registry.installed(setting.env, trust=False)
            return View.of(registry.make_world(env, setting.env_args, setting.start_seed, setting.max_states)[0])
        except InputError:
            return View()

    def checked(self, n_states: int, path: Path) -> View:
        """The view itself, if it is one of so many states."""
        few = self.layout is not None and len(self.layout.cells) < n_states
        if few or len(self.labels) > n_states or not 0 <= (self.start or 0) < n_states:
            raise InputError(f"{path}: damaged, or not of this run (it is not about its {n_states} states)")
        return self


def _stored(saved: Saved) -> View | None:
    here = saved.results()
    if FILE not in here:
        return None
    data = here.json(FILE, SCHEMA)
    layout = None
    if data["layout"] is not None:
        with files.reading(saved.path / FILE):
            layout = _layout(**data["layout"])
    return View(data["start"], tuple(data["labels"]), layout)


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
