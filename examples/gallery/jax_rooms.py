"""Which cells of gymnax's four rooms can be reached within L steps, if a third of the moves goes astray?

pip install . matplotlib gymnax==1.0.1 six
python examples/gallery/jax_rooms.py
"""

from __future__ import annotations

from typing import Any

import gymnasium
import gymnax
import jax
import numpy as np
from gallery_run import explore_timed
from matplotlib.figure import Figure

import adagoal

RADIUS = 6


class FourRooms(gymnasium.Env[Any, int]):
    """The environment "FourRooms-misc" of gymnax, one compiled step at a time; the state is the cell."""

    def __init__(self) -> None:
        rooms, self.params = gymnax.make("FourRooms-misc")
        self.jax_reset, self.jax_step = jax.jit(rooms.reset_env), jax.jit(rooms.step_env)
        self.free_cells = np.asarray(rooms.env_map)
        self.action_space = gymnasium.spaces.Discrete(rooms.num_actions)
        self.observation_space = gymnasium.spaces.MultiDiscrete(self.free_cells.shape)

    def key(self) -> Any:
        """Draw a key, a pair of 32-bit numbers, from Gymnasium's generator."""
        return self.np_random.integers(2**32, size=2, dtype=np.uint32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Go to the first cell."""
        super().reset(seed=seed)
        _, self.state = self.jax_reset(self.key(), self.params)
        return np.asarray(self.state.pos, np.int64), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move; ``step_env`` does not reset by itself, unlike ``step``."""
        _, self.state, reward, _, _ = self.jax_step(self.key(), self.state, action, self.params)
        return np.asarray(self.state.pos, np.int64), float(reward), False, False, {}


def cell(observation: Any) -> tuple[int, int]:
    """Return the goal of a state: its cell."""
    return int(observation[0]), int(observation[1])


def draw_map(result: adagoal.Result, free_cells: Any, title: str, path: str) -> None:
    """Write the bounds of every cell within the radius on a map; walls are dark, other cells white."""
    upper = np.full(free_cells.shape, np.nan)
    figure = Figure((6.4, 6.2), layout="constrained")
    ax = figure.subplots()
    ax.imshow(np.where(free_cells, 1.0, 0.25), cmap="gray", vmin=0, vmax=1)
    for goal in result.goals:
        row, column = (int(number) for number in result.goal_label(goal).strip("()").split(","))
        lower, upper[row, column] = result.certificate(goal)
        ax.text(column, row, f"{lower:.1f}\n{upper[row, column]:.1f}", ha="center", va="center", fontsize=7)
    ax.imshow(upper, cmap="Blues", vmin=0, vmax=2 * RADIUS)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_title(title, fontsize=10, loc="left")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    env = FourRooms()
    title = f"gymnax four rooms: cells within {RADIUS} expected steps, with their bounds"
    result = explore_timed(env, title, RADIUS, epsilon=2, goals=cell)
    print(f"  {len(result.goals)} cells within {RADIUS} steps")
    for goal in result.goals:
        lower, upper = result.certificate(goal)
        print(f"  {result.goal_label(goal):8} {lower:.2f} to {upper:.2f}")
    draw_map(result, env.free_cells, title, "jax-rooms.png")
