"""The guarantees of vtr-pooled, likelihood and vtr on random mixtures."""

import math

import numpy as np
import pytest

import adagoal
from adagoal.envs import mixture_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.exact.solver import to_target_goals
from adagoal.linear.confidence_regions import PooledLearner, enclose_likelihood_set, maximise_likelihood
from adagoal.linear.ucrl_vtr import solve_ridge_regressions
from adagoal.loop import run_exploration
from adagoal.planning.mixture_sweeps import plan_mixture_horizon
from adagoal.planning.model_arrays import RidgeEstimates, features_from_mixture
from adagoal.report.exploration_page import write_report
from experiments import exact_policies, extra_models
from experiments.required_samples import for_vtr
from linear_models import backward_reference, finite_values, observe, random_mixture, start
from transition_recording import record_transition

CERTIFIED = ("vtr-pooled", "likelihood")


def holds(region, N, theta):
    """Whether theta lies in the region."""
    M = N.T @ region.root @ region.root.T @ N
    away = N.T @ (theta - region.theta)
    return away @ np.linalg.solve(M, away) <= 1 + 1e-9


@pytest.mark.parametrize(("runs", "steps"), [(10, 2_500), pytest.param(40, 5_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", CERTIFIED)
def test_region_coverage(method, runs, steps):
    """Lemmas M1 and M3: with delta = 0.5, theta* leaves the region at some plan in less than half of the runs."""
    missed = 0
    for seed in range(runs):
        mdp, theta = random_mixture(seed, signed=method == "vtr-pooled" and seed % 2 == 1)
        run = start(mdp, method, delta=0.5, epsilon=0.2, seed=seed)
        N = mdp.mixture.theta_parametrisation[1]
        outside = []
        for budget in range(250, steps + 1, 250):
            run_exploration(run, budget)
            outside.append(not holds(run.estimates.learner.confidence_region(), N, theta))
        missed += any(outside)
    assert missed <= 0.5 * runs


def test_one_potential_for_all_goals():
    """Proposition M2: squared widths of rows of any goals sum to at most 2 ln(det Sigma / lambda^k)."""
    mdp, _ = random_mixture(3, n_states=10, d=4)
    m, rng = mdp.mixture, np.random.default_rng(0)
    functions = 5 * rng.random((20, m.n_states))
    learner, spent = PooledLearner(m, 0.1), 0.0
    for _ in range(400):
        f, place = functions[rng.integers(20)], int(rng.integers(len(m.successors)))
        before = learner.Sigma.copy()
        new = np.zeros(len(m.successors), np.int64)
        new[place] = 1
        learner.absorb_transitions(new, new, f)
        row = learner.Sigma - before  # z z^T
        spent += min(1.0, float(np.trace(np.linalg.solve(before, row))))
    growth = np.linalg.slogdet(learner.Sigma / learner.ridge)[1]
    assert 0.3 * growth < spent <= 2 * growth
    assert learner.squared_radius() == pytest.approx((math.sqrt(2 * math.log(10) + growth) + 1) ** 2)


@pytest.mark.parametrize("method", CERTIFIED)
def test_bounds_hold_at_every_plan(method):
    """Lemmas M4 and M5: D <= V*, and the recorded policies are as good as their upper bounds say."""
    proven = 0
    for seed in range(6):
        mdp, _ = random_mixture(seed, signed=method == "vtr-pooled" and seed % 2 == 1)
        goals = np.arange(mdp.n_states)
        best = exact_policies.optimal_values(mdp, goals).T
        run = start(mdp, method, epsilon=0.5, seed=seed)
        e = run.estimates
        for budget in (100, 400, 1_500, 6_000, 25_000):
            run_exploration(run, budget)
            assert (e.V <= best + 1e-9).all()
            for g in goals:
                if np.isfinite(e.upper[g]):
                    assert solver.policy_values(mdp, e.goal_policy(g)[0], g)[mdp.start] <= e.upper[g] + 1e-9
                    proven += 1
    assert proven > 75


@pytest.mark.parametrize("method", CERTIFIED)
@pytest.mark.parametrize("seed", range(3))
def test_guarantee_on_windy_grids(method, seed):
    mdp = mixture_models.windy_mixture(shape="5x5", d=3)
    result = adagoal.explore(ModelSimulator(mdp), 5.0, 1.0, method=method, seed=seed, budget=10**6)
    assert result.status == "certified"
    assert not result.warnings
    assert adagoal.audit(result, mdp).ok


def test_the_report_shows_theta(tmp_path):
    result = adagoal.explore("mixture-signed", 4.0, 1.0, method="vtr-pooled", env_args={"shape": "5x5"}, out=tmp_path)
    estimate, low, high = adagoal.load(tmp_path).arrays["theta"].T
    truth = np.array([1.0, 0.3, 0.2, 0.1])
    assert (low <= truth + 1e-9).all()
    assert (truth <= high + 1e-9).all()
    assert (np.abs(estimate - truth) < 0.2).all()
    page = write_report(result, tmp_path).read_text()
    assert "Weights of the linear mixture" in page
    assert "at least" in page


def test_steps_do_not_grow_with_the_number_of_states():
    """The same goals in a small and a large box: the steps to the stop are about the same."""
    steps = []
    for shape in ("8x8", "40x40"):
        mdp = mixture_models.windy_mixture(shape=shape)
        side = int(shape.split("x")[0])
        goals = [mdp.start + 1, mdp.start - 2, mdp.start + 2 * side, mdp.start - 3 * side]
        result = adagoal.explore(ModelSimulator(mdp), 6.0, 1.0, method="likelihood", goals=goals)
        assert adagoal.audit(result, mdp).ok
        steps.append(result.steps)
    assert steps[1] <= 2 * steps[0]


@pytest.mark.parametrize("method", [*CERTIFIED, "vtr"])
def test_resume_equals_uninterrupted_run(method, tmp_path):
    setting = {"env_args": {"shape": "5x5"}, "method": method, "goals": [3, 7, 11], "seed": 3}
    whole = adagoal.explore("mixture-windy", 5.0, 0.5, **setting, budget=8_000)
    adagoal.explore("mixture-windy", 5.0, 0.5, **setting, budget=3_000, out=tmp_path)
    parts = adagoal.resume(tmp_path, budget=8_000)
    assert parts.certificates == whole.certificates
    assert parts.steps == whole.steps


@pytest.mark.parametrize("method", CERTIFIED)
def test_curriculum(method, tmp_path):
    """``--radius all`` and ``auto``: bounds carry over, the answer is right, and a resumed run is the same."""
    mdp = mixture_models.windy_mixture(shape="4x4", d=3)
    every = adagoal.explore(ModelSimulator(mdp), "all", 1.0, method=method, budget=10**7)
    assert every.status == "certified"
    assert sorted(every.goals) == list(range(16))
    assert every.radius in (8.0, 16.0)
    assert adagoal.audit(every, mdp).ok
    setting = {"env_args": {"shape": "5x5", "d": 3}, "method": method, "seed": 1, "budget": 30_000}
    whole = adagoal.explore("mixture-windy", "auto", 1.0, **setting)

    def stop(run):
        if run.steps > whole.steps / 2:
            raise KeyboardInterrupt

    adagoal.explore("mixture-windy", "auto", 1.0, **setting, out=tmp_path, observe=stop)
    parts = adagoal.resume(tmp_path)
    assert whole.radius >= 4
    assert (parts.radius, parts.steps, parts.certificates) == (whole.radius, whole.steps, whole.certificates)
    assert adagoal.audit(whole).ok


@pytest.mark.parametrize("method", CERTIFIED)
def test_goals_that_no_kernel_reaches(method):
    """These goals are unreachable for every theta, so ``--radius all`` still stops."""
    kernels = [extra_models.random_unreachable(n_states=8, n_actions=2, seed=s) for s in range(2)]
    env = adagoal.mixture(kernels, [0.3, 0.7])
    never = np.flatnonzero(np.isinf(solver.optimal_distances(env.mdp, list(range(8)))))
    assert len(never)
    result = adagoal.explore(env, "all", 1.0, method=method, budget=10**6)
    assert result.status == "certified"
    assert sorted(result.goals) == [g for g in range(8) if g not in never]
    assert all(result.certificates[g].lower == math.inf for g in never)
    assert adagoal.audit(result, env).ok


def test_ellipsoid_contains_the_likelihood_set():
    """Lemma M3: the ellipsoid contains the likelihood set, also around an approximate maximiser."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        d = int(rng.integers(2, 6))
        phi, c = rng.dirichlet(np.ones(d), size=7), rng.integers(1, 60, 7).astype(float)
        theta = maximise_likelihood(phi, c, np.full(d, 1 / d))
        rough = 0.8 * theta + 0.2 / d
        N = np.linalg.svd(np.ones((1, d)))[2][1:].T
        rho = float(rng.uniform(1, 8))
        best = float(c @ np.log(phi @ theta))
        others = rng.dirichlet(np.full(d, 0.5), 20_000) * rng.random((20_000, 1))
        others += (1 - others.sum(axis=1, keepdims=True)) * theta
        good = others[best - np.log(others @ phi.T) @ c <= rho]
        assert len(good) > 50
        for centre in (theta, rough):
            H, total = enclose_likelihood_set(phi, c, centre, N, rho)
            z = (good - centre) @ N
            assert (np.einsum("ni,ij,nj->n", z, H, z) <= 2 * total + 1e-9).all()


def test_maximised_likelihood_has_a_small_duality_gap():
    rng = np.random.default_rng(1)
    for d in (1, 2, 5, 16):
        phi, c = rng.dirichlet(np.ones(d), size=50), rng.integers(1, 10_000, 50).astype(float)
        theta = maximise_likelihood(phi, c, np.full(d, 1 / d))
        assert math.isclose(theta.sum(), 1.0)
        assert theta.min() > 0
        assert (phi.T @ (c / (phi @ theta))).max() - c.sum() <= 0.1


def test_vtr_backward_equals_reference():
    mdp, theta = random_mixture(2)
    m, goal, H = mdp.mixture, 5, 12
    rng = np.random.default_rng(0)
    value, error = (
        RidgeEstimates(theta[None] + 0.01 * rng.normal(size=(1, 3)), 0.02 * rng.normal(size=(1, 3, 3))) for _ in "ab"
    )
    policy, V, U = plan_mixture_horizon(features_from_mixture(m), value, error, to_target_goals(mdp, [goal]), H)
    V_reference, U_reference, policy_reference = backward_reference(m, goal, H, value, error)
    np.testing.assert_allclose(V[0, :, 0], V_reference)
    np.testing.assert_allclose(U[0, :, 0], U_reference)
    np.testing.assert_array_equal(policy[:, :, 0], policy_reference)


def check_vtr(mdp, e, goals):
    """Key step 1 of ``app_LFA``: V <= V* and U >= W = V^pi - V, at every state; returns the largest U / H."""
    for j, g in enumerate(goals):
        best = finite_values(mdp, g, e.H)
        mine = finite_values(mdp, g, e.H, e.goal_policy(int(g)))
        assert (e.V[0, :, j] <= best + 1e-9).all()
        assert (mine - e.V[0, :, j] <= e.U[0, :, j] + 1e-9).all()
    return e.U[0].max() / e.H


def vtr_case(seed):
    """Return mixtures with different S, d, sign and horizon; H = None is the paper's, 74 for L = 1."""
    mdp, _ = random_mixture(seed, n_states=4 + seed % 7, d=2 + seed % 4, signed=seed % 2 == 1)
    goals = np.random.default_rng(seed).choice(mdp.n_states, 2, replace=False)
    return mdp, goals, (4, 15, 50, 150, None)[seed % 5]


VTR_SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))]
"""Every d, and so every sign, with every horizon, on two sets of models."""


@pytest.mark.parametrize("seed", VTR_SEEDS)
def test_vtr_is_optimistic_and_its_errors_are_bounds(seed):
    """The bounds hold in every run, at every amount of data."""
    mdp, goals, H = vtr_case(seed)
    run = start(mdp, "vtr", L=1.0, goals=goals, seed=seed, horizon=H)
    assert run.estimates.guarantee == (H in (150, None))
    for budget in (200, 3_000):
        run_exploration(run, budget)
        check_vtr(mdp, run.estimates, goals)


@pytest.mark.parametrize("seed", VTR_SEEDS)
def test_vtr_bounds_hold_with_much_data(seed):
    """Up to 10^14 tries of every pair, so the bounds are not trivial."""
    mdp, goals, H = vtr_case(seed)
    run = start(mdp, "vtr", L=1.0, goals=goals, seed=seed, horizon=H)
    rng, errors = np.random.default_rng(seed), []
    for power in range(2, 15, 2):
        observe(run.counts, mdp, 10**power, rng)
        assert run.estimates.refresh_columns(np.ones(2, bool))
        errors.append(check_vtr(mdp, run.estimates, goals))
    assert errors[0] > errors[-1]
    assert errors[-1] < 0.02


def test_vtr_regression_follows_the_errata():
    """Rows phi_V(s, a) have targets V(s'), with V fixed before the transitions, no reset, and G in the radius."""
    mdp, goals = random_mixture(9)[0], np.array([2, 6])
    run = start(mdp, "vtr", L=2.0, goals=goals, horizon=20)
    e, m = run.estimates, mdp.mixture
    ridge_part = np.eye(3) / (m.B + 1) ** 2
    Sigma, b = np.tile(ridge_part, (2, 2, 1, 1)), np.zeros((2, 2, 3))
    rng = np.random.default_rng(0)
    for _ in range(4):
        functions = [[V[1, :, j].copy() for j in range(2)] for V in (e.V, e.U)]
        for _ in range(200):
            x = int(rng.integers(len(run.counts.n)))
            successor = int(rng.choice(mdp.n_states, p=mdp.kernel()[[x]].toarray()[0]))
            record_transition(run.counts, x // 2, x % 2, successor)
            for kind in range(2):
                for j in range(2):
                    row = m.phi(functions[kind][j], np.array([x]))[0]
                    Sigma[kind, j] += np.outer(row, row)
                    b[kind, j] += row * functions[kind][j][successor]
        assert e.refresh_columns(np.ones(2, bool))
    np.testing.assert_allclose(e.Sigma, Sigma)
    np.testing.assert_allclose(e.b, b)
    found = solve_ridge_regressions(Sigma[0], b[0], m.B, 20, 2, 0.1)
    np.testing.assert_allclose(found.theta, np.stack([np.linalg.solve(Sigma[0, j], b[0, j]) for j in range(2)]))
    widths = [np.linalg.norm(found.root[j].T @ np.ones(3)) for j in range(2)]
    for j in range(2):
        growth = np.linalg.slogdet(Sigma[0, j] @ np.linalg.inv(ridge_part))[1]
        beta = 10 * math.sqrt(2 * math.log(3 * 2 / 0.1) + growth) + 1
        assert widths[j] == pytest.approx(beta * math.sqrt(np.ones(3) @ np.linalg.solve(Sigma[0, j], np.ones(3))))


def test_vtr_values_are_exact_with_infinite_data():
    """With exact regressions V equals V* and U is zero, so the recursion itself loses nothing."""
    mdp, theta = random_mixture(7)
    m, H = mdp.mixture, 15
    Sigma = 1e16 * np.eye(3)[None]
    exact = solve_ridge_regressions(Sigma, Sigma[:, 0, 0, None] * theta[None], m.B, H, 1, 0.1)
    _, V, U = plan_mixture_horizon(features_from_mixture(m), exact, exact, to_target_goals(mdp, [4]), H)
    np.testing.assert_allclose(V[0, :, 0], finite_values(mdp, 4, H), atol=1e-3)
    assert U[0].max() < 1e-2


def test_required_samples_of_vtr_are_astronomical():
    mdp = mixture_models.windy_mixture(shape="4x4", d=2)
    assert for_vtr(mdp, np.array([5, 6]), 3.0, 1.0, 0.1) > 1e8
