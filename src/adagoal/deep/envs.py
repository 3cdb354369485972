"""Goal-conditioned environments as the trainer sees them: a start, a step, and a ball of success.

The goal stays outside the environment. Success and reward are those of ``compute_reward``, which must be
sparse with a ball around the goal (Fetch, Maze, HandReach): :func:`success_distance` measures its radius
and refuses anything else. What the environment itself raises becomes an
:class:`~adagoal.core.errors.EnvironmentFailure` here, where it is called, and nowhere else.
"""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.types import Floats
from adagoal.deep.fetch import fetch_step, is_fetch

CLIP = 200.0
"""Observations are clipped here, as in the reference HER."""


@dataclass(frozen=True)
class Dimensions:
    """Sizes of an environment, and the radius of success."""

    observation: int
    goal: int
    action: int
    horizon: int
    success: float


def make(env_id: str, **kwargs: Any) -> Any:
    """The Gymnasium environment ``env_id`` (``point-mass`` is built in)."""
    if env_id == "point-mass":
        from adagoal.deep import pointmass  # noqa: F401  (registers the id)

        env_id = "PointMass-v0"
    elif ":" not in env_id:
        with contextlib.redirect_stderr(io.StringIO()):  # it prints a notice about other environments
            import gymnasium_robotics

        gymnasium.register_envs(gymnasium_robotics)
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise InputError(f"{env_id} needs a package: {error}", name="env") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise InputError(f"{env_id!r} is not a known environment ({_one_line(error)})", name="env") from error
    except (Exception, SystemExit) as error:
        raise failure(env_id, error) from error


def failure(env_id: str, error: BaseException) -> EnvironmentFailure:
    """What the environment raised, as the user's."""
    return EnvironmentFailure(f"{env_id} raised {type(error).__name__}: {error}", name="env")


def dimensions(env: Any, env_id: str, horizon: int) -> Dimensions:
    """Check that the environment is goal-conditioned with box actions, and measure it."""
    space = env.observation_space
    keys = ("observation", "achieved_goal", "desired_goal")
    if not isinstance(space, gymnasium.spaces.Dict) or any(key not in space.spaces for key in keys):
        wanted = f"its observations must be a Dict of {', '.join(keys)}"
        raise InputError(f"{env_id} is not goal-conditioned; {wanted}", name="env")
    action = env.action_space
    if not isinstance(action, gymnasium.spaces.Box) or len(action.shape) != 1 or not action.is_bounded():
        raise InputError(f"{env_id} needs a bounded Box of actions, got {action}", name="env")
    limit = horizon or (env.spec.max_episode_steps if env.spec is not None else None)
    if not limit:
        raise InputError(f"{env_id} has no time limit of its own; give 1 to 1000000 steps", name="horizon")
    try:
        start, _ = env.reset(seed=0)
        goal = np.asarray(start["desired_goal"], np.float64)
    except (Exception, SystemExit) as error:
        raise failure(env_id, error) from error
    success = success_distance(env, env_id, goal)
    return Dimensions(len(start["observation"]), len(goal), action.shape[0], int(limit), success)


def success_distance(env: Any, env_id: str, goal: Floats) -> float:
    """Radius of the ball around ``goal`` in which ``compute_reward`` says success, found by bisection."""
    if not hasattr(env.unwrapped, "compute_reward"):
        raise InputError(f"{env_id} has no compute_reward(achieved_goal, desired_goal, info)", name="env")

    def reward(achieved: Floats) -> float:
        try:
            return float(env.unwrapped.compute_reward(achieved, goal, {}))
        except (Exception, SystemExit) as error:
            raise failure(env_id, error) from error

    best, far = reward(goal), reward(goal + 1e3)
    rng = np.random.default_rng(0)
    radii = []
    for _ in range(4):
        direction = rng.normal(size=goal.shape)
        direction /= np.linalg.norm(direction)
        low, high = 0.0, 1e3
        for _ in range(60):
            middle = 0.5 * (low + high)
            value = reward(goal + middle * direction)
            if value not in (best, far):
                raise InputError(
                    f"{env_id} has a dense reward; hindsight needs the sparse variant of the id", name="env"
                )
            low, high = (middle, high) if value == best else (low, middle)
        radii.append(low)
    if best <= far or max(radii) - min(radii) > 1e-6:
        raise InputError(f"{env_id} does not reward a ball around the goal; such goals are not supported", name="env")
    return float(np.mean(radii))


class World:
    """One environment without its goal: ``reset`` and ``step`` return (observation, achieved goal[, ended])."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        self.env = make(env_id)
        box = self.env.action_space
        self._middle, self._half = (box.high + box.low) / 2, (box.high - box.low) / 2
        self._fast = fetch_step(self.env.unwrapped) if is_fetch(self.env.unwrapped) else None

    def reset(self, seed: int) -> tuple[Floats, Floats]:
        """Start again."""
        try:
            start, _ = self.env.reset(seed=seed)
            seen = start["observation"], start["achieved_goal"]
        except (Exception, SystemExit) as error:
            raise failure(self.env_id, error) from error
        return self._checked(*seen)

    def step(self, action: Floats) -> tuple[Floats, Floats, bool]:
        """One step with an action in [-1, 1]."""
        scaled = (self._middle + self._half * action).astype(self._half.dtype)
        if self._fast is not None:
            return (*self._checked(*self._fast(scaled)), False)
        try:
            observation, _, terminated, _, _ = self.env.step(scaled)
            seen = observation["observation"], observation["achieved_goal"]
        except (Exception, SystemExit) as error:
            raise failure(self.env_id, error) from error
        return (*self._checked(*seen), bool(terminated))

    def _checked(self, observation: Floats, achieved: Floats) -> tuple[Floats, Floats]:
        if not math.isfinite(observation.sum() + achieved.sum()):
            raise InputError(f"{self.env_id} returned an observation that is NaN or infinite", name="env")
        return observation.clip(-CLIP, CLIP), achieved


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
