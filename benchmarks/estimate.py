"""Compare the estimate of ``adagoal explore --estimate`` with the truth.

    python benchmarks/estimate.py                   the worlds of the README and others, three seeds
    python benchmarks/estimate.py two-room grid     some of them

One line per world and seed: the steps of the whole run, the share of them after which the estimate came, estimated
steps and seconds as multiples of the true ones, and the seconds until the estimate and of the whole run.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import adagoal
from adagoal.runs.progress_display import CostEstimator
from scale import WORLDS

OTHERS: dict[str, dict[str, Any]] = {
    "grid-8x8": {"env": "grid", "env_args": {"rows": 8, "cols": 8}, "radius": 12, "epsilon": 1.0},
    "maze-12": {"env": "maze", "env_args": {"rows": 12, "cols": 12}, "radius": 20, "epsilon": 2.0},
    "trap-chain": {"env": "trap-chain", "radius": 12, "epsilon": 1.0},
    "random-100": {
        "env": "random-sparse",
        "env_args": {"n_states": 100, "n_actions": 3, "branching": 3},
        "radius": 12,
        "epsilon": 1.0,
    },
}
SEEDS = (11, 12, 13)


def show(name: str) -> None:
    """Print one line per seed."""
    for seed in SEEDS:
        spec = {**(WORLDS | OTHERS)[name], "delta": 0.1, "seed": seed}
        truth, estimator = adagoal.explore(**spec), CostEstimator(lambda run: None)
        began = time.perf_counter()
        adagoal.explore(**spec, observe=estimator)
        took, cost = time.perf_counter() - began, estimator.cost_estimate
        line = f"{name:15}{seed:5}{truth.steps:12,}"
        if cost is not None:
            done = cost.steps * cost.done / truth.steps
            line += f"{done:9.0%}{cost.steps / truth.steps:8.2f}{cost.seconds / truth.wall_seconds:9.2f}{took:8.1f}"
        print(line + f"{truth.wall_seconds:7.1f}", flush=True)


if __name__ == "__main__":
    print(f"{'world':15}{'seed':>5}{'steps':>12}{'share':>9}{'steps':>8}{'seconds':>9}{'took':>8}{'run':>7}")
    for world in sys.argv[1:] or ["two-room", "grid", "FrozenLake", "FrozenLake-8x8", "CliffWalking", "Taxi", *OTHERS]:
        show(world)
