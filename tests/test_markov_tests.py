"""Assumption tests flag environments that violate the assumptions of a certificate, and pass correct ones."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from adagoal.api import explore as api
from adagoal.core.environment import ExplorationPlan
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.markov_tests import MarkovTests
from model_env import Ageing, Aliased, Drifting, LeakyReset, ModelEnv, NoReset, Reseeded


def play_randomly(env: gymnasium.Env[int, int], steps: int, seed: int = 0, start_seed: int | None = None) -> GymAdapter:
    """Play random policies for random goals."""
    adapter = GymAdapter(env, "test", start_seed)
    counts = TransitionCounts(adapter.initial_states, adapter.n_actions, adapter.start)
    rng, done = np.random.default_rng(seed), 0
    S, A = adapter.state_bound, adapter.n_actions
    never = np.full(S * A, 2**60)
    while done < steps:
        policy = np.minimum(rng.integers(3 * A + 1, size=(1, S, S)) // 3, A).astype(np.int16)
        plan = ExplorationPlan(policy, np.arange(S), 30, never)
        done += adapter.rollout(plan, np.ones(S), counts, rng, (min(steps - done, 200), 10**6)).steps
    return adapter


@pytest.mark.parametrize("seed", range(6))
def test_clean_environments_pass(seed: int) -> None:
    mdp = toy_models.random_sparse(n_states=12, n_actions=2, seed=seed)
    assert play_randomly(ModelEnv(mdp), 6000, seed).void_reasons == []
    assert play_randomly(ModelEnv(mdp, starts=(0, 3, 5)), 4000, seed).void_reasons == []


def test_clean_toy_text_passes() -> None:
    assert play_randomly(gymnasium.make("FrozenLake-v1"), 20_000).void_reasons == []
    assert play_randomly(gymnasium.make("Taxi-v4"), 10_000, start_seed=0).void_reasons == []
    assert play_randomly(gymnasium.make("Taxi-v4"), 5_000).void_reasons == []


def test_aliased_observations_are_flagged() -> None:
    lines = play_randomly(Aliased(toy_models.chain_model(n_states=12, slip=0.1)), 8000).void_reasons
    assert any("depends on the step before" in line for line in lines)


def test_reset_that_depends_on_the_last_episode_is_flagged() -> None:
    lines = play_randomly(LeakyReset(toy_models.chain_model(n_states=6, slip=0.1)), 8000).void_reasons
    assert any("the reset does not forget" in line for line in lines)


def test_reset_to_another_state_is_flagged() -> None:
    lines = play_randomly(NoReset(toy_models.chain_model(n_states=6, slip=0.1)), 8000).void_reasons
    assert any("a reset led to another state than the start" in line for line in lines)


def test_drift_is_flagged() -> None:
    lines = play_randomly(Drifting(toy_models.chain_model(n_states=6, slip=0.1)), 12_000).void_reasons
    assert any("is not stationary" in line for line in lines)
    assert any("does not restore the start" in line for line in lines)


def test_dynamics_that_depend_on_episode_length_are_flagged() -> None:
    lines = play_randomly(Ageing(toy_models.chain_model(n_states=6, slip=0.1)), 12_000).void_reasons
    assert any("depends on the time since the reset" in line for line in lines)


def test_reseeding_in_every_reset_is_flagged() -> None:
    lines = play_randomly(Reseeded(toy_models.chain_model(n_states=6, slip=0.1)), 8000).void_reasons
    assert any("every reset seeds its random generator anew" in line for line in lines)


def test_run_with_repeating_episodes_is_void() -> None:
    result = api.explore(Reseeded(toy_models.chain_model(n_states=3, slip=0.1)), radius=3, epsilon=1.0)
    assert result.status == "void"
    (line,) = result.void
    assert "every reset seeds its random generator anew" in line


def test_findings_reach_the_result() -> None:
    result = api.explore(Aliased(toy_models.chain_model(n_states=12)), radius=5, budget=4000)
    assert any("is not the whole state" in line for line in result.void)
    assert result.status == "void"


def wealth_by_definition(moves: NDArray[np.int64], landed: NDArray[np.int64]) -> dict[tuple[int, bool], float]:
    """Return the wealth of the first test in the docstring of markov_tests, sample by sample."""
    samples: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    before, first = 0, True
    for move, state in zip(moves.tolist(), landed.tolist(), strict=True):
        if move >= 0:
            samples.setdefault((move, first), []).append((before, state))
        before, first = move, move < 0
    wealth = {}
    for key, stream in samples.items():
        score, known, classes = 0.0, list[int](), dict[int, dict[int, int]]()
        total: dict[int, int] = {}
        for i, (cause, z) in enumerate(stream):
            if z not in known:
                known.append(z)
                score += np.log(1 / (i + 2))
                continue
            seen = classes.setdefault(cause, {})
            p = (seen.get(z, 0) + 0.5) / (sum(seen.values()) + 0.5 * len(known))
            score += np.log((i + 1) / (i + 2) * p)
            seen[z], total[z] = seen.get(z, 0) + 1, total.get(z, 0) + 1
        m = np.array([*total.values(), 1.0])[:-1]
        wealth[key] = score - float((m * np.log(m / m.sum())).sum())
    return wealth


def test_wealth_agrees_with_its_definition() -> None:
    rng = np.random.default_rng(0)
    moves = rng.integers(-4, 8, size=3000)
    landed = np.where(moves < 0, 0, rng.integers(4, size=3000))
    recorder = MarkovTests(2)
    for part in np.split(np.arange(3000), [10, 700, 701, 2500]):
        recorder.add_transitions(moves[part], landed[part])
    few = {key: value for key, value in wealth_by_definition(moves, landed).items() if key[1]}
    rows = {
        (int(pair), bool(first)): i
        for i, (pair, first) in enumerate(recorder._tables.pair[: len(recorder.log_wealth())])
    }
    for key, value in few.items():  # first steps have at most four predecessors, fewer than the test distinguishes
        assert recorder.log_wealth()[rows[key], 0] == pytest.approx(value, abs=1e-9)


def test_many_pairs_and_successors_stay_within_bounds() -> None:
    rng = np.random.default_rng(0)
    recorder = MarkovTests(3)
    for _ in range(3):
        recorder.add_transitions(rng.integers(-2000, 6000, size=20_000), rng.integers(2000, size=20_000))
    assert len(recorder.log_wealth()) <= 4096
    assert recorder.describe_violations() == []
