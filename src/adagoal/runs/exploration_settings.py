"""What was asked for: the setting of an exploration, and what it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from adagoal.core import argument_checks, exploration_run
from adagoal.core.argument_checks import check_argument_dict, check_number
from adagoal.core.errors import InputError
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, nullable_schema, object_schema
from adagoal.core.goal_space import GOAL_NAMES_SCHEMA
from adagoal.core.transition_data import EMPIRICAL_MODEL_SCHEMA
from adagoal.core.types import DIGEST_BYTES
from adagoal.envs.env_factory import MAX_WORKERS
from adagoal.runs.folder_reader import MANIFEST_FORMAT

UNLIMITED_BUDGET = 2**62


@dataclass(frozen=True)
class ExplorationSettings:
    """What was asked for: enough to run it again."""

    env: str
    env_args: dict[str, Any] = field(default_factory=dict)
    method: str = "certified"
    method_args: dict[str, Any] = field(default_factory=dict)
    goal_rule: str = "adagoal"
    radius: float | str = 10.0
    """A number of steps, or "auto" or "all" (see docs/guide.md)."""
    epsilon: float = 1.0
    delta: float = 0.1
    seed: int = 0
    budget: int | None = None
    goal_space: tuple[int, ...] | None = None
    """The states to consider as goals; None means every state, or what ``goal_sets`` says."""
    goal_sets: dict[str, Any] | None = None
    """Goals that are not given as states (:mod:`adagoal.runs.goal_spec`)."""
    start_seed: int | str | None = None
    """Of the first state: with this seed at every reset, "random" by declaration, or None: found out."""
    max_states: int | None = None
    workers: int = 1
    """Copies of the environment that are played at once."""

    @property
    def has_growing_radius(self) -> bool:
        """Whether the radius is to grow, in a curriculum."""
        return isinstance(self.radius, str)


def radius_growth_factor(radius: str) -> float:
    """The factor of a curriculum: 2 for "auto" and "all", f for "auto:f" and "all:f"."""
    name, _, factor = radius.partition(":")
    try:
        value = float(factor or 2)
    except ValueError:
        value = math.nan
    if name not in ("auto", "all") or not 1 < value <= 100:
        raise InputError(
            f"{radius!r} is neither a number >= 1 nor auto, all, auto:F or all:F with a factor F in (1, 100]", "radius"
        )
    return value


def check_exploration_settings(setting: ExplorationSettings) -> None:
    """Types and ranges of what the user gave."""
    whole, real = "a whole number", "a number"
    kinds = {"epsilon": real, "delta": real, "budget": whole} | (
        {} if isinstance(setting.radius, str) else {"radius": real}
    )
    for name, kind in kinds.items():
        value = getattr(setting, name)
        right = isinstance(value, int if kind == whole else int | float)
        if isinstance(value, bool) or not (right or (name == "budget" and value is None)):
            raise InputError(f"must be {kind}, got {value!r}", name)
    check_argument_dict("method_args", setting.method_args)
    L = setting.radius
    if isinstance(L, str):
        radius_growth_factor(L)
        if L.startswith("auto") and setting.budget is None:
            raise InputError("auto needs a budget, the number of steps after which to stop enlarging it", "radius")
    else:
        check_number("radius", L, 1, 1e9)
    check_number("epsilon", setting.epsilon, 1e-9, 1e9)
    check_number("delta", setting.delta, 1e-300, 1, closed="[)")
    if setting.budget is not None and not 1 <= setting.budget <= UNLIMITED_BUDGET:
        raise InputError(
            f"must be at least 1 step and at most {UNLIMITED_BUDGET:.1e}, "
            f"got {argument_checks.format_given_value(setting.budget)}",
            "budget",
        )
    argument_checks.check_seed("seed", setting.seed)


# What the files of an exploration must hold. docs/result.schema.json is :data:`RESULT_SCHEMA`; docs/folder.md explains
# it.


EXPLORATION_KIND = "exploration"

_TEXT_SCHEMA = {"type": "string", "maxLength": 10_000}
_LINES_SCHEMA = {"type": "array", "items": {"type": "string"}}
_OBJECT_SCHEMA = {"type": "object"}
_NONNEGATIVE_SCHEMA = {"type": "number", "minimum": 0}
_BOUND_SCHEMA = nullable_schema(_NONNEGATIVE_SCHEMA)
_SEED = {"type": "integer", "minimum": 0}
_STATES_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31}}

SETTINGS_SCHEMA: dict[str, Any] = {
    "env": _TEXT_SCHEMA,
    "env_args": _OBJECT_SCHEMA,
    "method": _TEXT_SCHEMA,
    "method_args": _OBJECT_SCHEMA,
    "goal_rule": _TEXT_SCHEMA,
    "radius": {"type": ["number", "string"], "minimum": 1, "maximum": 1e9, "maxLength": 100},
    "epsilon": {"type": "number", "minimum": 1e-9, "maximum": 1e9},
    "delta": {"type": "number", "minimum": 1e-300, "exclusiveMaximum": 1},
    "seed": _SEED,
    "budget": nullable_schema(COUNT_SCHEMA),
    "goal_space": nullable_schema(_STATES_SCHEMA),
    "goal_sets": {
        **nullable_schema(_OBJECT_SCHEMA),
        "description": "how goals were asked for that are not single states",
    },
    "start_seed": {"type": ["integer", "string", "null"], "minimum": 0, "maxLength": 6},
    "max_states": nullable_schema(COUNT_SCHEMA),
    "workers": {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS},
}
"""The fields of :class:`adagoal.runs.exploration_settings.ExplorationSettings`."""

_GOAL_ROW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["goal", "lower", "upper"],
    "properties": {
        "goal": {"type": "integer", "minimum": 0, "maximum": 2**31, "description": "the state, or the number of a set"},
        "label": {"type": "string", "description": "its name"},
        "states": {**COUNT_SCHEMA, "description": "how many of its states are known, where the goals are sets"},
        "lower": {
            **_BOUND_SCHEMA,
            "description": "the best policy needs at least so many expected steps; null: no bound",
        },
        "upper": {**_BOUND_SCHEMA, "description": "the returned policy needs at most so many; null: none is known yet"},
        "error": {**_BOUND_SCHEMA, "description": "how much worse than the best policy the returned one may be"},
    },
}

_OUTCOME_SCHEMA: dict[str, Any] = {
    "format": {"enum": [MANIFEST_FORMAT]},
    "kind": {"enum": [EXPLORATION_KIND]},
    "radius_setting": {**SETTINGS_SCHEMA["radius"], "description": "what was asked for: a number, auto or all"},
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
        **nullable_schema(GOAL_NAMES_SCHEMA),
        "description": "names of the goals 0, 1, ..., where they are sets of states",
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

RESULT_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "result.json of an exploration",
    "type": "object",
    "required": [*(SETTINGS_SCHEMA | _OUTCOME_SCHEMA)],
    "properties": {**SETTINGS_SCHEMA, **_OUTCOME_SCHEMA},
}
"""Entries that are not named are ignored: a later version may add some."""

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
    **exploration_run.BOUNDS_HISTORY_SCHEMA,
    **EMPIRICAL_MODEL_SCHEMA,
}
"""policies.npz: S states, G goals with policies of T stages, A the reset. ``goals_at`` says which goals each state
belongs to, -1 in places not used; without it, every state is a goal of its own. ``observations`` are digests of the
observations of the first K states."""

MAX_RADIUS_STAGES = 100_000
"""Stages of a curriculum, at most."""

RUN_CHECKPOINT_SCHEMA = object_schema(
    setting=object_schema(**SETTINGS_SCHEMA),
    estimates=_OBJECT_SCHEMA,
    rng=_OBJECT_SCHEMA,
    world=_OBJECT_SCHEMA,
    steps=COUNT_SCHEMA,
    seconds=_NONNEGATIVE_SCHEMA,
    stage={"type": "integer", "minimum": 1, "maximum": MAX_RADIUS_STAGES},
    goal_names=nullable_schema(GOAL_NAMES_SCHEMA),
)
"""The facts of checkpoint.npz; each part checks what is its own."""

RUN_HISTORY_SCHEMA = {
    "episode_goals": ArraySpec("int32", ("E",), low=-2, below="N"),
    "episode_reached": ArraySpec("bool", ("E",)),
    "trace": ArraySpec("float64", None, low=0, finite=False),
    **{f"attempts.{name}": ArraySpec("float64", ("K",), low=0) for name in ("total", "reached", "recent", "previous")},
    **exploration_run.BOUNDS_HISTORY_SCHEMA,
}
"""The arrays of checkpoint.npz that are the run's own; N goals."""
