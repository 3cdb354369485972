"""Action masks: masked actions are never played or counted, and certificates hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import adagoal
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import registry, toy_models
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from experiments import exact_policies, extra_models
from model_env import ModelEnv, PairEnv, play


def masked(seed: int = 0, n_states: int = 8, n_actions: int = 3, make: Any = toy_models.random_sparse) -> TabularMDP:
    """Return a random model in which every state lacks some actions."""
    whole = make(n_states=n_states, n_actions=n_actions, seed=seed)
    mask = np.random.default_rng(seed).random((n_states, n_actions)) < 0.6
    mask[:, 0] = True
    P = whole.kernel().toarray().reshape(n_states, n_actions, n_states)
    P[~mask] = np.nan  # must never be read
    return TabularMDP.from_dense(P, action_mask=mask)


class MaskedEnv(ModelEnv):
    """Raises if a masked action is played."""

    def mask(self) -> Any:
        A = self.mdp.n_actions
        return ~self.mdp.absent[self.state * A : (self.state + 1) * A]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": self.mask().astype(np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask()[action]:
            raise RuntimeError("an action that is not there")
        return *super().step(action)[:4], {"action_mask": self.mask().astype(np.int8)}


class MaskedPairs(MaskedEnv, PairEnv):
    """The same, with states numbered as they are found."""


def never_played(result: adagoal.Result, mdp: TabularMDP) -> bool:
    """Whether no policy of the result takes a masked action."""
    tables = [result.policy(g).actions[0] for g in result.goals]
    pairs = [np.flatnonzero(t < mdp.n_actions) * mdp.n_actions + t[t < mdp.n_actions] for t in tables]
    return not any(mdp.absent[x].any() for x in pairs)


@pytest.mark.parametrize("method", ["certified", "intervals"])
@pytest.mark.parametrize("seed", range(3))
def test_certificates_of_masked_models_hold(method: str, seed: int) -> None:
    mdp = masked(seed)
    result = adagoal.explore(mdp, 6.0, 2.0, method=method, seed=seed)
    assert result.status == "certified"
    assert adagoal.audit(result, mdp).ok
    assert never_played(result, mdp)
    counts, _ = play(ModelSimulator(mdp), 2_000)
    assert counts.absent.any()
    assert not counts.n[counts.absent].any()
    assert counts.n_resets + counts.n.sum() == 2_000


def test_masked_actions_cost_no_steps() -> None:
    """A run with masks takes fewer steps than one that must learn that these actions are resets (sum over models)."""
    steps = np.zeros(2)
    for seed in range(3):
        mdp = masked(seed, n_states=20, n_actions=4, make=extra_models.random_deterministic)
        padded = TabularMDP.from_dense(mdp.kernel().toarray().reshape(20, 4, 20))
        np.testing.assert_array_equal(exact_policies.optimal_values(mdp), exact_policies.optimal_values(padded))
        steps += [adagoal.explore(env, 6.0, 1.0, seed=1).steps for env in (mdp, padded)]
    assert steps[0] < 0.9 * steps[1]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("question", [{"radius": 4}, {"within": 4, "probability": 0.8, "epsilon": 0.2}])
@pytest.mark.parametrize("method", ["certified", "intervals"])
def test_first_action_of_the_start_may_be_masked(
    method: str, question: dict[str, Any], workers: int, tmp_path: Path
) -> None:
    """The mask of the start becomes known after the first plan, which may have chosen that action."""
    P = np.zeros((3, 2, 3))
    P[[0, 1], 1, [1, 2]] = P[1, 0, 0] = 1.0
    mdp = TabularMDP.from_dense(P, terminal=[2], action_mask=[[0, 1], [1, 1], [1, 1]])
    env: Any = mdp if workers == 1 else gymnasium.vector.SyncVectorEnv([lambda: MaskedEnv(mdp)] * workers)
    adagoal.explore(env, method=method, budget=workers, out=tmp_path / "run", **question)
    result = adagoal.resume(tmp_path / "run", budget=100_000, env=env)
    assert result.status == "certified"
    assert result.goals == [0, 1, 2]


@pytest.mark.parametrize("method", ["bayes", "disco"])
def test_other_methods_treat_masked_actions_as_resets(method: str) -> None:
    mdp = masked(1)
    result = adagoal.explore(mdp, 5.0, 1.0, method=method, budget=5_000)
    assert result.steps > 100
    assert not result.void


@pytest.mark.parametrize("kind", [MaskedEnv, MaskedPairs])
def test_masks_of_a_gym_environment_are_respected(kind: type[MaskedEnv]) -> None:
    """The environment raises if a masked action is played."""
    mdp = masked(2)
    result = adagoal.explore(kind(mdp), 5.0, 3.0, seed=2)
    assert result.status == "certified"
    assert not result.void
    if kind is MaskedEnv:
        assert adagoal.audit(result, mdp).ok
        assert never_played(result, mdp)


def test_environment_and_model_have_the_same_masks() -> None:
    mdp = masked(4)
    counts, _ = play(GymAdapter(MaskedEnv(mdp), "masked"), 3_000)
    seen = np.repeat(counts.seen & ~counts.terminal, mdp.n_actions)
    np.testing.assert_array_equal(counts.absent[seen], mdp.absent[seen])
    assert not counts.n[counts.absent].any()


def test_taxi_has_the_same_masks_by_name_and_as_object() -> None:
    env = gymnasium.make("Taxi-v4")
    result = adagoal.explore("Taxi-v4", start_seed=0, radius=4)
    again = adagoal.explore(env, start_seed=0, radius=4)
    assert result.status == again.status == "certified"
    assert result.goals == again.goals
    assert adagoal.audit(result).ok
    base: Any = env.unwrapped
    model = registry.make_exact_model("Taxi-v4", {}, 0)
    assert model is not None
    masks = np.array([base.action_mask(state) for state in range(500)], bool)
    np.testing.assert_array_equal(~model.absent.reshape(500, 6), masks)
    for goal in result.goals:
        for state, action in enumerate(result.policy(goal).actions[0][:500]):
            assert (
                action == 6 or base.action_mask(state)[action] or state not in np.flatnonzero(result.arrays["visits"])
            )


def test_changing_mask_voids_the_run() -> None:
    class Fickle(MaskedEnv):
        visits = 0

        def mask(self) -> Any:
            self.visits += self.state == 1
            return super().mask() | (self.state == 1 and self.visits > 20)

    mdp = masked(2)
    mdp.absent[1 * 3 + 1] = True
    result = adagoal.explore(Fickle(mdp), 5.0, 1.0, budget=3_000)
    assert result.status == "void"
    assert "a state had other actions at one visit than at another, first state 1" in result.void


@pytest.mark.parametrize("mask", [[1, 1], [1, 2, 1], "all", [[1, 1, 1]], [0.5, 1, 1], np.array([1, -1, 1], np.int8)])
def test_malformed_mask_gives_one_line_error(mask: Any) -> None:
    class Odd(ModelEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return super().reset(seed=seed)[0], {"action_mask": mask}

    with pytest.raises(adagoal.InputError, match=r"info\['action_mask'\] must be 3 numbers 0 or 1, it is") as caught:
        adagoal.explore(Odd(masked(0)), 4.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mask", [[1, 0], [[1, 0, 1]] * 7, [[1, 0, 5]] * 8])
def test_wrong_mask_of_a_model_gives_one_line_error(mask: Any) -> None:
    with pytest.raises(adagoal.InputError, match=r"action_mask: must have the shape \[8, 3\] and hold 0 and 1 only"):
        TabularMDP.from_dense(np.full((8, 3, 8), 1 / 8), action_mask=mask)


def test_masked_models_are_saved_and_loaded(tmp_path: Path) -> None:
    mdp = masked(1)
    kept = adagoal.Model.load(mdp.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(kept.absent, mdp.absent)
    with pytest.raises(adagoal.InputError, match="state 0, action 0: an absent action must lead to the start"):
        TabularMDP(
            *(mdp.n_states, mdp.n_actions, mdp.indptr, mdp.successors, mdp.probabilities),
            absent=np.ones(mdp.n_states * mdp.n_actions, bool),
        )


@pytest.mark.parametrize("env", [MaskedEnv(masked(2)), MaskedPairs(masked(2)), masked(2)])
def test_resume_equals_uninterrupted_run(env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = adagoal.explore(env, 5.0, 1.0, seed=3, budget=3_000)
    count = 0

    def crash(run: Any) -> None:
        nonlocal count
        count += 1
        if count == 40:
            raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("adagoal.runs.run_folder.save_interval_elapsed", lambda since, cost: True)
        with pytest.raises(SystemExit):
            adagoal.explore(env, 5.0, 1.0, seed=3, budget=3_000, out=tmp_path, observe=crash)
    again = adagoal.resume(tmp_path, env=env)
    assert again.to_dict() | {"wall_seconds": 0} == whole.to_dict() | {"wall_seconds": 0}
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])


def test_export_omits_masked_actions(tmp_path: Path) -> None:
    mdp = masked(1)
    result = adagoal.explore(mdp, 6.0, 1.0, out=tmp_path)
    assert result.status == "certified"
    paths = adagoal.export(tmp_path)
    certified = next(path for path in paths if path.name == "certified.drn").read_text()
    chunks = certified.split("\nstate ")[1:]
    for state in range(mdp.n_states):
        own = (~mdp.absent[state * 3 : state * 3 + 3]).sum()
        assert chunks[state].count("\taction ") == own + 1, "its own actions and the reset"


def test_inconsistent_masks_in_counts_are_refused() -> None:
    counts = TransitionCounts(3, 2, 0)
    counts.mark_absent_pairs(np.array([1]))
    state = {name: array.copy() for name, array in counts.state().items()}
    TransitionCounts(3, 2, 0).restore(state)
    with pytest.raises(ValueError, match="entry 'absent' is missing"):
        TransitionCounts(3, 2, 0).restore({name: array for name, array in state.items() if name != "absent"})
    with pytest.raises(ValueError, match="a count beyond the support"):
        TransitionCounts(3, 2, 0).restore(state | {"absent": np.zeros_like(state["absent"])})
    state["absent"][3] = True
    with pytest.raises(ValueError, match="an absent pair that is not the reset"):
        TransitionCounts(3, 2, 0).restore(state)


def test_recorded_run_plays_no_masked_action(tmp_path: Path) -> None:
    """A recorded run steps the model in Python instead of compiled code."""
    mdp = masked(1)
    result = adagoal.explore(mdp, 5.0, 1.0, out=tmp_path, record=True, budget=3_000)
    assert not mdp.absent[result.arrays["moves_pair"]].any()
    assert result.arrays["moves_count"].sum() > 100
