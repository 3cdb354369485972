"""Playing a run's policies: steps are counted as in the theory, and a wrong certificate is found out."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
import vault
from adagoal.api import explore as api
from adagoal.cli.main import run
from adagoal.mdp.solve import policy_value
from adagoal.worlds import toys
from model_env import ModelEnv, PairEnv

SLIPPERY = toys.chain(n_states=6, slip=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "chain"
    result = api.explore("chain", radius=8, epsilon=1, env_args={"n_states": 6, "slip": 0.2}, out=path)
    assert result.status == "certified"
    return path


def within(trial: adagoal.Trial, exact: float) -> bool:
    """Five standard errors: true in all but a few of ten million trials."""
    return abs(trial.mean - exact) <= 5 * float(trial.steps.std()) / math.sqrt(len(trial.steps)) + 1e-9


def test_the_mean_is_the_value_of_the_policy(folder: Path) -> None:
    result = adagoal.load(folder)
    trials = adagoal.play(folder, episodes=2000, seed=1)
    assert [trial.goal for trial in trials] == result.goals
    assert all(within(trial, policy_value(SLIPPERY, result.policy(trial.goal))) for trial in trials)
    assert all(trial.agrees for trial in trials)
    far = trials[-1]
    assert not within(far, policy_value(SLIPPERY, result.policy(far.goal)) + 1)


def test_a_policy_of_many_stages_starts_again_after_its_last(tmp_path: Path) -> None:
    arguments = {"n_states": 5, "slip": 0.4}
    more = {"method": "ucbvi", "method_args": {"bonus": "simplified", "horizon": 6}, "budget": 20_000}
    result = api.explore("chain", radius=6, epsilon=1, env_args=arguments, out=tmp_path, **more)  # type: ignore[arg-type]
    goal = max(result.goals)
    assert not result.policy(goal).stationary
    (trial,) = adagoal.play(tmp_path, [goal], episodes=2000)
    exact = policy_value(toys.chain(**arguments), result.policy(goal))
    assert exact > 6
    assert within(trial, exact)


@pytest.mark.parametrize("kind", [ModelEnv, PairEnv])
@pytest.mark.parametrize("starts", [(0,), (0, 2)])
def test_an_environment_object_is_played_as_it_is(
    kind: type[ModelEnv], starts: tuple[int, ...], tmp_path: Path
) -> None:
    result = api.explore(kind(SLIPPERY, starts), radius=7, epsilon=1, out=tmp_path)
    trials = adagoal.play(tmp_path, episodes=400, env=kind(SLIPPERY, starts))
    assert len(trials) == len(result.goals) >= 4
    assert all(trial.agrees for trial in trials)


def test_the_seed_decides_and_the_run_stays_as_it_was(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    one, two, other = (adagoal.play(folder, [4], episodes=50, seed=seed)[0].steps for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)
    assert before == {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_a_wrong_certificate_is_found_out(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.loads((folder / "result.json").read_text())["goals"][-1]
    forged = shutil.copytree(folder, tmp_path / "forged")
    vault.forged_json(forged, "result.json", lambda data: data["goals"][-1].update(lower=1.0, upper=row["lower"] / 2))
    assert run(["play", str(folder), "--goal", str(row["goal"])]) == 0
    assert "contradicts" not in capsys.readouterr().out
    assert run(["play", str(forged), "--goal", str(row["goal"])]) == 1
    assert "contradicts" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"goals": 5}, {"goals": ["4"]}, {"episodes": 2.5}, {"episodes": "3"}, {"seed": -1}])
def test_wrong_types_are_named(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(adagoal.InputError, match=next(iter(wrong))):
        adagoal.play(folder, **wrong)


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--goal", "77"], "--goal: 77 is not among"), (["--episodes", "0"], "--episodes")]
)
def test_bad_input_gets_one_line(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["play", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
