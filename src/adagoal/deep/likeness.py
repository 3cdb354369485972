"""Whether an environment that is given again is like the one of a run: what is kept of it, and what may not differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.schema import COUNT_SCHEMA, object_schema
from adagoal.deep.envs import EnvDimensions

DIMENSION_TEXTS = {
    "observation": "the size of observations",
    "goal": "the size of goals",
    "action": "the size of actions",
    "low": "the low end of actions",
    "high": "the high end of actions",
    "success": "the radius of success",
}
SUCCESS_RADIUS_SCHEMA: dict[str, Any] = {"type": "number", "minimum": 0}
_ENDS = {"type": "array", "minItems": 1, "maxItems": 100_000, "items": {"type": "number"}}
ENV_FACTS_SCHEMA = object_schema(
    observation=COUNT_SCHEMA,
    goal=COUNT_SCHEMA,
    action=COUNT_SCHEMA,
    low=_ENDS,
    high=_ENDS,
    success=SUCCESS_RADIUS_SCHEMA,
)
"""What a checkpoint holds of the environment."""


def env_facts(sizes: EnvDimensions) -> dict[str, Any]:
    """What is kept, JSON-ready."""
    return {name: list(x) if isinstance(x := getattr(sizes, name), tuple) else x for name in DIMENSION_TEXTS}


def check_same_env(name: str, known: Mapping[str, Any], sizes: EnvDimensions) -> None:
    """Whether an environment of this name and these sizes is like the one of which so much is known."""
    for entry, was in known.items():
        now = getattr(sizes, entry)
        if np.shape(was) != np.shape(now) or not np.allclose(was, now, rtol=1e-3, atol=0.0):
            text = f"{name} is not that of the run: {DIMENSION_TEXTS[entry]} is {_format_numbers(now)}, and was {_format_numbers(was)}"
            raise InputError(text, name="env")


def _format_numbers(numbers: Any) -> str:
    return " ".join(f"{x:.4g}" for x in np.ravel(numbers)[:8])
