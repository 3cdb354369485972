"""A trained policy, without JAX."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.errors import InputError
from adagoal.core.types import Singles
from adagoal.deep.actor import Actor
from adagoal.deep.envs import Dimensions


class Policy:
    """``policy(observation, goal) -> action``; -1 and 1 are the ends of the environment's action box."""

    def __init__(self, env: str, actor: Actor) -> None:
        self.env = env
        self.actor = actor

    def check(self, sizes: Dimensions) -> None:
        """Whether the environment is one that the policy can act in."""
        wanted = sizes.observation, sizes.goal, sizes.action
        own = len(self.actor.observation_mean), len(self.actor.goal_mean), self.actor.width
        if own != wanted:
            text = f"{self.env} has (observations, goals, actions) of sizes {wanted}, the policy is for {own}"
            raise InputError(text, name="env")

    def __call__(self, observation: ArrayLike, goal: ArrayLike) -> Singles:
        """One action ``[A]`` in [-1, 1] for one observation ``[O]`` and goal ``[G]``."""
        return self.actor(np.asarray(observation, np.float64)[None], np.asarray(goal, np.float64)[None])[0]
