"""The files of a training, without JAX: ``result.json``, ``log.csv``, ``goals.npz``, ``policy.npz``; reading them back.

``result.json`` says ``"kind": "training"``, its status, the settings that all runs share (``config``), and per run
those of its own with its learning curve; ``goals.npz`` holds the chosen goals, the goal spaces and, at the end of a
run, the final maps; ``policy.npz`` the actors. They are written with every checkpoint, in one commit
(:mod:`adagoal.runs.folder`), and everything that is read is checked first (:mod:`adagoal.runs.training_schema`).

Reading runs no code that only the folder names: an environment ``module:Id`` is imported where the caller names it
again or trusts the folder, and the file of a goal rule is never run here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import files
from adagoal.core.errors import InputError
from adagoal.core.files import Content, write_json
from adagoal.core.schema import check_json
from adagoal.core.status import Status
from adagoal.deep import settings
from adagoal.deep.actor import Actor
from adagoal.deep.config import Config
from adagoal.deep.evaluation import Evaluation, play
from adagoal.deep.history import History
from adagoal.deep.policy import Policy
from adagoal.runs import training_format1 as format1
from adagoal.runs import training_schema as schema
from adagoal.runs.saved import Files, Saved, find, read
from adagoal.runs.training_schema import FORMAT, KIND
from adagoal.worlds import registry

RESULT, POLICY, GOALS, LOG = "result.json", "policy.npz", "goals.npz", "log.csv"
VERSIONED = ("jax", "optax", "numpy", "mujoco", "gymnasium", "gymnasium-robotics")

# --- writing ---


def contents(
    status: Status, history: History, actors: list[Actor], maps: dict[str, NDArray[Any]]
) -> dict[str, Content]:
    """The result files; ``maps`` is empty before the end of a run."""
    boxes = {f"train_box_{run}": box for run, box in enumerate(history.train_boxes)}
    boxes |= {f"test_box_{run}": box for run, box in enumerate(history.test_boxes)}
    table = {} if history.table is None else {"table": history.table}
    goals = {"chosen": np.stack(history.goals), **maps, **boxes, **table}
    named = {f"{run}.{name}": array for run, actor in enumerate(actors) for name, array in actor.to_arrays().items()}
    facts = {"env": history.configs[0].env, "runs": len(actors)}
    return {
        LOG: files.text_content(history.to_csv()),
        GOALS: files.arrays_content(goals, compress=False),
        POLICY: files.arrays_content(named, facts, compress=False),
        RESULT: files.json_content(to_json(status, history)),
    }


def to_json(status: Status, history: History) -> dict[str, Any]:
    """A training as plain data."""
    first = history.configs[0]
    own = settings.per_run(Config)
    runs = [
        {k: v for k, v in config.to_json().items() if k in own} | {"curve": history.curve(run)}
        for run, config in enumerate(history.configs)
    ]
    data = {
        "format": FORMAT,
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
    return data | provenance()


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


# --- reading ---


@dataclass(frozen=True)
class Record:
    """A ``result.json``, read and checked."""

    path: Path
    """The folder."""
    data: dict[str, Any]
    configs: list[Config]

    @property
    def curves(self) -> list[list[dict[str, Any]]]:
        """Per run, the points of its learning curve (see :meth:`History.curve`)."""
        return [run["curve"] for run in self.data["runs"]]

    def environment(self, env: str | None, trust: bool) -> str:
        """The environment to make: the folder's own, unless that would run code that only the folder names."""
        return environment(self.path, self.configs[0], env, trust)


@contextlib.contextmanager
def naming(found: Files, name: str) -> Iterator[None]:
    """What is wrong with the content of a file is one line that names it, also where it is a setting."""
    path = found.places[name][0] if name in found else found.folder / name
    try:
        with files.reading(path):
            yield
    except InputError as error:
        if error.name is None:
            raise
        raise InputError(f"{path}: damaged or not readable ({error})") from None


def is_training(folder: Path) -> bool:
    """Whether a folder holds a training, finished or not."""
    found = find(folder)
    return found is not None and found.kind == KIND


def environment(folder: Path, config: Config, env: str | None, trust: bool) -> str:
    """The environment of a run; ``env`` names it again, ``trust`` allows to import what the folder names."""
    if env is not None and env != config.env:
        raise InputError(f"the run in {folder} is on {config.env!r}, not on {env!r}", name="env")
    if config.env.startswith(registry.OBJECT):  # no name: Gymnasium would take it for that of a module
        raise InputError(f"the run in {folder} is on {config.env!r}, which cannot be made again", name="env")
    return env or registry.installed(config.env, trust)


def record(saved: Saved) -> Record:
    """The settings, curves and status of a training."""
    results = of_training(saved).results()
    if RESULT not in results:
        raise InputError(f"{saved.path}: the training was cut off before its end; resume it first")
    with naming(results, RESULT):
        data = results.json(RESULT, schema.result_rules(1 if saved.manifest is None else FORMAT))
        own = configs(data)
        schema.check_result(data, own)
    return Record(saved.path, data, own)


def configs(data: dict[str, Any]) -> list[Config]:
    """The settings of the runs in a ``result.json``."""
    own = settings.per_run(Config)
    return [Config.from_json({**data["config"], **{k: run[k] for k in own if k in run}}) for run in data["runs"]]


def of_training(saved: Saved) -> Saved:
    """The same, known to be a training."""
    if saved.kind != KIND:
        raise InputError(f"{saved.path}: holds a run of another kind ({saved.kind})")
    return saved


def goals(saved: Saved, about: Record) -> dict[str, NDArray[Any]]:
    """Chosen goals, goal spaces and maps of a training."""
    results = saved.results()
    with naming(results, GOALS):
        arrays, _ = results.arrays(GOALS)
        schema.check_goals(arrays, len(about.configs), about.configs[0].episodes, about.data["episodes"])
    return arrays


def load(folder: Path | str, run: int = 0) -> Policy:
    """The policy of a training folder (``run``: which of the runs trained side by side)."""
    return read(Path(folder), lambda saved: policy(saved, record(saved), run))


def policy(saved: Saved, about: Record, run: int) -> Policy:
    """The policy of one of the runs of a training."""
    runs = len(about.configs)
    if run not in range(runs):
        raise InputError(f"{run} is not in {about.path}; accepted 0 to {runs - 1}", name="run")
    results = saved.results()
    with naming(results, POLICY):
        arrays, facts = results.arrays(POLICY)
        if saved.manifest is None:
            facts = format1.policy_facts(arrays)
        check_json(schema.POLICY_FACTS, facts)
        if (facts["env"], facts["runs"]) != (about.configs[0].env, runs):
            raise ValueError(f"not of the training that {RESULT} describes")
        schema.check_policy(arrays, runs)
    own = {name.removeprefix(f"{run}."): array for name, array in arrays.items() if name.startswith(f"{run}.")}
    return Policy(facts["env"], Actor.from_arrays(own))


def evaluate(
    folder: Path | str,
    *,
    run: int = 0,
    episodes: int = 200,
    test_goals: str | None = None,
    seed: int = 0,
    env: str | None = None,
    trust: bool = False,
) -> Evaluation:
    """Play ``episodes`` episodes of the policy of a training folder, without noise, on its test goals or on others.

    Where the folder names code that is not installed (``module:Id``), ``env`` names it again or ``trust`` allows it.
    """

    def found(saved: Saved) -> tuple[Record, Policy]:
        about = record(saved)
        return about, policy(saved, about, run)

    about, trained = read(Path(folder), found)
    known = Policy(about.environment(env, trust), trained.actor)
    config = about.configs[run]
    return play(known, config.horizon, test_goals or config.test_goals, episodes, seed)
