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
from adagoal.core.checks import check_folder_path
from adagoal.core.errors import InputError
from adagoal.core.files import FileContent, write_json
from adagoal.core.schema import check_json_value
from adagoal.core.status import Status
from adagoal.core.text import OBJECT_ENV_PREFIX
from adagoal.deep import settings
from adagoal.deep.actor import NumpyActor
from adagoal.deep.aiming import SetGoalFunction
from adagoal.deep.config import Config
from adagoal.deep.envs import EnvSource
from adagoal.deep.evaluation import Evaluation, evaluate_policy
from adagoal.deep.history import TrainingHistory
from adagoal.deep.past import ValueMapHistory
from adagoal.deep.policy import Policy
from adagoal.deep.values import NumpyCritics
from adagoal.runs import training_schema as schema
from adagoal.runs.manifest import MANIFEST_FORMAT
from adagoal.runs.saved import FolderFiles, SavedRun, find_saved_run, read_saved_run
from adagoal.runs.training_schema import TRAINING_KIND
from adagoal.worlds import registry

RESULT_FILE, POLICY_FILE, GOALS_FILE, PAST_MAPS_FILE, LOG_FILE = (
    "result.json",
    "policy.npz",
    "goals.npz",
    "past.npz",
    "log.csv",
)
VERSIONED_PACKAGES = ("jax", "optax", "numpy", "mujoco", "gymnasium", "gymnasium-robotics")

# --- writing ---


def training_file_contents(
    status: Status, history: TrainingHistory, policies: Sequence[Policy], maps: dict[str, NDArray[Any]]
) -> dict[str, FileContent]:
    """The result files; ``maps`` is empty before the end of a run."""
    boxes = {f"train_box_{run}": box for run, box in enumerate(history.train_boxes)}
    boxes |= {f"test_box_{run}": box for run, box in enumerate(history.test_boxes)}
    table = {} if history.table_box is None else {"table": history.table_box}
    goals = {"chosen": np.stack(history.goals), **maps, **boxes, **table}
    named = {f"{run}.{name}": array for run, own in enumerate(policies) for name, array in own.weights().items()}
    first = policies[0]
    facts = {"env": first.env, "runs": len(policies), "with_achieved": first.with_achieved, "success": first.success}
    facts |= {name: list(getattr(first, name)) for name in ("low", "high", "shape")}
    return {
        LOG_FILE: files.text_content(history.to_csv()),
        GOALS_FILE: files.arrays_content(goals, compress=False),
        PAST_MAPS_FILE: files.arrays_content(history.value_maps.to_arrays(), compress=False),
        POLICY_FILE: files.arrays_content(named, facts, compress=False),
        RESULT_FILE: files.json_content(training_to_json(status, history)),
    }


def training_to_json(status: Status, history: TrainingHistory) -> dict[str, Any]:
    """A training as plain data."""
    first = history.configs[0]
    own = settings.per_run_settings(Config)
    runs = [
        {k: v for k, v in config.to_json().items() if k in own} | {"curve": history.learning_curve(run)}
        for run, config in enumerate(history.configs)
    ]
    data = {
        "format": MANIFEST_FORMAT,
        "kind": TRAINING_KIND,
        "status": status,
        "method": first.method_name,
        "env": first.env,
        "steps": max((row["steps"] for row in history.rows), default=0),
        "episodes": len(history.goals) * first.episodes,
        "wall_seconds": round(history.wall_seconds, 1),
        "config": {k: v for k, v in first.to_json().items() if k not in own},
        "runs": runs,
    }
    return data | collect_provenance()


def collect_provenance() -> dict[str, Any]:
    """The command, the machine and the versions behind a number."""
    import jax

    versions = {"python": platform.python_version()}
    for name in VERSIONED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}",
        "versions": versions,
    }


def make_interim_writer(path: Path, complete: Callable[[dict[str, Any]], None]) -> Callable[[TrainingHistory], None]:
    """An observer that writes what is known so far after every test; ``complete`` may add to the data."""

    def write_so_far(history: TrainingHistory) -> None:
        if "success" in history.rows[-1]:
            data = training_to_json(Status.INTERRUPTED, history)  # which is what it is, should nobody write it again
            complete(data)
            write_json(path, data)

    return write_so_far


# --- reading ---


@dataclass(frozen=True)
class TrainingRecord:
    """A ``result.json``, read and checked."""

    path: Path
    """The folder."""
    data: dict[str, Any]
    configs: list[Config]

    @property
    def learning_curves(self) -> list[list[dict[str, Any]]]:
        """Per run, the points of its learning curve (see :meth:`History.learning_curve`)."""
        return [run["curve"] for run in self.data["runs"]]

    def env_source(self, env: Any, trust: bool, call: str = "adagoal.deep.evaluate") -> EnvSource:
        """The environment to make: the folder's own, unless that would run code that only the folder names."""
        return resolve_training_env(self.path, self.configs[0], env, trust, call)


@contextlib.contextmanager
def name_file_in_errors(found: FolderFiles, name: str) -> Iterator[None]:
    """What is wrong with the content of a file is one line that names it, also where it is a setting."""
    path = found.candidate_paths[name][0] if name in found else found.folder / name
    try:
        with files.report_read_errors(path):
            yield
    except InputError as error:
        if error.name is None:
            raise
        raise InputError(f"{path}: damaged or not readable ({error})") from None


def is_training_folder(folder: Path) -> bool:
    """Whether a folder holds a training, finished or not."""
    found = find_saved_run(folder)
    return found is not None and found.kind == TRAINING_KIND


def resolve_training_env(
    folder: Path, config: Config, env: Any, trust: bool, call: str, set_goal: SetGoalFunction | None = None
) -> EnvSource:
    """The environment of a run; ``env`` gives it again, ``trust`` allows to import what the folder names.

    ``call`` is the function of Python to which an object can be given: a command cannot take one.
    """
    given = None if env is None else EnvSource.from_argument(env, set_goal)
    if given is not None and given.name != config.env:
        raise InputError(f"the run in {folder} is on {config.env!r}, not on {given.name!r}", name="env")
    if given is None and config.env.startswith(
        OBJECT_ENV_PREFIX
    ):  # no name: Gymnasium would take it for that of a module
        again = f"give the object or its function again: {call}({str(folder)!r}, env=...)"
        raise InputError(f"the run in {folder} is on {config.env!r}; {again}", name="env")
    return given or EnvSource.from_argument(registry.require_trusted_env(config.env, trust), set_goal)


def read_training_record(saved: SavedRun) -> TrainingRecord:
    """The settings, curves and status of a training."""
    results = require_training(saved).result_files()
    if RESULT_FILE not in results:
        raise InputError(f"{saved.path}: the training was cut off before its end; resume it first")
    with name_file_in_errors(results, RESULT_FILE):
        data = results.load_json(RESULT_FILE, schema.training_result_schema())
        own = configs_from_json(data)
        schema.check_training_result(data, own)
    return TrainingRecord(saved.path, data, own)


def configs_from_json(data: dict[str, Any]) -> list[Config]:
    """The settings of the runs in a ``result.json``."""
    own = settings.per_run_settings(Config)
    return [Config.from_json(data["config"] | {k: run[k] for k in own}) for run in data["runs"]]


def require_training(saved: SavedRun) -> SavedRun:
    """The same, known to be a training."""
    if saved.kind != TRAINING_KIND:
        raise InputError(f"{saved.path}: holds a run of another kind ({saved.kind})")
    return saved


def read_goal_arrays(saved: SavedRun, about: TrainingRecord) -> dict[str, NDArray[Any]]:
    """Chosen goals, goal spaces and maps of a training."""
    results = saved.result_files()
    with name_file_in_errors(results, GOALS_FILE):
        arrays, _ = results.load_arrays(GOALS_FILE)
        schema.check_goal_arrays(arrays, len(about.configs), about.configs[0].episodes, about.data["episodes"])
    return arrays


def read_past_maps(saved: SavedRun, about: TrainingRecord, axes: int) -> ValueMapHistory:
    """Earlier maps over so many axes, and the tests."""
    results, first = saved.result_files(), about.configs[0]
    with name_file_in_errors(results, PAST_MAPS_FILE):
        arrays, _ = results.load_arrays(PAST_MAPS_FILE)
        schema.check_past_arrays(arrays, len(about.configs), axes, about.data["episodes"] // first.episodes)
    return ValueMapHistory.from_arrays(arrays)


def load(folder: Path | str, run: int = 0) -> Policy:
    """The policy of a training folder (``run``: which of the runs trained side by side)."""
    return read_saved_run(
        check_folder_path("folder", folder), lambda saved: read_policy(saved, read_training_record(saved), run)
    )


def read_policy(saved: SavedRun, about: TrainingRecord, run: int) -> Policy:
    """The policy of one of the runs of a training."""
    runs = len(about.configs)
    if run not in range(runs):
        raise InputError(f"{run} is not in {about.path}; accepted 0 to {runs - 1}", name="run")
    results = saved.result_files()
    with name_file_in_errors(results, POLICY_FILE):
        arrays, facts = results.load_arrays(POLICY_FILE)
        check_json_value(schema.POLICY_FACTS_SCHEMA, facts)
        if (facts["env"], facts["runs"]) != (about.configs[0].env, runs):
            raise ValueError(f"not of the training that {RESULT_FILE} describes")
        schema.check_policy_arrays(arrays, runs)
        box = schema.action_box_from_facts(facts, len(arrays[f"{run}.bias{schema.count_actor_layers(arrays) - 1}"]))
    own = {name.removeprefix(f"{run}."): array for name, array in arrays.items() if name.startswith(f"{run}.")}
    actor = NumpyActor.from_arrays(own)
    return Policy(facts["env"], actor, NumpyCritics.from_arrays(own), *box, facts["with_achieved"], facts["success"])


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

    def found(saved: SavedRun) -> tuple[TrainingRecord, Policy]:
        about = read_training_record(saved)
        return about, read_policy(saved, about, run)

    about, trained = read_saved_run(check_folder_path("folder", folder), found)
    config = about.configs[run]
    source = about.env_source(env, trust)
    return evaluate_policy(trained, source, config.horizon, test_goals or config.test_goals, episodes, seed)
