"""Trainings in folders of format 1, before there were manifests: where their files differ from those of today.

What is beside the arrays today (``__facts__``) was in arrays of its own, as JSON in bytes. Actor and critic were fields
of the learner's state; today they are what the algorithm ``ddpg`` keeps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.files import parsed

Arrays = dict[str, NDArray[Any]]

_NAMES = {"state.actor.": "learnt.nets.actor.", "state.critic.": "learnt.nets.critic.", "state.": "learnt."}


def policy_facts(arrays: Arrays) -> dict[str, Any]:
    """Take the facts out of the arrays of a ``policy.npz``."""
    _check_format(arrays)
    return {"env": parsed(arrays.pop("env").tobytes()), "runs": sum(name.endswith(".clip") for name in arrays)}


def checkpoint(arrays: Arrays) -> tuple[Arrays, dict[str, Any]]:
    """A checkpoint as :meth:`adagoal.deep.training.Training.state` gives it today."""
    _check_format(arrays)
    configs, rows = (parsed(arrays.pop(name).tobytes()) for name in ("configs", "history.rows"))
    cycle, seconds = arrays.pop("cycle"), arrays.pop("history.wall_seconds")
    if (cycle.dtype.name, cycle.shape, seconds.dtype.name, seconds.shape) != ("int64", (), "float64", ()):
        raise ValueError("the number of cycles or seconds is not a number")
    algorithm = {"algorithm": "ddpg"}
    facts = {
        "configs": [{**algorithm, **data} if isinstance(data, dict) else data for data in configs],
        "cycle": int(cycle),
        "history": {"rows": rows, "wall_seconds": float(seconds)},
    }
    return with_ends({_renamed(name): array for name, array in arrays.items()}), facts


def with_ends(arrays: Arrays) -> Arrays:
    """The same, where it was not kept yet how an episode ended: none of them terminated."""
    for place in ("learnt.replay", "pending"):
        lengths = arrays.get(f"{place}.length")
        if lengths is not None and f"{place}.terminated" not in arrays:
            arrays[f"{place}.terminated"] = np.zeros(lengths.shape, bool)
    return arrays


def _check_format(arrays: Arrays) -> None:
    if not np.array_equal(arrays.pop("format"), 1):
        raise ValueError("of an unknown format")


def _renamed(name: str) -> str:
    for old, new in _NAMES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
