"""Where the time of a certified run goes: sampling, planning, the rest; and the speed of a sweep beside the memory's.

    python benchmarks/scale.py                     the worlds of the README, and the speed of sweeps
    python benchmarks/scale.py grid-20 maze-70     only these worlds, see WORLDS
    python benchmarks/scale.py --sweep             only the speed of sweeps

Seconds are wall seconds, and in brackets those of the processor, which say more on a machine with company.

A backup is one pair looked at for one goal. The roofline of a sweep is what the memory allows where a world is too
large for the cache: the bytes that a sweep must move at least, over the speed of a triad a = b + 2 c that no cache
holds, measured in the same run on as many threads. A sweep of one bound of a block of goals must read and write each
value, write each action (that of an upper bound also reads it), and read each row of the model: successors,
probabilities, their number, the radius and the unseen mass. Each thread sweeps a block of its own, as in a plan, and
counts the rows as its own. The exact solver sweeps one goal at a time, here one for each thread: it must read and write
each value, write each action and read each row, and in the evaluations that follow the rows of the chosen actions.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numba
import numpy as np

import adagoal
from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.certified.sweeps import improve_lower_bounds, improve_upper_bounds
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.planning import value_iteration
from adagoal.planning.model_arrays import BLOCK_GOALS, EmpiricalModel, GoalBlock, to_sparse_model

THREADS = 2
"""Of the sweeps and of the triad."""

SMALL: dict[str, dict[str, Any]] = {
    "two-room": {"env": "two-room", "radius": 40, "epsilon": 1.0},
    "grid": {"env": "grid", "radius": 10, "epsilon": 0.5},
    "FrozenLake": {"env": "FrozenLake-v1", "radius": 20, "epsilon": 1.0},
    "FrozenLake-8x8": {"env": "FrozenLake-v1", "env_args": {"map_name": "8x8"}, "radius": 40, "epsilon": 2.0},
    "CliffWalking": {"env": "CliffWalking-v1", "radius": 20, "epsilon": 1.0},
    "Taxi": {"env": "Taxi-v4", "start_seed": 0, "radius": 20, "epsilon": 1.0},
}
LARGE: dict[str, dict[str, Any]] = {
    "grid-20": {"env": "grid", "env_args": {"rows": 20, "cols": 20}, "radius": 20, "epsilon": 2.0},
    "Taxi-random": {"env": "Taxi-v4", "radius": 20, "epsilon": 2.0},
    "FourRooms": {"env": "MiniGrid-FourRooms-v0", "start_seed": 7, "radius": 8, "epsilon": 1.0},
    "grid-100": {"env": "grid", "env_args": {"rows": 100, "cols": 100}, "radius": 30, "epsilon": 3.0},
    "maze-70": {"env": "maze", "env_args": {"rows": 70, "cols": 70}, "radius": 60, "epsilon": 6.0},
    "random-1000": {
        "env": "random-sparse",
        "env_args": {"n_states": 1000, "n_actions": 3, "branching": 3},
        "radius": 12,
        "epsilon": 2.0,
    },
}
WORLDS = SMALL | LARGE


def timed(spent: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose seconds are added to ``spent``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - began

    return call


def timed_parts(spent: Counter[str]) -> None:
    """From now on the seconds of sampling and of planning are added to ``spent``."""
    for world in (ModelSimulator, GymAdapter):
        world.rollout = timed(spent, "sampling", world.rollout)  # type: ignore[method-assign]
    CertifiedExplorer._plan_columns = timed(spent, "planning", CertifiedExplorer._plan_columns)  # type: ignore[method-assign]
    ConfidenceSets.update_radii = timed(spent, "planning", ConfidenceSets.update_radii)  # type: ignore[method-assign]


def splits(names: list[str]) -> None:
    """One run of each world."""
    spent: Counter[str] = Counter()
    timed_parts(spent)
    adagoal.explore("grid", radius=3, epsilon=2.0, env_args={"rows": 2, "cols": 2})  # compiles
    head = f"{'world':15}{'status':>12}{'goals':>7}{'steps':>10}{'plans':>8}{'seconds':>16}"
    print(head + f"{'sampling':>10}{'planning':>10}{'rest':>7}")
    for name in names:
        spent.clear()
        began, busy = time.perf_counter(), time.process_time()
        result = adagoal.explore(**WORLDS[name], delta=0.1, seed=7)
        wall, busy = time.perf_counter() - began, time.process_time() - busy
        share = [spent["sampling"] / wall, spent["planning"] / wall]
        row = f"{name:15}{result.status!s:>12}{len(result.goals):7}{result.steps:10.2g}{result.plans:8d}"
        row += f"{f'{wall:.1f} ({busy:.1f})':>16}"
        print(row + f"{share[0]:10.0%}{share[1]:10.0%}{1 - sum(share):7.0%}", flush=True)


@numba.njit(nogil=True)
def triad(a, b, c):  # type: ignore[no-untyped-def]
    """a = b + 2 c"""
    for i in range(len(a)):
        a[i] = b[i] + 2.0 * c[i]


def fastest(jobs: list[Callable[[], Any]], seconds: float = 3.0) -> float:
    """Seconds of jobs side by side, each in a thread of its own: the best of as many times as fit into a while."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        list(threads.map(lambda job: job(), jobs))  # compiles
        best, end = np.inf, time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            list(threads.map(lambda job: job(), jobs))
            best = min(best, time.perf_counter() - began)
    return float(best)


def bandwidth() -> float:
    """Bytes a second of the triad."""
    arrays = np.ones((THREADS, 3, 2**23))
    return arrays.nbytes / fastest([partial(triad, *part) for part in arrays])


def empirical(mdp: TabularMDP) -> EmpiricalModel:
    """The model of the sweeps after 1,000 tries of every pair that went as they should."""
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start, width=int(np.diff(mdp.indptr).max()))
    for x in range(mdp.n_states * mdp.n_actions):
        states, p = mdp.row(*divmod(x, mdp.n_actions))
        counts.successor[x, : len(states)], counts.count[x, : len(states)] = states, np.ceil(1000 * p)
        counts.support[x], counts.n[x] = len(states), counts.count[x].sum()
    counts.seen[:] = True
    confidence = ConfidenceSets(
        counts, states=mdp.n_states, pairs=len(counts.n), goals=mdp.n_states, delta=0.1, branching=mdp.n_states
    )
    confidence.update_radii()
    return confidence.empirical_model()


def certified(mdp: TabularMDP, upper: bool) -> tuple[float, float]:
    """Backups a second of the sweeps of one bound, and bytes that each of them must move."""
    model, B, sweeps, cap = empirical(mdp), BLOCK_GOALS, max(4, 400_000 // mdp.n_states), 100.0
    jobs = []
    for first in range(0, THREADS * B, B):
        column = np.full((mdp.n_states, 1), -1)
        column[first : first + B, 0] = np.arange(B)
        values = np.full((mdp.n_states, B), cap if upper else 0.0)
        values[np.arange(first, first + B), np.arange(B)] = 0.0
        policy = np.zeros((mdp.n_states, B), np.int16)
        block = GoalBlock(np.arange(mdp.n_states), column, cap, False, sweeps, tolerance=-1.0)
        jobs.append(
            partial(
                improve_upper_bounds if upper else improve_lower_bounds,
                model,
                block,
                values,
                policy,
            )
        )
    radius, p = (model.r, model.p_split) if upper else (model.r_low, model.p)
    rows = sum(array.nbytes for array in (model.successor, p, model.support, radius, model.q))
    moved = 2 * values.nbytes + (2 if upper else 1) * policy.nbytes + rows
    backups = len(model.support) * B
    return THREADS * sweeps * backups / fastest(jobs), moved / backups


def exact_solver(mdp: TabularMDP) -> tuple[float, float]:
    """The same for the exact solver, its evaluations included."""
    model, n, sweeps = to_sparse_model(mdp), mdp.n_states, 2
    jobs = []
    for goal in range(n // 2, n // 2 + THREADS):
        column = np.full((n, 1), -1)
        column[goal] = 0
        order, place = np.empty(n, np.int32), np.empty(n, np.int32)
        rows_, cols_ = np.divmod(np.arange(n), round(n**0.5))
        hops = np.abs(rows_ - rows_[goal]) + np.abs(cols_ - cols_[goal]) + 0.0
        value_iteration.order_outwards(column, 0, hops, np.inf, order, place)
        places = model.successors.size + (value_iteration.ROW_MULTIPLE - 1) * n * mdp.n_actions
        pairs = n * mdp.n_actions
        rows = value_iteration.RenumberedRows(
            np.zeros(pairs + 1, np.int64), np.zeros(places, np.int32), np.zeros(places), np.empty(pairs)
        )
        value_iteration.renumber_rows(model, order, place, rows)
        values, policy = np.append(hops[order], 0.0), np.empty(n, np.int16)
        start = int(place[mdp.start])
        jobs.append(
            partial(
                value_iteration.iterate_goal_values, rows, mdp.n_actions, start, values, policy, np.inf, -1.0, sweeps
            )
        )
    table = 12 * int(rows.indptr[-1]) + rows.costs.nbytes + rows.indptr.nbytes
    own = 2 * values.nbytes + policy.nbytes
    backups = n * (mdp.n_actions + value_iteration.EVALUATION_SWEEPS)
    moved = table + own + value_iteration.EVALUATION_SWEEPS * (table / mdp.n_actions + own)
    return THREADS * sweeps * backups / fastest(jobs), moved / backups


def sweep_speeds() -> None:
    """Sweeps of grids beside the memory's speed."""
    speed = bandwidth()
    print(f"\n{THREADS} threads; triad: {speed / 1e9:.1f} GB/s; blocks of {BLOCK_GOALS} goals")
    print(f"{'sweep':14}{'grid':>10}{'backups/s':>12}{'bytes each':>12}{'roofline':>12}{'share':>7}")
    for side in (20, 100, 300):
        mdp = toy_models.open_grid_model(rows=side, cols=side, slip=0.1)
        parts = {"lower": partial(certified, mdp, upper=False), "upper": partial(certified, mdp, upper=True)}
        if side == 300:
            parts["exact solver"] = partial(exact_solver, toy_models.open_grid_model(rows=600, cols=600, slip=0.1))
        for name, measure in parts.items():
            found, moved = measure()
            size = 600 if name == "exact solver" else side
            print(
                f"{name:14}{size:>4} x {size:<3}{found:12.3g}{moved:12.1f}{speed / moved:12.3g}"
                f"{found * moved / speed:7.0%}",
                flush=True,
            )


if __name__ == "__main__":
    asked = [name for name in sys.argv[1:] if name != "--sweep"]
    if unknown := [name for name in asked if name not in WORLDS]:
        sys.exit(f"unknown world {unknown[0]!r}; choose from {', '.join(WORLDS)}")
    sweep = "--sweep" in sys.argv
    if asked or not sweep:
        splits(asked or list(SMALL))
    if sweep or not asked:
        sweep_speeds()
