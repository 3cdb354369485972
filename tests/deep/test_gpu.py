"""The backend for GPUs, on JAX's own processor backend: the same functions, which keep the same promises."""

import numpy as np
import pytest

import adagoal
from adagoal import goal_rules
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.core.errors import InputError
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.tabular_policy import Policy
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.exact.audit import audit_policies
from adagoal.loop import run_exploration
from adagoal.planning import backends
from adagoal.planning.backends import NUMBA_BACKEND
from adagoal.planning.model_arrays import EmpiricalModel, GoalBlock
from experiments import extra_models
from numpy_backend import NUMPY

jax_bounds = pytest.importorskip("adagoal.planning.jax_bounds", exc_type=ImportError)
jax_planner = pytest.importorskip("adagoal.planning.jax_planner", exc_type=ImportError)
S, A, B, CAP = 30, 3, 12, 23.0


def random_empirical(rng: np.random.Generator) -> EmpiricalModel:
    """Pairs with none, one, several and many successors; radii up to where nothing is known; terminal states."""
    X, K = S * A, 9
    support = rng.choice([0, 1, 2, 3, 4, K], X, p=[0.1, 0.3, 0.3, 0.1, 0.1, 0.1]).astype(np.int32)
    successor = np.array([rng.choice(S, K, replace=False) for _ in range(X)], np.int32)
    weights = rng.dirichlet(np.ones(K), X) * (np.arange(K) < support[:, None])
    p = np.divide(weights, weights.sum(axis=1, keepdims=True), out=np.zeros((X, K)), where=support[:, None] > 0)
    r_low, r = np.where(support > 0, rng.choice([1e-4, 0.01, 0.1, 0.9, 3.0], (2, X)) * rng.random((2, X)), np.inf)
    q = np.where(support > 0, rng.random(X) ** 4, 1.0)
    terminal = rng.random(S) < 0.1
    return EmpiricalModel(successor, p, p, support, r_low, r, q, np.zeros(X, bool), np.zeros(X), 0.0, terminal, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_backup_is_rounded_to_the_safe_side_and_hardly_more(monkeypatch, dtype):
    monkeypatch.setattr(jax_bounds, "JACOBI_SWEEP_FACTOR", 1)
    monkeypatch.setattr(jax_bounds, "select_precision", lambda model, block: dtype)
    inside = np.arange(S)[:, None] == np.arange(B)
    column = np.where(np.arange(S) < B, np.arange(S), -1)[:, None]
    for seed in range(10):
        rng = np.random.default_rng(seed)
        model, none = random_empirical(rng), np.zeros((S, B), np.int16)
        block = GoalBlock(np.arange(S), column, CAP, exact=False, sweeps=1, tolerance=0.0)
        room = 3.0 * jax_bounds.rounding_slack(model, block, dtype).max()
        V = np.where(inside, 0.0, CAP * rng.random((S, B)) * rng.choice([1.0, 0.01], S)[:, None])
        exact, found = (
            backend.lower_bounds(model, block, V.copy(), none.copy())[0] for backend in (NUMPY, jax_planner.JAX_BACKEND)
        )
        assert (found <= exact).all()
        assert (found >= exact - room).all()
        Y = np.where(inside, 0.0, CAP * rng.random((S, B)))
        Y = np.minimum(Y, 1.0 + Y[model.start])  # as lemma 6 has it before the actions are looked at
        exact, found = (
            backend.upper_bounds(model, block, Y.copy(), none.copy())[0] for backend in (NUMPY, jax_planner.JAX_BACKEND)
        )
        assert (found >= exact).all()
        assert (found <= exact + room).all()


def test_states_outside_the_order_are_left_alone():
    rng = np.random.default_rng(0)
    mdp = toy_models.open_grid_model(rows=5, cols=5)
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
    estimates = CertifiedExplorer(counts, mdp.n_states, 6.0, 1.0, 0.1)
    run = ExplorationRun(ModelSimulator(mdp), estimates, goal_rules.adagoal, rng)
    run_exploration(run, 200)
    unseen = ~counts.seen
    assert unseen.any()
    model, order = estimates.confidence.empirical_model(), np.flatnonzero(counts.seen)
    block = GoalBlock(order, np.arange(mdp.n_states)[:, None], 8.0, exact=False, sweeps=20, tolerance=1e-3)
    V, Y = np.zeros((25, 25)), np.where(np.eye(25, dtype=bool), 0.0, 8.0)
    V, _ = jax_planner.JAX_BACKEND.lower_bounds(model, block, V, np.zeros((25, 25), np.int16))
    Y, policy = jax_planner.JAX_BACKEND.upper_bounds(model, block, Y, np.full((25, 25), mdp.n_actions, np.int16))
    assert (V[unseen] == 0.0).all()
    assert (policy[unseen] == mdp.n_actions).all()
    assert (V <= solver.optimal_values(mdp)).all()
    assert (V <= Y).all()


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("make", [toy_models.chain_model, extra_models.random_traps])
def test_exact_values(make, reset):
    mdp = make()
    expected = solver.optimal_values(mdp, reset=reset)
    np.testing.assert_allclose(
        solver.optimal_values(mdp, reset=reset, backend=jax_planner.JAX_BACKEND), expected, rtol=1e-9
    )


def test_exact_values_in_parts_and_with_wide_rows(monkeypatch):
    mdp = toy_models.random_sparse(n_states=40, branching=9)
    monkeypatch.setattr("adagoal.planning.jax_planner.MAX_DEVICE_VALUES", 40 * 20)
    expected = solver.optimal_values(mdp)
    np.testing.assert_allclose(solver.optimal_values(mdp, backend=jax_planner.JAX_BACKEND), expected, rtol=1e-9)


@pytest.mark.slow
def test_the_certified_explorer_keeps_its_promise():
    mdp = toy_models.open_grid_model(rows=3, cols=3, slip=0.1)
    counts, L, epsilon = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start), 4.0, 2.0
    estimates = CertifiedExplorer(
        counts, mdp.n_states, L, epsilon, 0.1, backend=jax_planner.JAX_BACKEND._replace(min_block_values=0)
    )
    run = ExplorationRun(ModelSimulator(mdp), estimates, goal_rules.adagoal, np.random.default_rng(0))
    assert run_exploration(run, 500_000) == "certified"
    X = [int(g) for g in estimates.goals if estimates.D[estimates.column[g]] <= L]
    policies = {g: Policy(g, estimates.goal_policy(g), mdp.reset_action) for g in X}
    lower, upper = ({g: estimates.distance_bounds(g)[side] for g in X} for side in (0, 1))
    assert audit_policies(mdp, X, policies, L, epsilon, None, lower, upper).ok


def test_a_large_block_is_planned_on_the_device_and_a_small_one_is_not():
    counted: list[int] = []

    def lower(model, block, V, policy):
        counted.append(V.size)
        return NUMBA_BACKEND.lower_bounds(model, block, V, policy)

    mdp, backend = (
        toy_models.open_grid_model(rows=9, cols=9),
        NUMBA_BACKEND._replace(lower_bounds=lower, block_size=32, min_block_values=2000),
    )
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
    estimates = CertifiedExplorer(counts, mdp.n_states, 20.0, 5.0, 0.1, backend=backend)
    run = ExplorationRun(ModelSimulator(mdp), estimates, goal_rules.adagoal, np.random.default_rng(0))
    assert run_exploration(run, 10**6) == "certified"
    assert counted
    assert {size // 81 for size in counted} == {32}
    assert len(counted) < estimates.plans


def test_float64_where_float32_would_cost_too_much():
    model = random_empirical(np.random.default_rng(0))
    for tolerance, dtype in ((1e-2, np.float32), (1e-6, np.float64)):
        block = GoalBlock(np.arange(S), np.full((S, 1), -1), CAP, exact=False, sweeps=1, tolerance=tolerance)
        assert jax_bounds.select_precision(model, block) is dtype


def test_without_a_gpu_one_line_says_so(monkeypatch):
    monkeypatch.setattr(jax_planner, "has_jax_gpu", lambda: False)
    result = adagoal.explore("chain", radius=3, device="gpu", budget=100)
    assert result.setting.device == "gpu"
    assert [line for line in result.warnings if "no GPU" in line]
    monkeypatch.setattr(jax_planner, "has_jax_gpu", lambda: True)
    lines: list[str] = []
    assert backends.select_backend("gpu", lines.append) is jax_planner.JAX_BACKEND
    assert backends.select_backend("cpu", lines.append) is NUMBA_BACKEND
    assert not lines


@pytest.mark.parametrize("arguments", [{"device": "tpu"}, {"device": "gpu", "method": "ucbvi"}])
def test_devices_that_are_refused(arguments):
    with pytest.raises(InputError, match=r"^device: "):
        adagoal.explore("chain", radius=3, **arguments)
