"""Result of training, and its files: how they are written, read and checked, without JAX.

=============  =====================================================================================================
result.json    status, settings that all runs share (``config``), and per run its own settings and learning curve
log.csv        one row per run and cycle
policy.npz     the actors and critics
goals.npz      the chosen goals, the goal spaces and, at the end of a run, the final maps of D and E
past.npz       earlier maps, and the tests
=============  =====================================================================================================

They are written with every checkpoint, in one commit (:mod:`adagoal.runs.run_folder`).

Reading executes no code that only the folder names: an environment ``module:Id`` is imported if the caller names it
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

import adagoal  # see adagoal.runs.result
from adagoal.certification.certificate import Certification
from adagoal.core import file_io
from adagoal.core.array_types import Floats
from adagoal.core.errors import OBJECT_ENV_PREFIX, InputError, Status
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.file_io import FileContents
from adagoal.core.validation import (
    check_folder_path,
    check_integer,
    declared_settings,
    per_run_settings,
    settings_json_schema,
)
from adagoal.deep import training_history
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvSource, SetGoalFunction
from adagoal.deep.policy import GoalPolicy, NumpyActor, NumpyCritics
from adagoal.deep.policy_evaluation import Evaluation, evaluate_policy
from adagoal.deep.training_history import MAX_MAP_VALUE, TrainingHistory, ValueMapHistory
from adagoal.envs import registry
from adagoal.runs.result import to_data_frame
from adagoal.runs.result_text import training_to_html
from adagoal.runs.run_folder import MANIFEST_FORMAT, RunKind, SavedRun, open_locked_folder, read_saved_run


class TrainingFile(StrEnum):
    """Names of the result files."""

    RESULT = "result.json"
    LOG = "log.csv"
    POLICY = "policy.npz"
    GOALS = "goals.npz"
    PAST_MAPS = "past.npz"


def training_file_contents(
    status: Status, history: TrainingHistory, policies: Sequence[GoalPolicy], maps: dict[str, NDArray[Any]]
) -> FileContents:
    """Return the result files; ``maps`` is empty before the end of a run."""
    goals = {"chosen": np.stack(history.goals), **maps}
    goals |= {f"train_box_{run}": box for run, box in enumerate(history.train_boxes)}
    goals |= {f"test_box_{run}": box for run, box in enumerate(history.test_boxes)}
    goals |= {} if history.table_box is None else {"table": history.table_box}
    weights = {f"{run}.{name}": array for run, own in enumerate(policies) for name, array in own.weights().items()}
    first = policies[0]
    facts = {"env": first.env, "runs": len(policies), "with_achieved": first.with_achieved, "success": first.success}
    facts |= {name: list(getattr(first, name)) for name in ("low", "high", "shape")}
    return {
        TrainingFile.LOG: file_io.bytes_content(history.to_csv().encode()),
        TrainingFile.GOALS: file_io.arrays_content(goals, compress=False),
        TrainingFile.PAST_MAPS: file_io.arrays_content(history.value_maps.to_arrays(), compress=False),
        TrainingFile.POLICY: file_io.arrays_content(weights, facts, compress=False),
        TrainingFile.RESULT: file_io.json_content(training_to_json(status, history)),
    }


def training_to_json(status: Status, history: TrainingHistory) -> dict[str, Any]:
    """Return settings and outcome of training as plain data."""
    first = history.configs[0]
    own = per_run_settings(Config)
    runs = [
        {k: v for k, v in config.to_json().items() if k in own} | {"curve": history.learning_curve(run)}
        for run, config in enumerate(history.configs)
    ]
    data = {
        "format": MANIFEST_FORMAT,
        "kind": RunKind.TRAINING,
        "status": status,
        "method": first.method_name,
        "env": first.env,
        "steps": max((row["steps"] for row in history.rows), default=0),
        "episodes": len(history.goals) * first.episodes,
        "wall_seconds": round(history.wall_seconds, 1),
        "config": {k: v for k, v in first.to_json().items() if k not in own},
        "runs": runs,
    }
    return data | _collect_provenance()


def _collect_provenance() -> dict[str, Any]:
    """Return the command, the machine and the versions behind a number."""
    # Here, because loading a run must work without JAX.
    import jax

    versions = {"python": platform.python_version()}
    for name in ("jax", "optax", "numpy", "mujoco", "gymnasium", "gymnasium-robotics"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}",
        "versions": versions,
    }


@dataclass(frozen=True)
class TrainingRecord:
    """A ``result.json``, read and checked."""

    path: Path  # the folder
    data: dict[str, Any]
    configs: list[Config]

    @property
    def learning_curves(self) -> list[list[dict[str, Any]]]:
        """Per run, the points of its learning curve (:meth:`TrainingHistory.learning_curve`)."""
        return [run["curve"] for run in self.data["runs"]]

    def env_source(self, env: Any, trust: bool, call: str = "adagoal.load({}).evaluate(env=...)") -> EnvSource:
        """Return what makes the environment (:func:`resolve_training_env`)."""
        return resolve_training_env(self.path, self.configs[0], env, trust, call)


def resolve_training_env(
    folder: Path | None, config: Config, env: Any, trust: bool, call: str, set_goal: SetGoalFunction | None = None
) -> EnvSource:
    """Return what makes the environment of a run; ``env`` gives it again, ``trust`` allows importing its module.

    ``call`` is what to type in Python if the environment is an object; ``{}`` in it stands for the folder.
    """
    given = None if env is None else EnvSource.from_argument(env, set_goal)
    if given is not None and given.name != config.env:
        raise InputError(f"the run in {folder} is on {config.env!r}, not on {given.name!r}", name="env")
    # "object:NAME" cannot be imported, though Gymnasium would take it for a module.
    if given is None and config.env.startswith(OBJECT_ENV_PREFIX):
        again = f"give the object or its function again: {call.format(repr(str(folder)))}"
        raise InputError(f"the run in {folder} is on {config.env!r}; {again}", name="env")
    return given or EnvSource.from_argument(registry.require_trusted_env(config.env, trust), set_goal)


def require_training(saved: SavedRun) -> SavedRun:
    """Return the run; refuse an exploration."""
    if saved.kind != RunKind.TRAINING:
        raise InputError(f"{saved.path}: must be of the kind training, not {saved.kind}; give another folder")
    return saved


def read_training_record(saved: SavedRun) -> TrainingRecord:
    """Read the settings, curves and status of training."""
    files = require_training(saved).result_files()
    if TrainingFile.RESULT not in files:
        command = f"adagoal resume {quote(str(saved.path))}"
        raise InputError(f"{saved.path}: training was interrupted before its end; resume it with: {command}")
    with files.report_errors(TrainingFile.RESULT):
        data = files.load_json(TrainingFile.RESULT, training_result_schema())
        configs = configs_from_json(data)
        if (data["env"], data["method"]) != (configs[0].env, configs[0].method_name):
            raise ValueError("env or method is not that of the settings")
        for run in data["runs"]:
            steps = [point["steps"] for point in run["curve"]]
            if steps[0] != 0 or any(a >= b for a, b in itertools.pairwise(steps)) or steps[-1] > data["steps"]:
                raise ValueError("the steps of a curve do not rise from 0 to those of the run")
        if len({len(run["curve"]) for run in data["runs"]}) > 1:
            raise ValueError("the curves differ in length")
    return TrainingRecord(saved.path, data, configs)


def training_result_schema() -> dict[str, Any]:
    """Return the JSON schema of ``result.json``, with the settings as :class:`Config` declares them."""
    own = per_run_settings(Config)
    shared = declared_settings(Config).keys() - own
    text = {"type": "string", "maxLength": 100_000}
    share, seconds = {"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "minimum": 0}
    point = object_schema(steps=COUNT_SCHEMA, wall_seconds=seconds, success=share, success_any=share)
    point["properties"] |= training_history.HistoryRow.measures
    curve = {"type": "array", "minItems": 1, "items": point}
    runs = {"type": "array", "minItems": 1, "maxItems": 10_000}
    ends = (Status.DONE, Status.CERTIFIED, Status.BUDGET, Status.INTERRUPTED)
    return object_schema(
        format={"enum": [MANIFEST_FORMAT]},
        kind={"enum": [RunKind.TRAINING.value]},
        status={"enum": [str(end) for end in ends]},
        **dict.fromkeys(("method", "env", "command", "machine"), text),
        **dict.fromkeys(("steps", "episodes"), COUNT_SCHEMA),
        wall_seconds=seconds,
        config=settings_json_schema(Config, shared),
        runs={**runs, "items": settings_json_schema(Config, own, curve=curve)},
        versions={"type": "object", "additionalProperties": text},
    )


def configs_from_json(data: dict[str, Any]) -> list[Config]:
    """Return the settings of the runs in a ``result.json``."""
    own = per_run_settings(Config)
    return [Config.from_json(data["config"] | {k: run[k] for k in own}) for run in data["runs"]]


def read_policies(saved: SavedRun, record: TrainingRecord) -> list[GoalPolicy]:
    """Read the policies of all runs side by side."""
    files, n_runs = saved.result_files(), len(record.configs)
    limits = {"type": "array", "minItems": 1, "maxItems": 100_000, "items": {"type": "number"}}
    facts_schema = object_schema(
        env={"type": "string", "maxLength": 100_000},
        runs={**COUNT_SCHEMA, "minimum": 1},
        low=limits,
        high=limits,
        shape={**limits, "items": COUNT_SCHEMA},
        with_achieved={"type": "boolean"},
        success={"type": "number", "minimum": 0},
    )
    with files.report_errors(TrainingFile.POLICY):
        arrays, facts = files.load_arrays(TrainingFile.POLICY)
        check_json_value(facts_schema, facts)
        if (facts["env"], facts["runs"]) != (record.configs[0].env, n_runs):
            raise ValueError(f"not of the training that {TrainingFile.RESULT} describes")
        n_outputs = _check_policy_arrays(arrays, n_runs)
        low, high = (tuple(map(float, facts[name])) for name in ("low", "high"))
        shape = tuple(facts["shape"])
        if not len(low) == len(high) == n_outputs == math.prod(shape) or not np.less(low, high).all():
            raise ValueError("the action box does not fit the actor")
    rest = (low, high, shape, facts["with_achieved"], facts["success"])
    policies = []
    for run in range(n_runs):
        own = {name.removeprefix(f"{run}."): array for name, array in arrays.items() if name.startswith(f"{run}.")}
        policies.append(GoalPolicy(facts["env"], NumpyActor.from_arrays(own), NumpyCritics.from_arrays(own), *rest))
    return policies


def read_policy(saved: SavedRun, record: TrainingRecord, run: int) -> GoalPolicy:
    """Read the policy of one of the runs."""
    if run not in range(len(record.configs)):
        raise InputError(f"{run} is not in {record.path}; accepted 0 to {len(record.configs) - 1}", name="run")
    return read_policies(saved, record)[run]


def _check_policy_arrays(arrays: Mapping[str, NDArray[Any]], n_runs: int) -> int:
    """Check the networks of all runs, which have the same shape; return the number of outputs of an actor."""
    depth = sum(name.startswith("0.weight") for name in arrays)
    if depth == 0:
        raise ValueError("entry '0.weight0' is missing")
    critic_depth = sum(name.startswith("0.critic_weight") for name in arrays)
    schema: dict[str, ArraySpec] = {}
    for run in range(n_runs):
        schema |= NumpyActor.array_schema(f"{run}.", depth)
        schema |= NumpyCritics.array_schema(f"{run}.", critic_depth) if critic_depth else {}
    sizes = check_arrays(schema, arrays, exact=True)
    sizes.pop("M", None)  # the episodes of an error model: none before the end of training
    if sizes["W0"] != sizes["O"] + sizes["G"] or min(sizes.values()) == 0:
        raise ValueError("the layers of an actor do not fit its observations and goals")
    if critic_depth and sizes["C0"] != sizes["W0"] + sizes[f"W{depth}"]:
        raise ValueError("the critics do not fit the actor")
    return sizes[f"W{depth}"]


def read_goal_arrays(saved: SavedRun, record: TrainingRecord) -> dict[str, NDArray[Any]]:
    """Read the chosen goals, the goal spaces and, at the end of a run, the maps of D and E."""
    files, n_runs, per_cycle = saved.result_files(), len(record.configs), record.configs[0].episodes

    def coordinates(*shape: int | str, optional: bool = False) -> ArraySpec:
        return ArraySpec("float64", shape, low=-MAX_MAP_VALUE, high=MAX_MAP_VALUE, optional=optional)

    value_map = ArraySpec("float64", low=0.0, high=MAX_MAP_VALUE, optional=True)
    schema = {"chosen": coordinates("C", n_runs, per_cycle, "G"), "table": coordinates(2, 2, optional=True)}
    schema |= {f"{which}_box_{run}": coordinates(2, "G") for run in range(n_runs) for which in ("train", "test")}
    schema |= {"D": value_map, "E": value_map}
    schema |= {name: coordinates("G", optional=True) for name in ("low", "high")}
    with files.report_errors(TrainingFile.GOALS):
        arrays, _ = files.load_arrays(TrainingFile.GOALS, schema)
        n_cycles, *_, goal_size = arrays["chosen"].shape
        if goal_size == 0 or n_cycles == 0 or n_cycles * per_cycle != record.data["episodes"]:
            raise ValueError("there is not one chosen goal per episode")
        for name, box in arrays.items():
            if ("box" in name or name == "table") and (box[0] > box[1]).any():
                raise ValueError(f"entry {name!r} is a box that ends before it begins")
        # Maps are written at the end of a run, all four arrays or none.
        present = {"D", "E", "low", "high"} & arrays.keys()
        if present and (len(present) < 4 or (arrays["low"] > arrays["high"]).any()):
            raise ValueError("the maps are incomplete")
        if present:
            grid = arrays["D"].shape[1:]
            shapes = {(n_runs, *grid), arrays["D"].shape, arrays["E"].shape}
            if len(shapes) > 1 or len(grid) != min(2, goal_size) or min(grid) < 2:
                raise ValueError("the maps of D and E do not have one grid per run")
    return arrays


def read_past_maps(saved: SavedRun, record: TrainingRecord, axes: int) -> ValueMapHistory:
    """Read earlier maps over ``axes`` goal coordinates, and the tests."""
    files, n_cycles = saved.result_files(), record.data["episodes"] // record.configs[0].episodes
    schema = training_history.value_map_schema(len(record.configs), n_cycles, axes)
    with files.report_errors(TrainingFile.PAST_MAPS):
        arrays, _ = files.load_arrays(TrainingFile.PAST_MAPS, schema)
        training_history.check_value_maps(arrays, n_cycles + 1)
    return ValueMapHistory.from_arrays(arrays)


def read_history(
    saved: SavedRun, record: TrainingRecord, policy: GoalPolicy
) -> tuple[TrainingHistory, dict[str, Floats]]:
    """Read the history of training, and the final maps of D and E if it has them."""
    files, n_runs, arrays = saved.result_files(), len(record.configs), read_goal_arrays(saved, record)
    history = TrainingHistory(
        record.configs,
        [arrays[f"train_box_{run}"] for run in range(n_runs)],
        [arrays[f"test_box_{run}"] for run in range(n_runs)],
        arrays.get("table"),
        policy.success,
        record.data["wall_seconds"],
        goals=list(arrays["chosen"]),
        value_maps=read_past_maps(saved, record, min(2, arrays["chosen"].shape[-1])),
    )
    with files.report_errors(TrainingFile.LOG):
        history.rows = training_history.rows_from_csv(files.load_text(TrainingFile.LOG))
        check_json_value({"type": "array", "items": training_history.HistoryRow.schema}, history.rows)
        # The curve is in both files. If they differ, the files are of two runs.
        if [history.learning_curve(run) for run in range(n_runs)] != record.learning_curves:
            raise ValueError(f"not of the training that {TrainingFile.RESULT} describes")
    return history, {name: arrays[name] for name in ("D", "E", "low", "high") if name in arrays}


@dataclass(frozen=True)
class TrainResult:
    """Outcome of :func:`adagoal.train`, which acts with ``policy(observation, goal)``."""

    # done, budget (the minutes were spent) or interrupted. Training until certified ends as certified, or as budget if
    # its steps or minutes were spent first.
    status: Status
    history: TrainingHistory
    policies: Sequence[GoalPolicy]  # one for each of the runs side by side
    maps: dict[str, Floats]  # final D and E over the training space; empty if the folder was saved before the end
    folder: Path | None
    source: EnvSource | None = None  # makes the environment for tests; None for a result that was loaded
    certificate: Certification | None = None  # the last attempt of training until certified

    def __repr__(self) -> str:
        config, last = self.history.configs[0], self.history.learning_curve(0)[-1]
        return f"<TrainResult of {config.env}, {self.status}: success {last['success']:.2f} at {last['steps']:,} steps>"

    def _repr_html_(self) -> str:
        return training_to_html(self)

    @property
    def policy(self) -> GoalPolicy:
        """The policy of the first run."""
        return self.policies[0]

    @property
    def success(self) -> float:
        """Share of the last test's goals that the first run held at the last step."""
        return float(self.history.learning_curve(0)[-1]["success"])

    def curve(self, run: int = 0) -> list[dict[str, Any]]:
        """Return the tests of a run, each with its steps and success."""
        return self.history.learning_curve(self._check_run_index(run))

    def frame(self) -> Any:
        """Return the tests of all runs as a pandas data frame, one row per test."""
        configs = enumerate(self.history.configs)
        named = [(run, {"goal_rule": config.goal_rule, "seed": config.seed}) for run, config in configs]
        return to_data_frame([names | row for run, names in named for row in self.curve(run)])

    def plot(self) -> Any:
        """Return a Matplotlib figure: the success in the tests over the steps."""
        return adagoal.plot(self)

    def weights(self, run: int = 0) -> dict[str, NDArray[Any]]:
        """Return all that a run has learnt, as named arrays."""
        return self.policies[self._check_run_index(run)].weights()

    def evaluate(
        self,
        episodes: int = 200,
        *,
        test_goals: str | None = None,
        seed: int = 0,
        run: int = 0,
        env: Any = None,
        trust: bool = False,
    ) -> Evaluation:
        """Play episodes without noise, on the test goals of the training run or on others.

        For a result that was loaded, ``env`` gives an environment again that was an object, or one ``module:Id`` whose
        code only the folder names; ``trust`` allows that code to run.
        """
        config = self.history.configs[self._check_run_index(run)]
        source = self.env_source(env, trust, "adagoal.load({}).evaluate(env=...)")
        goals = test_goals or config.test_goals
        return evaluate_policy(self.policies[run], source, config.horizon, goals, episodes, seed)

    def env_source(self, env: Any, trust: bool, call: str) -> EnvSource:
        """Return what makes the environment; ``call`` is what to type if it must be given again."""
        # A result that was not loaded still has the caller's environment, so no code of a folder is involved.
        if env is None and self.source is not None:
            return self.source
        return resolve_training_env(self.folder, self.history.configs[0], env, trust, call)

    def _check_run_index(self, run: int) -> int:
        check_integer("run", run, 0, len(self.policies) - 1)
        return run

    def contents(self) -> FileContents:
        """Return the files of the result."""
        return training_file_contents(self.status, self.history, self.policies, self.maps)

    def save(self, path: str | Path) -> None:
        """Write the result into a folder that holds no run yet; such a folder cannot be resumed.

        To resume a run later, give :func:`adagoal.train` the folder as ``out``.
        """
        with open_locked_folder(check_folder_path("path", path), RunKind.TRAINING) as folder:
            if folder.saved_run is not None:
                raise InputError(f"{folder.path} already holds a run; choose another folder", name="path")
            folder.save_files({}, self.contents())


def load_training(path: str | Path) -> TrainResult:
    """Load the result of training; nothing in the files is executed, and no environment is made."""
    return read_saved_run(check_folder_path("path", path), _load_saved_training)


def _load_saved_training(saved: SavedRun) -> TrainResult:
    record = read_training_record(saved)
    policies = read_policies(saved, record)
    history, maps = read_history(saved, record, policies[0])
    saved.warn_about_damage()
    return TrainResult(Status(record.data["status"]), history, policies, maps, saved.path)
