"""``adagoal.load``, and loading of explorations: the schemas of their files, and whether the files fit together.

docs/result.schema.json is a copy of :data:`RESULT_SCHEMA`, and docs/folder.md explains it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from adagoal.core import exploration_run
from adagoal.core.array_types import DIGEST_BYTES
from adagoal.core.environment import CallTexts, GridLayout
from adagoal.core.errors import InputError, Status, to_single_line
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, nullable_schema, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.validation import check_folder_path, declared_settings, settings_json_schema
from adagoal.envs import model_sources, observation_keys
from adagoal.envs.model import TabularMDP
from adagoal.runs.result import Certificate, Result, StateMetadata, find_contradicted_goals
from adagoal.runs.run_folder import MANIFEST_FORMAT, FolderFiles, RunKind, SavedRun, is_training_folder, read_saved_run

if TYPE_CHECKING:
    from adagoal.runs.train_result import TrainResult

MAX_MAP_CELLS = 10_000_000  # a forged map could otherwise allocate all memory


def _describe(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {**schema, "description": text}


def _settings_schema() -> dict[str, Any]:
    avoided = {"type": "array", "items": {"type": ["integer", "string"], "minimum": 0, "maxLength": 10_000}}
    return settings_json_schema(
        ExplorationSettings,
        declared_settings(ExplorationSettings),
        goal_space=_describe(nullable_schema(_states_schema()), "goals that are single states; null: all states"),
        avoid=_describe(nullable_schema(avoided), "states and labels to avoid; null: none"),
        goal_sets=_describe(nullable_schema({"type": "object"}), "description of goals that are not single states"),
    )


def _states_schema() -> dict[str, Any]:
    return {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31}}


def _result_schema() -> dict[str, Any]:
    lines = {"type": "array", "items": {"type": "string"}}
    nonnegative = {"type": "number", "minimum": 0}
    # JSON has no infinity: null stands for a bound that is not known yet.
    bound = nullable_schema(nonnegative)
    number = {"type": "integer", "minimum": 0, "maximum": 2**31}
    goal_row = {
        "type": "object",
        "required": ["goal", "lower", "upper"],
        "properties": {
            "goal": _describe(number, "the state, or the number of a set"),
            "label": {"type": "string", "description": "its name"},
            "states": _describe(COUNT_SCHEMA, "number of its known states, if the goals are sets"),
            "lower": _describe(
                bound,
                "lower bound on the expected steps of the best policy, or with within on the probability of the "
                "returned policy; null: no bound",
            ),
            "upper": _describe(
                bound,
                "upper bound on the expected steps of the returned policy, or with within on the probability of the "
                "best policy; null: no bound yet",
            ),
            "error": _describe(bound, "bound on the steps, or the probability, that the policy loses to the best"),
        },
    }
    settings = _settings_schema()["properties"]
    goals = {"type": "array", "items": goal_row | {"required": ["goal", "lower", "upper", "error"]}}
    radius = {"type": "number", "minimum": 1, "maximum": 1e9}
    names = nullable_schema(GoalSpace.NAMES_SCHEMA)
    properties = settings | {
        "format": {"enum": [MANIFEST_FORMAT]},
        "kind": {"enum": [RunKind.EXPLORATION.value]},
        "radius_setting": _describe(settings["radius"], "the radius that was requested: a number, auto or all"),
        "status": {"enum": ["certified", "stopped", "budget", "interrupted", "void"]},
        "radius": _describe(radius, "the radius that the answer is about"),
        "certified_radius": _describe({**bound, "minimum": 1}, "the radius that is certified, or null"),
        "guarantee": {"type": "boolean", "description": "whether the method proves its certificates"},
        "goals": goals,
        "other_goals": {"type": "array", "items": goal_row, "description": "goals that were seen, beyond the radius"},
        "goal_names": _describe(names, "names of the goals 0, 1, ..., if they are sets of states"),
        "open_goals": _describe(_states_schema(), "members of goals whose certificate is not finished"),
        **dict.fromkeys(("steps", "episodes", "plans"), COUNT_SCHEMA),
        "wall_seconds": nonnegative,
        "reset_action": {"type": "integer", "minimum": 1, "maximum": 32_767},
        "warnings": lines,
        "void": _describe(lines, "why the status is void"),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "result.json of an exploration",
        "type": "object",
        "required": list(properties),
        "properties": properties,
    }


# Unknown entries are accepted, because a later version may add some.
RESULT_SCHEMA = _result_schema()

POLICIES_SCHEMA = {
    "policy": ArraySpec("int16", ("G", "T", "S"), low=0, high="A"),
    "policy_goals": ArraySpec("int64", ("G",), low=0),
    "episode_goals": ArraySpec("int32", ("E",), low=-2),
    "observations": ArraySpec("uint8", ("K", DIGEST_BYTES), optional=True),
    "goals_at": ArraySpec("int32", ("S", "W"), low=-1, optional=True),
    "avoided": ArraySpec("bool", ("S",), optional=True),
    "episode_reached": ArraySpec("bool", ("E",)),
    "trace": ArraySpec("float64", ("N", 4), low=0, finite=False),
    "visits": ArraySpec("int64", ("S",), low=0),
    "more_tries": ArraySpec("int64", ("S*A",), low=0, optional=True),
    "theta": ArraySpec("float64", ("d", 3), optional=True),
    "theta_region": ArraySpec("float64", ("d", "k"), optional=True),
    "theta_radius": ArraySpec("float64", (1,), low=0, optional=True),
    **exploration_run.BoundsHistory.ARRAY_SCHEMA,
    **TransitionCounts.EMPIRICAL_MODEL_SCHEMA,
}
"""Arrays of policies.npz, for S states, A actions without the reset, and G goals with policies of T stages.

``goals_at`` lists the goals of each state, padded with -1; without it every state is its own goal. ``observations`` are
digests of the observations of the first K states. ``avoided`` are the states to avoid, in runs with ``within``, and
``more_tries`` the tries that pairs still need, roughly."""

RUN_CHECKPOINT_SCHEMA = object_schema(
    setting=_settings_schema(),
    estimates={"type": "object"},
    rng={"type": "object"},
    world={"type": "object"},
    steps=COUNT_SCHEMA,
    seconds={"type": "number", "minimum": 0},
    stage={"type": "integer", "minimum": 1, "maximum": 100_000},
    goal_names=nullable_schema(GoalSpace.SAVED_NAMES_SCHEMA),
)
"""JSON part of a checkpoint. The owners of ``estimates``, ``rng`` and ``world`` check these entries themselves."""

# The trace has no shape here, because one without rows is stored as [0] and not as [0, 4].
RUN_HISTORY_SCHEMA = {
    "episode_goals": ArraySpec("int32", ("E",), low=-2, below="N"),
    "episode_reached": ArraySpec("bool", ("E",)),
    "trace": ArraySpec("float64", None, low=0, finite=False),
    **{f"attempts.{name}": ArraySpec("float64", ("K",), low=0) for name in ("total", "reached", "recent", "previous")},
    **exploration_run.BoundsHistory.ARRAY_SCHEMA,
}
"""History of the run in a checkpoint, for N goals."""


def load(path: str | Path) -> Result | TrainResult:
    """Load a run: the :class:`Result` of an exploration, or the :class:`TrainResult` of training.

    Nothing in the folder is executed, and no environment is made.

    Parameters
    ----------
    path: the folder of the run.

    Examples
    --------
    >>> adagoal.load(result.save("runs/grid")).goals == result.goals
    True
    """
    folder = check_folder_path("path", path)
    # Imported by kind, so loading an exploration does not import the packages of training.
    if is_training_folder(folder):
        from adagoal.runs.train_result import load_training

        return load_training(folder)
    return load_result(folder)


def load_result(path: str | Path) -> Result:
    """Load a saved result; nothing in the files is executed, and files that do not fit together are refused."""
    return read_saved_run(check_folder_path("path", path), _load_saved_result)


def _load_saved_result(saved: SavedRun) -> Result:
    require_exploration(saved)
    files = saved.result_files()
    if "result.json" not in files:
        command = f"adagoal resume {quote(str(saved.path))}"
        raise InputError(f"{saved.path}: the run was interrupted before its end; resume it with: {command}")
    result = read_result_files(files, "result.json", "policies.npz")
    # Not in read_result_files, because the result of a curriculum's stage is stored without them.
    view = read_state_metadata(files, result.n_states)
    result = replace(result, model=read_stored_model(files), view=view, folder=saved.path)
    saved.warn_about_damage()
    return result


def require_exploration(saved: SavedRun) -> None:
    """Refuse training runs, and name the commands for them."""
    if saved.kind != RunKind.EXPLORATION:
        path = quote(str(saved.path))
        test, resume = f"adagoal evaluate {path}", f"adagoal resume {path}"
        raise InputError(f"{saved.path}: a run of adagoal train; test it with: {test}, resume it with: {resume}")


def read_result_files(files: FolderFiles, json_name: str, arrays_name: str) -> Result:
    """Read the result in two files of a folder."""
    data = files.load_json(json_name, RESULT_SCHEMA)
    arrays, _ = files.load_arrays(arrays_name, POLICIES_SCHEMA, {"A": data["reset_action"]})
    with files.report_errors(json_name):
        rows = [*data["goals"], *data["other_goals"]]
        certificates = {
            row["goal"]: Certificate(_none_to_infinity(row["lower"]), _none_to_infinity(row["upper"])) for row in rows
        }
        if len(certificates) < len(rows):
            raise ValueError("a goal is there twice")
        result = Result(
            setting=settings_from_json({**data, "radius": data["radius_setting"]}),
            radius=data["radius"],
            goals=[row["goal"] for row in data["goals"]],
            certificates=certificates,
            errors={row["goal"]: _none_to_infinity(row["error"]) for row in data["goals"]},
            arrays=arrays,
            goal_names=None if data["goal_names"] is None else tuple(data["goal_names"]),
            **{name: data[name] for name in Result._plain_fields} | {"status": Status(data["status"])},
        )
        _check_result_consistency(result, arrays_name)
    return result


def read_stored_model(files: FolderFiles) -> TabularMDP | None:
    """Read the model of a run, None if the user gave none."""
    name = model_sources.ModelFile.NAME
    if name not in files:
        return None
    schema = model_sources.ModelFile
    arrays, facts = files.load_arrays(name, schema.ARRAYS, facts_schema=schema.FACTS)
    with files.report_errors(name):
        return model_sources.model_from_arrays(arrays, facts)


def refuse_different_run(saved: SavedRun, setting: ExplorationSettings, model: TabularMDP | None) -> bool:
    """Refuse a folder with a run of another setting (whatever its budget), or on another model.

    Return True if the run in the folder is finished.
    """
    require_exploration(saved)
    files = saved.result_files()
    if "result.json" in files:
        data = files.load_json("result.json", RESULT_SCHEMA)
        old, finished = data | {"radius": data["radius_setting"]}, Status(data["status"]).finished
    else:
        _, facts = saved.checkpoint_files().load_arrays("checkpoint.npz", facts_schema=RUN_CHECKPOINT_SCHEMA)
        old, finished = facts["setting"], False
    # Compared as JSON, in which tuples are lists. A larger budget continues the same run, so budgets may differ.
    new = json.loads(json.dumps(asdict(setting)))
    differ = [name for name in new if name != "budget" and old[name] != new[name]]
    # One argument, whose value is in one of two entries.
    differ = list(dict.fromkeys("goals" if name in ("goal_space", "goal_sets") else name for name in differ))
    if not differ and not model_sources.models_equal(read_stored_model(files), model):
        differ = ["model"]
    if differ:
        text = f"{saved.path} holds a run with another {', '.join(differ)}; give another folder, or overwrite it"
        raise InputError(text, "out")
    return finished


def settings_from_json(data: Mapping[str, Any]) -> ExplorationSettings:
    """Return the settings among the entries of a checkpoint or a ``result.json``."""
    fields = {name: data[name] for name in ExplorationSettings.__dataclass_fields__}
    # A tuple again, because the caller compares settings with its own.
    goal_space, avoid = (None if data[name] is None else tuple(data[name]) for name in ("goal_space", "avoid"))
    return ExplorationSettings(**{**fields, "goal_space": goal_space, "avoid": avoid})


def _check_result_consistency(result: Result, arrays_name: str) -> None:
    """Check that the parts of a result speak of the same states, goals and run."""
    # The schemas check each file by itself. Here a damaged or forged file must fail because of the other one: tables
    # and maps are indexed by goals and states from both.
    arrays, status = result.arrays, result.status
    goals, policy_goals = set(result.goals), arrays["policy_goals"].tolist()
    trace_steps, within = arrays["trace"][:, 0], result.setting.within
    sets = result.goal_names is not None
    n_goals = len(result.goal_names or ()) if sets else len(arrays["visits"])
    named = (*result.certificates, *policy_goals, arrays["episode_goals"].max(initial=-1))
    conditions = {
        "goals with names and no states, or the reverse": sets == ("goals_at" in arrays),
        "a radius that was not asked for": result.setting.has_growing_radius or result.radius == result.setting.radius,
        f"a goal that {'has no name' if sets else 'is no state'}": max(named, default=-1) < n_goals,
        "a state of a goal without a name": "goals_at" not in arrays or arrays["goals_at"].max(initial=-1) < n_goals,
        "a past of other goals": arrays["past_goals"].max(initial=-1) < n_goals + sets,
        "a past with policies of other bounds": "past_policy" not in arrays
        or len(arrays["past_policy"]) == np.isfinite(arrays["past_upper"]).sum(),
        "states to avoid without a number of steps, or the reverse": ("avoided" in arrays) == (within is not None),
        "policies of another length": within is None or not goals or arrays["policy"].shape[1] == within,
        "a probability above 1": within is None or all(up <= 1.0 for _, up in result.certificates.values()),
        "more observations than states": result.n_states <= len(arrays["visits"]),
        "a goal without a policy": goals <= set(policy_goals),
        "two policies for a goal": len(set(policy_goals)) == len(policy_goals),
        "an open goal that is not in the result": set(result.open_goals) <= goals,
        "an open goal twice": len(set(result.open_goals)) == len(result.open_goals),
        "a lower bound above the upper one": status is Status.VOID or not find_contradicted_goals(result.certificates),
        "more episodes in its history than episodes": len(arrays["episode_goals"]) <= result.episodes,
        "a history without end": np.isfinite(arrays["trace"][:, [0, 1, 3]]).all(),
        "a history that goes back": (np.diff(trace_steps) >= 0).all() and trace_steps.max(initial=0) <= result.steps,
        "a past that is longer than the run": arrays["past_steps"].max(initial=0) <= result.steps
        and arrays["past_episodes"].max(initial=0) <= result.episodes,
        "a certificate with open goals": status is not Status.CERTIFIED or not result.open_goals,
        "a status that its method cannot give": status not in (Status.CERTIFIED, Status.STOPPED)
        or result.guarantee == (status is Status.CERTIFIED),
        "another certified radius": result.certified_radius in (None, result.radius)
        and (status is not Status.CERTIFIED or result.certified_radius is not None),
        "reasons to be void, or none": bool(result.void) == (status is Status.VOID),
    }
    for problem, holds in conditions.items():
        if not holds:
            raise ValueError(f"not of the same run as {arrays_name}: it has {problem}")


def _none_to_infinity(value: float | None) -> float:
    return math.inf if value is None else float(value)


def read_state_metadata(files: FolderFiles, n_states: int) -> StateMetadata:
    """Read the metadata of ``n_states`` states."""
    data = files.load_json(StateMetadata.file_name, _metadata_schema())
    with files.report_errors(StateMetadata.file_name):
        layout = None if data["layout"] is None else _parse_layout(**data["layout"])
        _check_key_format(data["space"])
        # The report and policies index states by these tables, so tables of another run must be refused here.
        too_few_cells = layout is not None and len(layout.cells) < n_states
        if too_few_cells or len(data["labels"]) > n_states or not 0 <= (data["start"] or 0) < n_states:
            raise ValueError(f"from another run, this one has {n_states} states")
    actions = tuple(map(to_single_line, data.get("actions", ())))
    calls = None if "calls" not in data else _parse_call_texts(**data["calls"])
    return StateMetadata(data["start"], tuple(data["labels"]), layout, data["space"], actions, calls)


def _metadata_schema() -> dict[str, Any]:
    def pairs(minimum: int) -> dict[str, Any]:
        number = {"type": "integer", "minimum": minimum, "maximum": 2**31}
        return {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2, "items": number}}

    # Cells begin at -1, because a state that is not on the map has the cell (-1, -1).
    marks = {"type": "object", "additionalProperties": pairs(0)}
    layout = object_schema(shape=pairs(1)["items"], cells=pairs(-1), walls=pairs(0), marks=marks)
    text, lines = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    texts = {"type": "object", "additionalProperties": text}
    schema = object_schema(
        start=nullable_schema(COUNT_SCHEMA),
        labels=lines,
        layout=nullable_schema(layout),
        space=nullable_schema({"type": "object"}),
    )
    # Only the result of a log has names of actions, and only the folder of a state machine has calls.
    schema["properties"]["actions"] = lines
    schema["properties"]["calls"] = object_schema(
        imports=lines, make=text, calls=lines, state=nullable_schema(text), invariants=texts
    )
    return schema


def _parse_call_texts(
    imports: list[str], make: str, calls: list[str], state: str | None, invariants: dict[str, str]
) -> CallTexts:
    # The texts of a forged folder must not put more lines, or control characters, into a script.
    def line(text: str) -> str:
        return to_single_line(text, 1_000)

    texts = {name: line(text) for name, text in invariants.items()}
    return CallTexts(
        tuple(map(line, imports)), line(make), tuple(map(line, calls)), None if state is None else line(state), texts
    )


def _parse_layout(
    shape: list[int], cells: list[list[int]], walls: list[list[int]], marks: dict[str, list[list[int]]]
) -> GridLayout:
    rows, columns = shape
    if rows * columns > MAX_MAP_CELLS:
        raise ValueError(f"a map of {rows} x {columns} cells is too large")
    cell_array, wall_array = (np.array(pairs, np.int64).reshape(-1, 2) for pairs in (cells, walls))
    mark_arrays = {to_single_line(name): np.array(pairs, np.int64).reshape(-1, 2) for name, pairs in marks.items()}
    for pairs in (cell_array, wall_array, *mark_arrays.values()):
        if (pairs >= np.array(shape)).any():
            raise ValueError("a cell lies outside of the map")
    blocked = np.zeros((rows, columns), bool)
    blocked[tuple(wall_array.T)] = True
    return GridLayout((rows, columns), cell_array, blocked, mark_arrays)


def _check_key_format(key_format: Any) -> None:
    if key_format is not None and key_format.get("kind") == "states":
        if not all(isinstance(key_format.get(name), int) for name in ("first", "size")):
            raise ValueError("observations are not counted from a whole number")
    elif key_format is not None:
        try:
            observation_keys.make_key_reader(key_format)
        # The description comes from the file: a forged one has any type, and any depth of nesting.
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("it does not say how observations are read") from None
