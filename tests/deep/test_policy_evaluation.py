"""Evaluation of policies: equal to a manual loop, and consistent output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_training import TINY, evaluate, load_policy, words

from adagoal.cli.main import run_command_line
from adagoal.core.errors import InputError
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.deep.env_inspection import measure_dimensions
from adagoal.deep.goal_envs import EnvSource, GoalEnv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "out"
    options = [*words(TINY), "--seeds", "2", "--workers", "1", "--out", str(path)]
    assert run_command_line(["train", "point-mass", *options]) == 0
    return path


def test_evaluation_equals_a_manual_loop(folder: Path) -> None:
    found = evaluate(folder, run=1, episodes=30, seed=3)
    source = EnvSource("point-mass")
    sizes = measure_dimensions(source.make_env(), source, TINY["horizon"])
    policy, env = load_policy(folder, run=1), GoalEnv(source, sizes)
    for i in (0, 7, 29):
        round_, slot = divmod(i, 25)
        rng = random_stream(3, StreamPurpose.EVALUATION_EPISODE, 0, slot, round_)
        observation, achieved = env.reset(int(rng.integers(2**31)))
        np.testing.assert_allclose(found.starts[i], achieved, rtol=1e-6)
        inside = []
        for _ in range(sizes.horizon):
            observation, achieved, _ = env.step(policy(observation, found.goals[i]).astype(np.float64))
            inside.append(np.linalg.norm(achieved - found.goals[i]) <= sizes.success)
        assert (found.final_success[i], found.any_success[i]) == (inside[-1], any(inside))


def test_printed_numbers_add_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["evaluate", str(folder), "--episodes", "40", "--test-goals", "scale=2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    low, high = summary["interval"]
    assert low <= summary["success"] <= high
    assert summary["success"] <= summary["success_any"]
    assert set(summary["by"]) == {"distance from the start", "goal coordinate 0", "goal coordinate 1"}
    for bins in summary["by"].values():
        assert sum(part["episodes"] for part in bins) == 40
        reached = sum(part["success"] * part["episodes"] for part in bins if part["episodes"])
        assert reached == pytest.approx(40 * summary["success"])
    assert (folder / "evaluation.png").stat().st_size > 5000


def test_a_failing_write_does_not_lose_the_evaluation(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "evaluation.json").unlink(missing_ok=True)
    (copy / "evaluation.json").mkdir()
    assert run_command_line(["evaluate", str(copy), "--episodes", "3"]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("success ")
    assert "evaluation.json" in shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--run", "2"], "--run: must be a whole number in 0..1, got 2"),
        (["--episodes", "0"], "--episodes"),
        (["--test-goals", "scale=-1"], "--test-goals"),
    ],
)
def test_bad_input_gives_one_line_error(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["evaluate", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"episodes": 2.5}, {"seed": -1}, {"run": -1}])
def test_wrong_numbers_give_an_error_with_their_name(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(wrong))}: "):
        evaluate(folder, **wrong)


def test_folder_without_a_policy_gives_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["evaluate", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: no adagoal run in {tmp_path} (manifest.json is missing)\n"
