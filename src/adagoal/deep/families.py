"""Environments of other packages that adagoal knows, recognised by their classes.

Any environment may have an attribute ``maze``, ``task`` or ``initial_gripper_xpos``, so attributes decide nothing here.
Classes are compared by name: their packages may not be installed, and are slow to import.
"""

from __future__ import annotations

from typing import Any

FETCH_CLASS = "gymnasium_robotics.envs.fetch.fetch_env.MujocoFetchEnv"
MAZE_CLASS = "gymnasium_robotics.envs.maze.maze_v4.MazeEnv"
PANDA_CLASS = "panda_gym.envs.core.RobotTaskEnv"


def is_instance_of(env: Any, family: str) -> bool:
    """Whether the unwrapped environment is an instance of the class ``family``."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == family for kind in type(env.unwrapped).__mro__)


def inherits_method(env: Any, family: str, method: str) -> bool:
    """Whether the environment is of the family and has its ``method``, not one of a subclass in another package."""
    package = family.partition(".")[0] + "."
    return is_instance_of(env, family) and getattr(type(env.unwrapped), method).__module__.startswith(package)
