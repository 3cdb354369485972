"""Goals that are sets of states: exact values, certificates on random models, states numbered as found."""

from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.core.goal_space import GoalSpace, memberships_from_sets
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.methods import METHODS
from experiments import exact_policies
from goal_sets import GRID, MODELS, SCALES, random_sets, second
from model_env import ModelEnv, PairEnv


def slow_values(mdp, members):
    """Return V* [S] to a set and its greedy policy, by value iteration from below."""
    V, inside = np.zeros(mdp.n_states), np.isin(np.arange(mdp.n_states), list(members))
    P = mdp.kernel().toarray()
    for _ in range(4000):
        Q = 1.0 + (P @ V).reshape(mdp.n_states, mdp.n_actions)
        Q[mdp.terminal] = np.inf
        Q = np.column_stack([Q, np.full(mdp.n_states, 1.0 + V[mdp.start])])
        V = np.where(inside, 0.0, np.minimum(Q.min(axis=1), 1e3))
    return V, Q.argmin(axis=1).astype(np.int16)


@pytest.mark.parametrize("env", MODELS)
def test_exact_values_of_sets_equal_value_iteration(env):
    mdp = MODELS[env]
    sets = random_sets(mdp, 5)
    V = exact_policies.optimal_values(mdp, sets)
    for j, members in enumerate(sets):
        slow, policy = slow_values(mdp, members)
        finite = np.isfinite(V[:, j])
        np.testing.assert_allclose(V[finite, j], slow[finite], rtol=1e-8, atol=1e-8)
        assert (slow[~finite] > 100).all()
        assert solver.optimal_distances(mdp, [members], within=6.0)[0] == pytest.approx(
            V[mdp.start, j] if V[mdp.start, j] <= 6 else np.inf
        )
        if finite[mdp.start]:
            value = solver.policy_value(mdp, Policy(0, policy[None], mdp.reset_action), members)
            assert value == pytest.approx(slow[mdp.start], abs=1e-8)
            many = np.repeat(policy[None], 400, axis=0)  # 400 stages suffice almost surely
            assert solver.periodic_value(mdp, many, members) == pytest.approx(slow[mdp.start], abs=1e-2)
    assert np.isinf(solver.optimal_distances(mdp, [[]])).all()


def test_places_of_overlapping_sets():
    at = memberships_from_sets([[3], [0, 3], [], [3, 1]], 5)
    assert at.tolist() == [[1, -1, -1], [3, -1, -1], [-1, -1, -1], [0, 1, 3], [-1, -1, -1]]


@pytest.mark.parametrize("env", MODELS)
@pytest.mark.parametrize("kind", ["partition", "overlapping"])
def test_certificates_for_sets_hold(env, kind):
    """Every bound during the run, and the answer, agree with the exact model."""
    mdp = MODELS[env]
    sets = [list(range(r, mdp.n_states, 3)) for r in range(3)] if kind == "partition" else random_sets(mdp, 1)
    names = {f"set {i}": members for i, members in enumerate(sets)}
    truth = solver.optimal_distances(mdp, sets)

    def check(running: Any) -> None:
        estimates = running.estimates
        for j in range(1, len(estimates.D)):
            goal = int(estimates.goal_state[j])
            assert estimates.D[j] <= truth[goal] + 1e-9
            if np.isfinite(estimates.upper[j]):
                value = solver.policy_values(mdp, estimates.returned[:, j], sets[goal])[mdp.start]
                assert value <= estimates.upper[j] + 1e-9
                assert value - truth[goal] <= estimates.gap[j] + 1e-9

    result = adagoal.explore(ModelSimulator(mdp), 6.0, 2.0, goals=names, seed=2, observe=check)
    assert result.status == "certified"
    verdict = adagoal.audit(result, mdp)
    assert verdict.ok, verdict.failures
    assert {row.label for row in verdict.rows} == set(names)
    assert all(trial.agrees for trial in adagoal.play(result, episodes=200, env=ModelSimulator(mdp)))


@pytest.mark.parametrize("method", ["certified", *SCALES])
@pytest.mark.parametrize("budget", [100_000, 1_000])
def test_sets_of_one_state_equal_single_states(method, budget):
    P, arguments = MODELS["sparse"], {} if method == "certified" else {"constants": f"scaled={SCALES[method]}"}
    rest = {"seed": 4, "method": method, "method_args": arguments, "budget": budget}
    states = adagoal.explore(ModelSimulator(P), 6.0, 1.0, **rest)
    values = adagoal.explore(ModelSimulator(P), 6.0, 1.0, **rest, goals=lambda state: state)
    assert values.goal_names == tuple(map(str, range(8)))
    assert (values.certificates, values.steps, values.plans) == (states.certificates, states.steps, states.plans)
    for name in ("policy", "policy_goals", "episode_goals", "visits"):
        np.testing.assert_array_equal(values.arrays[name], states.arrays[name])


@pytest.mark.parametrize(
    ("method", "arguments", "env"),
    [
        ("ucbvi", {"bonus": "simplified", "horizon": 40}, "grid"),
        ("bayes", {}, "grid"),
        ("gosprl", {"constants": "scaled=0.001"}, "grid"),
        ("ucbexplore", {"constants": "scaled=0.001"}, "grid"),
        ("disco", {"constants": "scaled=0.001"}, "grid"),
        ("valae", {"constants": "scaled=0.00001"}, "grid"),
        ("lae", {"constants": "scaled=0.001"}, "grid"),
        ("intervals", {}, "grid"),
        ("likelihood", {}, "mixture-windy"),
        ("vtr-pooled", {}, "mixture-windy"),
        ("vtr", {"horizon": 10}, "mixture-windy"),
    ],
)
def test_methods_with_sets_make_true_claims(method, arguments, env):
    """Goals are rows of the grid. Proven claims are true, and every policy reaches its goal."""
    env_args = GRID if env == "grid" else {"shape": "4x4"}
    result = adagoal.explore(
        *(env, 5.0, 2.0), goals=lambda label: label[:2], env_args=env_args, method=method, method_args=arguments,
        budget=20_000,
    )  # fmt: skip
    assert result.goal_names is not None
    assert len(result.goals) >= 2
    verdict = adagoal.audit(result)
    assert verdict.certificates
    assert all(np.isfinite(row.value) for row in verdict.rows if row.in_X and row.optimal == 0.0)


def test_list_above_has_every_method():
    """The remaining methods have their own tests."""
    (mark,) = [mark for mark in test_methods_with_sets_make_true_claims.pytestmark if mark.name == "parametrize"]
    assert {case[0] for case in mark.args[1]} | {"certified", "bpi-ucbvi"} == set(METHODS)


# --- states numbered as found ---


def test_new_states_join_their_goals(tmp_path):
    """PairEnv shows state s as (s // 7, s % 7); goals are second entries, so new states join known goals."""
    mdp = toy_models.chain_model(n_states=12, slip=0.1)
    result = adagoal.explore(PairEnv(mdp), 8.0, 3.0, goals=second, max_states=20, seed=1, out=tmp_path / "run")
    assert result.status == "certified"
    truth = solver.optimal_distances(mdp, [[s for s in range(12) if s % 7 == r] for r in range(7)])
    for goal in result.certificates:
        lower, upper = result.certificates[goal]
        assert lower <= truth[int(result.goal_names[goal])] + 1e-9
        assert upper >= truth[int(result.goal_names[goal])] - 1e-9
    loaded = adagoal.load(tmp_path / "run")
    assert loaded.goal_names == result.goal_names
    assert [loaded.members(g) for g in loaded.goals] == [result.members(g) for g in result.goals]
    assert all(trial.agrees for trial in adagoal.play(tmp_path / "run", episodes=50, env=PairEnv(mdp)))


@pytest.mark.parametrize("goals", [second, {"even": lambda o: o[1] % 2 == 0, "late": lambda o: o[1] > 4}, "keys:1"])
def test_resume_equals_uninterrupted_run(tmp_path, goals):
    mdp = toy_models.chain_model(n_states=12, slip=0.1)
    setting = {"radius": 8.0, "max_states": 20, "seed": 3, "budget": 2_000}
    whole = adagoal.explore(PairEnv(mdp), goals=goals, **setting)
    rollouts = iter(range(10**6))
    adagoal.explore(PairEnv(mdp), goals=goals, **setting, out=tmp_path, observe=lambda running: next(rollouts) < 30)
    again = adagoal.resume(tmp_path, env=PairEnv(mdp), goals=None if isinstance(goals, str) else goals)
    assert (again.certificates, again.steps, again.goal_names) == (whole.certificates, whole.steps, whole.goal_names)


def test_run_cannot_be_resumed_with_other_goals(tmp_path):
    mdp = toy_models.chain_model(n_states=6)
    adagoal.explore(ModelEnv(mdp), 4.0, goals=lambda state: state % 2, budget=50, out=tmp_path)
    with pytest.raises(
        InputError, match="goals of the run are functions of the program that started it; give them again"
    ):
        adagoal.resume(tmp_path, env=ModelEnv(mdp))
    with pytest.raises(InputError, match="not the goals of the run: they have other states"):
        adagoal.resume(tmp_path, env=ModelEnv(mdp), goals=lambda state: state % 3)
    with pytest.raises(InputError, match="must be the goals of the run"):
        adagoal.resume(tmp_path, env=ModelEnv(mdp), goals=[1, 2])
    assert adagoal.resume(tmp_path, 10_000, env=ModelEnv(mdp), goals=lambda state: state % 2).status == "certified"


def test_goal_space_is_restored_from_its_checkpoint():
    class Sort:
        names, discovers_goals = ("a", "b"), False

        def __call__(self, state: int, observation: Any, label: str) -> list[str]:
            return ["a", "b"][: state % 3]

    space = GoalSpace.from_labeler(Sort(), 4, 4)
    for state in range(4):
        space.add_state(state, None, "")
    arrays, names = space.state()
    other = GoalSpace.from_labeler(Sort(), 4, 4)
    other.restore(arrays, names)
    np.testing.assert_array_equal(other.goals_of_states, space.goals_of_states)
    assert other.visits_of_goals(np.array([1, 2, 3, 4]), other.goal_numbers).tolist() == [2 + 3, 3]
    assert other.contains_state(2, other.goal_numbers).tolist() == [True, True]
    for broken, said in (({"at": arrays["at"] + 1}, "one name each"), ({"at": arrays["at"].astype(float)}, "type")):
        with pytest.raises(ValueError, match=said):
            other.restore(broken, names)
    with pytest.raises(ValueError, match="the checkpoint stores goals as single states, this run uses sets"):
        other.restore(arrays, None)
