"""The files of a training, without JAX: ``result.json``, ``log.csv``, ``goals.npz``, ``policy.npz``; reading them back.

``result.json`` says ``"kind": "training"``, its status, the settings that all runs share (``config``), and per run
those of its own with its learning curve; ``goals.npz`` holds the chosen goals, the final maps and the goal spaces;
``policy.npz`` the actors.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.files import read_arrays, read_json, write_arrays, write_json, write_text
from adagoal.core.status import Status
from adagoal.deep import settings
from adagoal.deep.actor import Actor
from adagoal.deep.config import Config
from adagoal.deep.evaluation import Evaluation, play
from adagoal.deep.history import History
from adagoal.deep.policy import Policy

KIND = "training"
FORMAT = 2
RESULT, CHECKPOINT, POLICY, GOALS = "result.json", "checkpoint.npz", "policy.npz", "goals.npz"
VERSIONED = ("jax", "optax", "numpy", "mujoco", "gymnasium", "gymnasium-robotics")


def is_training(folder: Path) -> bool:
    """Whether a folder holds a training, finished or not."""
    if (folder / RESULT).is_file():
        data = read_json(folder / RESULT)
        return isinstance(data, dict) and data.get("kind") == KIND
    if not (folder / CHECKPOINT).is_file():
        return False
    facts = read_arrays(folder / CHECKPOINT)[1]
    return isinstance(facts, dict) and facts.get("kind") == KIND


def to_json(status: Status, history: History) -> dict[str, Any]:
    """A training as plain data."""
    first = history.configs[0]
    own = settings.per_run(Config)
    runs = [
        {k: v for k, v in config.to_json().items() if k in own} | {"curve": history.curve(run)}
        for run, config in enumerate(history.configs)
    ]
    data = {
        "kind": KIND,
        "status": status,
        "method": first.method,
        "env": first.env,
        "steps": max((row["steps"] for row in history.rows), default=0),
        "episodes": len(history.goals) * first.episodes,
        "wall_seconds": round(history.wall_seconds, 1),
        "config": {k: v for k, v in first.to_json().items() if k not in own},
        "runs": runs,
    }
    finite: dict[str, Any] = _finite(data | provenance())
    return finite


def configs(data: dict[str, Any]) -> list[Config]:
    """The settings of the runs in a ``result.json``."""
    own = settings.per_run(Config)
    return [Config.from_json({**data["config"], **{k: run[k] for k in own if k in run}}) for run in data["runs"]]


def provenance() -> dict[str, Any]:
    """The command, the machine and the versions behind a number."""
    import jax

    versions = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}",
        "versions": versions,
    }


def after_tests(path: Path, complete: Callable[[dict[str, Any]], None]) -> Callable[[History], None]:
    """An observer that writes what is known so far after every test; ``complete`` may add to the data."""

    def write_so_far(history: History) -> None:
        if "success" in history.rows[-1]:
            data = to_json(Status.INTERRUPTED, history)  # which is what it is, should nobody write it again
            complete(data)
            write_json(path, data)

    return write_so_far


def write(folder: Path, status: Status, history: History, actors: list[Actor], maps: dict[str, NDArray[Any]]) -> None:
    """All files but the checkpoint."""
    write_text(folder / "log.csv", history.to_csv())
    boxes = {f"train_box_{run}": box for run, box in enumerate(history.train_boxes)}
    boxes |= {f"test_box_{run}": box for run, box in enumerate(history.test_boxes)}
    table = {} if history.table is None else {"table": history.table}
    write_arrays(folder / GOALS, {"chosen": np.stack(history.goals), **maps, **boxes, **table}, {}, compress=False)
    named = {f"{run}.{name}": array for run, actor in enumerate(actors) for name, array in actor.to_arrays().items()}
    write_arrays(folder / POLICY, named, {"env": history.configs[0].env, "runs": len(actors)}, compress=False)
    write_json(folder / RESULT, to_json(status, history))


def load(folder: Path | str, run: int = 0) -> Policy:
    """The policy of a training folder (``run``: which of the runs trained side by side)."""
    path = Path(folder) / POLICY
    if not path.is_file():
        raise InputError(f"{path} does not exist; train writes it at the end of a run")
    arrays, facts = read_arrays(path)
    try:
        if run not in range(facts["runs"]):
            raise InputError(f"{run} is not in {path}; accepted 0 to {facts['runs'] - 1}", name="run")
        own = {name.removeprefix(f"{run}."): array for name, array in arrays.items() if name.startswith(f"{run}.")}
        return Policy(facts["env"], Actor.from_arrays(own))
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}: damaged or incomplete ({error})") from error


def evaluate(
    folder: Path | str, *, run: int = 0, episodes: int = 200, test_goals: str | None = None, seed: int = 0
) -> Evaluation:
    """Play ``episodes`` episodes of the policy of a training folder, without noise, on its test goals or on others."""
    policy = load(folder, run)
    data = read_json(Path(folder) / RESULT)
    try:
        trained = configs(data)[run]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"{Path(folder) / RESULT}: damaged, or not of a training ({error})") from error
    return play(policy, trained.horizon, test_goals or trained.test_goals, episodes, seed)


def _finite(data: Any) -> Any:
    """JSON has no NaN, which a training that diverged may log."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
