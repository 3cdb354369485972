"""The exact solver: how fast, and does it agree with others?

    python benchmarks/exact_solver.py

Times the values of all goals on Taxi (500 states, 500 goals), FrozenLake and grids, the evaluation of periodic
policies on the two-room grid, and the audit of a maze with 10,027 states. Compares values with a linear program
(HiGHS). Where stormpy 2 is installed, it also compares values and times with the model checker Storm, run by run in
alternation; times against Storm are processor time, which other work on the machine does not lengthen, and leave out
what builds the model on either side.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from adagoal.core.environment import Policy
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.exact import solver
from adagoal.exact.audit import audit_policies

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiments import exact_policies
from experiments.exact_policies import optimal_policy, reachable_set

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
    return model_from_rows(rows + [first] * n_actions, n_actions, start=n_states, terminal=terminal, name=name)


def with_reset(mdp: TabularMDP) -> tuple[sparse.csr_matrix, NDArray[np.int64]]:
    """All usable pairs, the reset included, as a matrix [pairs, S], and the state of each, in order."""
    n, to_start = mdp.n_states, (np.arange(mdp.n_states), np.full(mdp.n_states, mdp.start))
    p = sparse.vstack([mdp.kernel(), sparse.csr_matrix((np.ones(n), to_start), shape=(n, n))], format="csr")
    states = np.concatenate([np.repeat(np.arange(n), mdp.n_actions), np.arange(n)])
    order = np.argsort(states, kind="stable")
    order = order[~mdp.terminal[states[order]] | (order >= n * mdp.n_actions)]
    return sparse.csr_matrix(p[order]), states[order]


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


class Storm:
    """The least expected number of steps until "goal", by Storm; ``seconds`` adds up its processor time."""

    def __init__(self, mdp: TabularMDP) -> None:
        self.stormpy: Any = importlib.import_module("stormpy")
        self.mdp, self.seconds = mdp, 0.0
        p, states = with_reset(mdp)
        p.sort_indices()
        cells = p.tocoo()
        builder = self.stormpy.datastructures.SparseMatrixBuilder(
            rows=p.shape[0], columns=p.shape[1], entries=p.nnz, has_custom_row_grouping=True, row_groups=mdp.n_states
        )
        groups = np.searchsorted(states, np.arange(mdp.n_states))
        builder.add_next_values(cells.row.tolist(), cells.col.tolist(), cells.data.tolist(), groups.tolist())
        self.matrix = builder.build()
        self.formula = self.stormpy.parse_property('R{"steps"}min=? [F "goal"]')

    def __call__(self, goals: list[int], precision: float = 1e-9, sound: bool = True) -> Floats:
        """V* [S, G]."""
        environments, models = self.stormpy.environments, self.stormpy.models
        environment = environments.sound() if sound else environments.Environment()
        environment.solver().min_max().precision = self.stormpy.Rational(precision)
        columns = []
        for goal in goals:
            labels = models.StateLabeling(self.mdp.n_states)
            for label, state in (("init", self.mdp.start), ("goal", goal)):
                labels.add_label(label)
                labels.add_label_to_state(label, state)
            steps = models.SparseRewardModel(optional_state_reward_vector=[1.0] * self.mdp.n_states)
            parts = models.SparseModelComponents(
                transition_matrix=self.matrix, state_labeling=labels, reward_models={"steps": steps}
            )
            model = models.SparseMdp(parts)
            begin = time.process_time()
            answer = self.stormpy.model_checking(model, self.formula, environment=environment)
            self.seconds += time.process_time() - begin
            columns.append([answer.get_value(s) for s in range(self.mdp.n_states)])
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
        seconds = timed(functools.partial(exact_policies.optimal_values, mdp), repeats=1 if mdp.n_states > 1000 else 3)
        distances = solver.optimal_distances(mdp)
        reached = distances[np.isfinite(distances)]
        print(f"{mdp.name:<24} {mdp.n_states:>6} {reached.size:>9} {reached.max():>12.4f} {seconds:>8.3f}")


def periodic(horizon: int) -> None:
    mdp = toy_models.two_room_grid()
    actions = optimal_policy(mdp, exact_policies.optimal_values(mdp))
    tables = [np.repeat(actions[None, :, g], horizon, axis=0) for g in range(mdp.n_states)]
    seconds = timed(lambda: [solver.periodic_value(mdp, table, g) for g, table in enumerate(tables)])
    print(f"two-room, 52 periodic policies, H = {horizon}: {seconds:.3f} s")


def audits(radii: tuple[float, ...]) -> None:
    mdp = toy_models.random_maze(rows=70, cols=70)
    for radius in radii:
        X = reachable_set(mdp, radius).tolist()
        actions = optimal_policy(mdp, exact_policies.optimal_values(mdp, X), X)
        policies = {g: Policy(g, actions[None, :, i], mdp.reset_action) for i, g in enumerate(X)}
        seconds = timed(functools.partial(audit_policies, mdp, X, policies, radius, 1.0))
        print(f"{mdp.name}, {mdp.n_states} states, radius {radius:g}: audit of {len(X)} policies: {seconds:.2f} s")


def against_storm(cases: list[tuple[TabularMDP, list[int]]], rounds: int = 3) -> None:
    settings = {"plain 1e-6": (1e-6, False), "sound 1e-6": (1e-6, True), "sound 1e-12": (1e-12, True)}
    print(f"{'processor seconds':<24} {'states':>6} {'goals':>6} {'ours 1e-12':>12} ", end="")
    print(" ".join(f"{'Storm ' + name:>18}" for name in settings) + f" {'difference':>11}")
    for mdp, goals in cases:
        storm, ours = Storm(mdp), []
        theirs: dict[str, list[float]] = {name: [] for name in settings}
        for _ in range(rounds):
            begin = time.process_time()
            V = exact_policies.optimal_values(mdp, goals)
            ours.append(time.process_time() - begin)
            for name, setting in settings.items():
                storm.seconds = 0.0
                values = storm(goals, *setting)
                theirs[name].append(storm.seconds)
        difference = (np.abs(values - V) / np.maximum(V, 1.0)).max()
        print(f"{mdp.name:<24} {mdp.n_states:>6} {len(goals):>6} {min(ours):>12.4f} ", end="")
        print(" ".join(f"{min(times):>18.4f}" for times in theirs.values()) + f" {difference:>11.1e}", flush=True)


def agreement(worlds: list[TabularMDP]) -> None:
    solvers = {"linear program": linear_program}
    if importlib.util.find_spec("stormpy"):
        solvers["storm"] = lambda mdp, goals: Storm(mdp)(goals)
    else:
        print("(stormpy is not installed: Storm is left out)")
    print(f"{'relative difference':<24} {'goals':>6} " + " ".join(f"{name:>15}" for name in solvers))
    for mdp in worlds:
        V = exact_policies.optimal_values(mdp)
        goals = [int(g) for g in np.flatnonzero(np.isfinite(V[mdp.start]))][:: max(1, mdp.n_states // 60)]
        scale = np.maximum(V[:, goals], 1.0)
        worst = [np.abs(solver(mdp, goals) - V[:, goals]) / scale for solver in solvers.values()]
        print(f"{mdp.name:<24} {len(goals):>6} " + " ".join(f"{difference.max():>15.1e}" for difference in worst))


def main() -> None:
    newest = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
    taxi, lake = from_gymnasium(newest), from_gymnasium("FrozenLake-v1", map_name="8x8")
    small = [
        toy_models.two_room_grid(),
        toy_models.open_grid_model(),
        lake,
        taxi,
    ]
    toy = [
        toy_models.lower_bound_instance(n_decisions=7),
        toy_models.trap_chain(),
        toy_models.rare_exit_chain(p=1e-4),
    ]
    speed([*small, toy_models.random_maze(rows=32, cols=31)])
    for horizon in (50, 1000):
        periodic(horizon)
    audits((20.0, 140.0))
    if importlib.util.find_spec("stormpy"):
        middling, large = toy_models.open_grid_model(rows=100, cols=100), toy_models.open_grid_model(rows=300, cols=300)
        singles = [(mdp, [goal]) for mdp in (middling, large) for goal in (mdp.n_states - 1, mdp.n_states // 3)]
        all_goals = toy_models.open_grid_model(rows=30, cols=30)
        against_storm([*singles, (all_goals, list(range(all_goals.n_states)))])
    agreement([*small, *toy, toy_models.random_sparse(), toy_models.random_dense()])


if __name__ == "__main__":
    main()
