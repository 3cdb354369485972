"""AdaGoal-UCBVI: equal to a reference, Properties 1 and 2, its stop, and the guarantee at the stop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import adagoal
from adagoal import goal_rules, methods
from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact.audit import audit_policies
from adagoal.exact.solver import to_target_goals
from adagoal.loop import run_exploration
from adagoal.planning.model_arrays import to_sparse_model
from adagoal.tabular.ucbvi import EPSILON_SHARES, UCBVI, plan_finite_horizon, planning_horizon, ucbvi_bonuses
from experiments.required_samples import for_ucbvi, pad_kernel
from ucbvi_reference import Floats, random_counts, random_mdp, reference, sampled

UNLIMITED = 2**62


def run_of(
    mdp: TabularMDP, L: float, epsilon: float, seed: int = 0, rule: str = "adagoal", **arguments: object
) -> ExplorationRun:
    env = ModelSimulator(mdp)
    counts = TransitionCounts(env.initial_states, env.n_actions, env.start)
    problem = methods.ExplorationProblem(
        env, counts, L, epsilon, 0.1, GoalSpace.from_states(counts.n_states, env.state_bound)
    )
    estimates = methods.build_estimates("ucbvi", problem, arguments)
    return ExplorationRun(env, estimates, goal_rules.resolve_rule(rule), np.random.default_rng(seed))


def audit_ok(mdp: TabularMDP, estimates: UCBVI) -> bool:
    X = [int(g) for g in estimates.goals[estimates.D <= estimates.L]]
    policies = {g: Policy(g, estimates.goal_policy(g), mdp.reset_action) for g in X}
    lower, upper = ({g: estimates.distance_bounds(g)[i] for g in X} for i in (0, 1))
    return audit_policies(mdp, X, policies, estimates.L, estimates.epsilon, estimates.goals.tolist(), lower, upper).ok


@pytest.mark.parametrize("bonus", EPSILON_SHARES)
def test_planner_equals_reference(bonus: str) -> None:
    for seed in range(10):
        mdp, rng = random_mdp(seed), np.random.default_rng(seed)
        counts = sampled(mdp, random_counts(mdp, rng, 3 if bonus == "simplified" else 9), rng)
        goals = np.sort(rng.choice(mdp.n_states, 4, replace=False)) if seed % 3 == 0 else None
        space = GoalSpace.from_states(mdp.n_states, mdp.n_states, goals)
        estimates = UCBVI(counts, 3.0, 1.0, 0.1, space, bonus, H=12)
        p = counts.empirical_kernel().reshape(mdp.n_states, mdp.n_actions, mdp.n_states)
        n = counts.n.reshape(mdp.n_states, mdp.n_actions).astype(float)
        for g in estimates.goals.tolist():
            D, U, policy = reference(p, n, mdp.terminal, mdp.start, g, len(estimates.goals), 12, bonus)
            j = estimates.column[g]
            assert estimates.D[j] == pytest.approx(D, abs=1e-10)
            assert estimates.U[j] == pytest.approx(U, abs=1e-10)
            np.testing.assert_array_equal(estimates.goal_policy(g), policy)


def test_blocks_of_goals_do_not_change_the_result() -> None:
    """Plan more goals than a block holds, together and one by one."""
    mdp, rng = toy_models.random_sparse(n_states=70, n_actions=2, seed=1), np.random.default_rng(0)
    counts = sampled(mdp, random_counts(mdp, rng, 3), rng)
    together = UCBVI(counts, 3.0, 1.0, 0.1, None, "simplified", H=15)
    for g in (0, 5, 63, 64, 69):
        alone = UCBVI(counts, 3.0, 1.0, 0.1, GoalSpace.from_states(70, 70, np.array([g])), "simplified", H=15)
        assert (alone.D[0], alone.U[0]) == (together.D[g], together.U[g])
        np.testing.assert_array_equal(alone.goal_policy(g), together.goal_policy(g))


def truth(mdp: TabularMDP, H: int, table: NDArray[np.int16]) -> tuple[Floats, Floats]:
    """Return D*_H and the H-step value of the policies ``table`` [H, S, G] from s0, for all states as goals."""
    S, A, goal = mdp.n_states, mdp.n_actions, np.arange(mdp.n_states)
    p = np.concatenate([mdp.kernel().toarray().reshape(S, A, S), np.zeros((S, 1, S))], axis=1)
    p[:, A, mdp.start] = 1.0
    p[mdp.terminal] = p[mdp.terminal][:, [A]]
    best, value = np.zeros((2, S, S))
    for h in range(H - 1, -1, -1):
        best = 1 + np.einsum("sat,tg->sag", p, best).min(axis=1)
        value = 1 + np.take_along_axis(np.einsum("sat,tg->sag", p, value), table[h][:, None].astype(int), 1)[:, 0]
        best[goal, goal] = value[goal, goal] = 0.0
    return best[mdp.start], value[mdp.start]


@pytest.mark.parametrize("bonus", EPSILON_SHARES)
def test_properties_on_the_true_kernel(bonus: str) -> None:
    """D <= D*_H and D*_H - D <= V^pi_H - D <= U <= E on 200 random models with p_hat = p."""
    for seed in range(200):
        mdp, rng, H = random_mdp(seed), np.random.default_rng(seed), 10 + seed % 30
        n = random_counts(mdp, rng, 4 if bonus == "simplified" else 10).astype(float)
        S, targets = mdp.n_states, to_target_goals(mdp, None)
        table, D, U = plan_finite_horizon(
            pad_kernel(to_sparse_model(mdp)), ucbvi_bonuses(n, S, S, H, 0.1, bonus), targets, H
        )
        best, value = truth(mdp, H, table)
        assert (D <= best + 1e-9).all()
        assert (value - D <= U + 1e-9).all()


@pytest.mark.parametrize("bonus", ["literal", "rebalanced"])
def test_properties_on_sampled_data(bonus: str) -> None:
    for seed in range(100):
        mdp, rng, H = random_mdp(seed), np.random.default_rng(seed), 10 + seed % 30
        counts = sampled(mdp, random_counts(mdp, rng, 10), rng)
        estimates = UCBVI(counts, 3.0, 1.0, 0.1, None, bonus, H)
        best, value = truth(mdp, H, estimates.table)
        assert (estimates.D <= best + 1e-9).all()
        assert (value - estimates.D <= estimates.U + 1e-9).all()
        assert (best - estimates.D <= estimates.E).all()


@pytest.mark.parametrize("bonus", ["literal", "rebalanced"])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_guarantee_at_the_stop(bonus: str, epsilon: float) -> None:
    """With as many samples as the rule needs, drawn at random, it stops, and the exact audit holds."""
    for mdp, L in ((toy_models.chain_model(n_states=5, slip=0.1), 3.0), (toy_models.trap_chain(n_states=5), 2.5)):
        per_pair, _ = for_ucbvi(mdp, L, epsilon, 0.1, bonus)
        n = np.full(mdp.n_states * mdp.n_actions, int(2 * per_pair))
        counts = sampled(mdp, n, np.random.default_rng(0))
        estimates = UCBVI(counts, L, epsilon, 0.1, None, bonus)
        assert estimates.guarantee
        assert (
            run_exploration(
                ExplorationRun(ModelSimulator(mdp), estimates, goal_rules.adagoal, np.random.default_rng(0)), 1
            )
            == "certified"
        )
        assert audit_ok(mdp, estimates)
        assert estimates.distance_bounds(1)[1] < math.inf


def test_cost_of_the_printed_constants() -> None:
    """About 7e11 samples of each pair on the 4 x 5 grid; the rebalanced split saves most of a factor of 8."""
    mdp = toy_models.open_grid_model()
    literal, total = for_ucbvi(mdp, 10.0, 0.5, 0.1, "literal")
    rebalanced, _ = for_ucbvi(mdp, 10.0, 0.5, 0.1, "rebalanced")
    assert literal == pytest.approx(7.3e11, rel=0.01)
    assert total == pytest.approx(80 * literal)
    assert rebalanced == pytest.approx(9.3e10, rel=0.01)


def test_horizons() -> None:
    assert planning_horizon(10, 0.5, "literal") == math.ceil(60 * math.log2(240))
    assert planning_horizon(10, 0.5, "rebalanced") == 20 * 13 + 24 * 10
    assert planning_horizon(10, 3.0, "literal") == math.ceil(70 * math.log2(140 / 3))
    counts = TransitionCounts(3, 2, 0)
    assert UCBVI(counts, 2.0, 1.0, 0.1, H=107).guarantee
    assert not UCBVI(counts, 2.0, 1.0, 0.1, H=106).guarantee
    assert not UCBVI(counts, 2.0, 1.0, 0.1, bonus="simplified", H=200).guarantee


def test_initial_values() -> None:
    """The initial values of Algorithm 1: D = 1[g != s0], E = H 1[g != s0] and the share."""
    estimates = UCBVI(
        TransitionCounts(4, 2, 1), 3.0, 1.0, 0.1, GoalSpace.from_states(4, 4, np.array([0, 1, 3])), "rebalanced"
    )
    np.testing.assert_array_equal(estimates.D, [1, 0, 1])
    np.testing.assert_allclose(estimates.E, [estimates.H + 0.1, 0.1, estimates.H + 0.1])
    assert estimates.distance_bounds(0) == (1.0, math.inf)
    assert estimates.distance_bounds(1) == (0.0, 0.1)


def test_stored_values() -> None:
    """Plan on the two-room grid with 100 ideal samples of each pair; the reference agreed with these values."""
    mdp = toy_models.two_room_grid(slip=0.0, eta=0.0)
    counts = sampled(mdp, np.full(mdp.n_states * 4, 100), np.random.default_rng(0))
    estimates = UCBVI(counts, 40.0, 1.0, 0.1, None, "simplified", H=50)
    np.testing.assert_allclose(estimates.D[[0, 1, 7, 30, 51]], GOLDEN_D, atol=1e-9)
    np.testing.assert_allclose(estimates.U[[0, 1, 7, 30, 51]], GOLDEN_U, atol=1e-9)


GOLDEN_D = [0.0, 1.0, 3.55, 8.6, 32.36]
GOLDEN_U = [0.0, 1.2, 7.98, 17.68, 35.5]


@pytest.mark.parametrize("lazy", [False, True])
def test_same_seed_gives_same_run_and_resume_equals_uninterrupted_run(lazy: bool) -> None:
    mdp = toy_models.open_grid_model(rows=3, cols=3)
    whole, again, first = (run_of(mdp, 5.0, 0.5, 7, bonus="simplified", horizon=20, lazy=lazy) for _ in range(3))
    for run in (whole, again):
        assert run_exploration(run, 1500) == "budget"

    def stop_after_700(run: ExplorationRun) -> None:
        if run.steps >= 700:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_exploration(first, 1500, stop_after_700)
    second = run_of(mdp, 5.0, 0.5, 99, bonus="simplified", horizon=20, lazy=lazy)
    second.counts.restore({k: v.copy() for k, v in first.counts.state().items()})
    arrays, facts = first.estimates.state()
    second.estimates.restore({k: v.copy() for k, v in arrays.items()}, facts)
    second.env.restore(*first.env.state())
    second.rng.bit_generator.state = first.rng.bit_generator.state
    second.steps, second.episode_goals = first.steps, list(first.episode_goals)
    run_exploration(second, 1500)
    for other in (again, second):
        assert other.episode_goals == whole.episode_goals
        assert other.estimates.plans == whole.estimates.plans
        np.testing.assert_array_equal(other.counts.count, whole.counts.count)
        np.testing.assert_array_equal(other.estimates.D, whole.estimates.D)
        np.testing.assert_array_equal(other.estimates.goal_policy(8), whole.estimates.goal_policy(8))
    assert (whole.estimates.plans < 300) if lazy else (whole.estimates.plans - len(whole.episode_goals) in (0, 1))


@pytest.mark.parametrize("rule", ["adagoal", "unigoal", "raregoal"])
def test_simplified_stops_by_its_rule(rule: str) -> None:
    mdp = TabularMDP.from_dense(np.eye(3)[np.array([[1, 0], [2, 0], [2, 0]])])
    run = run_of(mdp, 2.0, 1.0, rule=rule, bonus="simplified", horizon=10)
    assert run_exploration(run, UNLIMITED) == "stopped"
    assert audit_ok(mdp, run.estimates)  # type: ignore[arg-type]


@pytest.mark.slow
def test_literal_constants_reach_their_own_stop() -> None:
    """The algorithm as printed, planned lazily (when some count has doubled): about 4e8 steps for three states."""
    mdp = toy_models.chain_model(n_states=3)
    run = run_of(mdp, 1.0, 1.0, bonus="literal", lazy=True)

    def forget(run: ExplorationRun) -> None:
        """Some 1e8 episodes: their history is not kept."""
        run.episode_goals.clear()
        run.episode_reached.clear()

    assert run_exploration(run, UNLIMITED, forget) == "certified"
    assert run.estimates.guarantee
    assert audit_ok(mdp, run.estimates)  # type: ignore[arg-type]


def test_bad_arguments_give_one_line_error() -> None:
    for arguments in ({"bonus": "none"}, {"horizon": 0}, {"horizon": 2.5}):
        with pytest.raises(InputError, match=f"method_args: {next(iter(arguments))}"):
            run_of(toy_models.chain_model(n_states=3), 2.0, 1.0, **arguments)
    with pytest.raises(InputError, match="GiB"):
        run_of(toy_models.chain_model(n_states=3000), 40.0, 1.0)
    with pytest.raises(InputError, match="GiB"):
        adagoal.explore("chain", 3, method="bpi-ucbvi", goals=[2], method_args={"horizon": 10**9})
    env = ModelSimulator(toy_models.chain_model(n_states=3))
    env.state_bound = 10
    with pytest.raises(InputError, match="known number of states"):
        methods.build_estimates(
            "ucbvi",
            methods.ExplorationProblem(env, TransitionCounts(3, 2, 0), 2.0, 1.0, 0.1, GoalSpace.from_states(3, 3)),
            {},
        )
