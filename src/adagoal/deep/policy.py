"""A trained policy, read back from a run's folder without JAX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adagoal.core.errors import InputError
from adagoal.core.types import Singles
from adagoal.deep.worker import Actor


class Policy:
    """``policy(observation, goal) -> action``; -1 and 1 are the ends of the environment's action box."""

    def __init__(self, env: str, actor: Actor) -> None:
        self.env = env
        self.actor = actor

    def __call__(self, observation: ArrayLike, goal: ArrayLike) -> Singles:
        """One action ``[A]`` in [-1, 1] for one observation ``[O]`` and goal ``[G]``."""
        return self.actor(np.asarray(observation, np.float64)[None], np.asarray(goal, np.float64)[None])[0]


def load(folder: Path | str, run: int = 0) -> Policy:
    """The policy of a training folder (``run``: which of the runs trained side by side)."""
    path = Path(folder) / "policy.npz"
    if not path.is_file():
        raise InputError(f"{path} does not exist; train writes it at the end of a run")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zip, zlib and header errors all mean the same to the user
        raise InputError(f"{path}: damaged or not readable ({type(error).__name__})") from None
    if f"{run}.clip" not in arrays:
        runs = sum(name.endswith(".clip") for name in arrays)
        raise InputError(f"--run: {run} is not in {path}; accepted 0 to {runs - 1}")
    layers = [(arrays[f"{run}.weight{i}"], arrays[f"{run}.bias{i}"]) for i in range(_count(arrays, run))]
    o_mean, o_std, g_mean, g_std = (
        arrays[f"{run}.{n}"] for n in ("observation_mean", "observation_std", "goal_mean", "goal_std")
    )
    return Policy(_text(arrays["env"]), Actor(layers, o_mean, o_std, g_mean, g_std, float(arrays[f"{run}.clip"])))


def _count(arrays: dict[str, Singles], run: int) -> int:
    return sum(name.startswith(f"{run}.weight") for name in arrays)


def _text(array: NDArray[np.uint8]) -> str:
    return array.tobytes().decode().strip('"')
