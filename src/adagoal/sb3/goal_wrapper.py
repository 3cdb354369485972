"""Gymnasium wrapper that lets a caller choose the goal of an episode after the reset."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.deep.goal_envs import SetGoalFunction, find_goal_setter


class ChosenGoal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment with a method ``set_goal(goal)``, which replaces the goal of the episode that has just begun.

    Observations show the chosen goal, and rewards are those of ``compute_reward`` for it. The wrapper passes the goal
    on to the environment, through the function ``set_goal(env, goal)`` or as
    :func:`adagoal.deep.goal_envs.find_goal_setter` does. If the environment still shows its own ``desired_goal``, a
    termination at that goal is ignored. In each episode the environment's own goal holds until
    ``set_goal`` is called.

    Rewards are shifted to 0 at the goal. So the mazes of Gymnasium-Robotics, which reward 1 at the goal and 0
    elsewhere, give 0 and -1 here.
    """

    awaits_goal = False  # True after a reset, until a goal is chosen or a step is taken

    def __init__(self, env: gymnasium.Env[Any, Any], set_goal: SetGoalFunction | None = None) -> None:
        super().__init__(env)
        space = env.observation_space
        keys = ("observation", "achieved_goal", "desired_goal")
        if not isinstance(space, gymnasium.spaces.Dict) or any(key not in space.spaces for key in keys):
            raise InputError(f"is not goal-conditioned; its observations must be a Dict of {', '.join(keys)}", "env")
        if not env.has_wrapper_attr("compute_reward"):
            raise InputError("has no compute_reward(achieved_goal, desired_goal, info)", "env")
        self._goal_setter = find_goal_setter(env, set_goal)
        self._compute_env_reward = env.get_wrapper_attr("compute_reward")
        self._chosen_goal: NDArray[Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, with the environment's own goal."""
        self._chosen_goal, self.awaits_goal = None, True
        return self.env.reset(seed=seed, options=options)

    def set_goal(self, goal: NDArray[Any]) -> None:
        """Choose the goal ``[G]`` of the episode."""
        own = self.env.observation_space["desired_goal"]  # type: ignore[index]
        if np.shape(goal) != own.shape or not np.isfinite(goal).all():
            raise InputError(f"must be {own.shape} finite numbers, got {goal!r}", "goal")
        self._chosen_goal, self.awaits_goal = np.asarray(goal, own.dtype), False
        if self._goal_setter is not None:
            self._goal_setter(self._chosen_goal.copy())

    def draw_goals(self, text: str, n: int) -> NDArray[Any]:
        """Draw goals ``[n, G]`` of a goal space such as ``scale=10`` (:mod:`adagoal.deep.env_inspection`)."""
        from adagoal.deep.env_inspection import make_goal_sampler  # imports Numba, which the wrapper does not need

        # a copy, because an environment whose goals are not known by class is reset to see them
        sample = make_goal_sampler(copy.deepcopy(self.env), "goals", text)
        return sample(np.random.default_rng(0), n)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step; observation, reward and ``is_success`` are for the chosen goal."""
        self.awaits_goal = False
        observation, _, terminated, truncated, info = self.env.step(action)
        achieved, own = observation["achieved_goal"], observation["desired_goal"]
        goal = own if self._chosen_goal is None else self._chosen_goal
        # the environment still has its own goal and ended there; the episode for the chosen one goes on
        if terminated and not np.allclose(own, goal) and self.compute_reward(achieved, own, info) == 0.0:
            terminated = False
        reward = float(self.compute_reward(achieved, goal, info))
        info = {**info, "is_success": float(reward == 0.0)}
        return {**observation, "desired_goal": goal.copy()}, reward, terminated, truncated, info

    # public, because HerReplayBuffer calls it for relabelled goals
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Reward of the environment minus its reward at the goal; for one goal ``[G]`` or for many ``[N, G]``."""
        at_goal = self._compute_env_reward(desired_goal, desired_goal, info)
        return self._compute_env_reward(achieved_goal, desired_goal, info) - at_goal


def check_sparse_rewards(rewards: NDArray[Any]) -> None:
    """Refuse rewards ``[N]`` other than 0 and -1, because their values do not count steps."""
    wrong = rewards[(rewards != 0.0) & (rewards != -1.0)]
    if len(wrong):
        text = f"rewards must be 0 at the goal and -1 elsewhere, got {wrong[0]:g}; use the sparse variant of the id"
        raise InputError(f"{text} (adagoal.sb3.ChosenGoal shifts rewards of 1 and 0)", "env")
