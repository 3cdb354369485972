"""The planner on a GPU: backups a second beside what the memory allows, and the exact solver.

    python benchmarks/gpu.py [ROWS]

A world of ROWS x ROWS cells (100 by default, that is 10^4 states), all of them goals. A backup is one (s, a, g) of one
bound, as in benchmarks/sweep.py. A sweep must read and write every value and every action at least once: the share of
the memory's speed says how close it comes to doing nothing else. Times are of the device alone, without the transfer,
which is told apart. The exact values are those of all goals, and of one goal in a world of (10 ROWS)^2 cells.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from adagoal.envs import toy_models
from adagoal.planning import jax_bounds
from adagoal.planning.jax_planner import JAX_BACKEND
from adagoal.planning.model_arrays import GoalBlock, TargetGoals, to_sparse_model
from sweep import CAP, empirical

SWEEPS = jax_bounds.JACOBI_SWEEP_FACTOR
HERE = jax.devices()[0]


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Of the fastest of several runs, after one that compiles."""
    jax.block_until_ready(work())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - began)
    return min(times)


def bandwidth() -> float:
    """Bytes a second, read and written, of a copy of 2 GiB."""
    x = jax.device_put(np.zeros(2**29, np.float32))
    copy = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: x + 1.0, x))
    return 20 * 2 * x.nbytes / seconds(lambda: copy(x))


def sweeps(rows: int, speed: float) -> None:
    """Backups a second of both bounds."""
    mdp = toy_models.open_grid_model(rows=rows, cols=rows)
    S, model = mdp.n_states, empirical(mdp)
    for goals in sorted({S, min(S, 1024), min(S, 256)}):
        column = np.full((S, 1), -1)
        column[:goals, 0] = np.arange(goals)
        block = GoalBlock(np.arange(S), column, CAP, exact=False, sweeps=1, tolerance=-1.0)
        start = {"lower": np.zeros((S, goals)), "upper": np.where(column == np.arange(goals), 0.0, CAP)}
        for dtype in (np.float32, np.float64):
            parts = {
                "lower": (jax_bounds.jacobi_lower_sweeps, jax_bounds.round_down, model.p, jax_bounds.lower_bound_terms),
                "upper": (
                    jax_bounds.jacobi_upper_sweeps,
                    jax_bounds.round_up,
                    model.p_split,
                    jax_bounds.upper_bound_terms,
                ),
            }
            for name, (kernel, outwards, p, terms) in parts.items():
                policy = np.zeros((S, goals), np.int16)
                with jax.enable_x64(True):
                    given = jax_bounds.device_arguments(
                        outwards, model, p, terms(model, block, dtype), block, start[name], policy
                    )
                    began = time.perf_counter()
                    given = jax.block_until_ready(jax.device_put(given))
                    moved = time.perf_counter() - began
                    one = seconds(lambda kernel=kernel, given=given: kernel(*given)) / SWEEPS
                least = given[1].size * 2 * (given[1].itemsize + 2) / one
                print(
                    f"{name} {np.dtype(dtype).name}: {S} states x {goals} goals x {mdp.n_actions} actions: "
                    f"{1e3 * one:.2f} ms a sweep, {S * mdp.n_actions * goals / one:.2e} backups/s, "
                    f"{100 * least / speed:.0f}% of the memory's speed; transfer {moved:.2f} s",
                    flush=True,
                )


def exact(rows: int, goals: np.ndarray[Any, Any], title: str) -> np.ndarray[Any, Any]:
    """Seconds for the values of the goals in an open grid, from the number of cells between them."""
    mdp = toy_models.open_grid_model(rows=rows, cols=rows)
    cell = np.stack(np.divmod(np.arange(mdp.n_states), rows))
    hops = np.abs(cell[:, :, None] - cell[:, None, goals]).sum(axis=0)
    V = np.minimum(hops, 1 + hops[mdp.start]).astype(float)
    column = np.full((mdp.n_states, 1), -1)
    column[goals, 0] = np.arange(goals.size)
    for again in ("with", "without"):
        began = time.perf_counter()
        values, residual = JAX_BACKEND.exact_values(
            to_sparse_model(mdp), TargetGoals(goals.size, column), V.copy(), np.inf, 1e-12, 300
        )
        took = time.perf_counter() - began
        print(f"{title}: {took:.2f} s {again} compilation, largest residual {residual.max():.1e}", flush=True)
    return values


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    speed = bandwidth()
    print(f"{HERE.device_kind}: {speed / 1e12:.2f} TB/s")
    sweeps(rows, speed)
    exact(rows, np.arange(rows**2), f"exact values of {rows**2} goals in {rows**2} states")
    exact(10 * rows, np.array([(10 * rows) ** 2 - 1]), f"exact values of one goal in {(10 * rows) ** 2} states")


if __name__ == "__main__":
    main()
