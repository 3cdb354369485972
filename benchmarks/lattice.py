"""The cost of a run on lattices of 1e4, 1e5 and 1e6 states with the same radius: it should not depend on their number.

    python benchmarks/lattice.py            sides 100, 316 and 1000
    python benchmarks/lattice.py 50 2000    other sides

A lattice is a torus of side x side states. Each of its four moves fails with probability 0.1. Every lattice gets a
process of its own, for its memory, and a short run that compiles. Seconds are those of the processor. "memory" is the
growth of the process during the run, without the model.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

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


def main() -> None:
    """Measure each side in its own process."""
    sides = [int(word) for word in sys.argv[1:]] or SIDES
    print(f"{'states':>10}{'steps':>12}{'seconds':>10}{'us/step':>10}{'memory, MB':>12}", flush=True)
    for side in sides:
        subprocess.run([sys.executable, __file__, "--one", str(side)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(int(sys.argv[2]))
    else:
        main()
