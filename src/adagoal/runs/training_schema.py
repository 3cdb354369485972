"""What the result files of a training must hold.

``result.json`` is described by :func:`training_result_schema` (JSON Schema), with the settings as :class:`Config` declares them.
``policy.npz``, ``goals.npz`` and ``past.npz`` are checked against it by :func:`check_policy_arrays`, :func:`check_goal_arrays` and
:func:`check_past_arrays`. What is wrong is a ``ValueError``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from adagoal.core.schema import COUNT_SCHEMA, ArraySchema, ArraySpec, check_arrays, object_schema
from adagoal.core.status import Status
from adagoal.deep import past, settings
from adagoal.deep.actor import NumpyActor
from adagoal.deep.config import Config
from adagoal.deep.history import LENGTH_SCHEMA, ROW_MEASURES_SCHEMA, SHARE_SCHEMA
from adagoal.deep.likeness import SUCCESS_RADIUS_SCHEMA
from adagoal.deep.past import MAX_MAP_VALUE
from adagoal.deep.values import NumpyCritics
from adagoal.runs.manifest import MANIFEST_FORMAT

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
    own = settings.per_run_settings(Config)
    shared = settings.declared_settings(Config).keys() - own
    return object_schema(
        format={"enum": [MANIFEST_FORMAT]},
        kind={"enum": [TRAINING_KIND]},
        status={"enum": [str(end) for end in ENDS]},
        method=_LONG_TEXT_SCHEMA,
        env=_LONG_TEXT_SCHEMA,
        steps=COUNT_SCHEMA,
        episodes=COUNT_SCHEMA,
        wall_seconds=LENGTH_SCHEMA,
        config=settings.settings_json_schema(Config, shared),
        runs={
            "type": "array",
            "minItems": 1,
            "maxItems": 10_000,
            "items": settings.settings_json_schema(Config, own, curve=_CURVE_SCHEMA),
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
    _check_exact_arrays(past.value_map_schema(runs, cycles, axes), arrays, {})
    past.check_value_maps(arrays, cycles + 1)


def _coordinates_rule(*shape: int | str, optional: bool = False) -> ArraySpec:
    return ArraySpec("float64", shape, low=-MAX_MAP_VALUE, high=MAX_MAP_VALUE, optional=optional)


def _check_exact_arrays(rules: ArraySchema, arrays: NamedArrays, sizes: dict[str, int]) -> dict[str, int]:
    """Arrays under these names and no others."""
    unknown = arrays.keys() - rules.keys()
    if unknown:
        raise ValueError(f"entry {min(unknown)[:80]!r} does not belong there")
    return check_arrays(rules, arrays, sizes)
