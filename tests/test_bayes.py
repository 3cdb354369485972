"""Bayesian estimates: distribution of the posterior draws, values against the exact solver, runs and resume."""

from __future__ import annotations

import numpy as np
import pytest

from adagoal import goal_rules, methods
from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.goal_space import GoalSpace
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.exact.audit import audit_policies
from adagoal.loop import run_exploration
from adagoal.runs.exploration_session import ExplorationSession
from adagoal.tabular.bayes import BayesianEstimates
from experiments import extra_models
from transition_recording import record_transition


def run_of(mdp: TabularMDP, L: float, epsilon: float, seed: int = 0) -> ExplorationRun:
    env = ModelSimulator(mdp)
    counts = TransitionCounts(env.initial_states, env.n_actions, env.start)
    space = GoalSpace.from_states(counts.n_states, env.state_bound)
    estimates = methods.build_estimates(
        "bayes", methods.ExplorationProblem(env, counts, L, epsilon, 0.1, space, seed=seed), {}
    )
    return ExplorationRun(env, estimates, goal_rules.adagoal, np.random.default_rng(seed))


def ideal_counts(mdp: TabularMDP, n: int) -> TransitionCounts:
    """Return counts of n transitions of every pair, in proportion to the true kernel."""
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
    for s in range(mdp.n_states):
        for a in range(mdp.n_actions):
            for successor, p in zip(*mdp.row(s, a), strict=True):
                record_transition(counts, s, a, int(successor))
                x = s * mdp.n_actions + a
                counts.count[x, counts.support[x] - 1] = max(round(n * p), 1)
            counts.n[x] = counts.count[x].sum()
    counts.seen[:] = True
    counts.terminal |= mdp.terminal
    return counts


def test_draws_are_distributions_with_the_right_mean() -> None:
    counts = TransitionCounts(8, 1, 0)
    for successor in (1, 1, 1, 2):
        record_transition(counts, 0, 0, successor)
    means = []
    for plan in range(200):
        estimates = BayesianEstimates(counts, 5.0, 1.0)
        estimates.plans = plan
        estimates._draw_posterior_rows(np.arange(8))
        np.testing.assert_allclose(estimates.p.sum(axis=2), 1.0)
        dense = np.zeros((BayesianEstimates.n_members, 8))
        for k, successor in enumerate((1, 2)):
            dense[:, successor] += estimates.p[: BayesianEstimates.n_members, 0, k]
        dense[np.arange(BayesianEstimates.n_members), estimates.atom[: BayesianEstimates.n_members, 0]] += estimates.p[
            : BayesianEstimates.n_members, 0, -1
        ]
        means.append(dense.mean(axis=0))
        assert not np.isin(estimates.atom[: BayesianEstimates.n_members, 0], (1, 2)).any()
    expected = (np.array([0, 3, 1, 0, 0, 0, 0, 0]) + 1 / 8) / 5
    np.testing.assert_allclose(np.mean(means, axis=0), expected, atol=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_values_converge_to_the_truth(seed: int) -> None:
    mdp = extra_models.random_traps(n_states=12, n_actions=2, seed=seed)
    estimates = BayesianEstimates(ideal_counts(mdp, 10**7), 30.0, 1.0)
    while estimates.refresh_columns(np.ones(12, bool)):
        pass
    truth = solver.optimal_distances(mdp)
    inside = truth <= 30
    np.testing.assert_allclose(estimates.D[inside], truth[inside], rtol=0.02, atol=0.05)
    assert (estimates.E[inside] < 0.5).all()
    for g in np.flatnonzero(inside).tolist():
        value = solver.policy_values(mdp, estimates.goal_policy(g)[0], g)[mdp.start]
        assert value == pytest.approx(truth[g], rel=0.01)


def test_unseen_goal_has_no_estimate() -> None:
    estimates = BayesianEstimates(TransitionCounts(6, 2, 0), 5.0, 3.0)
    estimates.refresh_columns(np.ones(6, bool))
    assert (estimates.E[1:] > estimates.epsilon).all()
    assert estimates.E[0] == 0.0
    assert estimates.distance_bounds(3)[1] == np.inf


def test_bayes_finds_the_goals_of_a_grid() -> None:
    mdp = toy_models.open_grid_model()
    run = run_of(mdp, 10.0, 1.0)
    estimates = run.estimates
    assert run_exploration(run, 100_000) == "stopped"
    assert not estimates.guarantee
    X = [int(g) for g in estimates.goals[estimates.D <= estimates.L]]
    policies = {g: Policy(g, estimates.goal_policy(g), mdp.reset_action) for g in X}
    audit = audit_policies(mdp, X, policies, 10.0, 1.0)
    assert audit.c1
    assert audit.c2


def test_same_seed_gives_same_run_and_resume_equals_uninterrupted_run() -> None:
    mdp = toy_models.open_grid_model(rows=3, cols=3)
    whole, again, first, second = (run_of(mdp, 6.0, 0.02, 3) for _ in range(4))
    for run in (whole, again):
        assert run_exploration(run, 4000) == "budget"

    def stop_after_1000(run: ExplorationRun) -> None:
        if run.steps >= 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_exploration(first, 4000, stop_after_1000)
    second.counts.restore({k: v.copy() for k, v in first.counts.state().items()})
    arrays, facts = first.estimates.state()
    with pytest.raises(ValueError, match="upper is larger than"):
        second.estimates.restore({**arrays, "upper": arrays["upper"] + 1e308}, facts)
    second.estimates.restore({k: v.copy() for k, v in arrays.items()}, facts)
    second.env.restore(*first.env.state())
    second.rng.bit_generator.state = first.rng.bit_generator.state
    second.steps, second.episode_goals = first.steps, list(first.episode_goals)
    run_exploration(second, 4000)
    for other in (again, second):
        assert other.episode_goals == whole.episode_goals
        np.testing.assert_array_equal(other.estimates.D, whole.estimates.D)
        np.testing.assert_array_equal(other.estimates.goal_policy(8), whole.estimates.goal_policy(8))


def test_the_seed_decides_the_posterior_draws() -> None:
    drawn = []
    for seed in (0, 0, 1):
        setting = ExplorationSettings("grid", method="bayes", radius=6.0, seed=seed)
        estimates = ExplorationSession.from_settings(
            setting, ModelSimulator(toy_models.open_grid_model()), goal_rules.adagoal
        ).run.estimates
        estimates.refresh_columns(np.ones(len(estimates.goals), bool))
        drawn.append(estimates.atom)
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0][: BayesianEstimates.n_members] != drawn[2][: BayesianEstimates.n_members]).any()


def test_needs_a_known_number_of_states() -> None:
    env = ModelSimulator(toy_models.chain_model(n_states=3))
    env.state_bound = 10
    with pytest.raises(InputError, match="known number of states"):
        methods.build_estimates(
            "bayes",
            methods.ExplorationProblem(env, TransitionCounts(3, 2, 0), 2.0, 1.0, 0.1, GoalSpace.from_states(3, 3)),
            {},
        )
