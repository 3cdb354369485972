"""Compile what most tests need, once, while the linters run: two processes that test would both compile it."""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium

import adagoal

CHAIN = {"env": "chain", "env_args": {"n_states": 5, "slip": 0.1}, "radius": 4}
RUNS: tuple[dict[str, object], ...] = (
    CHAIN,
    {"env": "chain", "radius": 3},
    {**CHAIN, "method": "bayes", "budget": 300},
    {**CHAIN, "method": "ucbvi", "method_args": {"bonus": "simplified", "horizon": 8}, "budget": 300},
    {**CHAIN, "method": "ucbexplore", "budget": 300},
    {"env": "mixture-windy", "radius": 3, "method": "likelihood", "budget": 300},
    {"env": "FrozenLake-v1", "radius": 4, "budget": 2_000},
)


class Line(gymnasium.Env[int, int]):
    """Five states in a row; nobody knows its model, so that its steps are watched."""

    observation_space = gymnasium.spaces.Discrete(5)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place = min(max(self.place + 2 * int(action) - 1, 0), 4)
        return self.place, 0.0, False, False, {}


if __name__ == "__main__":
    adagoal.explore(Line(), radius=3, budget=500)
    for arguments in RUNS:
        result = adagoal.explore(**arguments)  # type: ignore[arg-type]
        adagoal.audit(result)
    with tempfile.TemporaryDirectory() as folder:
        adagoal.explore(**CHAIN, out=folder)  # type: ignore[arg-type]
        adagoal.play(folder, episodes=2)
