"""The files of a training, without JAX: ``result.json``, ``log.csv`` and three of arrays; reading them back.

``result.json`` says ``"kind": "training"``, its status, the settings that all runs share (``config``), and per run
those of its own with its learning curve; ``goals.npz`` holds the chosen goals, the goal spaces and, at the end of a
run, the final maps; ``past.npz`` earlier maps and the tests; ``policy.npz`` the actors. They are written with every
checkpoint, in one commit (:mod:`adagoal.runs.run_folder`), and everything that is read is checked first
(:mod:`adagoal.runs.training_files`).

Reading runs no code that only the folder names: an environment ``module:Id`` is imported where the caller names it
again or trusts the folder, and the file of a goal rule is never run here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import file_io
from adagoal.core.argument_checks import check_folder_path
from adagoal.core.errors import OBJECT_ENV_PREFIX, InputError, Status
from adagoal.core.file_formats import (
    COUNT_SCHEMA,
    ArraySchema,
    ArraySpec,
    check_arrays,
    check_json_value,
    object_schema,
)
from adagoal.core.file_io import FileContent, write_json
from adagoal.deep import training_history
from adagoal.deep.config import Config
from adagoal.deep.env_inspection import SUCCESS_RADIUS_SCHEMA
from adagoal.deep.goal_envs import EnvSource, SetGoalFunction
from adagoal.deep.numpy_networks import NumpyActor, NumpyCritics
from adagoal.deep.policy import GoalPolicy
from adagoal.deep.policy_evaluation import Evaluation, evaluate_policy
from adagoal.deep.training_history import (
    LENGTH_SCHEMA,
    MAX_MAP_VALUE,
    ROW_MEASURES_SCHEMA,
    SHARE_SCHEMA,
    TrainingHistory,
    ValueMapHistory,
)
from adagoal.envs import registry
from adagoal.runs import training_files as schema
from adagoal.runs.folder_reader import MANIFEST_FORMAT, FolderFiles, SavedRun, find_saved_run, read_saved_run
from adagoal.settings.fields import declared_settings, per_run_settings, settings_json_schema

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
    status: Status, history: TrainingHistory, policies: Sequence[GoalPolicy], maps: dict[str, NDArray[Any]]
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
        LOG_FILE: file_io.text_content(history.to_csv()),
        GOALS_FILE: file_io.arrays_content(goals, compress=False),
        PAST_MAPS_FILE: file_io.arrays_content(history.value_maps.to_arrays(), compress=False),
        POLICY_FILE: file_io.arrays_content(named, facts, compress=False),
        RESULT_FILE: file_io.json_content(training_to_json(status, history)),
    }


def training_to_json(status: Status, history: TrainingHistory) -> dict[str, Any]:
    """A training as plain data."""
    first = history.configs[0]
    own = per_run_settings(Config)
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
        with file_io.report_read_errors(path):
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
    own = per_run_settings(Config)
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


def load(folder: Path | str, run: int = 0) -> GoalPolicy:
    """The policy of a training folder (``run``: which of the runs trained side by side)."""
    return read_saved_run(
        check_folder_path("folder", folder), lambda saved: read_policy(saved, read_training_record(saved), run)
    )


def read_policy(saved: SavedRun, about: TrainingRecord, run: int) -> GoalPolicy:
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
    return GoalPolicy(
        facts["env"], actor, NumpyCritics.from_arrays(own), *box, facts["with_achieved"], facts["success"]
    )


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

    def found(saved: SavedRun) -> tuple[TrainingRecord, GoalPolicy]:
        about = read_training_record(saved)
        return about, read_policy(saved, about, run)

    about, trained = read_saved_run(check_folder_path("folder", folder), found)
    config = about.configs[run]
    source = about.env_source(env, trust)
    return evaluate_policy(trained, source, config.horizon, test_goals or config.test_goals, episodes, seed)


# What the result files of a training must hold.
#
# ``result.json`` is described by :func:`training_result_schema` (JSON Schema), with the settings as :class:`Config`
# declares them. ``policy.npz``, ``goals.npz`` and ``past.npz`` are checked against it by :func:`check_policy_arrays`,
# :func:`check_goal_arrays` and :func:`check_past_arrays`. What is wrong is a ``ValueError``.


TRAINING_KIND = "training"
ENDS = (Status.DONE, Status.CERTIFIED, Status.BUDGET, Status.INTERRUPTED)
NamedArrays = Mapping[str, NDArray[Any]]

_LONG_TEXT_SCHEMA = {"type": "string", "maxLength": 100_000}
_CURVE_POINT_FIELDS = {
    "steps": COUNT_SCHEMA,
    "wall_seconds": LENGTH_SCHEMA,
    "success": SHARE_SCHEMA,
    "success_any": SHARE_SCHEMA,
}
_CURVE_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": object_schema(**_CURVE_POINT_FIELDS) | {"properties": _CURVE_POINT_FIELDS | ROW_MEASURES_SCHEMA},
}
_ACTION_LIMITS_SCHEMA = {"type": "array", "minItems": 1, "maxItems": 100_000, "items": {"type": "number"}}
POLICY_FACTS_SCHEMA = object_schema(
    env=_LONG_TEXT_SCHEMA,
    runs={**COUNT_SCHEMA, "minimum": 1},
    low=_ACTION_LIMITS_SCHEMA,
    high=_ACTION_LIMITS_SCHEMA,
    shape={**_ACTION_LIMITS_SCHEMA, "items": COUNT_SCHEMA},
    with_achieved={"type": "boolean"},
    success=SUCCESS_RADIUS_SCHEMA,
)
"""What is beside the weights."""


def training_result_schema() -> dict[str, Any]:
    """The schema of ``result.json``."""
    own = per_run_settings(Config)
    shared = declared_settings(Config).keys() - own
    return object_schema(
        format={"enum": [MANIFEST_FORMAT]},
        kind={"enum": [TRAINING_KIND]},
        status={"enum": [str(end) for end in ENDS]},
        method=_LONG_TEXT_SCHEMA,
        env=_LONG_TEXT_SCHEMA,
        steps=COUNT_SCHEMA,
        episodes=COUNT_SCHEMA,
        wall_seconds=LENGTH_SCHEMA,
        config=settings_json_schema(Config, shared),
        runs={
            "type": "array",
            "minItems": 1,
            "maxItems": 10_000,
            "items": settings_json_schema(Config, own, curve=_CURVE_SCHEMA),
        },
        command=_LONG_TEXT_SCHEMA,
        machine=_LONG_TEXT_SCHEMA,
        versions={"type": "object", "additionalProperties": _LONG_TEXT_SCHEMA},
    )


def check_training_result(data: dict[str, Any], configs: list[Config]) -> None:
    """Whether the parts of a ``result.json`` that keeps its rules agree with each other."""
    first = configs[0]
    if (data["env"], data["method"]) != (first.env, first.method_name):
        raise ValueError("env or method is not that of the settings")
    lengths = {len(run["curve"]) for run in data["runs"]}
    if len(lengths) > 1:
        raise ValueError("the curves differ in length")
    for run in data["runs"]:
        steps = [point["steps"] for point in run["curve"]]
        if steps[0] != 0 or any(a >= b for a, b in itertools.pairwise(steps)) or steps[-1] > data["steps"]:
            raise ValueError("the steps of a curve do not rise from 0 to those of the run")


def count_actor_layers(arrays: NamedArrays) -> int:
    """How many layers the actors have."""
    return sum(name.startswith("0.weight") for name in arrays)


def check_policy_arrays(arrays: NamedArrays, runs: int) -> None:
    """The actors of so many runs, all of the same shape."""
    depth = count_actor_layers(arrays)
    if depth == 0:
        raise ValueError("entry '0.weight0' is missing")
    critics = sum(name.startswith("0.critic_weight") for name in arrays)
    rules = {name: rule for run in range(runs) for name, rule in NumpyActor.array_schema(f"{run}.", depth).items()}
    if critics:
        rules |= {
            name: rule for run in range(runs) for name, rule in NumpyCritics.array_schema(f"{run}.", critics).items()
        }
    sizes = _check_exact_arrays(rules, arrays, {})
    if sizes["W0"] != sizes["O"] + sizes["G"] or min(sizes.values()) == 0:
        raise ValueError("the layers of an actor do not fit its observations and goals")
    if critics and sizes["C0"] != sizes["W0"] + sizes[f"W{depth}"]:
        raise ValueError("the critics do not fit the actor")


def action_box_from_facts(
    facts: dict[str, Any], width: int
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...]]:
    """Ends and shape of the environment's actions."""
    low, high = (tuple(map(float, facts[name])) for name in ("low", "high"))
    shape = tuple(facts["shape"])
    if not len(low) == len(high) == width == math.prod(shape) or any(a >= b for a, b in zip(low, high, strict=True)):
        raise ValueError("the action box does not fit the actor")
    return low, high, shape


def check_goal_arrays(arrays: NamedArrays, runs: int, per_cycle: int, episodes: int) -> None:
    """The chosen goals of all ``episodes``, the goal spaces and, at the end of a run, the maps of D and E."""
    rules = {"chosen": _coordinates_rule("C", "S", "B", "G")}
    for run in range(runs):
        rules |= {f"{which}_box_{run}": _coordinates_rule(2, "G") for which in ("train", "test")}
    rules["table"] = _coordinates_rule(2, 2, optional=True)
    rules |= {name: ArraySpec("float64", low=0.0, high=MAX_MAP_VALUE, optional=True) for name in ("D", "E")}
    rules |= {name: _coordinates_rule("G", optional=True) for name in ("low", "high")}
    sizes = _check_exact_arrays(rules, arrays, {"S": runs, "B": per_cycle})
    if min(sizes.values()) == 0 or sizes["C"] * per_cycle != episodes:
        raise ValueError("there is not one chosen goal per episode")
    for name, box in arrays.items():
        if ("box" in name or name == "table") and (box[0] > box[1]).any():
            raise ValueError(f"entry {name!r} is a box that ends before it begins")
    maps = [name in arrays for name in ("D", "E", "low", "high")]
    if any(maps) and not all(maps):
        raise ValueError("the maps are incomplete")
    if all(maps):
        D, axes = arrays["D"], min(2, sizes["G"])
        if D.shape != arrays["E"].shape or D.ndim != 1 + axes or len(D) != runs or min(D.shape[1:]) < 2:
            raise ValueError("the maps of D and E do not have one grid per run")
        if (arrays["low"] > arrays["high"]).any():
            raise ValueError("the maps end before they begin")


def check_past_arrays(arrays: NamedArrays, runs: int, axes: int, cycles: int) -> None:
    """Maps of D and E over time, and the distances of the tests."""
    _check_exact_arrays(training_history.value_map_schema(runs, cycles, axes), arrays, {})
    training_history.check_value_maps(arrays, cycles + 1)


def _coordinates_rule(*shape: int | str, optional: bool = False) -> ArraySpec:
    return ArraySpec("float64", shape, low=-MAX_MAP_VALUE, high=MAX_MAP_VALUE, optional=optional)


def _check_exact_arrays(rules: ArraySchema, arrays: NamedArrays, sizes: dict[str, int]) -> dict[str, int]:
    """Arrays under these names and no others."""
    unknown = arrays.keys() - rules.keys()
    if unknown:
        raise ValueError(f"entry {min(unknown)[:80]!r} does not belong there")
    return check_arrays(rules, arrays, sizes)
