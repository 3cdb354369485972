"""Compiled planners equal their NumPy references, and runs with the references keep the guarantee."""

import numpy as np
import pytest

import numpy_planners
from adagoal import goal_rules
from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.core.environment import Policy
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.exact.audit import audit_policies
from adagoal.exact.solver import to_target_goals
from adagoal.loop import run_exploration
from adagoal.planning.model_arrays import to_sparse_model
from adagoal.tabular import ucbvi
from adagoal.tabular.ucbvi import EPSILON_SHARES, UCBVI, plan_finite_horizon, ucbvi_bonuses
from experiments import exact_policies, extra_models
from experiments.required_samples import pad_kernel
from ucbvi_reference import random_counts, random_mdp


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("make", [toy_models.chain_model, toy_models.two_room_grid, extra_models.random_traps])
def test_exact_values_equal_numpy_reference(monkeypatch, make, reset):
    mdp = make()
    expected = exact_policies.optimal_values(mdp, reset=reset)
    monkeypatch.setattr(solver, "run_value_iteration", numpy_planners.exact)
    np.testing.assert_allclose(exact_policies.optimal_values(mdp, reset=reset), expected, rtol=1e-9)


@pytest.mark.parametrize("bonus", EPSILON_SHARES)
def test_finite_horizon_equals_numpy_reference(bonus):
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
            plan_finite_horizon(*arguments)[1:], numpy_planners.stages(*arguments)[1:], strict=True
        ):
            np.testing.assert_allclose(ours, theirs, atol=1e-9)


class NumpySets(ConfidenceSets):
    """The same bounds, computed by the NumPy references."""

    improve_lower, improve_upper = staticmethod(numpy_planners.lower), staticmethod(numpy_planners.upper)


class HoeffdingSets(ConfidenceSets):
    """Other confidence bounds: Hoeffding for one fixed function, and an L1 ball for all functions.

    With probability 1 - delta/4 each, for all n (weights 1/(n (n + 1))) and numbers o of successors likewise,
    p f >= p_hat f - C h, and p f <= p_hat f + (max f) l, where l is half the L1 radius. What is left of delta is for
    the events of the base class, which local backups and action gaps rest on.
    """

    def __init__(self, counts, *, states, pairs, goals, delta, **rest):
        super().__init__(counts, states=states, pairs=pairs, goals=goals, delta=delta / 2, **rest)
        self._fixed_log, self._ball_log = np.log([4 * states * goals / delta, 4 * pairs / delta])
        self.h, self.l = np.ones((2, len(counts.n)))

    def compute_radii(self, pairs, threads):
        super().compute_radii(pairs, threads)
        n, o = self.counts.n[pairs], self.counts.support[pairs].astype(float)
        since = np.maximum(n - self.counts.settled[pairs], 1)
        ball = o * np.log(2) + self._ball_log + np.log(since * (since + 1.0)) + np.log(o * (o + 1))
        self.h[pairs] = np.sqrt((self._fixed_log + np.log(n * (n + 1.0))) / (2 * n))
        self.l[pairs] = np.sqrt(ball / (2 * since))

    def improve_lower(self, model, block, V, policy):
        return numpy_planners.lower(model, block, V, policy, lambda mean: mean - block.cap * self.h[:, None])

    def improve_upper(self, model, block, Y, policy):
        return numpy_planners.upper(model, block, Y, policy, lambda mean, most: mean + most * self.l[:, None])


@pytest.mark.parametrize("sets", [ConfidenceSets, NumpySets, HoeffdingSets])
def test_explorer_works_with_other_confidence_sets(sets):
    """The guarantee holds with any class that has ``compute_radii``, ``improve_lower`` and ``improve_upper``."""
    mdp = toy_models.open_grid_model(rows=3, cols=3, slip=0.1)
    counts, L, epsilon = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start), 4.0, 2.0
    estimates = CertifiedExplorer(counts, mdp.n_states, L, epsilon, 0.1, confidence=sets)
    run = ExplorationRun(ModelSimulator(mdp), estimates, goal_rules.adagoal, np.random.default_rng(0))
    assert run_exploration(run, 500_000) == "certified"
    X = [int(g) for g in estimates.goals if estimates.D[estimates.column[g]] <= L]
    policies = {g: Policy(g, estimates.goal_policy(g), mdp.reset_action) for g in X}
    lower, upper = ({g: estimates.distance_bounds(g)[side] for g in X} for side in (0, 1))
    assert audit_policies(mdp, X, policies, L, epsilon, None, lower, upper).ok


def test_ucbvi_run_is_the_same_with_numpy_planner(monkeypatch):
    mdp = toy_models.chain_model(n_states=5)
    runs = []
    for planner in (plan_finite_horizon, numpy_planners.stages):
        monkeypatch.setattr(ucbvi, "plan_finite_horizon", planner)
        counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
        estimates = UCBVI(counts, 4.0, 1.0, 0.1, bonus="simplified", H=20)
        run = ExplorationRun(ModelSimulator(mdp), estimates, goal_rules.adagoal, np.random.default_rng(0))
        run_exploration(run, 1_000)
        runs.append(run.episode_goals)
    assert runs[0] == runs[1]
