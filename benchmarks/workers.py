"""Several workers for an environment whose steps are slow: steps a second, beside those of one.

    python benchmarks/workers.py [WORKERS] [BUDGET]

FrozenLake whose every step sleeps for a millisecond, as a simulator that waits for another machine would: so that
eight workers find room on two cores. Times are wall time without the start of the processes; what a run takes beside
its steps (plans, merging) is in them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

import adagoal
from adagoal.core.exploration_run import ExplorationRun

PAUSE = 1e-3


class SlowLake(FrozenLakeEnv):
    """FrozenLake, a millisecond a step."""

    def step(self, action: Any) -> Any:
        time.sleep(PAUSE)
        return super().step(action)


gymnasium.register("SlowLake-v0", SlowLake)


def speed(workers: int, budget: int) -> float:
    """Steps a second."""
    began: list[tuple[float, int]] = []

    def observe(run: ExplorationRun) -> None:
        began.append((time.perf_counter(), run.steps))

    result = adagoal.explore(
        "workers:SlowLake-v0", radius=20, epsilon=1.0, budget=budget, workers=workers, observe=observe
    )
    (first, before), (last, after) = began[0], began[-1]
    rate = (after - before) / (last - first)
    print(f"{workers} workers: {rate:7.0f} steps/s ({result.steps} steps, {result.plans} plans)", flush=True)
    return rate


def main() -> None:
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    budget = int(sys.argv[2]) if len(sys.argv) > 2 else 40_000
    one = speed(1, budget)  # the same part of a run: plans are more frequent at its beginning
    print(f"{speed(workers, budget) / one:.1f} times as fast")


if __name__ == "__main__":
    main()
