"""Where the time of a certified run goes: sampling, planning, the rest; and the speed of a sweep beside the memory's.

    python benchmarks/scale.py                     the worlds of the README
    python benchmarks/scale.py grid-20 maze-70     others, see WORLDS
    python benchmarks/scale.py --sweep             only the speed of sweeps

Seconds are wall seconds, and in brackets those of the processor, which say more on a machine with company.

A backup is one pair looked at for one goal. The roofline of a sweep is what the memory bandwidth allows, where a world
is too large for the cache: for every block of goals each value is read and written once, each action is written, and
each row of the model is read. It is an upper bound and no aim: a grid that the cache holds is swept hardly faster than
one that it does not, so that arithmetic is what limits a sweep, and not the memory.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import adagoal
from adagoal.core.counts import Counts
from adagoal.planning.backend import NUMBA
from adagoal.planning.model import Block
from adagoal.tabular.certified import Certified
from adagoal.tabular.confidence import Confidence
from adagoal.worlds import grid
from adagoal.worlds.gym import GymWorld
from adagoal.worlds.simulator import ModelWorld

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
    for world in (ModelWorld, GymWorld):
        world.rollout = timed(spent, "sampling", world.rollout)  # type: ignore[method-assign]
    Certified._plan_blocks = timed(spent, "planning", Certified._plan_blocks)  # type: ignore[method-assign]
    Confidence.update = timed(spent, "planning", Confidence.update)  # type: ignore[method-assign]


def splits(names: list[str]) -> None:
    """One run of each world."""
    spent: Counter[str] = Counter()
    timed_parts(spent)
    adagoal.explore("grid", radius=3, epsilon=2.0, env_args={"rows": 2, "cols": 2})  # compiles
    print(
        f"{'world':15}{'status':>12}{'steps':>10}{'plans':>8}{'seconds':>16}{'sampling':>10}{'planning':>10}{'rest':>7}"
    )
    for name in names:
        spent.clear()
        began, busy = time.perf_counter(), time.process_time()
        result = adagoal.explore(**WORLDS[name], delta=0.1, seed=7)
        wall, busy = time.perf_counter() - began, time.process_time() - busy
        share = [spent["sampling"] / wall, spent["planning"] / wall]
        row = f"{name:15}{result.status!s:>12}{result.steps:10.2g}{result.plans:8d}{wall:9.1f} ({busy:.1f})"
        print(row + f"{share[0]:10.0%}{share[1]:10.0%}{1 - sum(share):7.0%}", flush=True)


def bandwidth() -> float:
    """Bytes a second of a copy that no cache holds."""
    source, target, best = np.ones(2**25), np.empty(2**25), np.inf
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - began)
    return 2 * source.nbytes / best


def sweep_speeds() -> None:
    """Lower sweeps of grids with ideal counts, blocks of goals as the planner has them."""
    bytes_a_second = bandwidth()
    print(f"\n{'grid':>10}{'backups/s':>12}{'roofline':>12}{'share':>7}   (copy: {bytes_a_second / 1e9:.1f} GB/s)")
    for side in (20, 100, 300):
        mdp = grid.open_grid(rows=side, cols=side, slip=0.1)
        counts = Counts(mdp.n_states, mdp.n_actions, mdp.start, width=int(np.diff(mdp.indptr).max()))
        for x in range(mdp.n_states * mdp.n_actions):
            states, p = mdp.row(*divmod(x, mdp.n_actions))
            counts.successor[x, : len(states)], counts.count[x, : len(states)] = states, np.ceil(1000 * p)
            counts.support[x], counts.n[x] = len(states), counts.count[x].sum()
        counts.seen[:] = True
        confidence = Confidence(
            counts, states=mdp.n_states, pairs=len(counts.n), goals=mdp.n_states, delta=0.1, branching=mdp.n_states
        )
        confidence.update()
        B, sweeps = NUMBA.block, 4
        column = np.full((mdp.n_states, 1), -1)
        column[:B, 0] = np.arange(B)
        block = Block(np.arange(mdp.n_states), column, 100.0, False, sweeps, 0.0)
        best = np.inf
        for _ in range(3):
            V, policy = np.zeros((mdp.n_states, B)), np.zeros((mdp.n_states, B), np.int16)
            began = time.perf_counter()
            NUMBA.lower(confidence.model(), block, V, policy)
            best = min(best, time.perf_counter() - began)
        model = confidence.model()
        rows = (model.successor, model.p, model.support, model.r_low, model.q)
        moved = 2 * V.nbytes + policy.nbytes + sum(array.nbytes for array in rows)
        speed, roof = len(counts.n) * B * sweeps / best, len(counts.n) * B * bytes_a_second / moved
        print(f"{side:>4} x {side:<3}{speed:12.3g}{roof:12.3g}{speed / roof:7.0%}")


if __name__ == "__main__":
    asked = [name for name in sys.argv[1:] if name != "--sweep"]
    if "--sweep" not in sys.argv:
        splits(asked or list(SMALL))
    sweep_speeds()
