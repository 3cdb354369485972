"""Environments that misbehave, for ``test_hostile_input.py``: environment variables say what they do.

This module imports nothing of adagoal.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym

N = 5


class Walk(gym.Env[int, int]):
    """A chain of five states; action 1 moves right with probability 0.9, action 0 moves left."""

    observation_space = gym.spaces.Discrete(N)
    action_space = gym.spaces.Discrete(2)
    chance = 0.9

    def __init__(self) -> None:
        self.place, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        moves = self.np_random.random() < self.chance
        self.place = min(max(self.place + (2 * int(action) - 1) * moves, 0), N - 1)
        return self.place, 0.0, False, False, {}


class Drift(Walk):
    """Most moves fail from step ``DRIFT`` on."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.chance = 0.3 if self.steps >= int(os.environ["DRIFT"]) else 0.9
        return super().step(action)


class Fragile(Walk):
    """Raises an exception of type ``ERROR`` at step ``FAILS``."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if self.steps == int(os.environ["FAILS"]):
            kind = {"exit": SystemExit, "runtime": RuntimeError}[os.environ.get("ERROR", "runtime")]
            raise kind("the motor is on fire")
        return super().step(action)


class Named(Walk):
    """Observations are text that is markup for a terminal, mathtext or a browser."""

    words = ("[/x]0", r"$\frac{0$", "<script>alert(1)</script>", "[bold]b", "plain")
    observation_space = gym.spaces.Text(40, charset=frozenset("".join(words)))  # type: ignore[assignment]

    def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
        place, info = super().reset(**more)
        return self.words[place], info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        place, *rest = super().step(action)
        return self.words[place], *rest  # type: ignore[return-value]


class Stopped(Walk):
    """Raises KeyboardInterrupt as soon as the folder ``STOP`` exists."""

    @property
    def np_random(self) -> Any:
        if Path(os.environ["STOP"]).exists():
            os.kill(os.getpid(), signal.SIGINT)
        return super().np_random


for kind in (Walk, Drift, Fragile, Named, Stopped):
    gym.register(f"{kind.__name__}-v0", entry_point=kind, disable_env_checker=True)
