"""A point mass in the plane: a small goal-conditioned environment in NumPy, for examples and tests.

The state is (x, y, vx, vy), the action accelerates, and goals are positions with coordinates in [-1, 1]. Walls at +-1.5
stop the point, so goals beyond them (``scale=3``) cannot be reached.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from adagoal.core.array_types import Floats


class PointMass(gymnasium.Env[Any, Floats]):
    """Move within 0.1 of the goal; the reward is 0 there and -1 elsewhere. Episodes have 25 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as Gymnasium declares it)
    threshold = 0.1
    wall = 1.5
    pixels = 240  # per side of a picture

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        sizes = {"observation": 4, "achieved_goal": 2, "desired_goal": 2}
        boxes: dict[str, spaces.Space[Any]] = {}
        for name, size in sizes.items():
            boxes[name] = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.observation_space = spaces.Dict(boxes)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float64)
        self._state = np.zeros(4)
        self._goal = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Floats], Any]:
        super().reset(seed=seed)
        self._state = np.concatenate([self.np_random.uniform(-0.5, 0.5, 2), np.zeros(2)])
        self._goal = self.np_random.uniform(-1.0, 1.0, 2)
        return self._goal_observation(), {}

    def step(self, action: Floats) -> tuple[dict[str, Floats], float, bool, bool, dict[str, Any]]:
        # friction bounds the speed at 0.2 per step, so every goal between the walls is within ten steps or so
        velocity = 0.5 * self._state[2:] + 0.1 * np.clip(action, -1.0, 1.0)
        position = np.clip(self._state[:2] + velocity, -self.wall, self.wall)
        self._state = np.concatenate([position, velocity])
        reward = float(self.compute_reward(position, self._goal, {}))
        return self._goal_observation(), reward, False, False, {"is_success": reward == 0.0}

    def set_goal(self, goal: Floats) -> None:
        """Set the goal of this episode."""
        self._goal = np.asarray(goal, np.float64)

    def compute_reward(self, achieved_goal: Floats, desired_goal: Floats, info: Any) -> Any:
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > self.threshold).astype(np.float64)

    def render(self) -> Any:
        """A picture ``[pixels, pixels, 3]`` of the square within the walls: the goal in orange, the point in blue."""
        across = np.linspace(-self.wall, self.wall, self.pixels)
        positions = np.stack(np.meshgrid(across, -across), -1)
        picture = np.full((self.pixels, self.pixels, 3), 245, np.uint8)
        discs = ((self._goal, self.threshold, (213, 94, 0)), (self._state[:2], 0.05, (0, 114, 178)))
        for centre, radius, colour in discs:
            picture[np.linalg.norm(positions - centre, axis=-1) <= radius] = colour
        return picture

    def _goal_observation(self) -> dict[str, Floats]:
        position = self._state[:2].copy()
        return {"observation": self._state.copy(), "achieved_goal": position, "desired_goal": self._goal.copy()}


gymnasium.register(id="PointMass-v0", entry_point="adagoal.deep.pointmass:PointMass", max_episode_steps=25)
