"""Mixture models: construction, bad input, sweeps against a reference, and the misspecification test."""

import gymnasium
import numpy as np
import pytest

import adagoal
from adagoal.core.errors import InputError
from adagoal.core.linear_mixture import mixture_from_kernels
from adagoal.envs import mixture_models, toy_models
from adagoal.envs.mixture_models import mixture_from_models, model_from_mixture
from adagoal.envs.registry import MODEL_BUILDERS
from adagoal.exact import solver
from adagoal.linear.mixture_estimates import PSEUDO_COUNT, likeliest_theta, misfit_p_value
from adagoal.loop import run_exploration
from adagoal.planning import mixture_sweeps
from adagoal.planning.model_arrays import ThetaRegion, features_from_mixture
from experiments import exact_policies
from linear_models import interval, lower_reference, random_mixture, start, upper_reference

CHAIN = np.array([[0.0, 1.0], [1.0, 0.0]])
STAY = np.eye(2)


def test_phi_and_kernel():
    mdp, theta = random_mixture(3)
    m = mdp.mixture
    f = np.random.default_rng(0).random(m.n_states)
    np.testing.assert_allclose(m.phi(f) @ theta, mdp.kernel() @ f)
    pairs = np.array([1, 4, 5, 11])
    np.testing.assert_allclose(m.phi(f, pairs), m.phi(f)[pairs])
    np.testing.assert_allclose(m.mixture_kernel(theta).toarray(), mdp.kernel().toarray())


@pytest.mark.parametrize("signed", [False, True])
def test_known_row_sums_reduce_the_parameters(signed):
    mdp, theta = random_mixture(1, signed=signed)
    theta0, N = mdp.mixture.theta_parametrisation
    np.testing.assert_allclose(theta0 + N @ (N.T @ (theta - theta0)), theta, atol=1e-9)
    np.testing.assert_allclose(N.T @ mdp.mixture.row_sums.T, 0, atol=1e-9)
    assert N.shape == (3, 2)
    assert mdp.mixture.has_probability_kernels != signed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mixture_from_kernels([], 1), "needs d >= 1"),
        (lambda: mixture_from_models([]), "needs d >= 1"),
        (lambda: mixture_from_kernels([np.eye(3)], 2), r"must be \[S \* A, S\]"),
        (lambda: mixture_from_kernels([STAY, np.eye(3)], 1), "number 1 has the shape"),
        (lambda: mixture_from_kernels([STAY * np.nan], 1), "not finite"),
        (lambda: mixture_from_kernels([np.zeros((2, 2))], 1), "no successor"),
        (lambda: mixture_from_kernels([STAY], 1, start=2), "start: must be a whole number in 0..1"),
        (lambda: mixture_from_kernels([STAY], 1, terminal=np.zeros(3, bool)), "terminal: must have"),
        (lambda: mixture_from_kernels([STAY], 1, B=-1.0), r"B: must be a number in \(0, inf\)"),
        (lambda: model_from_mixture(mixture_from_kernels([CHAIN, STAY], 1), [0.5, 0.4]), "sum to 0.9 at theta"),
        (
            lambda: model_from_mixture(mixture_from_kernels([CHAIN, STAY], 1, B=3.0), [1.5, -0.5]),
            "negative probability",
        ),
        (lambda: model_from_mixture(mixture_from_kernels([CHAIN, STAY], 1), [1.0]), "theta: must be a list of d = 2"),
        (
            lambda: model_from_mixture(mixture_from_kernels([CHAIN, STAY], 1, B=0.5), [0.5, 0.5]),
            "B: must be at least the norm",
        ),
        (
            lambda: model_from_mixture(mixture_from_kernels([CHAIN, STAY], 1), ["a", 1]),
            "theta: must be a list of d = 2",
        ),
        (
            lambda: model_from_mixture(mixture_from_kernels([CHAIN, STAY], 1), [[1], [1, 2]]),
            "theta: must be a list of d = 2",
        ),
        (
            lambda: model_from_mixture(mixture_from_kernels([CHAIN, STAY], 1), [np.nan, 1.0]),
            "theta: must be a list of d = 2",
        ),
        (lambda: mixture_from_kernels(None, 1), "needs d >= 1"),
        (lambda: mixture_from_kernels(["ab"], 1), "number 0 is not a matrix"),
        (lambda: mixture_from_kernels([np.ones((2, 2, 2))], 1), "number 0 is not a matrix"),
        (lambda: mixture_from_kernels([STAY], "1"), "n_actions: must be a whole number"),
        (lambda: mixture_from_kernels([STAY], 1, start=0.5), "start: must be a whole number"),
        (lambda: mixture_from_kernels([STAY], 1, B="x"), "B: must be a number"),
        (lambda: mixture_models.windy_mixture(theta="hello"), "theta: must be a list of d = 4"),
        (lambda: mixture_models.slippery_mixture(theta=[None, 1, 0]), "theta: must be a list of d = 3"),
        (lambda: mixture_models.tree_mixture(d=5), r"d: must be a whole number in 1\.\.4"),
        (lambda: mixture_models.weather_mixture(seed=-1), "seed: must be a whole number"),
        (lambda: adagoal.mixture("two-room", [1.0]), "envs must be a list"),
        (lambda: adagoal.mixture(["two-room"] * 2, world="two-room", B=0.5), "B: 0.5 is too small"),
        (lambda: adagoal.explore("mixture-windy", 4.0, method="likelihood", goals=[1.5]), "goals: must be states"),
        (lambda: adagoal.explore("mixture-windy", "all", method="vtr"), "radius: all is not available"),
        (lambda: mixture_models.windy_mixture(shape="8"), "shape: needs 2 or more sides"),
        (lambda: mixture_models.windy_mixture(shape="axb"), "shape: must look like"),
        (lambda: mixture_models.windy_mixture(d=0), "d: must be a whole number"),
        (lambda: adagoal.mixture(["two-room"]), "either theta, or the world"),
        (lambda: adagoal.mixture(["two-room", "grid"], [0.5, 0.5]), "number 1 has 20 states"),
        (lambda: adagoal.mixture(["MountainCar-v0"], [1.0]), "the exact model of"),
        (lambda: adagoal.explore("two-room", 4.0, method="likelihood"), "not a linear mixture"),
        (lambda: adagoal.explore("mixture-signed", 4.0, method="likelihood"), "probability distributions"),
        (
            lambda: adagoal.explore("mixture-windy", 4.0, method="vtr-pooled", goals=[64]),
            "must be one or more states in 0..63",
        ),
        (lambda: adagoal.explore("mixture-windy", 4.0, method="vtr", method_args={"horizon": 0}), "horizon must be"),
        (lambda: adagoal.explore("mixture-windy", 40.0, method="vtr", env_args={"shape": "50x50"}), "policy table"),
    ],
)
def test_bad_input_gives_one_line_error(make, words):
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["likelihood", "vtr-pooled"])
def test_one_kernel_is_a_known_model(method):
    env = adagoal.mixture(["grid"], [1.0])
    result = adagoal.explore(env, 5.0, 0.1, method=method)
    assert (result.status, result.steps) == ("certified", 0)
    assert adagoal.audit(result, env).ok


def test_contradictory_row_sums():
    with pytest.raises(InputError, match="no theta makes"):
        _ = mixture_from_kernels([np.array([[0.5, 0.5], [1.0, 1.0]])], 1).theta_parametrisation


@pytest.mark.parametrize("name", [n for n in MODEL_BUILDERS if n.startswith("mixture-")])
def test_built_in_families(name):
    env, _ = adagoal.envs.registry.make_single_env(name, {}, None, None)
    assert env.mixture.n_states == env.mdp.n_states >= 50
    assert np.isfinite(solver.optimal_distances(env.mdp, [env.start])).all()


def test_large_families_are_small_in_memory():
    mdp = mixture_models.windy_mixture(shape="100x100")
    assert mdp.n_states == 10_000
    assert mdp.mixture.features.nbytes < 20e6


@pytest.mark.parametrize("simplex", [False, True])
def test_mixture_sweeps_equal_reference(simplex):
    mdp, _ = random_mixture(5)
    m = mdp.mixture
    rng = np.random.default_rng(1)
    _, N = m.theta_parametrisation
    region = ThetaRegion(np.array([0.5, 0.3, 0.2]), 0.2 * N @ rng.normal(size=(2, 2)), simplex)
    features = features_from_mixture(m)
    order, goal = rng.permutation(m.n_states), 6
    V, Y = 3 * rng.random(m.n_states), 3 + 3 * rng.random(m.n_states)
    V[goal] = Y[goal] = 0.0
    V_reference = lower_reference(m, region, 7.0, goal, V, simplex, order)
    Y_reference = upper_reference(m, region, 7.0, goal, Y, simplex, order)
    policy, inside = np.zeros(m.n_states, np.int16), np.arange(m.n_states) == goal
    mixture_sweeps.mixture_lower_sweep(order, inside, features, region, 7.0, V, policy)
    mixture_sweeps.mixture_upper_sweep(order, inside, features, region, 7.0, Y, policy)
    np.testing.assert_allclose(V, V_reference)
    np.testing.assert_allclose(Y, Y_reference)


def test_width_ignores_constants():
    mdp, _ = random_mixture(5)
    _, N = mdp.mixture.theta_parametrisation
    region = ThetaRegion(np.array([0.5, 0.3, 0.2]), N, True)
    f = np.random.default_rng(2).random(mdp.n_states)
    low, up = np.array([interval(mdp.mixture, 3, g, region, True) for g in (f, f + 5.0)]).T
    np.testing.assert_allclose(low[1] - low[0], 5.0)
    np.testing.assert_allclose(up[1] - up[0], 5.0)


def test_hop_counts_are_lower_bounds():
    for seed in range(5):
        mdp, _ = random_mixture(seed)
        hops = start(mdp, "likelihood", L=50.0).estimates.V
        assert (hops <= exact_policies.optimal_values(mdp, np.arange(mdp.n_states)).T + 1e-9).all()
        assert hops.max() >= 2


def test_mixture_of_gymnasium_environments():
    lakes = [gymnasium.make("FrozenLake-v1", is_slippery=slippery) for slippery in (True, False)]
    env = adagoal.mixture(lakes, [0.4, 0.6])
    result = adagoal.explore(env, 6.0, method="likelihood", budget=10**6)
    assert result.status == "certified"
    assert adagoal.audit(result, env).ok


def test_a_folder_does_not_return_the_result_of_another_mixture(tmp_path):
    kernels = [toy_models.chain_model(n_states=4, slip=slip) for slip in (0.1, 0.5)]
    given = {"radius": 4, "method": "likelihood", "out": tmp_path}
    adagoal.explore(adagoal.mixture(kernels, theta=[0.5, 0.5]), **given)
    with pytest.raises(InputError, match="holds a finished run with an environment object, which may differ"):
        adagoal.explore(adagoal.mixture(kernels, theta=[0.9, 0.1]), **given)
    with pytest.raises(InputError, match="object:mixture was an environment object of another program; pass"):
        adagoal.resume(tmp_path)


def test_real_environment_is_stepped_unchanged():
    """FrozenLake with success_rate = 0.5 is a mixture: 1/4 without slipping, 3/4 standard."""
    lakes = [gymnasium.make("FrozenLake-v1", is_slippery=slippery) for slippery in (True, False)]
    real = gymnasium.make("FrozenLake-v1", success_rate=0.5)
    result = adagoal.explore(adagoal.mixture(lakes, world=real), 12.0, method="likelihood", budget=10**5)
    assert result.status == "certified"
    assert not result.void
    assert adagoal.audit(result, real).ok
    _, low, high = result.arrays["theta"].T
    assert (low <= [0.75, 0.25]).all()
    assert (high >= [0.75, 0.25]).all()
    other = gymnasium.make("FrozenLake-v1", desc=["SHFF", "FHFH", "FFFH", "HFFG"])
    ends = adagoal.explore(adagoal.mixture(lakes, world=other), 6.0, 0.1, method="likelihood", budget=2_000)
    assert any("episodes ended" in line for line in ends.void)
    with pytest.raises(InputError, match="the world has 64 states"):
        adagoal.mixture(lakes, world=gymnasium.make("FrozenLake8x8-v1"))


@pytest.mark.parametrize("method", ["likelihood", "vtr-pooled"])
def test_misspecification_is_detected(method):
    base = {"rows": 4, "cols": 4}
    envs = [toy_models.open_grid_model(**base, slip=0.1), toy_models.open_grid_model(**base, slip=0.6)]
    other = adagoal.mixture(envs, world=toy_models.random_sparse(n_states=16, n_actions=4, seed=1))
    outside = adagoal.explore(other, 4.0, method=method, budget=3000)
    assert any("no kernel of the mixture allows" in line for line in outside.void)
    # same support, but even states are entered more often than in any mixture
    p = toy_models.open_grid_model(**base, slip=0.3).kernel().toarray() * np.where(np.arange(16) % 2, 1.0, 2.0)
    truth = adagoal.envs.model.TabularMDP.from_dense((p / p.sum(axis=1, keepdims=True)).reshape(16, 4, 16))
    inside = adagoal.explore(adagoal.mixture(envs, world=truth), 4.0, 0.3, method=method, budget=60_000)
    assert any("do not fit" in line for line in inside.void)


def test_true_mixture_is_not_rejected():
    for seed in range(12):
        mdp, _ = random_mixture(seed, signed=seed % 2 == 1)
        run = start(mdp, "vtr-pooled", seed=seed, epsilon=0.3)
        run_exploration(run, 5_000)
        assert run.env.void_reasons == []


@pytest.mark.parametrize("signed", [False, True])
def test_likeliest_theta_maximises_the_likelihood(signed):
    """The score is zero at the maximiser, which is close to the truth; little data gives finite values."""
    mdp, theta = random_mixture(4, signed=signed)
    run = start(mdp, "vtr-pooled", epsilon=0.05)
    run_exploration(run, 100_000)
    kind, vectors = mdp.mixture.distinct_features
    c = np.bincount(kind, run.estimates.total, minlength=len(vectors)).astype(float)
    best = likeliest_theta(mdp.mixture, c)
    np.testing.assert_allclose(best, theta, atol=0.05)
    _, N = mdp.mixture.theta_parametrisation
    score = N.T @ (vectors.T @ ((c + PSEUDO_COUNT) / (vectors @ best)))
    np.testing.assert_allclose(score / c.sum(), 0, atol=1e-6)
    assert (vectors @ likeliest_theta(mdp.mixture, np.where(np.arange(len(vectors)) < 2, 1.0, 0.0)) > -1e-3).all()


def test_p_values_are_valid():
    """Under the true model p-values below 5% occur in about 5% of cases; a wrong kernel is rejected."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(30), 4)
    p = rng.dirichlet(np.ones(4), size=30)
    small = []
    for n in (3, 30, 3_000):
        looks = [misfit_p_value(rng.multinomial(n, p).ravel() * 1.0, n * p.ravel(), group) for _ in range(300)]
        small.append(np.mean(np.array(looks) < 0.05))
    assert max(small) < 0.1
    wrong = p.copy()
    wrong[7] = np.roll(p[7], 1)
    assert misfit_p_value(rng.multinomial(1_000, wrong).ravel() * 1.0, 1_000 * p.ravel(), group) < 1e-9
