"""Any Gymnasium environment with discrete actions as a world (work in progress)."""

from __future__ import annotations

from typing import Any

import gymnasium

from adagoal.envs.simulator import ModelWorld
from adagoal.errors import InputError


class GymWorld(ModelWorld):
    """Not there yet."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], name: str, start_seed: int | None = None, max_states: int | None = None
    ) -> None:
        raise InputError(f"env: {name} cannot be stepped yet")
