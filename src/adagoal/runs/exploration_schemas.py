"""Schemas of the files of an exploration: ``result.json``, ``policies.npz`` and the checkpoint.

docs/result.schema.json is a copy of :data:`RESULT_SCHEMA`, and docs/folder.md explains it.
"""

from __future__ import annotations

from typing import Any

from adagoal.core import exploration_run
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, nullable_schema, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import DIGEST_BYTES
from adagoal.runs.folder_reader import MANIFEST_FORMAT
from adagoal.settings.exploration import ExplorationSettings
from adagoal.settings.fields import declared_settings, settings_json_schema

EXPLORATION_KIND = "exploration"

_LINES_SCHEMA = {"type": "array", "items": {"type": "string"}}
_OBJECT_SCHEMA = {"type": "object"}
_NONNEGATIVE_SCHEMA = {"type": "number", "minimum": 0}
_BOUND_SCHEMA = nullable_schema(_NONNEGATIVE_SCHEMA)
_STATES_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31}}
_SETTINGS_SCHEMA = settings_json_schema(
    ExplorationSettings,
    declared_settings(ExplorationSettings),
    goal_space={**nullable_schema(_STATES_SCHEMA), "description": "goals that are single states; null: all states"},
    goal_sets={**nullable_schema(_OBJECT_SCHEMA), "description": "description of goals that are not single states"},
)

_GOAL_ROW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["goal", "lower", "upper"],
    "properties": {
        "goal": {"type": "integer", "minimum": 0, "maximum": 2**31, "description": "the state, or the number of a set"},
        "label": {"type": "string", "description": "its name"},
        "states": {**COUNT_SCHEMA, "description": "number of its known states, if the goals are sets"},
        "lower": {
            **_BOUND_SCHEMA,
            "description": "lower bound on the expected steps of the best policy; null: no bound",
        },
        "upper": {
            **_BOUND_SCHEMA,
            "description": "upper bound on the expected steps of the returned policy; null: no bound yet",
        },
        "error": {
            **_BOUND_SCHEMA,
            "description": "bound on the steps that the returned policy loses to the best",
        },
    },
}

_OUTCOME_SCHEMA: dict[str, Any] = {
    "format": {"enum": [MANIFEST_FORMAT]},
    "kind": {"enum": [EXPLORATION_KIND]},
    "radius_setting": {
        **_SETTINGS_SCHEMA["properties"]["radius"],
        "description": "the radius that was requested: a number, auto or all",
    },
    "status": {"enum": ["certified", "stopped", "budget", "interrupted", "void"]},
    "radius": {"type": "number", "minimum": 1, "maximum": 1e9, "description": "the radius that the answer is about"},
    "certified_radius": {
        **nullable_schema(_NONNEGATIVE_SCHEMA),
        "minimum": 1,
        "description": "the radius that is certified, or null",
    },
    "guarantee": {"type": "boolean", "description": "whether the method proves its certificates"},
    "goals": {"type": "array", "items": _GOAL_ROW_SCHEMA | {"required": ["goal", "lower", "upper", "error"]}},
    "other_goals": {
        "type": "array",
        "items": _GOAL_ROW_SCHEMA,
        "description": "goals that were seen, beyond the radius",
    },
    "goal_names": {
        **nullable_schema(GoalSpace.NAMES_SCHEMA),
        "description": "names of the goals 0, 1, ..., if they are sets of states",
    },
    "open_goals": {**_STATES_SCHEMA, "description": "members of goals whose certificate is not finished"},
    "steps": COUNT_SCHEMA,
    "episodes": COUNT_SCHEMA,
    "plans": COUNT_SCHEMA,
    "wall_seconds": _NONNEGATIVE_SCHEMA,
    "reset_action": {"type": "integer", "minimum": 1, "maximum": 32_767},
    "warnings": _LINES_SCHEMA,
    "void": {**_LINES_SCHEMA, "description": "why the status is void"},
}

_RESULT_PROPERTIES = _SETTINGS_SCHEMA["properties"] | _OUTCOME_SCHEMA
RESULT_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "result.json of an exploration",
    "type": "object",
    "required": list(_RESULT_PROPERTIES),
    "properties": _RESULT_PROPERTIES,
}
"""Unknown entries are ignored, because a later version may add some."""

POLICIES_SCHEMA = {
    "policy": ArraySpec("int16", ("G", "T", "S"), low=0, high="A"),
    "policy_goals": ArraySpec("int64", ("G",), low=0),
    "episode_goals": ArraySpec("int32", ("E",), low=-2),
    "observations": ArraySpec("uint8", ("K", DIGEST_BYTES), optional=True),
    "goals_at": ArraySpec("int32", ("S", "W"), low=-1, optional=True),
    "episode_reached": ArraySpec("bool", ("E",)),
    "trace": ArraySpec("float64", ("N", 4), low=0, finite=False),
    "visits": ArraySpec("int64", ("S",), low=0),
    "theta": ArraySpec("float64", ("d", 3), optional=True),
    "theta_region": ArraySpec("float64", ("d", "k"), optional=True),
    "theta_radius": ArraySpec("float64", (1,), low=0, optional=True),
    **exploration_run.BoundsHistory.ARRAY_SCHEMA,
    **TransitionCounts.EMPIRICAL_MODEL_SCHEMA,
}
"""Arrays of policies.npz, for S states, A actions without the reset, and G goals with policies of T stages.

``goals_at`` lists the goals of each state, padded with -1; without it every state is its own goal. ``observations`` are
digests of the observations of the first K states."""

RUN_CHECKPOINT_SCHEMA = object_schema(
    setting=_SETTINGS_SCHEMA,
    estimates=_OBJECT_SCHEMA,
    rng=_OBJECT_SCHEMA,
    world=_OBJECT_SCHEMA,
    steps=COUNT_SCHEMA,
    seconds=_NONNEGATIVE_SCHEMA,
    stage={"type": "integer", "minimum": 1, "maximum": 100_000},
    goal_names=nullable_schema(GoalSpace.NAMES_SCHEMA),
)
"""JSON part of a checkpoint. The owners of ``estimates``, ``rng`` and ``world`` check these entries themselves."""

RUN_HISTORY_SCHEMA = {
    "episode_goals": ArraySpec("int32", ("E",), low=-2, below="N"),
    "episode_reached": ArraySpec("bool", ("E",)),
    "trace": ArraySpec("float64", None, low=0, finite=False),
    **{f"attempts.{name}": ArraySpec("float64", ("K",), low=0) for name in ("total", "reached", "recent", "previous")},
    **exploration_run.BoundsHistory.ARRAY_SCHEMA,
}
"""History of the run in a checkpoint, for N goals."""
