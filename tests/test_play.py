"""``play``: steps are counted as in the theory, and wrong certificates are contradicted."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
import damaged_folders
from adagoal.api import explore as api
from adagoal.cli.main import run_command_line
from adagoal.core.array_types import Floats
from adagoal.core.errors import EnvironmentFailure
from adagoal.envs import toy_models
from adagoal.exact.solver import policy_value
from model_env import ModelEnv, PairEnv

SLIPPERY = toy_models.chain_model(n_states=6, slip=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "chain"
    result = api.explore("chain", radius=8, epsilon=1, env_args={"n_states": 6, "slip": 0.2}, out=path)
    assert result.status == "certified"
    return path


def within(trial: adagoal.Trial, exact: float) -> bool:
    """Whether a mean is within five standard errors."""
    return abs(trial.mean - exact) <= 5 * float(trial.steps.std()) / math.sqrt(len(trial.steps)) + 1e-9


def test_mean_steps_equal_the_policy_value(folder: Path) -> None:
    result = adagoal.load(folder)
    trials = adagoal.play(folder, episodes=2000, seed=1)
    assert [trial.goal for trial in trials] == result.goals
    assert all(within(trial, policy_value(SLIPPERY, result.policy(trial.goal))) for trial in trials)
    assert all(trial.agrees for trial in trials)
    far = trials[-1]
    assert not within(far, policy_value(SLIPPERY, result.policy(far.goal)) + 1)


def test_periodic_policy_restarts_after_its_last_stage(tmp_path: Path) -> None:
    arguments = {"n_states": 5, "slip": 0.4}
    more = {"method": "ucbvi", "method_args": {"bonus": "simplified", "horizon": 6}, "budget": 20_000}
    result = api.explore("chain", radius=6, epsilon=1, env_args=arguments, out=tmp_path, **more)  # type: ignore[arg-type]
    goal = max(result.goals)
    assert not result.policy(goal).stationary
    (trial,) = adagoal.play(tmp_path, [goal], episodes=2000)
    exact = policy_value(toy_models.chain_model(**arguments), result.policy(goal))
    assert exact > 6
    assert within(trial, exact)


@pytest.mark.parametrize("kind", [ModelEnv, PairEnv])
@pytest.mark.parametrize("starts", [(0,), (0, 2)])
def test_environment_objects_can_be_played(kind: type[ModelEnv], starts: tuple[int, ...], tmp_path: Path) -> None:
    result = api.explore(kind(SLIPPERY, starts), radius=7, epsilon=6, out=tmp_path)
    trials = adagoal.play(tmp_path, episodes=200, env=kind(SLIPPERY, starts))
    assert len(trials) == len(result.goals) >= 4
    assert all(trial.agrees for trial in trials)


def test_seed_determines_the_episodes_and_the_folder_is_unchanged(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    one, two, other = (adagoal.play(folder, [4], episodes=50, seed=seed)[0].steps for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)
    assert before == {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_wrong_certificate_is_contradicted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.loads((folder / "result.json").read_text())["goals"][-1]
    forged = shutil.copytree(folder, tmp_path / "forged")
    damaged_folders.forged_json(
        forged, "result.json", lambda data: data["goals"][-1].update(lower=1.0, upper=row["lower"] / 2)
    )
    assert run_command_line(["play", str(folder), "--goals", str(row["goal"])]) == 0
    assert "contradicts" not in capsys.readouterr().out
    assert run_command_line(["play", str(forged), "--goals", str(row["goal"])]) == 1
    assert "contradicts" in capsys.readouterr().out


# --- contradictions by few episodes ---


def geometric(rng: np.random.Generator, n: int) -> Floats:
    """Draw steps with mean 20, from any state."""
    return rng.geometric(0.05, n).astype(float)


def rarely(rng: np.random.Generator, n: int) -> Floats:
    """Draw mostly one step, rarely hundreds: mean 10.98, and at most 500 from any state."""
    return np.where(rng.random(n) < 0.02, rng.geometric(1 / 500, n), 1.0)


def tried(steps: Floats, lower: float, upper: float, rest: float) -> adagoal.Trial:
    patience = 100 * max(upper, 1.0)
    return adagoal.Trial(
        1, "", adagoal.Certificate(lower, upper), np.where(steps > patience, np.inf, steps), patience, rest
    )


@pytest.mark.parametrize("episodes", [1, 3, 100])
@pytest.mark.parametrize(("draw", "mean", "rest"), [(geometric, 20.0, 20.0), (rarely, 10.98, 500.0)])
def test_true_certificates_are_rarely_contradicted(draw: Any, mean: float, rest: float, episodes: int) -> None:
    """The nominal rate is 1%; the actual rate is far lower."""
    rng = np.random.default_rng(episodes)
    wrong = sum(not tried(draw(rng, episodes), mean, mean, rest).agrees for _ in range(200))
    assert wrong <= 2


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_certificates_off_by_a_factor_of_two_are_contradicted(factor: float) -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(30):
        lower = upper = 20.0 * factor
        found += not tried(geometric(rng, 1000), lower, upper, 42.0).agrees
    assert found == 30


def test_truncated_attempts_count_as_evidence() -> None:
    """P(T > 100 upper) <= 1/100: one such attempt is no contradiction at 99%, three of three are."""
    once, always = np.array([math.inf]), np.full(3, math.inf)
    assert tried(once, 1.0, 5.0, 12.0).agrees
    assert not tried(always, 1.0, 5.0, 12.0).agrees
    assert tried(np.zeros(3), 0.0, 0.0, 12.0).agrees


def test_few_episodes_do_not_contradict_true_certificates(folder: Path) -> None:
    for seed in range(20):
        assert all(trial.agrees for trial in adagoal.play(folder, episodes=3, seed=seed))


# --- environments that misbehave ---


class RandomlyFailing(ModelEnv):
    """Raises at random."""

    error: type[BaseException] = RuntimeError
    calm = 3000

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.calm -= 1
        if self.calm < 0 and self.np_random.random() < 0.01:
            raise self.error("not today")
        return super().step(action)


class RandomlyExiting(RandomlyFailing):
    error = SystemExit


@pytest.mark.parametrize("kind", [RandomlyFailing, RandomlyExiting])
def test_randomly_failing_environment_gives_one_line_error(kind: type[RandomlyFailing], tmp_path: Path) -> None:
    with pytest.raises(
        adagoal.InputError, match=rf"raised {kind.error.__name__}: not today .*; what had been learnt is in"
    ):
        api.explore(kind(SLIPPERY), radius=8, epsilon=0.1, out=tmp_path)
    nervous = kind(SLIPPERY)
    nervous.calm = 100
    with pytest.raises(EnvironmentFailure, match=f"raised {kind.error.__name__}: not today "):
        adagoal.play(tmp_path, episodes=1000, env=nervous)
    result = api.resume(tmp_path, 6000, env=kind(SLIPPERY))
    assert (result.steps, result.status) == (6000, "void")
    assert any("the data lack" in line for line in result.void)
    assert any("went on from a reset" in line for line in result.warnings)


class FailingFirst(ModelEnv):
    """Raises in the first ``failures`` steps."""

    failures = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("not now")
        return super().step(action)


def test_failed_replay_continues_from_a_reset(tmp_path: Path) -> None:
    """If the current episode cannot be replayed, the run continues from a reset and keeps all counts."""
    went_on = 0
    for budget in range(1000, 1004):
        folder = tmp_path / str(budget)
        api.explore(FailingFirst(SLIPPERY), radius=8, epsilon=0.1, budget=budget, out=folder)
        failures = FailingFirst(SLIPPERY)
        failures.failures = 1
        try:
            result = api.resume(folder, budget + 50, env=failures)
        except EnvironmentFailure:  # nothing to replay: it raised in a step of the run
            continue
        assert (result.steps, result.void) == (budget + 50, [])
        went_on += any("went on from a reset" in line for line in result.warnings)
    assert went_on


@pytest.mark.parametrize("wrong", [{"goals": 5}, {"goals": ["4"]}, {"episodes": 2.5}, {"episodes": "3"}, {"seed": -1}])
def test_wrong_types_are_named(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(adagoal.InputError, match=next(iter(wrong))):
        adagoal.play(folder, **wrong)


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--goals", "77"], "--goals: 77 is not among"), (["--episodes", "0"], "--episodes")]
)
def test_bad_input_gives_one_line_error(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["play", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
