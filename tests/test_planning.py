"""The planning seam: another backend gives the same values and keeps the same guarantee."""

import numpy as np
import pytest

from adagoal import goal_rules
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.tabular_policy import Policy
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.exact.audit import audit_policies
from adagoal.exact.solver import to_target_goals
from adagoal.loop import run_exploration
from adagoal.planning.backends import NUMBA_BACKEND
from adagoal.planning.model_arrays import pad_kernel, to_sparse_model
from adagoal.tabular.ucbvi import EPSILON_SHARES, UCBVI, ucbvi_bonuses
from experiments import extra_models
from numpy_backend import NUMPY
from paper_twin import random_counts, random_mdp


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("make", [toy_models.chain_model, toy_models.two_room_grid, extra_models.random_traps])
def test_exact_values(make, reset):
    mdp = make()
    expected = solver.optimal_values(mdp, reset=reset)
    np.testing.assert_allclose(solver.optimal_values(mdp, reset=reset, backend=NUMPY), expected, rtol=1e-9)


@pytest.mark.parametrize("bonus", EPSILON_SHARES)
def test_stages(bonus):
    for seed in range(12):
        mdp, rng = random_mdp(seed), np.random.default_rng(seed)
        S, n = mdp.n_states, random_counts(mdp, rng, 6).astype(float)
        arguments = (
            pad_kernel(to_sparse_model(mdp)),
            ucbvi_bonuses(n, S, S, 15, 0.1, bonus),
            to_target_goals(mdp, None),
            15,
        )
        for ours, theirs in zip(
            NUMBA_BACKEND.finite_horizon(*arguments)[1:], NUMPY.finite_horizon(*arguments)[1:], strict=True
        ):
            np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_the_certified_explorer_keeps_its_promise():
    mdp = toy_models.open_grid_model(rows=3, cols=3, slip=0.1)
    counts, L, epsilon = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start), 4.0, 2.0
    estimates = CertifiedExplorer(counts, mdp.n_states, L, epsilon, 0.1, backend=NUMPY)
    run = ExplorationRun(ModelSimulator(mdp), estimates, goal_rules.adagoal, np.random.default_rng(0))
    assert run_exploration(run, 500_000) == "certified"
    X = [int(g) for g in estimates.goals if estimates.D[estimates.column[g]] <= L]
    policies = {g: Policy(g, estimates.goal_policy(g), mdp.reset_action) for g in X}
    lower, upper = ({g: estimates.distance_bounds(g)[side] for g in X} for side in (0, 1))
    assert audit_policies(mdp, X, policies, L, epsilon, None, lower, upper).ok


def test_a_run_of_the_paper_is_the_same():
    mdp = toy_models.chain_model(n_states=5)
    runs = []
    for backend in (NUMBA_BACKEND, NUMPY):
        counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
        estimates = UCBVI(counts, 4.0, 1.0, 0.1, bonus="simplified", H=20, backend=backend)
        run = ExplorationRun(ModelSimulator(mdp), estimates, goal_rules.adagoal, np.random.default_rng(0))
        run_exploration(run, 1_000)
        runs.append(run.episode_goals)
    assert runs[0] == runs[1]
