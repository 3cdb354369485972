"""The exact solver against closed forms, a linear program, plain value iteration, and simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

import numpy_planners
from adagoal.core.errors import InputError
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.exact import solver
from adagoal.exact.solver import to_target_goals
from adagoal.planning import value_iteration
from adagoal.planning.model_arrays import to_sparse_model
from adagoal.planning.value_iteration import run_value_iteration
from experiments import exact_policies, extra_models
from experiments.exact_policies import optimal_policy, reachable_set

MODELS = {
    "two-room": toy_models.two_room_grid(),
    "open grid": toy_models.open_grid_model(),
    "lower bound": toy_models.lower_bound_instance(n_decisions=7, n_actions=3, radius=20, best=5),
    "separation": extra_models.separation_instance(eta=0.01),
    "trap chain": toy_models.trap_chain(),
    "rare exit": toy_models.rare_exit_chain(p=0.01),
    "dense": toy_models.random_dense(seed=1),
    "sparse": toy_models.random_sparse(seed=2),
    "deterministic": extra_models.random_deterministic(seed=3),
    "traps": extra_models.random_traps(seed=4),
    "unreachable": extra_models.random_unreachable(seed=5),
    "waiting": extra_models.random_waiting(stay=0.95, seed=6),
    "rare exits": extra_models.random_rare_exits(p=0.01, seed=7),
}


def with_reset(mdp: TabularMDP) -> NDArray[np.float64]:
    """Return p[s, a, s'] with the reset as last action; a terminal state has only the reset."""
    p = np.zeros((mdp.n_states, mdp.n_actions + 1, mdp.n_states))
    for s in range(mdp.n_states):
        p[s, :, mdp.start] = 1.0
        for a in range(0 if mdp.terminal[s] else mdp.n_actions):
            successors, probabilities = mdp.row(s, a)
            p[s, a] = 0.0
            p[s, a, successors] = probabilities
    return p


def by_linear_program(mdp: TabularMDP, goal: int) -> NDArray[np.float64]:
    """Return V by the linear program: max sum V subject to V(g) = 0 and V(s) <= 1 + p V for all pairs."""
    p = with_reset(mdp)
    states = [s for s in range(mdp.n_states) if s != goal]
    rows = np.concatenate([np.eye(mdp.n_states)[s] - p[s] for s in states])
    answer = linprog(
        -np.ones(mdp.n_states),
        A_ub=rows,
        b_ub=np.ones(len(rows)),
        bounds=[(0, 0) if s == goal else (0, None) for s in range(mdp.n_states)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.status == 0
    return np.asarray(answer.x)


def by_value_iteration(mdp: TabularMDP, goal: int, sweeps: int = 30_000) -> NDArray[np.float64]:
    p, V = with_reset(mdp), np.zeros(mdp.n_states)
    for _ in range(sweeps):
        after = 1.0 + (p @ V).min(axis=1)
        after[goal] = 0.0
        if np.array_equal(after, V):
            break
        V = after
    return V


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_a_linear_program(name: str) -> None:
    mdp = MODELS[name]
    V = exact_policies.optimal_values(mdp)
    for goal in np.flatnonzero(np.isfinite(V[mdp.start]))[:: max(1, mdp.n_states // 12)].tolist():
        np.testing.assert_allclose(V[:, goal], by_linear_program(mdp, goal), rtol=1e-6)


@pytest.mark.parametrize("name", ["open grid", "lower bound", "trap chain", "sparse", "traps", "dense"])
def test_agrees_with_value_iteration(name: str) -> None:
    mdp = MODELS[name]
    V = exact_policies.optimal_values(mdp)
    for goal in np.flatnonzero(np.isfinite(V[mdp.start]))[:6].tolist():
        np.testing.assert_allclose(V[:, goal], by_value_iteration(mdp, goal), rtol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_policy_is_proper_and_attains_the_optimum(name: str) -> None:
    mdp = MODELS[name]
    V = exact_policies.optimal_values(mdp)
    actions = optimal_policy(mdp, V)
    assert actions.dtype == np.int16
    for goal in range(mdp.n_states):
        np.testing.assert_allclose(solver.policy_values(mdp, actions[:, goal], goal), V[:, goal], rtol=1e-10)


@pytest.mark.parametrize("slip", [0.0, 0.1, 0.3])
def test_chain(slip: float) -> None:
    step, expected = 1 / (1 - slip), [0.0]
    for _ in range(19):
        expected.append(expected[-1] + step)
        step = (1 + slip * step) / (1 - slip)
    np.testing.assert_allclose(
        solver.optimal_distances(toy_models.chain_model(n_states=20, slip=slip)), expected, rtol=1e-12
    )


@pytest.mark.parametrize("stay", [0.0, 0.9, 0.999999])
def test_geometric_waiting_times(stay: float) -> None:
    mdp = extra_models.waiting_chain(n_states=6, stay=stay)
    np.testing.assert_allclose(solver.optimal_distances(mdp), np.arange(6) / (1 - stay), rtol=1e-10)


@pytest.mark.parametrize("p", [1.0, 0.1, 1e-3, 1e-5, 1e-6])
@pytest.mark.parametrize("n_states", [2, 3, 8])
def test_rare_exit_is_found_by_policy_iteration(p: float, n_states: int) -> None:
    mdp = toy_models.rare_exit_chain(n_states=n_states, p=p)
    distances = solver.optimal_distances(mdp)
    np.testing.assert_allclose(distances[:-1], np.arange(n_states - 1), rtol=1e-12)
    np.testing.assert_allclose(distances[-1], (n_states - 1) / p, rtol=1e-10)


@pytest.mark.parametrize("p", [0.01, 0.3])
def test_reset_leaves_a_trap(p: float) -> None:
    mdp = toy_models.trap_chain(n_states=6, p=p)
    q, V = 1 - p, exact_policies.optimal_values(mdp)
    for g in range(1, 5):
        expected = (sum(q**i for i in range(g)) + 1 - q**g) / q**g
        np.testing.assert_allclose(V[0, g], expected, rtol=1e-12)
        np.testing.assert_allclose(V[5, g], 1 + expected, rtol=1e-12)
    np.testing.assert_allclose(V[0, 5], 1 / p, rtol=1e-12)


def test_unreachable_is_infinite_and_decided_on_the_graph() -> None:
    # only 2 leads to 3, nothing leads to 2; 2 leads to 4 or back to s0
    mdp = model_from_rows([{1: 1.0}, {1: 1.0}, {3: 1.0}, {4: 0.5, 0: 0.5}, {4: 1.0}], 1)
    V = exact_policies.optimal_values(mdp)
    inf = math.inf
    assert V.tolist() == [
        [0, 1, inf, inf, inf],
        [1, 0, inf, inf, inf],
        [1, 2, 0, 1, inf],
        [1, 2, inf, 0, inf],
        [1, 2, inf, inf, 0],
    ]
    assert solver.optimal_distances(mdp).max() == exact_policies.diameter(mdp) == inf
    tiny = model_from_rows([{0: 1 - 1e-12, 1: 1e-12}, {1: 1.0}], 1)
    np.testing.assert_allclose(solver.optimal_distances(tiny), [0, 1e12], rtol=1e-10)


def test_terminal_states_have_only_the_reset() -> None:
    mdp = model_from_rows([{1: 1.0}, {2: 1.0}, {2: 1.0}], 1, terminal=np.array([False, True, False]))
    V = exact_policies.optimal_values(mdp)
    assert V[:, 0].tolist() == [0, 1, 1]
    assert V[:, 2].tolist() == [math.inf, math.inf, 0]
    assert solver.policy_values(mdp, [0, 0, 0], 0).tolist() == [0, 1, math.inf]
    assert solver.periodic_value(mdp, [[0, 0, 0]] * 3, 2) == math.inf


def test_only_the_reset_bounds_the_diameter() -> None:
    mdp = extra_models.separation_instance(eta=0.001, radius=5)
    V = exact_policies.optimal_values(mdp)
    assert (1 + V[mdp.start] + 1e-9 >= V).all()
    assert exact_policies.diameter(mdp) <= solver.optimal_distances(mdp).max() + 1
    free = exact_policies.optimal_values(mdp, reset=False)
    np.testing.assert_allclose(free[4, 1], 2000, rtol=1e-10)
    assert V[4, 1] < 7


@pytest.mark.parametrize("seed", range(20))
def test_random_models_without_reset(seed: int) -> None:
    """Without the reset, values are finite only on almost-sure sets; the greedy policy attains them."""
    mdp = extra_models.random_traps(n_states=12, n_actions=2, traps=3, branching=2, seed=seed)
    V = exact_policies.optimal_values(mdp, reset=False)
    actions = optimal_policy(mdp, V, reset=False)
    for goal in range(mdp.n_states):
        finite = np.isfinite(V[:, goal])
        assert (actions[finite & (np.arange(12) != goal), goal] < mdp.reset_action).all()
        values = solver.policy_values(mdp, actions[:, goal], goal)
        np.testing.assert_allclose(values[finite], V[finite, goal], rtol=1e-10)
    assert (exact_policies.optimal_values(mdp) * (1 - 1e-12) <= V).all()


def test_policy_iteration_alone_gives_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {name: exact_policies.optimal_values(mdp) for name, mdp in MODELS.items()}
    monkeypatch.setattr(solver, "MAX_IMPROVEMENT_SWEEPS", 1)
    for name, mdp in MODELS.items():
        np.testing.assert_allclose(exact_policies.optimal_values(mdp), expected[name], rtol=1e-10)


@pytest.mark.parametrize(("goal", "cap", "left_out"), [(30, math.inf, 4), (5, 8.0, 38), (20, 20.0, 22)])
def test_sweeps_equal_reference(goal: int, cap: float, left_out: int) -> None:
    mdp = MODELS["two-room"]
    model = to_sparse_model(mdp)
    hops = solver.hop_counts_to_goals(model, *solver.reversed_edges(model), to_target_goals(mdp, [goal]), cap)
    reference, p = np.minimum(hops[:, 0], cap), with_reset(mdp)
    V, _ = value_iteration.run_value_iteration(model, to_target_goals(mdp, [goal]), hops, cap, 0.0, 3)
    order = [s for s in np.argsort(reference, kind="stable") if s != goal and reference[s] < cap]
    others = [s for s in range(mdp.n_states) if s != goal and s not in order]
    assert len(others) == left_out
    reference[others] = min(cap, 1.0 + reference[mdp.start])

    def Q(s: int, a: int) -> float:
        if a == mdp.reset_action:
            return cap if s == mdp.start else min(cap, 1.0 + reference[mdp.start])
        away = np.arange(mdp.n_states) != s
        leaving = p[s, a, away].sum()
        return float((1 + p[s, a, away] @ reference[away]) / leaving) if leaving > 0 else math.inf

    def update(s: int, a: int) -> None:
        reference[s] = Q(s, a)
        reference[others] = min(cap, 1.0 + reference[mdp.start])

    for _ in range(3):
        choice = {}
        for s in order:
            choice[s] = min((mdp.reset_action, *range(mdp.n_actions)), key=lambda a, s=s: Q(s, a))  # type: ignore[misc]
            update(s, choice[s])
        for _ in range(value_iteration.EVALUATION_SWEEPS):
            for s in order:
                update(s, choice[s])
    np.testing.assert_allclose(V[:, 0], reference, rtol=1e-13)


def test_two_room_has_the_documented_values() -> None:
    mdp = toy_models.two_room_grid()
    distances = solver.optimal_distances(mdp)
    room_one = np.array([s for s in range(52) if distances[s] < 500])
    assert room_one.size == 48
    farthest = room_one[distances[room_one].argmax()]
    assert mdp.labels[farthest] == "(4, 2)"
    assert round(distances[farthest], 2) == 39.44
    assert round(distances.max(), 1) == 1001.1
    assert reachable_set(mdp, 40).tolist() == room_one.tolist()


def test_goals_may_be_a_subset_in_any_order() -> None:
    mdp = MODELS["two-room"]
    V = exact_policies.optimal_values(mdp)
    np.testing.assert_array_equal(exact_policies.optimal_values(mdp, [40, 3, 51]), V[:, [40, 3, 51]])
    assert optimal_policy(mdp, V[:, [5]], [5]).shape == (52, 1)


@pytest.mark.parametrize("planner", [run_value_iteration, numpy_planners.exact])
@pytest.mark.parametrize("name", MODELS)
def test_distances_within_a_radius(monkeypatch: pytest.MonkeyPatch, name: str, planner: Any) -> None:
    mdp = MODELS[name]
    distances = solver.optimal_distances(mdp)
    np.testing.assert_allclose(distances, exact_policies.optimal_values(mdp)[mdp.start], rtol=1e-12)
    reached = np.unique(distances[np.isfinite(distances)])
    assert solver.optimal_distances(mdp, [], within=5.0).shape == (0,)
    assert solver.optimal_distances(mdp, [mdp.start], within=0.0).tolist() == [0.0]
    monkeypatch.setattr(solver, "run_value_iteration", planner)
    for radius in (0.0, *reached[:: reached.size // 3], reached[-1] * 1.01):  # the boundary itself included
        expected = np.where(solver.is_at_most(distances, radius), distances, math.inf)
        np.testing.assert_allclose(solver.optimal_distances(mdp, within=radius), expected, rtol=1e-9)


def test_bad_input() -> None:
    mdp = MODELS["two-room"]
    with pytest.raises(InputError, match=r"0\.\.51"):
        exact_policies.optimal_values(mdp, [52])
    with pytest.raises(InputError, match="52"):
        solver.policy_values(mdp, np.zeros(3), 0)
    with pytest.raises(InputError, match=r"0\.\.4"):
        solver.policy_values(mdp, np.full(52, 5), 0)
    with pytest.raises(InputError, match="shape"):
        optimal_policy(mdp, np.zeros((52, 3)))
