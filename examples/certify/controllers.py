"""Controllers to certify: a pendulum that swings up, and a lander in wind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def swing_up(observation: Any, height: float = 0.9) -> Any:
    """Pendulum-v1: pump energy until the pendulum is nearly upright, then balance it."""
    cos, sin, speed = observation
    if cos > height:
        return np.array([-12.0 * np.arctan2(sin, cos) - 3.0 * speed])
    energy = speed**2 / 6.0 + 5.0 * (cos - 1.0)  # 0 at rest on top
    return np.array([-2.0 if speed * energy >= 0.0 else 2.0])


def balance_early(observation: Any) -> Any:
    """Pendulum-v1: the same, but balance from below the horizontal on, for which the motor is too weak."""
    return swing_up(observation, height=-0.3)


def upright(episode: Any) -> bool:
    """Criterion: upright and nearly still at the end of the episode."""
    cos, _, speed = episode.observations[-1]
    return bool(cos > 0.98 and abs(speed) < 0.5)


def land(observation: Any) -> int:
    """LunarLander-v3: the controller that Gymnasium ships with the environment."""
    from gymnasium.envs.box2d.lunar_lander import heuristic

    return int(heuristic(SimpleNamespace(unwrapped=SimpleNamespace(continuous=False)), observation))


def set_weather(env: Any, start: dict[str, float]) -> None:
    """Give LunarLander-v3 another gravity and wind; its first observation stays that of the reset."""
    core = env.unwrapped
    core.world.gravity = (0.0, start["gravity"])
    core.enable_wind, core.wind_power = True, start["wind"]
    # the environment draws the phase of the wind only if it was made with wind
    core.wind_idx, core.torque_idx = core.np_random.integers(-9999, 9999, 2)
