"""Large models, whose states are numbered as they are found, give the answers of small ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import adagoal
from adagoal.comparison import method_comparison
from adagoal.core.transition_data import TransitionCounts, TransitionLog
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.runs.result import find_model_states, numbers_states_as_met
from model_env import play, same_counts


def lattice(side: int, slip: float = 0.1) -> TabularMDP:
    """Return a torus of side x side states with four moves that fail with probability ``slip``."""
    s = np.arange(side * side)
    row, column, matrices = s // side, s % side, []
    for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        target = (row + down) % side * side + (column + right) % side
        data = np.repeat([1 - slip, slip], len(s)), (np.tile(s, 2), np.concatenate([target, s]))
        matrices.append(sparse.csr_matrix(data, shape=(len(s), len(s))))
    return TabularMDP.from_sparse(matrices, start=len(s) // 2)


def odd_model(seed: int) -> TabularMDP:
    """Return a model of 40 states, some terminal, with absent actions, names and a set."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(40, 0.05), size=(40, 3))
    mask = rng.random((40, 3)) < 0.8
    mask[:, 0] = True
    names = [f"place {s}" for s in range(40)]
    facts: dict[str, Any] = {"start": 7, "terminal": [3, 20], "labels": names, "sets": {"some": [1, 2, 7]}}
    return TabularMDP.from_dense(P, action_mask=mask, actions=("a", "b", "c"), **facts)


@pytest.fixture
def all_models_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelSimulator.number_states_if_large, "__defaults__", (2,))


def numbered(mdp: TabularMDP) -> ModelSimulator:
    env = ModelSimulator(mdp)
    env.number_states_if_large()
    return env


@pytest.mark.usefixtures("all_models_large")
@pytest.mark.parametrize("seed", range(3))
def test_states_numbered_as_found_have_the_transitions_of_the_model(seed: int) -> None:
    mdp = odd_model(seed)
    env = numbered(mdp)
    counts, _ = play(env, 30_000, goals=[NEVER_MET])
    states = env.model_states
    assert env.start == 0
    assert states[0] == mdp.start
    assert len(set(states)) == len(states) == counts.seen.sum()
    kernel, A = mdp.kernel().toarray(), mdp.n_actions
    for number, state in enumerate(states):
        assert counts.terminal[number] == mdp.terminal[state]
        for action in range(A):
            x, pair = number * A + action, state * A + action
            assert counts.absent[x] == mdp.absent[pair]
            possible = set(np.flatnonzero(kernel[pair]))
            assert {states[t] for t in counts.successor[x, : counts.support[x]]} <= possible
            if counts.n[x] > 2000:
                share = counts.count[x, 0] / counts.n[x]
                assert share == pytest.approx(kernel[pair, states[counts.successor[x, 0]]], abs=0.05)


NEVER_MET = 10**6


@pytest.mark.usefixtures("all_models_large")
@pytest.mark.parametrize("seed", range(3))
def test_python_loop_gives_the_same_counts(seed: int) -> None:
    mdp = odd_model(seed)
    compiled, recorded = numbered(mdp), numbered(mdp)
    one, episodes = play(compiled, 3000, seed)
    log = TransitionCounts(recorded.initial_states, 3, recorded.start)
    log.transition_log = TransitionLog(3)
    two, again = play(recorded, 3000, seed, counts=log)
    two.grow_successors(one.successor.shape[1])
    one.grow_successors(two.successor.shape[1])
    assert np.array_equal(compiled.model_states, recorded.model_states)
    assert episodes == again
    assert same_counts(one, two)


@pytest.mark.usefixtures("all_models_large")
@pytest.mark.parametrize("mdp", [odd_model(0), odd_model(1), toy_models.two_room_grid(), lattice(9)])
def test_certificates_hold_and_keep_the_names_of_the_model(mdp: TabularMDP) -> None:
    result = adagoal.explore(mdp, 5, 2.0, budget=400_000)
    assert numbers_states_as_met(result)
    assert adagoal.audit(result, mdp).ok
    states = find_model_states(result, mdp.n_states)
    assert [result.label(g) for g in range(len(states))] == [mdp.labels[s] if mdp.labels else str(s) for s in states]
    policy = result.policy(result.goals[-1])
    assert policy.act(int(states[result.goals[0]])) == policy(result.goals[0])
    if mdp.layout is not None:
        assert result.view.layout is not None
        assert np.array_equal(result.view.layout.cells[: len(states)], np.asarray(mdp.layout.cells)[states])


def test_audit_reports_a_wrong_policy_of_a_large_model() -> None:
    """Control of the test above: a policy that never reaches its goal."""
    mdp = lattice(72)
    result = adagoal.explore(mdp, 1.5, 1.0, budget=100_000)
    assert adagoal.audit(result, mdp).ok
    result.arrays["policy"][1] = result.reset_action
    assert not adagoal.audit(result, mdp).ok


@pytest.mark.usefixtures("all_models_large")
def test_resume_equals_uninterrupted_run(tmp_path: Path) -> None:
    mdp = odd_model(2)
    whole = adagoal.explore(mdp, 4, 1.0, budget=20_000, out=tmp_path / "whole")
    adagoal.explore(mdp, 4, 1.0, budget=20_000, out=tmp_path / "cut", observe=lambda run: run.steps < 3000)
    resumed = adagoal.resume(tmp_path / "cut")
    assert resumed.steps == whole.steps > 3000
    for name, array in whole.arrays.items():
        assert np.array_equal(array, resumed.arrays[name]), name
    assert adagoal.load(tmp_path / "cut").goals == whole.goals
    assert all(trial.agrees for trial in adagoal.play(tmp_path / "cut", episodes=20))
    assert all(trial.agrees for trial in adagoal.play(whole, episodes=20)), "it uses its folder"
    text = adagoal.export(tmp_path / "whole", "drn")[0].read_text()
    assert "init" in text
    assert any(line.startswith("state") and "some" in line for line in text.splitlines())
    assert "action b" in text


@pytest.mark.usefixtures("all_models_large")
@pytest.mark.parametrize("budget", [60, 100, 130, 150, 200, 300, 400])
def test_map_has_a_cell_for_every_state_of_a_checkpoint(budget: int, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"env_args": {"rows": 20, "cols": 20, "slip": 0.0}, "out": tmp_path}
    adagoal.explore("grid", 12, 1.0, budget=budget, **arguments)
    adagoal.resume(tmp_path)
    result = adagoal.load(tmp_path)
    assert result.view.layout is not None
    assert len(result.view.layout.cells) >= result.n_states


@pytest.mark.usefixtures("all_models_large")
def test_recording_does_not_change_the_run(tmp_path: Path) -> None:
    mdp = odd_model(3)
    plain = adagoal.explore(mdp, 4, 1.0, budget=3000)
    recorded = adagoal.explore(mdp, 4, 1.0, budget=3000, out=tmp_path, record=True)
    assert np.array_equal(plain.arrays["visits"], recorded.arrays["visits"])
    assert plain.certificates == recorded.certificates


@pytest.mark.usefixtures("all_models_large")
@pytest.mark.parametrize("states", [[7, 7], [3], [7, 40], [7, -1], []])
def test_forged_numbers_are_refused(states: list[int]) -> None:
    env = numbered(odd_model(0))
    arrays, facts = env.state()
    assert arrays["states_met"].tolist() == [7]
    with pytest.raises(ValueError, match=r"states_met|states met"):
        env.restore({"states_met": np.array(states, np.int64)}, facts)


@pytest.mark.usefixtures("all_models_large")
def test_comparison_audits_with_the_state_numbers_of_the_model() -> None:
    (setting,) = method_comparison.build_settings({"two-room": {"radius": 8.0}}, ["certified"], ["adagoal"], 1)
    outcome = method_comparison.measure_audited_run(setting)
    assert outcome["final"]["ok"]
    assert outcome["audit_stop"] is not None


def test_only_large_models_without_given_goals_are_numbered_as_found() -> None:
    mdp = lattice(72)
    chosen = adagoal.explore(mdp, 2, 1.0, goals=[mdp.start + 1], budget=2000)
    assert chosen.goals == [mdp.start + 1]
    assert not numbers_states_as_met(chosen)
    assert not numbers_states_as_met(adagoal.explore("grid", 3, budget=100))
    assert numbers_states_as_met(adagoal.explore(mdp, 1, 1.0, budget=100))


def test_tables_grow_with_visited_states() -> None:
    """With a hundred times as many states, the run visits about as many, and only these have rows."""
    small, large = (adagoal.explore(lattice(side), 2, 1.0) for side in (72, 720))
    assert small.status == large.status == "certified"
    assert max(len(result.arrays["visits"]) for result in (small, large)) <= 2048
    assert large.plans < 2 * small.plans
