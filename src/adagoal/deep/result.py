"""``result.json`` of a training: status, settings, learning curves, and what machine made it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from adagoal.core import files as storage
from adagoal.deep import checkpoint
from adagoal.deep.config import PER_RUN
from adagoal.deep.history import History
from adagoal.deep.training import TrainResult, Watch

VERSIONED = ("jax", "optax", "numpy", "mujoco", "gymnasium", "gymnasium-robotics")


def to_json(result: TrainResult) -> dict[str, Any]:
    """A training as plain data."""
    history = result.history
    first = history.configs[0]
    shared = {k: v for k, v in first.to_json().items() if k not in PER_RUN}
    return {
        "status": result.status,
        "method": "ddpg+her",
        "env": first.env,
        "steps": max((row["steps"] for row in history.rows), default=0),
        "episodes": len(history.goals) * first.episodes,
        "wall_seconds": round(history.wall_seconds, 1),
        "config": shared,
        "runs": [
            {k: v for k, v in config.to_json().items() if k in PER_RUN} | {"curve": history.curve(run)}
            for run, config in enumerate(history.configs)
        ],
    } | provenance()


def provenance() -> dict[str, Any]:
    """The command, the machine and the versions behind a number."""
    device = jax.devices()[0]
    versions = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {device.device_kind}",
        "versions": versions,
    }


def recorded(path: Path, watch: Watch, add: Callable[[dict[str, Any]], None]) -> Watch:
    """``watch``, and after every test what is known so far in a file; ``add`` may complete the data."""

    def write(history: History) -> None:
        watch(history)
        if "success" in history.rows[-1]:
            data = to_json(TrainResult("running", history, [], {}, None))
            add(data)
            write_json(path, data)

    return write


def write_json(path: Path, data: Any) -> None:
    storage.write_text(path, json.dumps(data, indent=1) + "\n")


def write_folder(result: TrainResult, folder: Path) -> None:
    """``result.json``, ``log.csv``, ``goals.npz`` (chosen goals, final maps) and ``policy.npz``."""
    write_json(folder / "result.json", to_json(result))
    result.history.write_csv(folder / "log.csv")
    boxes = {f"{kind}_{run}": box for kind, all_ in _boxes(result.history).items() for run, box in enumerate(all_)}
    checkpoint.write_arrays(folder / "goals.npz", {"chosen": np.stack(result.history.goals), **result.maps, **boxes})
    policy = {"format": np.array(checkpoint.FORMAT), "env": checkpoint.text(result.history.configs[0].env)}
    for run, actor in enumerate(result.actors):
        for i, (weight, bias) in enumerate(actor.layers):
            policy |= {f"{run}.weight{i}": weight, f"{run}.bias{i}": bias}
        for name in ("observation_mean", "observation_std", "goal_mean", "goal_std"):
            policy[f"{run}.{name}"] = getattr(actor, name)
        policy[f"{run}.clip"] = np.array(actor.clip)
    checkpoint.write_arrays(folder / "policy.npz", policy)


def _boxes(history: History) -> dict[str, list[Any]]:
    return {"train_box": history.train_boxes, "test_box": history.test_boxes}


def reached(curves: list[list[dict[str, Any]]], share: float) -> int | None:
    """Steps at which the median test success over runs first reaches a share; None if it never does."""
    for points in zip(*curves, strict=False):
        if statistics.median(p["success"] for p in points) >= share:
            return int(points[0]["steps"])
    return None


def median_at(curves: list[list[dict[str, Any]]], steps: int) -> float | None:
    """Median test success over runs at the last test not after ``steps``."""
    known = [[p["success"] for p in points if p["steps"] <= steps] for points in curves]
    return statistics.median(values[-1] for values in known) if all(known) else None
