"""Compile what most tests need, once, while the linters run: two processes that test would both compile it."""

from __future__ import annotations

import tempfile

import adagoal

CHAIN = {"env": "chain", "env_args": {"n_states": 5, "slip": 0.1}, "radius": 4}
RUNS: tuple[dict[str, object], ...] = (
    CHAIN,
    {**CHAIN, "method": "bayes", "budget": 300},
    {**CHAIN, "method": "ucbvi", "method_args": {"bonus": "simplified", "horizon": 8}, "budget": 300},
    {**CHAIN, "method": "ucbexplore", "budget": 300},
    {"env": "mixture-windy", "radius": 3, "method": "likelihood", "budget": 300},
    {"env": "FrozenLake-v1", "radius": 4, "budget": 2_000},
)

if __name__ == "__main__":
    for arguments in RUNS:
        result = adagoal.explore(**arguments)  # type: ignore[arg-type]
        adagoal.audit(result)
    with tempfile.TemporaryDirectory() as folder:
        adagoal.explore(**CHAIN, out=folder)  # type: ignore[arg-type]
        adagoal.play(folder, episodes=2)
