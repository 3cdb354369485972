"""What the result files of a training must hold.

``result.json`` is described by :func:`result_rules` (JSON Schema), with the settings as :class:`Config` declares them.
``policy.npz``, ``goals.npz`` and ``past.npz`` are checked against it by :func:`check_policy`, :func:`check_goals` and
:func:`check_past`. What is wrong is a ``ValueError``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from adagoal.core.schema import COUNT, Array, Schema, check_arrays, record
from adagoal.core.status import Status
from adagoal.deep import past, settings
from adagoal.deep.actor import Actor
from adagoal.deep.config import Config
from adagoal.deep.history import LENGTH, MEASURED, SHARE
from adagoal.deep.likeness import SUCCESS
from adagoal.deep.past import FAR
from adagoal.deep.values import Critics
from adagoal.runs.manifest import FORMAT

KIND = "training"
ENDS = (Status.DONE, Status.CERTIFIED, Status.BUDGET, Status.INTERRUPTED)
Arrays = Mapping[str, NDArray[Any]]

_TEXT = {"type": "string", "maxLength": 100_000}
_POINT = {"steps": COUNT, "wall_seconds": LENGTH, "success": SHARE, "success_any": SHARE}
_CURVE = {"type": "array", "minItems": 1, "items": record(**_POINT) | {"properties": _POINT | MEASURED}}
_ENDS = {"type": "array", "minItems": 1, "maxItems": 100_000, "items": {"type": "number"}}
POLICY_FACTS = record(
    env=_TEXT,
    runs={**COUNT, "minimum": 1},
    low=_ENDS,
    high=_ENDS,
    shape={**_ENDS, "items": COUNT},
    with_achieved={"type": "boolean"},
    success=SUCCESS,
)
"""What is beside the weights."""


def result_rules() -> dict[str, Any]:
    """The schema of ``result.json``."""
    own = settings.per_run(Config)
    shared = settings.declared(Config).keys() - own
    return record(
        format={"enum": [FORMAT]},
        kind={"enum": [KIND]},
        status={"enum": [str(end) for end in ENDS]},
        method=_TEXT,
        env=_TEXT,
        steps=COUNT,
        episodes=COUNT,
        wall_seconds=LENGTH,
        config=settings.json_schema(Config, shared),
        runs={
            "type": "array",
            "minItems": 1,
            "maxItems": 10_000,
            "items": settings.json_schema(Config, own, curve=_CURVE),
        },
        command=_TEXT,
        machine=_TEXT,
        versions={"type": "object", "additionalProperties": _TEXT},
    )


def check_result(data: dict[str, Any], configs: list[Config]) -> None:
    """Whether the parts of a ``result.json`` that keeps its rules agree with each other."""
    first = configs[0]
    if (data["env"], data["method"]) != (first.env, first.method):
        raise ValueError("env or method is not that of the settings")
    lengths = {len(run["curve"]) for run in data["runs"]}
    if len(lengths) > 1:
        raise ValueError("the curves differ in length")
    for run in data["runs"]:
        steps = [point["steps"] for point in run["curve"]]
        if steps[0] != 0 or any(a >= b for a, b in itertools.pairwise(steps)) or steps[-1] > data["steps"]:
            raise ValueError("the steps of a curve do not rise from 0 to those of the run")


def layers(arrays: Arrays) -> int:
    """How many layers the actors have."""
    return sum(name.startswith("0.weight") for name in arrays)


def check_policy(arrays: Arrays, runs: int) -> None:
    """The actors of so many runs, all of the same shape."""
    depth = layers(arrays)
    if depth == 0:
        raise ValueError("entry '0.weight0' is missing")
    critics = sum(name.startswith("0.critic_weight") for name in arrays)
    rules = {name: rule for run in range(runs) for name, rule in Actor.rules(f"{run}.", depth).items()}
    if critics:
        rules |= {name: rule for run in range(runs) for name, rule in Critics.rules(f"{run}.", critics).items()}
    sizes = _exactly(rules, arrays, {})
    if sizes["W0"] != sizes["O"] + sizes["G"] or min(sizes.values()) == 0:
        raise ValueError("the layers of an actor do not fit its observations and goals")
    if critics and sizes["C0"] != sizes["W0"] + sizes[f"W{depth}"]:
        raise ValueError("the critics do not fit the actor")


def action_box(facts: dict[str, Any], width: int) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...]]:
    """Ends and shape of the environment's actions."""
    low, high = (tuple(map(float, facts[name])) for name in ("low", "high"))
    shape = tuple(facts["shape"])
    if not len(low) == len(high) == width == math.prod(shape) or any(a >= b for a, b in zip(low, high, strict=True)):
        raise ValueError("the action box does not fit the actor")
    return low, high, shape


def check_goals(arrays: Arrays, runs: int, per_cycle: int, episodes: int) -> None:
    """The chosen goals of all ``episodes``, the goal spaces and, at the end of a run, the maps of D and E."""
    rules = {"chosen": _places("C", "S", "B", "G")}
    for run in range(runs):
        rules |= {f"{which}_box_{run}": _places(2, "G") for which in ("train", "test")}
    rules["table"] = _places(2, 2, optional=True)
    rules |= {name: Array("float64", low=0.0, high=FAR, optional=True) for name in ("D", "E")}
    rules |= {name: _places("G", optional=True) for name in ("low", "high")}
    sizes = _exactly(rules, arrays, {"S": runs, "B": per_cycle})
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


def check_past(arrays: Arrays, runs: int, axes: int, cycles: int) -> None:
    """Maps of D and E over time, and the distances of the tests."""
    _exactly(past.rules(runs, cycles, axes), arrays, {})
    past.check(arrays, cycles + 1)


def _places(*shape: int | str, optional: bool = False) -> Array:
    return Array("float64", shape, low=-FAR, high=FAR, optional=optional)


def _exactly(rules: Schema, arrays: Arrays, sizes: dict[str, int]) -> dict[str, int]:
    """Arrays under these names and no others."""
    unknown = arrays.keys() - rules.keys()
    if unknown:
        raise ValueError(f"entry {min(unknown)[:80]!r} does not belong there")
    return check_arrays(rules, arrays, sizes)
