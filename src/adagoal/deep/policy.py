"""A trained policy, without JAX."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.types import Singles
from adagoal.deep.actor import Actor


class Policy:
    """``policy(observation, goal) -> action``; -1 and 1 are the ends of the environment's action box."""

    def __init__(self, env: str, actor: Actor) -> None:
        self.env = env
        self.actor = actor

    def __call__(self, observation: ArrayLike, goal: ArrayLike) -> Singles:
        """One action ``[A]`` in [-1, 1] for one observation ``[O]`` and goal ``[G]``."""
        return self.actor(np.asarray(observation, np.float64)[None], np.asarray(goal, np.float64)[None])[0]
