"""Which generated tasks can be solved within L steps? Levels of MiniGrid and BabyAI, one per seed.

pip install '.[minigrid]' matplotlib
python examples/gallery/grid_tasks.py
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers its environments)
from gallery_run import draw_rows

import adagoal

RADIUS = 12
TASKS = {"MiniGrid-DoorKey-5x5-v0": range(5), "BabyAI-GoToRedBallNoDists-v0": range(4)}
"""Seeds of the levels, by task."""


class Level(gymnasium.Env[str, int]):
    """One level. Its state is a text: the whole grid, the agent, what it carries, whether the task is solved."""

    def __init__(self, task: str, seed: int, hide_key: bool = False) -> None:
        self.grid_env: Any = gymnasium.make(task).unwrapped
        self.level, self.hide_key = seed, hide_key
        self.action_space = gymnasium.spaces.Discrete(6)  # all but "done", which does nothing
        self.observation_space = gymnasium.spaces.Text(100_000)

    def observe(self, solved: bool) -> str:
        """Return the state as a text."""
        env = self.grid_env
        parts = (
            env.agent_pos,
            env.agent_dir,
            env.carrying and env.carrying.encode(),
            env.grid.encode().tobytes().hex(),
        )
        return " ".join(map(str, parts)) + " solved" * solved

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Start the same level again, whatever the seed."""
        super().reset(seed=seed)
        self.grid_env.reset(seed=self.level)
        if self.hide_key:
            self.lock_key_in()
        return self.observe(False), {}

    def lock_key_in(self) -> None:
        """Move the key next to the goal, behind the locked door."""
        grid = self.grid_env.grid
        key = next(i for i, cell in enumerate(grid.grid) if cell is not None and cell.type == "key")
        target = next(i for i, cell in enumerate(grid.grid) if cell is not None and cell.type == "goal") - grid.width
        grid.grid[key], grid.grid[target] = None, grid.grid[key]

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act, without the time limit of MiniGrid."""
        self.grid_env.step_count = 0
        _, reward, terminated, _, _ = self.grid_env.step(action)
        return self.observe(reward > 0), float(reward), terminated, False, {}


def is_solved(observation: str) -> bool:
    """Return whether the task is solved in a state."""
    return observation.endswith("solved")


def certify_level(name: str, level: Level) -> tuple[str, float, float, str]:
    """Explore a level until it is proved solvable or not within the radius; return the row of the picture."""
    processor_seconds = time.process_time()
    result = adagoal.explore(level, RADIUS, seed=0, goals={"solved": is_solved}, max_states=20_000)
    processor_seconds = time.process_time() - processor_seconds
    assert result.status == "certified"
    lower, upper = result.certificates.get(0, (float("inf"), float("inf")))
    text = f"{lower:.1f} to {upper:.1f}" if result.goals else f"not within {RADIUS}"
    print(f"  {name:34} {text:15} {result.steps:9,} steps {processor_seconds:4.0f} processor seconds", flush=True)
    return name, lower, upper, text


if __name__ == "__main__":
    title = f"Generated tasks, proved solvable within {RADIUS} expected steps or not"
    print(title)
    levels = {f"{task[:-3]}, seed {seed}": Level(task, seed) for task, seeds in TASKS.items() for seed in seeds}
    levels["MiniGrid-DoorKey-5x5, key locked in"] = Level("MiniGrid-DoorKey-5x5-v0", 0, hide_key=True)
    draw_rows([certify_level(name, level) for name, level in levels.items()], RADIUS, title, "grid-tasks.png")
