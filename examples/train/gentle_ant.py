"""AntMaze_UMaze-v5 with weaker torque, fewer decisions and fewer observations.

    PYTHONPATH=examples/train adagoal train gentle_ant:GentleAntMaze_UMaze-v0 --gamma 0.99 --out runs/ant

In Gymnasium-Robotics full actions have five times the torque that the ant of D4RL has. They overturn the ant within
seconds, and it cannot stand up again. Here an action has at most 30% of the torque. It holds for two steps, 0.1 s as in
D4RL. Observations lack the 78 contact forces, also as there. Maze, goals, and the length of an episode in seconds are
unchanged.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import gymnasium_robotics
import numpy as np
from gymnasium.wrappers import RepeatAction, TransformAction

TORQUE = 0.3
REPEATS = 2
STEPS = 700  # of an episode of AntMaze_UMaze-v5

gymnasium.register_envs(gymnasium_robotics)


def make(**arguments: Any) -> gymnasium.Env[Any, Any]:
    """Return the environment; arguments are those of AntMaze_UMaze-v5."""
    env = gymnasium.make("AntMaze_UMaze-v5", include_cfrc_ext_in_observation=False, **arguments)
    scaled = TransformAction(env, functools.partial(np.multiply, TORQUE), env.action_space)
    return RepeatAction(scaled, REPEATS)


gymnasium.register("GentleAntMaze_UMaze-v0", make, max_episode_steps=STEPS // REPEATS)
