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
import damaged_folders
from adagoal.api import explore as api
from adagoal.cli.main import run_command_line
from adagoal.core.errors import EnvironmentFailure
from adagoal.core.types import Floats
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
    exact = policy_value(toy_models.chain_model(**arguments), result.policy(goal))
    assert exact > 6
    assert within(trial, exact)


@pytest.mark.parametrize("kind", [ModelEnv, PairEnv])
@pytest.mark.parametrize("starts", [(0,), (0, 2)])
def test_an_environment_object_is_played_as_it_is(
    kind: type[ModelEnv], starts: tuple[int, ...], tmp_path: Path
) -> None:
    result = api.explore(kind(SLIPPERY, starts), radius=7, epsilon=6, out=tmp_path)
    trials = adagoal.play(tmp_path, episodes=200, env=kind(SLIPPERY, starts))
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
    damaged_folders.forged_json(
        forged, "result.json", lambda data: data["goals"][-1].update(lower=1.0, upper=row["lower"] / 2)
    )
    assert run_command_line(["play", str(folder), "--goals", str(row["goal"])]) == 0
    assert "contradicts" not in capsys.readouterr().out
    assert run_command_line(["play", str(forged), "--goals", str(row["goal"])]) == 1
    assert "contradicts" in capsys.readouterr().out


# --- contradictions by few episodes ---


def geometric(rng: np.random.Generator, n: int) -> Floats:
    """Mean 20, and 20 from anywhere."""
    return rng.geometric(0.05, n).astype(float)


def rarely(rng: np.random.Generator, n: int) -> Floats:
    """Nearly always one step, now and then hundreds: mean 10.98, and at most 500 from anywhere."""
    return np.where(rng.random(n) < 0.02, rng.geometric(1 / 500, n), 1.0)


def tried(steps: Floats, lower: float, upper: float, rest: float) -> adagoal.Trial:
    patience = 100 * max(upper, 1.0)
    return adagoal.Trial(
        1, "", adagoal.Certificate(lower, upper), np.where(steps > patience, np.inf, steps), patience, rest
    )


@pytest.mark.parametrize("episodes", [1, 3, 100])
@pytest.mark.parametrize(("draw", "mean", "rest"), [(geometric, 20.0, 20.0), (rarely, 10.98, 500.0)])
def test_true_certificates_are_rarely_contradicted(draw: Any, mean: float, rest: float, episodes: int) -> None:
    """Nominally 1% at most, and far less in truth."""
    rng = np.random.default_rng(episodes)
    wrong = sum(not tried(draw(rng, episodes), mean, mean, rest).agrees for _ in range(200))
    assert wrong <= 2


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_certificates_off_by_a_factor_of_two_are_found_out(factor: float) -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(30):
        lower = upper = 20.0 * factor
        found += not tried(geometric(rng, 1000), lower, upper, 42.0).agrees
    assert found == 30


def test_an_attempt_that_is_given_up_counts_for_as_much_as_it_should() -> None:
    """P(T > 100 upper) <= 1/100: once is no contradiction at 99%, three times of three is."""
    once, always = np.array([math.inf]), np.full(3, math.inf)
    assert tried(once, 1.0, 5.0, 12.0).agrees
    assert not tried(always, 1.0, 5.0, 12.0).agrees
    assert tried(np.zeros(3), 0.0, 0.0, 12.0).agrees


def test_few_episodes_of_an_honest_run(folder: Path) -> None:
    for seed in range(20):
        assert all(trial.agrees for trial in adagoal.play(folder, episodes=3, seed=seed))


# --- environments that misbehave ---


class Moody(ModelEnv):
    """Raises now and then, by its own generator."""

    error: type[BaseException] = RuntimeError
    calm = 3000

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.calm -= 1
        if self.calm < 0 and self.np_random.random() < 0.01:
            raise self.error("not today")
        return super().step(action)


class Leaving(Moody):
    error = SystemExit


@pytest.mark.parametrize("kind", [Moody, Leaving])
def test_an_environment_that_raises_at_random_is_one_line(kind: type[Moody], tmp_path: Path) -> None:
    with pytest.raises(
        adagoal.InputError, match=rf"raised {kind.error.__name__}: not today; what had been learnt is in"
    ):
        api.explore(kind(SLIPPERY), radius=8, epsilon=0.1, out=tmp_path)
    nervous = kind(SLIPPERY)
    nervous.calm = 100
    with pytest.raises(EnvironmentFailure, match=f"raised {kind.error.__name__}: not today$"):
        adagoal.play(tmp_path, episodes=1000, env=nervous)
    result = api.resume(tmp_path, 6000, env=kind(SLIPPERY))
    assert (result.steps, result.status) == (6000, "void")
    assert any("the data lack" in line for line in result.void)
    assert any("went on from a reset" in line for line in result.warnings)


class Fickle(ModelEnv):
    """Raises in the first ``angry`` steps."""

    angry = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.angry:
            self.angry -= 1
            raise RuntimeError("not now")
        return super().step(action)


def test_a_replay_that_raises_is_not_the_checkpoint_s_fault(tmp_path: Path) -> None:
    """The episode under way cannot be replayed: the run goes on from a reset, and nothing that was counted is lost."""
    went_on = 0
    for budget in range(1000, 1004):
        folder = tmp_path / str(budget)
        api.explore(Fickle(SLIPPERY), radius=8, epsilon=0.1, budget=budget, out=folder)
        angry = Fickle(SLIPPERY)
        angry.angry = 1
        try:
            result = api.resume(folder, budget + 50, env=angry)
        except EnvironmentFailure:  # there was nothing to replay: it raised in a step of the run
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
def test_bad_input_gets_one_line(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["play", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
