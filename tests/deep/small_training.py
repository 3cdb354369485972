"""The smallest complete training run: four cycles of two short episodes, tests at 0, 2 and the end."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import adagoal
from adagoal.deep import Config
from adagoal.deep.goal_envs import EnvDimensions, EnvSource
from adagoal.deep.rollouts import EnvBatch
from adagoal.parallel.worker_process import serve_calls
from adagoal.runs import training_session
from adagoal.runs.run_folder import find_saved_run

SETTINGS: dict[str, Any] = {
    "algorithm": "ddpg", "gamma": 0.98, "radius": 40.0, "radius_ramp": 100_000, "action_l2": 1.0, "contact": 0.0,
    "swap_goals": 0.0,
    "hidden": (4,), "updates": 2, "batch": 8, "ensemble_updates": 2, "ensemble_batch": 8, "candidates": 5, "members": 2,
    "episodes": 2, "horizon": 5, "buffer": 100, "eval_every": 2, "eval_episodes": 2, "steps": 40,
}  # fmt: skip
CONFIG = Config("point-mass", **SETTINGS)
TINY: dict[str, Any] = {
    "hidden": (16,), "updates": 4, "batch": 32, "ensemble_updates": 2, "ensemble_batch": 32, "candidates": 20,
    "buffer": 10_000, "eval_every": 2, "eval_episodes": 16, "episodes": 4, "horizon": 20, "steps": 320,
}  # fmt: skip
"""Settings of other small training runs: four cycles. Equal settings are compiled once."""


def words(settings: dict[str, Any]) -> list[str]:
    """Return settings as options of the command line."""
    shown = {name: ",".join(map(str, x)) if isinstance(x, tuple) else str(x) for name, x in settings.items()}
    return [word for name, value in shown.items() for word in (f"--{name.replace('_', '-')}", value)]


def equal(one: Path, other: Path) -> bool:
    """Whether two training runs are equal, byte for byte, except for their duration."""
    names = ("policy.npz", "goals.npz", "past.npz")
    same = all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
    return same and log(one) == log(other)


def load_policy(folder: Path, run: int = 0) -> Any:
    """Return the policy of one of the runs in a folder."""
    return adagoal.load(folder).policies[run]


def evaluate(folder: Path, episodes: int = 200, **given: Any) -> Any:
    """Test the policy in a folder."""
    return adagoal.load(folder).evaluate(episodes, **given)


def log(folder: Path) -> list[list[str]]:
    """Return the rows of a log without their wall-clock seconds."""
    rows = [line.split(",") for line in (folder / "log.csv").read_text().splitlines()]
    at = rows[0].index("wall_seconds")
    return [row[:at] + row[at + 1 :] for row in rows]


def restored(folder: Path, **code: Any) -> training_session.Training:
    """Return what ``resume`` builds from a folder before it runs anything."""
    found = find_saved_run(folder)
    assert found is not None
    given = {"steps": 0, "env": None, "goal_rule": None, "set_goal": None, "trust": False}
    return training_session.restore_training(found, **given | code, limits=training_session.TrainingLimits(workers=1))


@contextlib.contextmanager
def rollout_worker(configs: list[Config], source: EnvSource, sizes: EnvDimensions) -> Iterator[Connection]:
    """Start a worker with one environment in a thread of this process; return the pipe to it."""
    here, there = multiprocessing.Pipe()
    make = pickle.dumps(functools.partial(EnvBatch, configs, [(0, 0)], source, sizes))
    thread = threading.Thread(target=serve_calls, args=(there, make))
    thread.start()
    try:
        yield here
    finally:
        here.close()
        thread.join()
