"""The exact solver: how fast, and does it agree with others?

    python benchmarks/exact_solver.py

Times the values of all goals on Taxi (500 states, 500 goals), FrozenLake and grids, and the audit's evaluation
of periodic policies on the two-room grid; then compares values with a linear program (HiGHS) and, where
stormpy 2 is installed, with the model checker Storm.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from adagoal.mdp import solve
from adagoal.worlds import grid, random_models, toys
from adagoal.worlds.model import TabularMDP, from_rows

Floats = NDArray[np.float64]


def from_gymnasium(name: str, **options: Any) -> TabularMDP:
    """The model of a toy-text environment, with one more state, the start, that draws its first state."""
    env: Any = gymnasium.make(name, **options).unwrapped
    n_states, n_actions = env.observation_space.n, env.action_space.n
    terminal = np.zeros(n_states + 1, bool)
    rows = []
    for s in range(n_states):
        for a in range(n_actions):
            row: dict[int, float] = {}
            for p, successor, _, done in env.P[s][a]:
                row[int(successor)] = row.get(int(successor), 0.0) + p
                terminal[successor] |= done
            rows.append(row)
    first = {int(s): float(env.initial_state_distrib[s]) for s in np.flatnonzero(env.initial_state_distrib)}
    return from_rows(rows + [first] * n_actions, n_actions, start=n_states, terminal=terminal, name=name)


def with_reset(mdp: TabularMDP) -> tuple[sparse.csr_matrix, NDArray[np.int64]]:
    """All usable pairs, the reset included, as a matrix [pairs, S], and the state of each, in order."""
    kernel = mdp.kernel()
    blocks, states = [], []
    to_start = sparse.csr_matrix(([1.0], ([0], [mdp.start])), shape=(1, mdp.n_states))
    for s in range(mdp.n_states):
        if not mdp.terminal[s]:
            blocks.append(kernel[s * mdp.n_actions : (s + 1) * mdp.n_actions])
            states += [s] * mdp.n_actions
        blocks.append(to_start)
        states.append(s)
    return sparse.csr_matrix(sparse.vstack(blocks)), np.array(states)


def linear_program(mdp: TabularMDP, goals: list[int]) -> Floats:
    """V* [S, G] as the greatest V with V <= 1 + p V."""
    p, states = with_reset(mdp)
    own = sparse.csr_matrix((np.ones(states.size), (np.arange(states.size), states)), shape=p.shape)
    columns = []
    for goal in goals:
        rows = np.flatnonzero(states != goal)
        answer: Any = linprog(
            -np.ones(mdp.n_states),
            A_ub=(own - p)[rows],
            b_ub=np.ones(rows.size),
            bounds=[(0, 0) if s == goal else (0, None) for s in range(mdp.n_states)],
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        columns.append(answer.x)
    return np.array(columns).T


def storm(mdp: TabularMDP, goals: list[int]) -> Floats:
    """V* [S, G] by Storm: the least expected number of steps until "goal"."""
    stormpy: Any = importlib.import_module("stormpy")
    p, states = with_reset(mdp)
    groups = np.searchsorted(states, np.arange(mdp.n_states)).tolist()
    matrix = stormpy.datastructures.build_sparse_matrix(p.toarray(), groups)
    environment = stormpy.environments.sound()
    environment.solver().min_max().precision = stormpy.Rational(1e-9)
    formula = stormpy.parse_property('R{"steps"}min=? [F "goal"]')
    columns = []
    for goal in goals:
        labels = stormpy.models.StateLabeling(mdp.n_states)
        for label, state in (("init", mdp.start), ("goal", goal)):
            labels.add_label(label)
            labels.add_label_to_state(label, state)
        steps = stormpy.models.SparseRewardModel(optional_state_reward_vector=[1.0] * mdp.n_states)
        parts = stormpy.models.SparseModelComponents(
            transition_matrix=matrix, state_labeling=labels, reward_models={"steps": steps}
        )
        model = stormpy.models.SparseMdp(parts)
        answer = stormpy.model_checking(model, formula, environment=environment)
        columns.append([answer.get_value(s) for s in range(mdp.n_states)])
    return np.array(columns).T


def timed(work: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the fastest of several runs, after one that compiles."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def speed(worlds: list[TabularMDP]) -> None:
    print(f"{'all goals':<24} {'states':>6} {'reachable':>9} {'D_0 of them':>12} {'seconds':>8}")
    for mdp in worlds:
        seconds = timed(functools.partial(solve.optimal_values, mdp), repeats=1 if mdp.n_states > 1000 else 3)
        distances = solve.distances(mdp)
        reached = distances[np.isfinite(distances)]
        print(f"{mdp.name:<24} {mdp.n_states:>6} {reached.size:>9} {reached.max():>12.4f} {seconds:>8.3f}")


def periodic(horizon: int) -> None:
    mdp = grid.two_room()
    actions = solve.optimal_policy(mdp, solve.optimal_values(mdp))
    tables = [np.repeat(actions[None, :, g], horizon, axis=0) for g in range(mdp.n_states)]
    seconds = timed(lambda: [solve.periodic_value(mdp, table, g) for g, table in enumerate(tables)])
    print(f"two-room, 52 periodic policies, H = {horizon}: {seconds:.3f} s")


def agreement(worlds: list[TabularMDP]) -> None:
    solvers = {"linear program": linear_program}
    if importlib.util.find_spec("stormpy"):
        solvers["storm"] = storm
    else:
        print("(stormpy is not installed: Storm is left out)")
    print(f"{'relative difference':<24} {'goals':>6} " + " ".join(f"{name:>15}" for name in solvers))
    for mdp in worlds:
        V = solve.optimal_values(mdp)
        goals = [int(g) for g in np.flatnonzero(np.isfinite(V[mdp.start]))][:: max(1, mdp.n_states // 60)]
        scale = np.maximum(V[:, goals], 1.0)
        worst = [np.abs(solver(mdp, goals) - V[:, goals]) / scale for solver in solvers.values()]
        print(f"{mdp.name:<24} {len(goals):>6} " + " ".join(f"{difference.max():>15.1e}" for difference in worst))


def main() -> None:
    newest = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
    taxi, lake = from_gymnasium(newest), from_gymnasium("FrozenLake-v1", map_name="8x8")
    small = [grid.two_room(), grid.two_room(layout="right"), grid.open_grid(), lake, taxi]
    toy = [toys.lower_bound(n_decisions=7), toys.separation(), toys.trap_chain(), toys.rare_exit(p=1e-4)]
    speed([*small, grid.maze(rows=32, cols=31)])
    for horizon in (50, 1000):
        periodic(horizon)
    agreement([*small, *toy, random_models.random_traps(), random_models.random_rare_exits()])


if __name__ == "__main__":
    main()
