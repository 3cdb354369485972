"""The rest of a run, played in the world that it has seen: what that says, and that the run does not notice."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.core.exploration_run import ExplorationRun
from adagoal.envs import toy_models
from adagoal.runs.cost_estimate import CostEstimator, PredictedCost, simulate_remaining_run
from model_env import ModelEnv

WORLDS: list[dict[str, Any]] = [
    {"env": "grid", "env_args": {"rows": 3}, "radius": 8, "epsilon": 1.0},
    {"env": "CliffWalking-v1", "radius": 8, "epsilon": 2.0},
    {"env": "FrozenLake-v1", "radius": 12, "epsilon": 3.0, "goals": [4, 9, 14]},
    {"env": "mixture-windy", "radius": 5, "epsilon": 1.0, "method": "vtr-pooled"},
]


def rehearsals(spec: dict[str, Any], shares: list[float], total: int) -> tuple[list[PredictedCost | None], Any]:
    """What rehearsals say when these shares of the run are done, and the result of the run around them."""
    found: list[PredictedCost | None] = []

    def ask(run: ExplorationRun) -> None:
        if len(found) < len(shares) and run.steps >= shares[len(found)] * total:
            found.append(simulate_remaining_run(run, 10 * total, seconds=100.0))

    return found, adagoal.explore(**spec, observe=ask)


@pytest.mark.parametrize("spec", WORLDS, ids=lambda spec: spec["env"])
def test_a_rehearsal_tells_the_steps_and_leaves_no_trace(spec: dict[str, Any]) -> None:
    alone = adagoal.explore(**spec, seed=5)
    found, watched = rehearsals({**spec, "seed": 5}, [0.25, 0.5], alone.steps)
    assert len(found) == 2
    for told in found:
        assert told is not None
        assert 0.5 < told.steps / alone.steps < 2.0
        assert told.seconds is not None
    assert watched.steps == alone.steps
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(array, watched.arrays[name], err_msg=name)


def test_a_rehearsal_needs_some_tries_of_every_pair() -> None:
    found, _ = rehearsals({**WORLDS[0], "budget": 400}, [0.0, 1.0], 300)
    assert found[0] is None


def test_a_rehearsal_has_a_budget_and_can_be_cut_short() -> None:
    spec, asked = {**WORLDS[0], "seed": 5}, []

    def ask(run: ExplorationRun) -> bool:
        if run.steps > 5000:
            asked.append(simulate_remaining_run(run, run.steps + 10, seconds=100.0))
            asked.append(simulate_remaining_run(run, 10**9, seconds=0.0))
        return not asked

    adagoal.explore(**spec, observe=ask)
    over_budget, cut = asked
    assert over_budget is None
    assert cut is None or (cut.steps > 5000 and cut.seconds is None), "extrapolated from the run itself"


def test_an_estimate_waits_until_two_rehearsals_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([2e4, 4e4, None, 4e4, 5e4])
    asked: list[int] = []

    def told(run: ExplorationRun, budget: int, seconds: float) -> PredictedCost | None:
        asked.append(run.steps)
        steps = next(said)
        return None if steps is None else PredictedCost(steps, 1.0 + steps)

    monkeypatch.setattr("adagoal.runs.cost_estimate.simulate_remaining_run", told)
    monkeypatch.setattr("adagoal.runs.cost_estimate.extrapolate_total_steps", lambda trace, epsilon: None)
    estimating = CostEstimator(lambda run: None)
    adagoal.explore("two-room", radius=40, epsilon=1.0, observe=estimating, budget=200_000)
    assert len(asked) == 5
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(asked))
    assert estimating.cost_estimate is not None
    assert estimating.cost_estimate.steps == 5e4
    assert estimating.cost_estimate.seconds == 5e4 + 1.0, "those of the rehearsal, in a known model"


def test_the_seconds_of_slower_steps_are_not_those_of_a_rehearsal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of an environment, and of a model whose steps are kept."""
    monkeypatch.setattr("adagoal.runs.cost_estimate.simulate_remaining_run", lambda *_: PredictedCost(3e4, 1e9))
    model = toy_models.chain_model(n_states=5, slip=0.1)
    kept: dict[str, Any] = {"out": tmp_path, "record": True}
    for env, more in ((ModelEnv(model), {}), (model, kept)):
        estimating = CostEstimator(lambda run: None)
        adagoal.explore(env, radius=4, epsilon=0.1, observe=estimating, budget=20_000, **more)
        assert estimating.cost_estimate is not None
        assert 0.0 < estimating.cost_estimate.seconds < 1e6
