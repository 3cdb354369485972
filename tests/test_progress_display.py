"""The progress display, and the estimate of the cost of a run from its first steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.core.exploration_run import ExplorationRun
from adagoal.runs.progress_display import CostEstimator, ExplorationProgress, extrapolate_total_steps

SETTINGS: list[dict[str, Any]] = [
    {"env": "grid", "env_args": {"rows": 3}, "radius": 8, "epsilon": 1.0},
    {"env": "CliffWalking-v1", "radius": 8, "epsilon": 2.0},
    {"env": "mixture-windy", "radius": 5, "epsilon": 1.0, "method": "vtr-pooled"},
]


@pytest.mark.parametrize("spec", SETTINGS, ids=lambda spec: spec["env"])
def test_estimated_steps_are_right_within_a_factor_and_do_not_change_the_run(spec: dict[str, Any]) -> None:
    alone, estimator = adagoal.explore(**spec, seed=5), CostEstimator(lambda run: None)
    stopped = adagoal.explore(**spec, seed=5, observe=estimator)
    cost = estimator.cost_estimate
    assert cost is not None
    assert stopped.status == "interrupted"
    assert 1 / 3 < cost.steps / alone.steps < 3.0
    assert cost.done == stopped.steps / cost.steps < 1.0
    assert cost.seconds >= stopped.wall_seconds - 0.1
    assert cost.bytes > 10**7

    watcher = CostEstimator(lambda run: None)

    def watch(run: ExplorationRun) -> None:
        watcher(run)

    watched = adagoal.explore(**spec, seed=5, observe=watch)
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(array, watched.arrays[name], err_msg=name)


def test_estimate_is_given_once_four_times_the_steps_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def extrapolate(trace: Any, epsilon: float) -> float | None:
        asked.append(1)
        return None if len(asked) < 3 else 1e5

    monkeypatch.setattr("adagoal.runs.progress_display.extrapolate_total_steps", extrapolate)
    estimator = CostEstimator(lambda run: None)
    result = adagoal.explore("two-room", radius=40, epsilon=1.0, observe=estimator, budget=200_000)
    assert result.steps >= 1e5 / 4
    assert estimator.cost_estimate is not None
    assert estimator.cost_estimate.steps == 1e5


def test_expected_total_follows_the_trace() -> None:
    steps = [int(100 * 1.02**i) for i in range(400)]
    trace = [(s, 0, 1e6 / s, 3) for s in steps]
    assert extrapolate_total_steps(trace, 1.0) == pytest.approx(1e6, rel=0.01)
    assert extrapolate_total_steps(trace, 0.1) is None, "too far away"
    assert extrapolate_total_steps(trace[:3], 1.0) is None, "too early"
    assert extrapolate_total_steps([(s, 0, 41.0, 3) for s in steps], 1.0) is None, "no fall, no guess"
    assert extrapolate_total_steps([], 1.0) is None


def test_progress_prints_plain_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adagoal.runs.progress_display.PLAIN_LINE_SECONDS", 0.0)
    seen: list[ExplorationRun] = []
    with ExplorationProgress(budget=5000) as progress:
        adagoal.explore(
            "grid",
            6,
            env_args={"rows": 3, "cols": 3},
            budget=3000,
            observe=lambda run: (seen.append(run), progress(run))[0],
        )
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(seen)
    assert "3,000 steps" in lines[-1]
    assert "open" in lines[-1]
    assert "epsilon 1" in lines[-1]
    assert "about" in lines[-1]
