"""How right the cost of a run is that ``--estimate`` tells at its beginning.

    python benchmarks/estimate.py                   the worlds of the README and others, three seeds
    python benchmarks/estimate.py two-room grid     some of them

For each world and seed: when the cost was told, as a share of the steps that the run then took, and what was told, as a
multiple of what was true. The first of the multiples is that of a rehearsal at a tenth of the run, which only one who
knows its length can ask for; the others are those of ``--estimate``. At the end the seconds that it took to tell, and
those of the whole run.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import adagoal
from adagoal.core.exploration_run import ExplorationRun
from adagoal.runs.cost_estimate import CostEstimator, simulate_remaining_run
from scale import WORLDS

OTHERS: dict[str, dict[str, Any]] = {
    "grid-8x8": {"env": "grid", "env_args": {"rows": 8, "cols": 8}, "radius": 12, "epsilon": 1.0},
    "maze-12": {"env": "maze", "env_args": {"rows": 12, "cols": 12}, "radius": 20, "epsilon": 2.0},
    "waiting-chain": {"env": "waiting-chain", "radius": 50, "epsilon": 3.0},
    "trap-chain": {"env": "trap-chain", "radius": 12, "epsilon": 1.0},
    "random-100": {
        "env": "random-sparse",
        "env_args": {"n_states": 100, "n_actions": 3, "branching": 3},
        "radius": 12,
        "epsilon": 1.0,
    },
}
SEEDS = (11, 12, 13)


class AtTenth:
    """An observer that asks once, at a tenth of a run whose length is known."""

    def __init__(self, total: int) -> None:
        self.found: float | None = None
        self._total, self._asked = total, False

    def __call__(self, run: ExplorationRun) -> None:
        """Called after every rollout."""
        if not self._asked and run.steps >= 0.1 * self._total:
            self._asked = True
            told = simulate_remaining_run(run, 3 * self._total, seconds=60.0)
            self.found = None if told is None else told.steps


def show(name: str) -> None:
    """One line per seed."""
    for seed in SEEDS:
        spec = {**(WORLDS | OTHERS)[name], "delta": 0.1, "seed": seed}
        truth = adagoal.explore(**spec)
        tenth, estimating = AtTenth(truth.steps), CostEstimator(lambda run: None)
        adagoal.explore(**spec, observe=tenth)
        began = time.perf_counter()
        adagoal.explore(**spec, observe=estimating)
        took, cost = time.perf_counter() - began, estimating.cost_estimate
        early = "-" if tenth.found is None else f"{tenth.found / truth.steps:.2f}"
        line = f"{name:15}{seed:5}{truth.steps:12,}{early:>9}"
        if cost is not None:
            done = cost.steps * cost.done / truth.steps
            line += f"{done:8.0%}{cost.steps / truth.steps:8.2f}{cost.seconds / truth.wall_seconds:9.2f}{took:8.1f}"
        print(line + f"{truth.wall_seconds:7.1f}", flush=True)


if __name__ == "__main__":
    print(f"{'world':15}{'seed':>5}{'steps':>12}{'at 10%':>9}{'told at':>8}{'steps':>8}{'seconds':>9}", end="")
    print(f"{'took':>8}{'run':>7}")
    for world in sys.argv[1:] or ["two-room", "grid", "FrozenLake", "FrozenLake-8x8", "CliffWalking", "Taxi", *OTHERS]:
        show(world)
