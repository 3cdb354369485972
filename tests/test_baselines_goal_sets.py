"""Baselines with goals that are sets of states."""

from pathlib import Path

import numpy as np
import pytest

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from experiments import incremental
from goal_sets import BASELINES, GRID, MODELS, random_sets, second
from model_env import PairEnv


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("kind", ["partition", "overlapping"])
@pytest.mark.parametrize("env", MODELS)
def test_claims_about_sets_are_true(env, kind, method):
    """The answer has all sets within L for policies on incrementally L-reachable states, and none beyond L + epsilon.

    Every policy takes at most L + epsilon steps; those of DisCo are within epsilon of the best such policy.
    """
    mdp, L, epsilon = MODELS[env], 5.0, 1.0
    sets = [list(range(r, mdp.n_states, 3)) for r in range(3)] if kind == "partition" else random_sets(mdp, 1)
    names = {f"set {i}": members for i, members in enumerate(sets)}
    result = adagoal.explore(
        ModelSimulator(mdp), L, epsilon, goals=names, method=method, method_args=BASELINES[method], seed=2, budget=10**7
    )
    assert result.status == "stopped"
    inside = [np.isin(np.arange(mdp.n_states), incremental.incremental_set(mdp, r)) for r in (L, L + epsilon)]
    best, beyond = (solver.optimal_distances(incremental.restricted(mdp, known), sets) for known in inside)
    assert set(np.flatnonzero(best <= L)) <= set(result.goals) <= set(np.flatnonzero(beyond <= L + epsilon))
    verdict = adagoal.audit(result, mdp)
    assert verdict.certificates
    for row in verdict.rows:
        assert not row.in_X or row.value <= L + epsilon
        assert method != "disco" or not row.in_X or best[row.goal] > L or row.value <= best[row.goal] + epsilon
    assert all(trial.agrees for trial in adagoal.play(result, episodes=20, env=ModelSimulator(mdp)))


@pytest.mark.parametrize("method", BASELINES)
def test_set_is_near_although_each_of_its_states_is_far(method, tmp_path, capsys):
    """The middle of the fan is one step away, each of its ten states 19. The run has a report and can be resumed."""
    arguments = {"goals": {"middle": list(range(1, 11)), "first": [1, 2]}, "method": method, "seed": 1}
    arguments |= {"env_args": {"n_middle": 10}, "method_args": BASELINES[method]}
    whole = adagoal.explore("fan", 3.0, **arguments)
    assert [whole.goal_names[g] for g in whole.goals] == ["middle"]  # and the first two are 9 steps away
    assert adagoal.audit(whole).ok
    for part in (3, 9):
        adagoal.explore("fan", 3.0, **arguments, budget=whole.steps * part // 10, out=tmp_path, overwrite=True)
        again = adagoal.resume(tmp_path, budget=10**7)
        assert (again.status, again.steps, again.goals) == ("stopped", whole.steps, whole.goals)
        for name in ("policy", "visits", "episode_goals"):
            np.testing.assert_array_equal(again.arrays[name], whole.arrays[name])
    if method == "disco":
        assert run_command_line(["report", str(tmp_path)]) == 0
    assert run_command_line(["play", str(tmp_path), "--goals", "middle", "--episodes", "5"]) == 0
    for label, says in {
        "midle": "no goal is called 'midle'",
        "first": "'first' is not among the 1 goals of the result",
    }.items():
        capsys.readouterr()
        assert run_command_line(["play", str(tmp_path), "--goals", label]) == 2
        assert capsys.readouterr().err.startswith(f"error: --goals: {says}")


@pytest.mark.parametrize("method", BASELINES)
def test_a_set_has_the_policy_of_its_best_state(method):
    """A set of a far corner and a near cell: the policy is at least as good as that of the cell."""
    arguments = {"env_args": GRID, "method": method, "method_args": BASELINES[method], "epsilon": 2.0}
    result = adagoal.explore("grid", 6.0, goals={"both": [11, 1], "start": [0, 11]}, **arguments)
    rows = {row.label: row for row in adagoal.audit(result).rows}
    assert rows["start"].value == 0.0
    assert rows["both"].value < 2.0


@pytest.mark.parametrize("method", BASELINES)
def test_states_may_belong_to_no_goal(method):
    def right(label):
        return "right" if label.endswith("3)") else None

    arguments = {"env_args": GRID, "method": method, "method_args": BASELINES[method], "epsilon": 2.0}
    result = adagoal.explore("grid", 5.0, goals=right, **arguments)
    assert result.members("right") == [3, 7, 11]
    assert set(result.arrays["episode_goals"]) <= {-1, 0}
    (row,) = adagoal.audit(result).rows
    assert row.in_X
    assert row.value <= row.optimal + 2.0


def test_comparison_with_sets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def row(label):\n    return label[:2]\n")
    line = ["compare", "grid", "--radius", "4", "--epsilon", "2", "--goals", "mine.py:row", "--goal-rules", "adagoal"]
    line += ["--methods", "certified,ucbexplore,disco", "--constants", "scaled=0.001", "--seeds", "1", "--jobs", "1"]
    assert run_command_line([*line, "--out", "c", "--quiet"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| grid ")]
    assert [line.split("|")[-3].strip() for line in rows] == ["1/1"] * 3  # each passes the audit


@pytest.mark.parametrize("goals", [{"far": [2, 3]}, {"far": lambda state: state > 1}])
def test_bpi_takes_one_set_as_goal(goals, tmp_path):
    env, arguments = ModelSimulator(toy_models.chain_model(n_states=4)), {"horizon": 12, "constants": "scaled=0.01"}
    result = adagoal.explore(
        env, 3, goals=goals, method="bpi-ucbvi", method_args=arguments, budget=30_000, out=tmp_path
    )
    assert result.status == "stopped"
    assert result.members("far") == [2, 3]
    (trial,) = adagoal.play(tmp_path, ["far"], episodes=5, env=ModelSimulator(toy_models.chain_model(n_states=4)))
    assert trial.mean == 2.0


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("goals", [None, second, {"even": lambda o: o[1] % 2 == 0, "late": lambda o: o[1] > 2}])
def test_states_are_numbered_as_they_are_found(tmp_path, monkeypatch, method, goals):
    """Arrays start with two states. The answer equals that of the known model, also after a resume."""
    monkeypatch.setattr("adagoal.envs.gym_adapter.INITIAL_STATES", 2)
    mdp, L = toy_models.chain_model(n_states=12, slip=0.1), 4.0
    setting = {"method": method, "method_args": {"constants": "scaled=0.001"}, "seed": 3, "goals": goals}
    whole = adagoal.explore(PairEnv(mdp), L, **setting)
    assert whole.status == "stopped"
    assert len(whole.arrays["visits"]) == 8 > len(whole.view.labels)
    for s in incremental.incremental_set(mdp, L).tolist():
        state = whole.state("start" if s == 0 else f"[0 {s}]")
        holding = {g for g in whole.certificates if state in ([g] if goals is None else whole.members(g))}
        assert holding <= set(whole.goals)
    assert set(whole.certificates) == set(range(len(whole.goal_names or whole.view.labels)))
    for steps in (20, whole.steps // 2):
        adagoal.explore(
            PairEnv(mdp), L, **setting, out=tmp_path, overwrite=True, observe=lambda r, n=steps: r.steps < n
        )
        again = adagoal.resume(tmp_path, env=PairEnv(mdp), goals=goals)
        assert (again.status, again.steps, again.certificates) == ("stopped", whole.steps, whole.certificates)
        for name in ("policy", "policy_goals", "visits", "episode_goals"):
            np.testing.assert_array_equal(again.arrays[name], whole.arrays[name])
    assert all(trial.agrees for trial in adagoal.play(tmp_path, episodes=20, env=PairEnv(mdp)))
