"""What the files of an exploration must hold. docs/result.schema.json is :data:`RESULT`; docs/folder.md explains it."""

from __future__ import annotations

from typing import Any

from adagoal.core import past
from adagoal.core.counts import MOVES
from adagoal.core.goalspace import NAMES
from adagoal.core.names import DIGEST
from adagoal.core.schema import COUNT, Array, nullable, record
from adagoal.planning.device import DEVICES
from adagoal.runs.manifest import FORMAT
from adagoal.worlds.many import MOST

KIND = "exploration"

_TEXT = {"type": "string", "maxLength": 10_000}
_LINES = {"type": "array", "items": {"type": "string"}}
_OBJECT = {"type": "object"}
_AT_LEAST_0 = {"type": "number", "minimum": 0}
_BOUND = nullable(_AT_LEAST_0)
_SEED = {"type": "integer", "minimum": 0}
_STATES = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31}}

SETTING: dict[str, Any] = {
    "env": _TEXT,
    "env_args": _OBJECT,
    "method": _TEXT,
    "method_args": _OBJECT,
    "goal_rule": _TEXT,
    "radius": {"type": ["number", "string"], "minimum": 1, "maximum": 1e9, "maxLength": 100},
    "epsilon": {"type": "number", "minimum": 1e-9, "maximum": 1e9},
    "delta": {"type": "number", "minimum": 1e-300, "exclusiveMaximum": 1},
    "seed": _SEED,
    "budget": nullable(COUNT),
    "goal_space": nullable(_STATES),
    "goal_sets": {**nullable(_OBJECT), "description": "how goals were asked for that are not single states"},
    "start_seed": {"type": ["integer", "string", "null"], "minimum": 0, "maxLength": 6},
    "max_states": nullable(COUNT),
    "workers": {"type": "integer", "minimum": 1, "maximum": MOST},
    "device": {"enum": list(DEVICES)},
}
"""The fields of :class:`adagoal.runs.setting.Setting`."""

_ROW: dict[str, Any] = {
    "type": "object",
    "required": ["goal", "lower", "upper"],
    "properties": {
        "goal": {"type": "integer", "minimum": 0, "maximum": 2**31, "description": "the state, or the number of a set"},
        "label": {"type": "string", "description": "its name"},
        "states": {**COUNT, "description": "how many of its states are known, where the goals are sets"},
        "lower": {**_BOUND, "description": "the best policy needs at least so many expected steps; null: no bound"},
        "upper": {**_BOUND, "description": "the returned policy needs at most so many; null: none is known yet"},
        "error": {**_BOUND, "description": "how much worse than the best policy the returned one may be"},
    },
}

_OUTCOME: dict[str, Any] = {
    "format": {"enum": [FORMAT]},
    "kind": {"enum": [KIND]},
    "radius_setting": {**SETTING["radius"], "description": "what was asked for: a number, auto or all"},
    "status": {"enum": ["certified", "stopped", "budget", "interrupted", "void"]},
    "radius": {"type": "number", "minimum": 1, "maximum": 1e9, "description": "the radius that the answer is about"},
    "certified_radius": {**nullable(_AT_LEAST_0), "minimum": 1, "description": "the radius that is certified, or null"},
    "guarantee": {"type": "boolean", "description": "whether the method proves its certificates"},
    "goals": {"type": "array", "items": _ROW | {"required": ["goal", "lower", "upper", "error"]}},
    "other_goals": {"type": "array", "items": _ROW, "description": "goals that were seen, beyond the radius"},
    "goal_names": {**nullable(NAMES), "description": "names of the goals 0, 1, ..., where they are sets of states"},
    "open_goals": {**_STATES, "description": "members of goals whose certificate is not finished"},
    "steps": COUNT,
    "episodes": COUNT,
    "plans": COUNT,
    "wall_seconds": _AT_LEAST_0,
    "reset_action": {"type": "integer", "minimum": 1, "maximum": 32_767},
    "warnings": _LINES,
    "void": {**_LINES, "description": "why the status is void"},
}

RESULT: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "result.json of an exploration",
    "type": "object",
    "required": [*(SETTING | _OUTCOME)],
    "properties": {**SETTING, **_OUTCOME},
}
"""Entries that are not named are ignored: a later version may add some."""

MODEL = {
    "policy": Array("int16", ("G", "T", "S"), low=0, high="A"),
    "policy_goals": Array("int64", ("G",), low=0),
    "episode_goals": Array("int32", ("E",), low=-2),
    "observations": Array("uint8", ("K", DIGEST), optional=True),
    "goals_at": Array("int32", ("S", "W"), low=-1, optional=True),
    "episode_reached": Array("bool", ("E",)),
    "trace": Array("float64", ("N", 4), low=0, finite=False),
    "visits": Array("int64", ("S",), low=0),
    "theta": Array("float64", ("d", 3), optional=True),
    "theta_region": Array("float64", ("d", "k"), optional=True),
    "theta_radius": Array("float64", (1,), low=0, optional=True),
    **past.SCHEMA,
    **MOVES,
}
"""model.npz: S states, G goals with policies of T stages, A the reset. ``goals_at`` says which goals each state belongs
to, -1 in places not used; without it, every state is a goal of its own. ``observations`` are digests of the
observations of the first K states."""

STAGES = 100_000
"""Stages of a curriculum, at most."""

CHECKPOINT = record(
    setting=record(**SETTING),
    estimates=_OBJECT,
    rng=_OBJECT,
    world=_OBJECT,
    steps=COUNT,
    seconds=_AT_LEAST_0,
    stage={"type": "integer", "minimum": 1, "maximum": STAGES},
    goal_names=nullable(NAMES),
)
"""The facts of checkpoint.npz; each part checks what is its own."""

HISTORY = {
    "episode_goals": Array("int32", ("E",), low=-2, below="N"),
    "episode_reached": Array("bool", ("E",)),
    "trace": Array("float64", None, low=0, finite=False),
    **{f"attempts.{name}": Array("float64", ("K",), low=0) for name in ("total", "reached", "recent", "previous")},
    **past.SCHEMA,
}
"""The arrays of checkpoint.npz that are the run's own; N goals."""
