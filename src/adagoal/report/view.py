"""How states are named and drawn; kept beside the result, so that a report can be written again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.files import read_json, write_json
from adagoal.core.layout import Layout
from adagoal.core.text import plain
from adagoal.core.world import World
from adagoal.runs.result import Result
from adagoal.worlds import registry

FILE = "view.json"


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

    def save(self, folder: Path) -> None:
        """Write ``view.json``."""
        layout: dict[str, Any] | None = None
        if self.layout is not None:
            walls = np.argwhere(self.layout.walls).tolist()
            layout = {"shape": list(self.layout.shape), "cells": self.layout.cells.tolist(), "walls": walls}
        labels = [plain(label) for label in self.labels]
        write_json(folder / FILE, {"start": self.start, "labels": labels, "layout": layout})

    @staticmethod
    def load(folder: Path) -> View:
        """Read ``view.json``."""
        data = read_json(folder / FILE)
        try:
            layout = None
            if data["layout"] is not None:
                shape = (int(data["layout"]["shape"][0]), int(data["layout"]["shape"][1]))
                walls = np.zeros(shape, bool)
                walls[tuple(np.array(data["layout"]["walls"], np.int64).reshape(-1, 2).T)] = True
                layout = Layout(shape, np.array(data["layout"]["cells"], np.int64).reshape(-1, 2), walls)
            if layout is not None and data["start"] is not None:
                layout.cells[data["start"]]  # is there such a state?
            return View(data["start"], tuple(map(str, data["labels"])), layout)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"{folder / FILE}: damaged or incomplete ({error})") from None

    @staticmethod
    def for_result(result: Result, folder: Path) -> View:
        """The stored view or, where there is none, that of the environment built again, or a bare one."""
        if (folder / FILE).is_file():
            return View.load(folder)
        setting = result.setting
        try:
            env = registry.installed(setting.env, trust=False)
            return View.of(registry.make_world(env, setting.env_args, setting.start_seed, setting.max_states)[0])
        except InputError:
            return View()
