"""History of training: a CSV row per run and cycle, chosen goals, test results, maps of distance D and error E.

Maps over a fixed grid of goals are kept of the cycles 0, k, 2k, ... where k is the smallest power of two that gives at
most 32 maps. So the maps do not depend on how long the run was planned to be.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Bools, Floats, Singles
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, object_schema
from adagoal.deep.config import CONTACT_DISTANCE, Config
from adagoal.deep.env_inspection import is_inside_box
from adagoal.deep.rollouts import EpisodeBatch

# Larger distances and errors come from a run that diverged. They would break the plots.
MAX_MAP_VALUE = 1e12


@dataclass
class ValueMapHistory:
    """Maps and tests of S runs."""

    maps: dict[int, Singles] = field(default_factory=dict)
    """By cycle, D and E ``[S, 2, points, points]``; ``[S, 2, points]`` if goals are numbers."""
    tests: list[Singles] = field(default_factory=list)
    """Per test ``[S, n, 2]``: the distance of each goal at the start, and 1 if it was held at the last step."""

    def is_map_due(self, cycle: int) -> bool:
        """Return True if the map of a cycle is kept."""
        return cycle % _map_stride(cycle) == 0

    def add_map(self, cycle: int, D: Floats, E: Floats) -> None:
        """Add the map of a cycle, unless training has diverged, and drop maps between those that are kept."""
        new = np.stack([D, E], 1).astype(np.float32)
        self.maps = {c: m for c, m in self.maps.items() if c % _map_stride(cycle) == 0}
        if np.isfinite(new).all() and new.max() < MAX_MAP_VALUE:
            self.maps[cycle] = new

    def add_test(self, distances: Floats, successes: Bools) -> None:
        """Add a test: distances at the start and successes, both ``[rounds, S, B]``."""
        new = np.moveaxis(np.stack([distances, successes], -1), 0, 1)
        self.tests.append(new.reshape(len(new), -1, 2).astype(np.float32))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a file; empty parts are left out."""
        arrays: dict[str, NDArray[Any]] = {}
        if self.tests:
            arrays["tests"] = np.stack(self.tests)
        if self.maps:
            arrays |= {"map_cycles": np.array(list(self.maps), np.int64), "maps": np.stack(list(self.maps.values()))}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ValueMapHistory:
        """Return the history of :meth:`to_arrays`."""
        cycles = arrays.get("map_cycles", np.zeros(0, np.int64)).tolist()
        return cls(dict(zip(cycles, arrays.get("maps", ()), strict=True)), list(arrays.get("tests", ())))


def value_map_schema(runs: int, cycles: int, axes: int) -> dict[str, ArraySpec]:
    """Return the schema of :meth:`ValueMapHistory.to_arrays`: maps over one or two goal coordinates."""
    maps: tuple[int | str, ...] = ("maps", runs, 2, *["points"] * axes)
    return {
        "tests": ArraySpec("float32", ("tests", runs, "goals", 2), low=0.0, high=MAX_MAP_VALUE, optional=True),
        "map_cycles": ArraySpec("int64", ("maps",), low=0, below=cycles, increasing=True, optional=True),
        "maps": ArraySpec("float32", maps, low=0.0, high=MAX_MAP_VALUE, optional=True),
    }


def check_value_maps(arrays: Mapping[str, NDArray[Any]], tests: int) -> None:
    """Check that arrays of :func:`value_map_schema` belong together; there can be at most ``tests`` tests."""
    if ("maps" in arrays) != ("map_cycles" in arrays):
        raise ValueError("the maps over time are incomplete")
    if "maps" in arrays and (arrays["maps"].size == 0 or arrays["maps"].shape[-1] < 2):
        raise ValueError("the maps over time are empty")
    if "tests" in arrays and (arrays["tests"].size == 0 or len(arrays["tests"]) > tests):
        raise ValueError("there are more tests than were made, or none")


def _map_stride(cycle: int) -> int:
    # 32 maps are enough for a smooth slider in the report. Powers of two: an older map stays or goes, none is moved.
    return 1 << (cycle // 32).bit_length()


class HistoryRow:
    """Schema of a row of the log: head, measurements, and the losses that the algorithm or the ensemble names."""

    _share: ClassVar[dict[str, Any]] = {"type": "number", "minimum": 0, "maximum": 1}
    _length: ClassVar[dict[str, Any]] = {"type": "number", "minimum": 0}
    head: ClassVar[dict[str, Any]] = {
        **{"run": COUNT_SCHEMA, "seed": COUNT_SCHEMA, "goal_rule": {"type": "string"}},
        **{"cycle": COUNT_SCHEMA, "steps": COUNT_SCHEMA, "wall_seconds": _length},
    }
    measures: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("success", "success_any", "train_success", "inside_test", "on_table"), _share),
        # L, the share of candidates with D <= L, and means of D and E over the chosen goals.
        **{"radius": _length, "reachable": _share, "distance": _length, "error": _length, "moved": _share},
    }
    # A row lacks what was not measured in its cycle, and what was not finite. Losses are numbers of any name.
    schema: ClassVar[dict[str, Any]] = object_schema(**head) | {
        "properties": head | measures,
        "additionalProperties": {"type": "number"},
    }
    columns = (*head, *measures)


@dataclass
class TrainingHistory:
    """Rows (:class:`HistoryRow`) and chosen goals of S runs."""

    configs: Sequence[Config]
    train_boxes: list[Floats]  # bounding box ``[2, goal]`` of each run's training space
    test_boxes: list[Floats]
    table_box: Floats | None  # table top ``[2, 2]`` in x and y (Fetch)
    success: float  # radius around a goal in which it counts as reached
    wall_seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Floats] = field(default_factory=list)  # training goals ``[S, B, goal]`` of each cycle
    value_maps: ValueMapHistory = field(default_factory=ValueMapHistory)

    def steps_before_cycle(self, cycle: int) -> int:
        """Return the environment steps of training before a cycle."""
        # an episode that ended early counts in full: its slot in the cycle is taken until the horizon
        return cycle * self.configs[0].episodes * self.configs[0].horizon

    def next_radii(self) -> list[float]:
        """Return L of each run for the next cycle."""
        n_runs, n_cycles = len(self.configs), len(self.goals)
        # not the last rows, which may be those of a final test
        last = self.rows[n_runs * (n_cycles - 1) : n_runs * n_cycles] if n_cycles else [{}] * n_runs
        steps = self.steps_before_cycle(n_cycles)
        return [config.next_radius(steps, row) for config, row in zip(self.configs, last, strict=True)]

    def add_cycle(
        self,
        cycle: int,
        goals: Floats,
        notes: Sequence[dict[str, float]],
        losses: dict[str, Any],
        episodes: EpisodeBatch,
        distances: Floats,
    ) -> None:
        """Add a cycle: goals ``[S, B, goal]``, estimates of them, losses ``[S]``, test distances."""
        arrived = np.linalg.norm(episodes.achieved[:, :, -1] - episodes.goal, axis=-1) <= self.success
        displacement = np.linalg.norm(episodes.achieved - episodes.achieved[:, :, :1], axis=-1).max(-1)
        moved = displacement > CONTACT_DISTANCE * self.success
        # Converting a loss waits for the device, so do it once per loss, not once per run, and after the workers have
        # played: until now the device was learning at the same time.
        per_run = {name: np.asarray(loss) for name, loss in losses.items()}
        rows = []
        for run in range(len(self.configs)):
            row = self._make_row_head(run, cycle) | notes[run]
            row |= {name: float(loss[run]) for name, loss in per_run.items()}
            row["train_success"] = float(arrived[run].mean())
            row["moved"] = float(moved[run].mean())
            row["inside_test"] = float(is_inside_box(self.test_boxes[run], goals[run]).mean())
            if self.table_box is not None:
                row["on_table"] = float(is_inside_box(self.table_box, goals[run][:, :2]).mean())
            # Training that has diverged gives NaN and infinities, which JSON cannot hold.
            finite = {name: x for name, x in row.items() if not isinstance(x, float) or math.isfinite(x)}
            rows.append(finite | self._test_success(distances, run))
        self.goals.append(goals)
        self.rows += rows

    def add_final_test(self, cycle: int, distances: Floats) -> None:
        """Add the final test, after the last cycle."""
        for run in range(len(self.configs)):
            self.rows.append(self._make_row_head(run, cycle) | self._test_success(distances, run))

    def _make_row_head(self, run: int, cycle: int) -> dict[str, Any]:
        config = self.configs[run]
        head = {"run": run, "seed": config.seed, "goal_rule": config.goal_rule, "cycle": cycle}
        return head | {"steps": self.steps_before_cycle(cycle), "wall_seconds": round(self.wall_seconds, 2)}

    def _test_success(self, distances: Floats, run: int) -> dict[str, float]:
        """Return success at the last step and at any step, from test distances ``[rounds, S, B, T]``."""
        if not len(distances):
            return {}
        near = distances[:, run] <= self.success
        return {"success": float(near[..., -1].mean()), "success_any": float(near.any(-1).mean())}

    def learning_curve(self, run: int) -> list[dict[str, Any]]:
        """Return the rows of the tests, each with means of the measurements since the previous test, and the last L."""
        averaged = ("train_success", "inside_test", "on_table", "reachable", "distance", "error", "moved")
        points: list[dict[str, Any]] = []
        since: list[dict[str, Any]] = []
        for row in (r for r in self.rows if r["run"] == run):
            if "success" in row:
                point = {k: row[k] for k in ("steps", "wall_seconds", "success", "success_any")}
                for name in averaged:
                    values = [r[name] for r in since if name in r]
                    if values:
                        point[name] = round(float(np.mean(values)), 4)
                if since and "radius" in since[-1]:
                    point["radius"] = since[-1]["radius"]
                points.append(point)
                since = []
            # `steps` of a row are those before its cycle, so its own measurements belong to the next point
            since.append(row)
        return points

    def to_csv(self) -> str:
        """Return all rows as a table; losses come last."""
        losses = dict.fromkeys(name for row in self.rows for name in row if name not in HistoryRow.columns)
        text = io.StringIO()
        writer = csv.DictWriter(text, (*HistoryRow.columns, *losses), restval="")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON-ready facts for :meth:`restore`."""
        arrays = {"goals": np.stack(self.goals), **self.value_maps.to_arrays()}
        return arrays, {"rows": self.rows, "wall_seconds": self.wall_seconds}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.goals, self.value_maps = list(arrays["goals"]), ValueMapHistory.from_arrays(arrays)
        self.rows, self.wall_seconds = facts["rows"], float(facts["wall_seconds"])


def rows_from_csv(text: str) -> list[dict[str, Any]]:
    """Return the rows of :meth:`TrainingHistory.to_csv`."""

    def parse(name: str, cell: str) -> Any:
        if name == "goal_rule":
            return cell
        return int(cell) if HistoryRow.head.get(name) is COUNT_SCHEMA else float(cell)

    reader = csv.DictReader(io.StringIO(text, newline=""))
    return [{name: parse(name, cell) for name, cell in row.items() if cell != ""} for row in reader]
