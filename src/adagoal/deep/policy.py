"""A trained policy without JAX: actions, distances and their uncertainty, in the units of the environment."""

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
from adagoal.deep.numpy_networks import NumpyActor, NumpyCritics
from adagoal.deep.value_formulas import MIN_ERROR_STEPS


@dataclass(frozen=True)
class GoalPolicy:
    """``policy(observation, goal) -> action``, as the environment's ``step`` takes it.

    The observation is the whole dictionary that the environment returns. If its entry ``observation`` contains the
    achieved goal, that entry alone is enough. Goals have the form of ``desired_goal``.
    """

    env: str
    actor: NumpyActor
    critics: NumpyCritics | None  # None if training learnt no critics for D and E
    low: tuple[float, ...]  # ends of the action box, [A]
    high: tuple[float, ...]
    shape: tuple[int, ...]  # of an action
    with_achieved: bool  # whether the network input has the achieved goal appended to the observation
    success: float  # radius around a goal in which it counts as reached

    def __repr__(self) -> str:
        sizes = len(self.actor.observation_mean), len(self.actor.goal_mean), self.actor.action_size
        return "<Policy for {}: from {} numbers and a goal of {} to an action of {}>".format(self.env, *sizes)

    def check_matches_env(self, sizes: EnvDimensions) -> None:
        """Raise an InputError if the environment differs from the one of training."""
        expected: dict[str, Any] = {"observation": len(self.actor.observation_mean), "goal": len(self.actor.goal_mean)}
        expected |= {"action": self.actor.action_size, "low": self.low, "high": self.high, "success": self.success}
        env_inspection.check_same_env(self.env, expected, sizes)

    def __call__(self, observation: Any, goal: Any) -> Singles:
        """The noise-free action for one observation and one goal."""
        low, high = np.array(self.low), np.array(self.high)
        action = (low + high) / 2 + (high - low) / 2 * self.actor(*self._parse_inputs(observation, goal))[0]
        return np.clip(action.astype(np.float32), *_float32_box_ends(low, high)).reshape(self.shape)

    def distance(self, observation: Any, goal: Any) -> float:
        """D: the expected number of steps to the goal, the arriving one included."""
        return self._distance_and_error(observation, goal)[0]

    def uncertainty(self, observation: Any, goal: Any) -> float:
        """E: the error of :meth:`distance`, in steps.

        It is calibrated on fresh episodes after training: 90% of the episodes for ``test_goals``, from starts of the
        environment, first reach their goal after ``distance`` +- ``uncertainty`` steps. An episode that ends without
        success counts as covered if ``distance`` + ``uncertainty`` is at least its length.
        """
        _, E = self._distance_and_error(observation, goal)
        assert self.critics is not None
        if self.critics.calibration is None:
            text = "is calibrated at the end of training; this policy is from an unfinished run"
            raise InputError(text, "uncertainty")
        return self.critics.calibration * max(E, MIN_ERROR_STEPS)

    def fingerprint(self) -> str:
        """SHA-256 of the actor's weights; a certificate names the policy by it."""
        arrays = sorted(self.actor.to_arrays().items())
        return sha256(b"".join(name.encode() + np.ascontiguousarray(a).tobytes() for name, a in arrays)).hexdigest()

    def weights(self) -> dict[str, NDArray[Any]]:
        """Actor and critics as named arrays."""
        return self.actor.to_arrays() | ({} if self.critics is None else self.critics.to_arrays())

    def _distance_and_error(self, observation: Any, goal: Any) -> tuple[float, float]:
        if self.critics is None:
            raise InputError("is not known: this run learnt no distances, as its goal rule needs none", "distance")
        o, g = self._parse_inputs(observation, goal)
        D, E = self.critics(self.actor.normalise_inputs(o, g), self.actor(o, g))
        return float(D[0]), float(E[0])

    def _parse_inputs(self, observation: Any, goal: Any) -> tuple[Any, Any]:
        """Network inputs ``[1, O]`` and ``[1, G]``."""
        whole = isinstance(observation, Mapping) and "achieved_goal" in observation
        if self.with_achieved and not whole:
            text = "give the whole observation of the environment: its entry 'observation' lacks the achieved goal"
            raise InputError(text, "observation")
        if whole and "observation" not in observation:
            raise InputError("must have the entries 'observation' and 'achieved_goal'", "observation")
        seen = _parse_numbers(observation["observation"] if whole else observation, "observation")
        achieved = _parse_numbers(observation["achieved_goal"], "observation") if whole else seen
        o, g = join_policy_input(seen, achieved, self.with_achieved), _parse_numbers(goal, "goal")
        for name, vector, size in (("observation", o, self.actor.observation_mean), ("goal", g, self.actor.goal_mean)):
            if len(vector) != len(size) or not np.isfinite(vector).all():
                raise InputError(f"must be {len(size)} finite numbers, got {vector.tolist()[:8]}", name)
        return o[None], g[None]


def _float32_box_ends(low: Floats, high: Floats) -> tuple[Singles, Singles]:
    """Ends of a box, rounded inwards to single precision: the nearest single of 0.1 is larger than 0.1."""
    first, last = low.astype(np.float32), high.astype(np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return np.where(first < low, np.nextafter(first, up), first), np.where(last > high, np.nextafter(last, down), last)


def _parse_numbers(value: Any, name: str) -> Floats:
    try:
        return flatten_numbers(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"must be numbers, got {str(value)[:80]!r}", name) from error
