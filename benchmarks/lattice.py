"""The cost of a run on large lattices: known models, and environments whose states are discovered by stepping.

    python benchmarks/lattice.py            models of sides 100, 316 and 1000
    python benchmarks/lattice.py 50 2000    models of other sides
    python benchmarks/lattice.py --stepped  the environments of STEPPED, through Gymnasium's step

A lattice is a torus. Each of its moves fails with probability 0.1. The models have the same radius, so their cost
should not depend on the number of their states. Every lattice gets a process of its own, for its memory, and a short
run that compiles. Seconds are those of the processor. "memory" is the growth of the process during the run, without
the model.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from scipy import sparse

import adagoal

SIDES = (100, 316, 1000)
SEEDS = range(3)


def lattice(side: int) -> adagoal.Model:
    """The model."""
    s = np.arange(side * side)
    row, column, matrices = s // side, s % side, []
    for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        target = (row + down) % side * side + (column + right) % side
        data = np.repeat([0.9, 0.1], len(s)), (np.tile(s, 2), np.concatenate([target, s]))
        matrices.append(sparse.csr_matrix(data, shape=(len(s), len(s))))
    return adagoal.Model.from_sparse(matrices)


class SteppedLattice(gymnasium.Env[Any, Any]):
    """A lattice with any number of axes."""

    def __init__(self, *sides: int) -> None:
        self.sides, self.place = sides, np.zeros(len(sides), np.int64)
        self.observation_space = gymnasium.spaces.MultiDiscrete(sides)
        self.action_space = gymnasium.spaces.Discrete(2 * len(sides))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return to the corner."""
        super().reset(seed=seed)
        self.place[:] = 0
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move along one axis."""
        if self.np_random.random() >= 0.1:
            axis = action // 2
            self.place[axis] = (self.place[axis] + 2 * (action % 2) - 1) % self.sides[axis]
        return self.place, 0.0, False, False, {}


class Panel:
    """A number of switches, and a dial with three positions."""

    def __init__(self) -> None:
        self.on, self.dial = 0, 0

    def flip(self, switch: int) -> None:
        """Turn one switch on or off."""
        self.on ^= 1 << switch

    def turn(self) -> None:
        """Turn the dial."""
        self.dial = (self.dial + 1) % 3


def panel(switches: int) -> gymnasium.Env[Any, Any]:
    """A panel as an environment: all its 3 * 2**switches states are within switches + 2 calls."""
    actions: dict[str, list[int]] = {"flip": list(range(switches)), "turn": []}
    return adagoal.machine(Panel, actions, lambda p: (p.on, p.dial), deterministic=True)


# How to make the environment, and a small one that compiles the same; radius, epsilon, max_states.
STEPPED: dict[str, tuple[Any, Any, float, float, int]] = {
    "100 x 100, L = 10": (lambda: SteppedLattice(100, 100), lambda: SteppedLattice(5, 5), 10, 2.0, 10_000),
    "12 switches x 3, all": (lambda: panel(12), lambda: panel(3), 15, 0.5, 12_289),
}


def peak_megabytes() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(side: int) -> None:
    """Print one row."""
    adagoal.explore(lattice(72), 3, 1.0, budget=5000)  # compiles
    model, steps, seconds = lattice(side), 0, 0.0
    before = peak_megabytes()
    for seed in SEEDS:
        began = time.process_time()
        result = adagoal.explore(model, 3, 1.0, seed=seed)
        assert result.status == "certified"
        seconds += time.process_time() - began
        steps += result.steps
    used = peak_megabytes() - before
    mean = seconds / len(SEEDS)
    print(
        f"{side * side:10,}{steps / len(SEEDS):12,.0f}{mean:10.2f}{1e6 * seconds / steps:10.1f}{used:12.0f}", flush=True
    )


def measure_stepped(name: str) -> None:
    """Print one row."""
    make, make_small, radius, epsilon, max_states = STEPPED[name]
    adagoal.explore(make_small(), 3, epsilon, budget=5000)  # compiles
    began, busy = time.perf_counter(), time.process_time()
    result = adagoal.explore(make(), radius, epsilon, max_states=max_states, seed=7)
    wall, busy = time.perf_counter() - began, time.process_time() - busy
    found = f"{result.status!s:>12}{len(result.goals):8,}{result.steps:12,}"
    print(f"{name:22}{found}{wall:10.0f}{busy:10.0f}{peak_megabytes():12,.0f}", flush=True)


def main() -> None:
    """Measure each lattice in its own process."""
    if "--stepped" in sys.argv:
        wanted = [name for name in STEPPED if not sys.argv[2:] or sys.argv[2] in name]
        head = f"{'environment':22}{'status':>12}{'goals':>8}{'steps':>12}{'wall, s':>10}{'seconds':>10}"
        print(f"{head}{'memory, MB':>12}", flush=True)
    else:
        wanted = sys.argv[1:] or [str(side) for side in SIDES]
        print(f"{'states':>10}{'steps':>12}{'seconds':>10}{'us/step':>10}{'memory, MB':>12}", flush=True)
    for one in wanted:
        subprocess.run([sys.executable, __file__, "--one", one], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] != ["--one"]:
        main()
    elif sys.argv[2] in STEPPED:
        measure_stepped(sys.argv[2])
    else:
        measure(int(sys.argv[2]))
