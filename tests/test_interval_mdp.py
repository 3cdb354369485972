"""Interval MDPs (the statistics of model checkers): coverage, robust bounds, and the guarantee of a run."""

import math

import numba
import numpy as np
import pytest
from scipy.optimize import linprog

import adagoal
from adagoal.baselines.interval_mdp import INTERVAL_BOUNDS, SAMPLE_GRID, FixedSampleSets, IntervalEstimates
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.goal_rules import BUILTIN_RULES
from adagoal.loop import run_exploration
from adagoal.planning import robust_bounds
from adagoal.planning.model_arrays import RobustModel
from experiments import exact_policies, extra_models
from transition_recording import record_transition

# Called from Python, the function itself would run as Python code.
extreme_mean = numba.njit(lambda *arguments: robust_bounds.extreme_mean(*arguments))

SMALL = {
    "sparse": (toy_models.random_sparse(n_states=8, n_actions=2, seed=3), 6.0, 1.0),
    "traps": (extra_models.random_traps(n_states=10, n_actions=2, seed=2), 6.0, 1.5),
    "unreachable": (extra_models.random_unreachable(n_states=10, n_actions=2, seed=0), 5.0, 1.0),
    "grid": (toy_models.open_grid_model(rows=3, cols=3, slip=0.1), 6.0, 1.0),
}


@pytest.mark.parametrize("moved", [1.0, 0.15])
def test_extreme_values_against_a_linear_program(moved):
    rng = np.random.default_rng(0)
    for _ in range(100):
        K, o = 5, int(rng.integers(1, 6))
        p = np.r_[rng.dirichlet(np.ones(o)), np.zeros(K - o)]
        low, high = p * rng.uniform(0, 1, K), p + (1 - p) * rng.uniform(0, 0.5, K)
        q, f, outside = float(rng.choice([0.0, 0.1])), rng.uniform(0, 9, K), float(rng.uniform(0, 9))
        rows = rng.permutation(K).astype(np.int32)[None]
        model = RobustModel(
            *(rows, p[None], low[None], high[None], np.array([o], np.int32)),
            *(np.array([q]), np.array([moved]), np.zeros(K, bool), 0),
        )
        for sign in (1.0, -1.0):
            found = extreme_mean(0, 0, model, f[:, None], outside, sign, np.empty(K + 1), np.empty(K + 1, np.int64))
            # variables: p' on the o successors and elsewhere, and how far each is above p
            value, centre = np.r_[f[rows[0, :o]], outside], np.r_[p[:o], 0.0]
            above = np.hstack([np.eye(o + 1), -np.eye(o + 1)])
            best = linprog(
                -sign * np.r_[value, np.zeros(o + 1)],
                A_ub=np.vstack([above, np.r_[np.zeros(o + 1), np.ones(o + 1)]]),
                b_ub=np.r_[centre, moved],
                A_eq=[np.r_[np.ones(o + 1), np.zeros(o + 1)]],
                b_eq=[1.0],
                bounds=[*zip(low[:o], high[:o], strict=True), (0, q), *[(0, 1)] * (o + 1)],
            )
            assert found == pytest.approx(-sign * best.fun, abs=1e-7)


DELTA = 0.3


def missed(rng, p, bound, n, looks_are_free=False):
    """Return whether the sets of one pair ever exclude p in n transitions."""
    S = len(p)
    counts = TransitionCounts(S, 1, 0, width=S)
    sets = FixedSampleSets(counts, pairs=1, delta=DELTA, branching=S, bound=bound)
    for t, successor in enumerate(rng.choice(S, n, p=p), start=1):
        record_transition(counts, 0, 0, int(successor))
        if looks_are_free:  # control: every check uses the delta of a single check
            k = 1 + int(np.searchsorted(SAMPLE_GRID, t))
            sets._union_log = math.log(1 / DELTA) - 2 * math.log(k)
        if t not in SAMPLE_GRID:
            continue
        assert sets.update()
        model = sets.model()
        o = model.support[0]
        truth, listed = p[model.successor[0, :o]], slice(o)
        away = 1.0 - truth.sum()
        inside = (
            (model.low[0, listed] <= truth + 1e-12).all()
            and (truth <= model.high[0, listed] + 1e-12).all()
            and away <= model.q[0] + 1e-12
            and (np.abs(truth - model.p[0, listed]).sum() + away) / 2 <= model.moved[0] + 1e-12
        )
        if not inside:
            return True
    return False


def test_interval_sets_fail_at_most_with_probability_delta():
    """Control: without the union over the grid they fail too often."""
    rng = np.random.default_rng(1)
    for p in (np.array([0.5, 0.5]), np.array([0.9, 0.07, 0.03])):
        for bound in INTERVAL_BOUNDS:
            assert np.mean([missed(rng, p, bound, 400) for _ in range(50)]) <= DELTA
    assert np.mean([missed(rng, np.array([0.5, 0.5]), "clopper-pearson", 400, True) for _ in range(50)]) > DELTA


def test_intervals_are_updated_on_the_grid_only():
    counts = TransitionCounts(3, 1, 0)
    sets = FixedSampleSets(counts, pairs=3, delta=0.1, branching=3, bound="hoeffding")
    seen = []
    for n in range(1, 200):
        record_transition(counts, 0, 0, n % 2)
        if sets.update():
            seen.append(n)
        assert sets.next_sample_counts[0] == SAMPLE_GRID[SAMPLE_GRID > n][0]
    assert seen == [n for n in SAMPLE_GRID if n < 200]
    record_transition(counts, 0, 0, 2)
    assert sets.model().support[0] == 2, "a successor found since the last look is one of the others"


def start(mdp, L, epsilon, bound, seed=0):
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
    estimates = IntervalEstimates(counts, mdp.n_states, L, epsilon, 0.1, None, bound)
    return ExplorationRun(ModelSimulator(mdp), estimates, BUILTIN_RULES["adagoal"], np.random.default_rng(seed))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("bound", INTERVAL_BOUNDS)
def test_bounds_hold_at_every_plan(name, bound):
    mdp, L, epsilon = SMALL[name]
    V = exact_policies.optimal_values(mdp)
    run = start(mdp, L, epsilon, bound)
    looks = {"next": 1, "proven": 0}

    def look(run):
        if run.steps < looks["next"]:
            return
        looks["next"] = int(1.5 * run.steps) + 1
        e = run.estimates
        for j in range(1, len(e.D)):
            g = int(e.goal_state[j])
            assert e.D[j] <= V[mdp.start, g] + 1e-9
            if np.isfinite(e.upper[j]):
                looks["proven"] += 1
                assert solver.policy_values(mdp, e.best[:, j], g)[mdp.start] <= e.upper[j] + 1e-9

    assert run_exploration(run, 10**8, look) == "certified"
    assert looks["proven"] > 10


@pytest.mark.parametrize("bound", INTERVAL_BOUNDS)
def test_intervals_answer_passes_the_audit(bound):
    mdp, L, epsilon = SMALL["traps"]
    arguments = {"method": "intervals", "method_args": {"bound": bound}, "seed": 1}
    result = adagoal.explore(ModelSimulator(mdp), L, epsilon, **arguments)
    assert result.status == "certified"
    assert adagoal.audit(result, mdp).ok
    assert all(result.certificate(g).upper <= L + epsilon + 1e-9 for g in result.goals)


def test_curriculum():
    mdp = toy_models.chain_model(n_states=5, slip=0.1)
    result = adagoal.explore(ModelSimulator(mdp), "all:20", 2.0, method="intervals", seed=1)
    assert result.status == "certified"
    assert adagoal.audit(result, mdp).ok


def test_curriculum_finds_goals_beyond_the_first_radius_without_new_transitions():
    """The first stage tries every pair of a deterministic grid, so the next one must look at known transitions."""
    grid = {"rows": 4, "cols": 4, "slip": 0.0}
    result = adagoal.explore("grid", radius="all", method="intervals", env_args=grid, budget=40_000)
    assert result.status == "certified"
    assert len(result.goals) == 16


def test_known_branching_is_cheaper_and_a_wrong_one_is_reported():
    mdp, L, epsilon = SMALL["sparse"]
    most = int(np.diff(mdp.indptr).max())
    runs = [
        adagoal.explore(ModelSimulator(mdp), L, epsilon, method="intervals", method_args=given)
        for given in ({}, {"branching": most})
    ]
    assert runs[1].steps < runs[0].steps
    assert adagoal.audit(runs[1], mdp).ok
    with pytest.raises(adagoal.InputError, match="branching=1: a pair with more successors"):
        adagoal.explore(ModelSimulator(mdp), L, epsilon, method="intervals", method_args={"branching": 1})


def test_unknown_bound_gives_one_line_error():
    with pytest.raises(
        adagoal.InputError, match="bound must be one of hoeffding, clopper-pearson, weissman, betting, got 'x'"
    ):
        adagoal.explore("chain", 4, method="intervals", method_args={"bound": "x"})


@pytest.mark.parametrize(("radius", "bound"), [(10, "clopper-pearson"), ("auto", "weissman"), (10, "betting")])
def test_resume_equals_uninterrupted_run(radius, bound, tmp_path, monkeypatch):
    """A run resumed from any checkpoint has the same result."""
    arguments = {"method": "intervals", "method_args": {"bound": bound}, "seed": 3, "budget": 12_000}
    whole = adagoal.explore("grid", radius, 1.0, **arguments)
    count = 0

    def crash(run):
        nonlocal count
        count += 1
        if count == 60:
            raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("adagoal.runs.run_folder.save_interval_elapsed", lambda since, cost: True)
        with pytest.raises(SystemExit):
            adagoal.explore("grid", radius, 1.0, **arguments, out=tmp_path, observe=crash)
    again = adagoal.resume(tmp_path)
    assert again.to_dict() | {"wall_seconds": 0} == whole.to_dict() | {"wall_seconds": 0}
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
