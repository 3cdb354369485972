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
from adagoal.runs.folder_reader import MANIFEST_FORMAT, RunKind
from adagoal.settings.exploration import ExplorationSettings
from adagoal.settings.fields import declared_settings, settings_json_schema


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
    "theta": ArraySpec("float64", ("d", 3), optional=True),
    "theta_region": ArraySpec("float64", ("d", "k"), optional=True),
    "theta_radius": ArraySpec("float64", (1,), low=0, optional=True),
    **exploration_run.BoundsHistory.ARRAY_SCHEMA,
    **TransitionCounts.EMPIRICAL_MODEL_SCHEMA,
}
"""Arrays of policies.npz, for S states, A actions without the reset, and G goals with policies of T stages.

``goals_at`` lists the goals of each state, padded with -1; without it every state is its own goal. ``observations`` are
digests of the observations of the first K states. ``avoided`` are the states to avoid, in runs with ``within``."""

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
