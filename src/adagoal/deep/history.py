"""What happened in a training: one record per run and cycle, the goals chosen, the test results."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import COUNT
from adagoal.core.types import Floats
from adagoal.deep.config import CONTACT_DISTANCE, Config
from adagoal.deep.envs import Dimensions
from adagoal.deep.goalspace import GoalSpace, bounding_box, inside
from adagoal.deep.past import Past
from adagoal.deep.worker import Episodes

SHARE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
LENGTH: dict[str, Any] = {"type": "number", "minimum": 0}
HEAD: dict[str, Any] = {
    "run": COUNT,
    "seed": COUNT,
    "goal_rule": {"type": "string"},
    "cycle": COUNT,
    "steps": COUNT,
    "wall_seconds": LENGTH,
}
"""What every row has, and how a file must give it (see :mod:`adagoal.core.schema`)."""
MEASURED: dict[str, Any] = {
    "success": SHARE,
    "success_any": SHARE,
    "train_success": SHARE,
    "inside_test": SHARE,
    "on_table": SHARE,
    "reachable": SHARE,
    "distance": LENGTH,
    "error": LENGTH,
    "moved": SHARE,
}
"""What a row may know of its cycle; whatever else it has is a loss that the algorithm or the ensemble names."""
COLUMNS = (*HEAD, *MEASURED)


@dataclass
class History:
    """Rows (see :data:`COLUMNS`) and chosen goals of S runs."""

    configs: Sequence[Config]
    train_boxes: list[Floats]
    """Bounding box ``[2, goal]`` of each run's training space."""
    test_boxes: list[Floats]
    table: Floats | None
    """Table top ``[2, 2]`` in x and y (Fetch)."""
    sizes: Dimensions
    wall_seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Floats] = field(default_factory=list)
    """Training goals ``[S, B, goal]`` of each cycle."""
    past: Past = field(default_factory=Past)

    @classmethod
    def start(
        cls,
        configs: Sequence[Config],
        train: Sequence[GoalSpace],
        test: Sequence[GoalSpace],
        table: Floats | None,
        sizes: Dimensions,
    ) -> History:
        """Nothing yet."""
        return cls(configs, [bounding_box(f) for f in train], [bounding_box(f) for f in test], table, sizes)

    def steps(self, cycle: int) -> int:
        """Environment steps of training played before a cycle."""
        return cycle * self.configs[0].episodes * self.sizes.horizon

    def add(
        self,
        cycle: int,
        goals: Floats,
        notes: Sequence[dict[str, float]],
        losses: dict[str, Any],
        episodes: Episodes,
        distances: Floats,
    ) -> None:
        """One cycle: goals ``[S, B, goal]``, what was known of them, losses ``[S]``, test distances."""
        arrived = np.linalg.norm(episodes.achieved[:, :, -1] - episodes.goal, axis=-1) <= self.sizes.success
        far = (
            np.linalg.norm(episodes.achieved - episodes.achieved[:, :, :1], axis=-1).max(-1)
            > CONTACT_DISTANCE * self.sizes.success
        )
        per_run = {name: np.asarray(loss) for name, loss in losses.items()}
        rows = []
        for run in range(len(self.configs)):
            row = self._row(run, cycle) | notes[run] | {name: float(loss[run]) for name, loss in per_run.items()}
            row["train_success"] = float(arrived[run].mean())
            row["moved"] = float(far[run].mean())
            row["inside_test"] = float(inside(self.test_boxes[run], goals[run]).mean())
            if self.table is not None:
                row["on_table"] = float(inside(self.table, goals[run][:, :2]).mean())
            rows.append(_finite(row) | self._tested(distances, run))
        self.goals.append(goals)
        self.rows += rows

    def add_test(self, cycle: int, distances: Floats) -> None:
        """The final test, after the last cycle."""
        self.rows += [self._row(run, cycle) | self._tested(distances, run) for run in range(len(self.configs))]

    def _row(self, run: int, cycle: int) -> dict[str, Any]:
        config = self.configs[run]
        head = {"run": run, "seed": config.seed, "goal_rule": config.goal_rule, "cycle": cycle}
        return head | {"steps": self.steps(cycle), "wall_seconds": round(self.wall_seconds, 2)}

    def _tested(self, distances: Floats, run: int) -> dict[str, float]:
        """Success at the last step and at any step, from test distances ``[rounds, S, B, T]``."""
        if not len(distances):
            return {}
        near = distances[:, run] <= self.sizes.success
        return {"success": float(near[..., -1].mean()), "success_any": float(near.any(-1).mean())}

    def curve(self, run: int) -> list[dict[str, Any]]:
        """Rows of the tests, each with the means since the previous test of what the cycles logged."""
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
                points.append(point)
                since = []
            since.append(row)
        return points

    def to_csv(self) -> str:
        """All rows as a table; losses come last."""
        losses = dict.fromkeys(name for row in self.rows for name in row if name not in COLUMNS)
        text = io.StringIO()
        writer = csv.DictWriter(text, (*COLUMNS, *losses), restval="")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and JSON-ready facts for :meth:`restore`."""
        arrays = {"goals": np.stack(self.goals), **self.past.arrays()}
        return arrays, {"rows": self.rows, "wall_seconds": self.wall_seconds}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.goals, self.past = list(arrays["goals"]), Past.of(arrays)
        self.rows, self.wall_seconds = facts["rows"], float(facts["wall_seconds"])


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """What a training that diverged cannot say (NaN, infinities) is left out of its log: no file could hold it."""
    return {name: x for name, x in row.items() if not isinstance(x, float) or math.isfinite(x)}


def reached(curves: Sequence[Sequence[dict[str, Any]]], share: float) -> int | None:
    """Steps at which the median test success over runs first reaches a share; None if it never does."""
    for points in zip(*curves, strict=False):
        if statistics.median(p["success"] for p in points) >= share:
            return int(points[0]["steps"])
    return None


def median_at(curves: Sequence[Sequence[dict[str, Any]]], steps: int) -> float | None:
    """Median test success over runs at the last test not after ``steps``."""
    known = [[p["success"] for p in points if p["steps"] <= steps] for points in curves]
    return statistics.median(values[-1] for values in known) if all(known) else None
