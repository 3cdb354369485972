"""The files of a training, without JAX: ``result.json``, ``log.csv`` and three of arrays; reading them back.

``result.json`` says ``"kind": "training"``, its status, the settings that all runs share (``config``), and per run
those of its own with its learning curve; ``goals.npz`` holds the chosen goals, the goal spaces and, at the end of a
run, the final maps; ``past.npz`` earlier maps and the tests; ``policy.npz`` the actors. They are written with every
checkpoint, in one commit (:mod:`adagoal.runs.folder`), and everything that is read is checked first
(:mod:`adagoal.runs.training_schema`).

Reading runs no code that only the folder names: an environment ``module:Id`` is imported where the caller names it
again or trusts the folder, and the file of a goal rule is never run here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import files
from adagoal.core.checks import folder_path
from adagoal.core.errors import InputError
from adagoal.core.files import Content, write_json
from adagoal.core.schema import check_json
from adagoal.core.status import Status
from adagoal.core.text import OBJECT
from adagoal.deep import settings
from adagoal.deep.actor import Actor
from adagoal.deep.aiming import Hook
from adagoal.deep.config import Config
from adagoal.deep.envs import Source
from adagoal.deep.evaluation import Evaluation, play
from adagoal.deep.history import History
from adagoal.deep.past import Past
from adagoal.deep.policy import Policy
from adagoal.deep.values import Critics
from adagoal.runs import training_schema as schema
from adagoal.runs.manifest import FORMAT
from adagoal.runs.saved import Files, Saved, find, read
from adagoal.runs.training_schema import KIND
from adagoal.worlds import registry

RESULT, POLICY, GOALS, PAST, LOG = "result.json", "policy.npz", "goals.npz", "past.npz", "log.csv"
VERSIONED = ("jax", "optax", "numpy", "mujoco", "gymnasium", "gymnasium-robotics")

# --- writing ---


def contents(
    status: Status, history: History, policies: Sequence[Policy], maps: dict[str, NDArray[Any]]
) -> dict[str, Content]:
    """The result files; ``maps`` is empty before the end of a run."""
    boxes = {f"train_box_{run}": box for run, box in enumerate(history.train_boxes)}
    boxes |= {f"test_box_{run}": box for run, box in enumerate(history.test_boxes)}
    table = {} if history.table is None else {"table": history.table}
    goals = {"chosen": np.stack(history.goals), **maps, **boxes, **table}
    named = {f"{run}.{name}": array for run, own in enumerate(policies) for name, array in own.weights().items()}
    first = policies[0]
    facts = {"env": first.env, "runs": len(policies), "with_achieved": first.with_achieved, "success": first.success}
    facts |= {name: list(getattr(first, name)) for name in ("low", "high", "shape")}
    return {
        LOG: files.text_content(history.to_csv()),
        GOALS: files.arrays_content(goals, compress=False),
        PAST: files.arrays_content(history.past.arrays(), compress=False),
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

    def source(self, env: Any, trust: bool, call: str = "adagoal.deep.evaluate") -> Source:
        """The environment to make: the folder's own, unless that would run code that only the folder names."""
        return environment(self.path, self.configs[0], env, trust, call)


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


def environment(folder: Path, config: Config, env: Any, trust: bool, call: str, set_goal: Hook | None = None) -> Source:
    """The environment of a run; ``env`` gives it again, ``trust`` allows to import what the folder names.

    ``call`` is the function of Python to which an object can be given: a command cannot take one.
    """
    given = None if env is None else Source.of(env, set_goal)
    if given is not None and given.name != config.env:
        raise InputError(f"the run in {folder} is on {config.env!r}, not on {given.name!r}", name="env")
    if given is None and config.env.startswith(OBJECT):  # no name: Gymnasium would take it for that of a module
        again = f"give the object or its function again: {call}({str(folder)!r}, env=...)"
        raise InputError(f"the run in {folder} is on {config.env!r}; {again}", name="env")
    return given or Source.of(registry.installed(config.env, trust), set_goal)


def record(saved: Saved) -> Record:
    """The settings, curves and status of a training."""
    results = of_training(saved).results()
    if RESULT not in results:
        raise InputError(f"{saved.path}: the training was cut off before its end; resume it first")
    with naming(results, RESULT):
        data = results.json(RESULT, schema.result_rules())
        own = configs(data)
        schema.check_result(data, own)
    return Record(saved.path, data, own)


def configs(data: dict[str, Any]) -> list[Config]:
    """The settings of the runs in a ``result.json``."""
    own = settings.per_run(Config)
    return [Config.from_json(data["config"] | {k: run[k] for k in own}) for run in data["runs"]]


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


def past(saved: Saved, about: Record, axes: int) -> Past:
    """Earlier maps over so many axes, and the tests."""
    results, first = saved.results(), about.configs[0]
    with naming(results, PAST):
        arrays, _ = results.arrays(PAST)
        schema.check_past(arrays, len(about.configs), axes, about.data["episodes"] // first.episodes)
    return Past.of(arrays)


def load(folder: Path | str, run: int = 0) -> Policy:
    """The policy of a training folder (``run``: which of the runs trained side by side)."""
    return read(folder_path("folder", folder), lambda saved: policy(saved, record(saved), run))


def policy(saved: Saved, about: Record, run: int) -> Policy:
    """The policy of one of the runs of a training."""
    runs = len(about.configs)
    if run not in range(runs):
        raise InputError(f"{run} is not in {about.path}; accepted 0 to {runs - 1}", name="run")
    results = saved.results()
    with naming(results, POLICY):
        arrays, facts = results.arrays(POLICY)
        check_json(schema.POLICY_FACTS, facts)
        if (facts["env"], facts["runs"]) != (about.configs[0].env, runs):
            raise ValueError(f"not of the training that {RESULT} describes")
        schema.check_policy(arrays, runs)
        box = schema.action_box(facts, len(arrays[f"{run}.bias{schema.layers(arrays) - 1}"]))
    own = {name.removeprefix(f"{run}."): array for name, array in arrays.items() if name.startswith(f"{run}.")}
    actor = Actor.from_arrays(own)
    return Policy(facts["env"], actor, Critics.from_arrays(own), *box, facts["with_achieved"], facts["success"])


def evaluate(
    folder: Path | str,
    *,
    run: int = 0,
    episodes: int = 200,
    test_goals: str | None = None,
    seed: int = 0,
    env: Any = None,
    trust: bool = False,
) -> Evaluation:
    """Play ``episodes`` episodes of the policy of a training folder, without noise, on its test goals or on others.

    Where the folder names code that is not installed (``module:Id``), ``env`` names it again or ``trust`` allows it. A
    training on an environment object needs the object, or the function that makes it, again.
    """

    def found(saved: Saved) -> tuple[Record, Policy]:
        about = record(saved)
        return about, policy(saved, about, run)

    about, trained = read(folder_path("folder", folder), found)
    config = about.configs[run]
    source = about.source(env, trust)
    return play(trained, source, config.horizon, test_goals or config.test_goals, episodes, seed)
