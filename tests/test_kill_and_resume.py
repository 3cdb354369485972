"""Runs that are killed at any moment and resumed equal uninterrupted runs (see :mod:`kill_runs`)."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adagoal import goal_rules
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.run_settings import ExplorationSettings
from adagoal.envs import registry
from adagoal.envs.simulator import ModelSimulator
from adagoal.runs.exploration_session import ExplorationSession
from kill_runs import Rule, tried_least

KILLING = Path(__file__).parent / "kill_runs.py"


def kill(seed: int, kills: int) -> str:
    done = subprocess.run([sys.executable, str(KILLING), str(seed), str(kills)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_and_resumed_runs_equal_uninterrupted_runs() -> None:
    assert "0 differences" in kill(3, 8)


@pytest.mark.slow
def test_200_killed_and_resumed_runs_equal_uninterrupted_runs() -> None:
    output = kill(0, 200)
    assert "200 kills" in output
    assert "0 differences" in output
    assert all(case in output for case in ("certified-auto", "on-the-fly", "gosprl", "likelihood-auto"))


def begin(rule: Rule, radius: float | str) -> ExplorationSession:
    setting = ExplorationSettings("fan", radius=radius, epsilon=0.3, budget=1_500)
    return ExplorationSession.from_settings(
        setting, ModelSimulator(registry.make_exact_model("fan", {}, None)), goal_rules.resolve_rule(rule)
    )  # type: ignore[arg-type]


def checkpoint(session: ExplorationSession) -> tuple[dict[str, Any], dict[str, Any], Any]:
    arrays, facts = session.state()
    return {name: np.array(array) for name, array in arrays.items()}, copy.deepcopy(facts), session.last_certified


@pytest.mark.parametrize("radius", [2, "auto"])
@pytest.mark.parametrize("rule", ["adagoal", "unigoal", "mega", tried_least])
def test_every_rule_resumes_identically_from_any_checkpoint(rule: Rule, radius: float | str) -> None:
    whole = begin(rule, radius)
    saved = [checkpoint(whole)]
    whole._run_stages(lambda run: saved.append(checkpoint(whole)))
    for first in range(0, len(saved) - 1, 5):
        session, place = begin(rule, radius), [first]
        session.restore(*copy.deepcopy(saved[first]))

        def compare(run: ExplorationRun, session: ExplorationSession = session, place: list[int] = place) -> bool:
            place[0] += 1
            (arrays, facts, _), (expected, output, _) = checkpoint(session), saved[place[0]]
            assert facts | {"seconds": 0} == output | {"seconds": 0}
            assert arrays.keys() == expected.keys()
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, expected[name], err_msg=name)
            return place[0] < min(first + 10, len(saved) - 1)  # noqa: B023

        session._run_stages(compare)
        assert place[0] > first
