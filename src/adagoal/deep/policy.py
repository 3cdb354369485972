"""A trained policy, without JAX: actions, distances and their uncertainty, in the environment's own units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.types import Floats, Singles
from adagoal.deep import env_inspection
from adagoal.deep.goal_envs import EnvDimensions, flatten_numbers, join_policy_input
from adagoal.deep.numpy_networks import MIN_ERROR_STEPS, NumpyActor, NumpyCritics


@dataclass(frozen=True)
class GoalPolicy:
    """``policy(observation, goal) -> action``, as the environment's ``step`` takes it.

    The observation is the environment's whole one, of which ``observation`` and ``achieved_goal`` are used, or its
    entry ``observation`` alone where that holds the achieved goal. Goals have the form of ``desired_goal``.
    """

    env: str
    actor: NumpyActor
    critics: NumpyCritics | None
    """None where the training had no critics for D and E."""
    low: tuple[float, ...]
    """Ends of the environment's action box ``[A]``."""
    high: tuple[float, ...]
    shape: tuple[int, ...]
    """That of an action."""
    with_achieved: bool
    """Whether the policy sees the achieved goal beside the observation."""
    success: float
    """Radius of success in the environment."""

    def __repr__(self) -> str:
        sizes = len(self.actor.observation_mean), len(self.actor.goal_mean), self.actor.action_size
        return "<Policy for {}: from {} numbers and a goal of {} to an action of {}>".format(self.env, *sizes)

    def check_matches_env(self, sizes: EnvDimensions) -> None:
        """Whether the environment is like the one that the policy was trained in."""
        known: dict[str, Any] = {"observation": len(self.actor.observation_mean), "goal": len(self.actor.goal_mean)}
        known["action"] = self.actor.action_size
        known |= {"low": self.low, "high": self.high, "success": self.success}
        env_inspection.check_same_env(self.env, known, sizes)

    def __call__(self, observation: Any, goal: Any) -> Singles:
        """The noise-free action for one observation and one goal."""
        low, high = np.array(self.low), np.array(self.high)
        action = (low + high) / 2 + (high - low) / 2 * self.actor(*self._parse_inputs(observation, goal))[0]
        return np.clip(action.astype(np.float32), *_float32_box_ends(low, high)).reshape(self.shape)

    def distance(self, observation: Any, goal: Any) -> float:
        """D: the steps that the policy is expected to take from here to the goal, the arriving one included."""
        return self._distance_and_error(observation, goal)[0]

    def uncertainty(self, observation: Any, goal: Any) -> float:
        """E: how far :meth:`distance` may be off, in steps.

        Fresh episodes after the training calibrate it: 90% of the episodes of its ``test_goals``, from starts of the
        environment, first reach their goal after ``distance`` +- ``uncertainty`` steps. An episode that ends without
        success counts as covered if ``distance`` + ``uncertainty`` is at least its length.
        """
        _, E = self._distance_and_error(observation, goal)
        assert self.critics is not None
        if self.critics.calibration is None:
            raise InputError("is known when a training has come to its end, where it is measured", "uncertainty")
        return self.critics.calibration * max(E, MIN_ERROR_STEPS)

    def fingerprint(self) -> str:
        """SHA-256 of the weights that act: a certificate is for this policy, and for no other."""
        arrays = sorted(self.actor.to_arrays().items())
        return sha256(b"".join(name.encode() + np.ascontiguousarray(a).tobytes() for name, a in arrays)).hexdigest()

    def weights(self) -> dict[str, NDArray[Any]]:
        """All that was learnt, as named arrays."""
        return self.actor.to_arrays() | ({} if self.critics is None else self.critics.to_arrays())

    def _distance_and_error(self, observation: Any, goal: Any) -> tuple[float, float]:
        if self.critics is None:
            raise InputError("is not known: the goal rule of this training needed no ensemble", "distance")
        o, g = self._parse_inputs(observation, goal)
        D, E = self.critics(self.actor.normalise_inputs(o, g), self.actor(o, g))
        return float(D[0]), float(E[0])

    def _parse_inputs(self, observation: Any, goal: Any) -> tuple[Any, Any]:
        """State ``[1, O]`` and goal ``[1, G]``."""
        whole = isinstance(observation, Mapping) and "achieved_goal" in observation
        if self.with_achieved and not whole:
            text = "give the whole observation of the environment: what was achieved is not in its entry 'observation'"
            raise InputError(text, "observation")
        if whole and "observation" not in observation:
            raise InputError("must have the entry 'observation' beside 'achieved_goal'", "observation")
        seen = _parse_numbers(observation["observation"] if whole else observation, "observation")
        achieved = _parse_numbers(observation["achieved_goal"], "observation") if whole else seen
        o, g = join_policy_input(seen, achieved, self.with_achieved), _parse_numbers(goal, "goal")
        for name, vector, size in (("observation", o, self.actor.observation_mean), ("goal", g, self.actor.goal_mean)):
            if len(vector) != len(size) or not np.isfinite(vector).all():
                raise InputError(f"must be {len(size)} finite numbers, got {vector.tolist()[:8]}", name)
        return o[None], g[None]


def _float32_box_ends(low: Floats, high: Floats) -> tuple[Singles, Singles]:
    """The ends of a box in single precision, never outside of it: the nearest single of 0.1 is larger than 0.1."""
    first, last = low.astype(np.float32), high.astype(np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return np.where(first < low, np.nextafter(first, up), first), np.where(last > high, np.nextafter(last, down), last)


def _parse_numbers(thing: Any, name: str) -> Floats:
    """A vector, where ``thing`` is made of numbers."""
    try:
        return flatten_numbers(thing)
    except (TypeError, ValueError) as error:
        raise InputError(f"must be numbers, got {str(thing)[:80]!r}", name) from error
