"""Files of explorations: names and cells of states (``view.json``), and the schemas of the other files.

docs/result.schema.json is a copy of :data:`RESULT_SCHEMA`, and docs/folder.md explains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import exploration_run, file_io
from adagoal.core.argument_checks import declared_settings, settings_json_schema
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, nullable_schema, object_schema
from adagoal.core.file_io import FileContents
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import DIGEST_BYTES, CallTexts, GridLayout, resolve_number
from adagoal.envs import observation_keys
from adagoal.runs.run_folder import MANIFEST_FORMAT, FolderFiles, RunKind
from adagoal.settings.exploration import ExplorationSettings

MAX_MAP_CELLS = 10_000_000  # a forged map could otherwise allocate all memory


@dataclass(frozen=True)
class StateMetadata:
    """The start state, names of states, their cells on a map, and how observations are read."""

    start: int | None = None
    labels: tuple[str, ...] = ()
    layout: GridLayout | None = None
    observation_space: dict[str, Any] | None = None  # see :class:`adagoal.core.types.ObservedStates`
    actions: tuple[str, ...] = ()  # names of the actions of a log
    call_texts: CallTexts | None = None  # of a state machine

    file_name = "view.json"

    def numbered_label(self, state: int) -> str:
        """Return the state's number, with its name if it has one, as plain text."""
        return f"{state} {to_single_line(self.labels[state])}" if state < len(self.labels) else str(state)

    @staticmethod
    def from_env(env: TabularEnv) -> StateMetadata:
        """Return what an environment says about its states."""
        observed = env.observed_states() if hasattr(env, "observed_states") else None
        key_format = None if observed is None else observed.key_format
        actions = tuple(getattr(env, "action_labels", ()))
        calls = getattr(env, "call_texts", None)
        return StateMetadata(env.start, tuple(env.labels), env.layout, key_format, actions, calls)

    def has_virtual_start(self, digests: NDArray[np.uint8] | None) -> bool:
        """Return whether the start is a state of its own, from which the first step draws the first observation."""
        if self.start is None or self.observation_space is None:
            return False
        if self.observation_space["kind"] == "states":
            return bool(self.start >= self.observation_space["size"])
        # A row of zeros is a state without an observation.
        return digests is not None and self.start < len(digests) and not digests[self.start].any()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        layout: dict[str, Any] | None = None
        if self.layout is not None:
            walls = np.argwhere(self.layout.walls).tolist()
            layout = {"shape": list(self.layout.shape), "cells": self.layout.cells.tolist(), "walls": walls}
            layout["marks"] = {to_single_line(name): cells.tolist() for name, cells in self.layout.marks.items()}
        # Labels are text from user code; a terminal or a browser would obey control characters in them.
        labels = [to_single_line(label) for label in self.labels]
        data = {"start": self.start, "labels": labels, "layout": layout, "space": self.observation_space}
        data |= {"actions": list(map(to_single_line, self.actions))} if self.actions else {}
        return data if self.call_texts is None else data | {"calls": self.call_texts._asdict()}

    def file_contents(self) -> FileContents:
        """Return the file."""
        return {self.file_name: file_io.json_content(self.to_dict())}


def read_state_metadata(files: FolderFiles, n_states: int) -> StateMetadata:
    """Read the metadata of ``n_states`` states."""
    data = files.load_json(StateMetadata.file_name, _metadata_schema())
    path = files.folder / StateMetadata.file_name
    with file_io.report_read_errors(path):
        layout = None if data["layout"] is None else _parse_layout(**data["layout"])
        _check_observation_space(data["space"])
    # The report and policies index states by these tables, so tables of another run must be refused here.
    too_few_cells = layout is not None and len(layout.cells) < n_states
    if too_few_cells or len(data["labels"]) > n_states or not 0 <= (data["start"] or 0) < n_states:
        raise InputError(f"{path}: damaged, or from another run (this one has {n_states} states)")
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


def _check_observation_space(space: Any) -> None:
    if space is not None and space.get("kind") == "states":
        if not all(isinstance(space.get(name), int) for name in ("first", "size")):
            raise ValueError("observations are not counted from a whole number")
    elif space is not None:
        try:
            observation_keys.make_key_reader(space)
        # The description comes from the file: a forged one has any type, and any depth of nesting.
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("it does not say how observations are read") from None


class StateFinder:
    """Finds the number of a state by its observation; the lookup table is made on the first call."""

    def __init__(self, view: StateMetadata, digests: NDArray[np.uint8] | None, n_states: int) -> None:
        self._metadata, self._digests, self._n_states = view, digests, n_states
        self._lookup: Callable[[Any], int | None] | None = None

    def __reduce__(self) -> Any:
        # Without the lookup: it is a closure, which cannot be pickled.
        return StateFinder, (self._metadata, self._digests, self._n_states)

    def __call__(self, observation: Any) -> int | None:
        """Return the state, None for an observation that was never seen."""
        if self._lookup is None:
            self._lookup = self._make_lookup()
        try:
            return self._lookup(observation)
        except InputError:
            raise
        # An object of any class may be passed here, and reading it may raise anything.
        except Exception as error:
            text = f"this is not an observation of the environment ({type(error).__name__}: {error})"
            raise InputError(text, "observation") from None

    def _make_lookup(self) -> Callable[[Any], int | None]:
        view, n_states = self._metadata, self._n_states
        if view.observation_space is None:
            return lambda given: resolve_number(given, view.labels, n_states, "state")
        if view.observation_space["kind"] == "states":
            first = view.observation_space["first"]
            return lambda given: resolve_number(index(given) - first, (), n_states, "observation")
        digests = () if self._digests is None else self._digests
        # A row of zeros is a state without an observation, such as a virtual start.
        known = {row.tobytes(): state for state, row in enumerate(digests) if row.any()}
        read = observation_keys.make_key_reader(view.observation_space)
        return lambda observation: known.get(observation_keys.hash_state_key(read(observation)))


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
    goal_names=nullable_schema(GoalSpace.NAMES_SCHEMA),
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
