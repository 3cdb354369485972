"""Whether an environment that is given again is like the one of a run: what is kept of it, and what may not differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.schema import COUNT, record
from adagoal.deep.envs import Dimensions

WORDS = {
    "observation": "the size of observations",
    "goal": "the size of goals",
    "action": "the size of actions",
    "low": "the low end of actions",
    "high": "the high end of actions",
    "success": "the radius of success",
}
SUCCESS: dict[str, Any] = {"type": "number", "minimum": 0}
_ENDS = {"type": "array", "minItems": 1, "maxItems": 100_000, "items": {"type": "number"}}
KEPT = record(observation=COUNT, goal=COUNT, action=COUNT, low=_ENDS, high=_ENDS, success=SUCCESS)
"""What a checkpoint holds of the environment."""


def kept(sizes: Dimensions) -> dict[str, Any]:
    """What is kept, JSON-ready."""
    return {name: list(x) if isinstance(x := getattr(sizes, name), tuple) else x for name in WORDS}


def check(name: str, known: Mapping[str, Any], sizes: Dimensions) -> None:
    """Whether an environment of this name and these sizes is like the one of which so much is known."""
    for entry, was in known.items():
        now = getattr(sizes, entry)
        if np.shape(was) != np.shape(now) or not np.allclose(was, now, rtol=1e-3, atol=0.0):
            text = f"{name} is not that of the run: {WORDS[entry]} is {_shown(now)}, and was {_shown(was)}"
            raise InputError(text, name="env")


def _shown(numbers: Any) -> str:
    return " ".join(f"{x:.4g}" for x in np.ravel(numbers)[:8])
