"""A goal-conditioned environment whose goal is chosen from outside, after the reset."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.deep.aiming import Hook, setter


class ChosenGoal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """``set_goal(goal)`` replaces the goal of the episode that has just begun.

    Observations show the chosen goal and the reward is that of ``compute_reward`` for it. The environment is told the
    goal through ``tell(env, goal)``, or in the ways of :mod:`adagoal.deep.aiming`. Where that does not change what it
    shows as ``desired_goal``, an end of the episode at its own goal is passed over. Until a goal is chosen, the
    environment's own stands.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], tell: Hook | None = None) -> None:
        super().__init__(env)
        space = env.observation_space
        keys = ("observation", "achieved_goal", "desired_goal")
        if not isinstance(space, gymnasium.spaces.Dict) or any(key not in space.spaces for key in keys):
            raise InputError(f"is not goal-conditioned; its observations must be a Dict of {', '.join(keys)}", "env")
        if not env.has_wrapper_attr("compute_reward"):
            raise InputError("has no compute_reward(achieved_goal, desired_goal, info)", "env")
        self._tell = setter(env, tell)
        self._reward = env.get_wrapper_attr("compute_reward")
        self._goal: NDArray[Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode, with the environment's own goal until another is chosen."""
        self._goal = None
        return self.env.reset(seed=seed, options=options)

    def set_goal(self, goal: NDArray[Any]) -> None:
        """Choose the goal ``[G]`` of the episode."""
        own = self.env.observation_space["desired_goal"]  # type: ignore[index]
        if np.shape(goal) != own.shape or not np.isfinite(goal).all():
            raise InputError(f"must be {own.shape} finite numbers, got {goal!r}", "goal")
        self._goal = np.asarray(goal, own.dtype)
        if self._tell is not None:
            self._tell(self._goal.copy())

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step; observation, reward and ``is_success`` are for the chosen goal."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        if self._goal is None:
            return seen, reward, terminated, truncated, info
        achieved, own = seen["achieved_goal"], seen["desired_goal"]
        if terminated and not np.allclose(own, self._goal) and self._at(achieved, own, info):
            terminated = False
        reward = float(self._reward(achieved, self._goal, info))
        info = {**info, "is_success": float(self._at(achieved, self._goal, info))}
        return {**seen, "desired_goal": self._goal.copy()}, reward, terminated, truncated, info

    def _at(self, achieved: NDArray[Any], goal: NDArray[Any], info: dict[str, Any]) -> bool:
        """Whether a goal counts as reached: its reward is that of the goal itself."""
        return bool(self._reward(achieved, goal, info) == self._reward(goal, goal, info))
