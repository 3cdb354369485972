"""The command ``adagoal train``: errors, imports, folder, progress and figure 2."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_training import CONFIG, SETTINGS, TINY, rollout_worker, words

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.installation import install_command
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions, EnvSource, GoalEnv
from adagoal.deep.pointmass import PointMass
from adagoal.deep.policy import NumpyActor
from adagoal.deep.training_history import TrainingHistory
from adagoal.parallel.worker_process import unwrap_reply
from adagoal.runs.progress_display import TrainingProgress
from experiments import figure2
from experiments.__main__ import run as run_experiment

SIZES = EnvDimensions(observation=4, goal=2, action=2, horizon=5, success=0.1)
OF_FIGURE2 = {
    "algorithm",
    "action_l2",
    "contact",
    "swap_goals",
    "eval_every",
    "eval_episodes",
    "steps",
    "radius",
    "radius_ramp",
}
LEARNER = {name: value for name, value in SETTINGS.items() if name not in OF_FIGURE2}


class Broken(PointMass):
    """Returns NaN after a step."""

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(action)
        seen["observation"] = seen["observation"] * np.nan
        return seen, *rest


class Unstartable(PointMass):
    """Cannot be reset."""

    def reset(self, **_: Any) -> Any:
        raise RuntimeError("no power\nat all")


class Quitting(PointMass):
    """Exits the process at its first reset."""

    def reset(self, **_: Any) -> Any:
        raise SystemExit(0)


class Crashing(PointMass):
    """Raises at its first step."""

    def step(self, action: Any) -> Any:
        raise RuntimeError("the motor\nis hot")


gymnasium.register(id="Broken-v0", entry_point=Broken, max_episode_steps=5)
gymnasium.register(id="Unstartable-v0", entry_point=Unstartable, max_episode_steps=5)
gymnasium.register(id="Quitting-v0", entry_point=Quitting, max_episode_steps=5)
gymnasium.register(id="Crashing-v0", entry_point=Crashing, max_episode_steps=5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["CartPole-v1"], "not goal-conditioned"),
        (["FetchPushDense-v4"], "dense"),
        (["NoSuchEnv-v0"], "not a known environment"),
        (["PandaReach-v3"], "did you mean panda_gym:PandaReach-v3"),
        (["point-mass", "--horizon", "26"], "--horizon: point-mass ends its episodes after 25 steps"),
        (["point-mass", "--batch", "0"], "--batch"),
        (["point-mass", "--buffer", "10"], "--buffer"),
        (["point-mass", "--batch", "200000", "--buffer", "100000"], "--batch"),
        (["point-mass", "--goal-rule", "nonsense"], "--goal-rule"),
        (["point-mass", "--goal-rule", "progress"], "--goal-rule"),
        (["point-mass", "--train-goals", "scale=-1"], "--train-goals"),
        (["point-mass", "--train-goals", "air=1"], "--train-goals"),
        (["point-mass", "--hidden", "a"], "--hidden"),
        (["point-mass", "--minutes", "nan"], "--minutes"),
        (["Unstartable-v0"], "no power"),
        (["Quitting-v0"], "Quitting-v0 raised SystemExit: 0"),
        ([], "ENV"),
    ],
)
def test_bad_input_gives_one_line_error_and_exit_code_two(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_command_line(["train", *arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert len(error.splitlines()) == 1


def test_nan_observations_are_refused() -> None:
    env = GoalEnv(EnvSource.from_argument(lambda: gymnasium.make("Broken-v0", disable_env_checker=True)), SIZES)
    env.reset(0)
    with pytest.raises(InputError, match="NaN"):
        env.step(np.zeros(2))


def test_environment_error_gives_one_line_error() -> None:
    actor = NumpyActor([(np.zeros((6, 2)), np.zeros(2))], *np.ones((4, 1)), 5.0)
    with rollout_worker(
        [Config("test_train_command:Crashing-v0")], EnvSource("test_train_command:Crashing-v0"), SIZES
    ) as link:
        link.send(("start_cycle", (0,)))
        assert isinstance(link.recv(), np.ndarray)
        link.send(("play_cycle", (0, {0: actor}, np.zeros((1, 2)), np.zeros((0, 1, 2)))))
        with pytest.raises(EnvironmentFailure) as raised:
            unwrap_reply(link.recv())
    text = "env: test_train_command:Crashing-v0 raised RuntimeError: the motor is hot (test_train_command.py, line "
    assert str(raised.value).startswith(text)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_importing_adagoal_imports_no_jax() -> None:
    modules = "sys, adagoal, adagoal.cli.main, adagoal.cli.policy_commands"
    code = f"import {modules}\nassert not {{'jax', 'mujoco'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_and_policies_need_no_jax() -> None:
    code = "import sys, adagoal.deep.rollouts, adagoal.runs.train_result; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_command_line(["train", "point-mass"]) == 2
    assert "point-mass needs gymnasium_robotics: " + install_command("deep") in capsys.readouterr().err


def test_time_limit_keeps_the_folder_and_gives_exit_code_three(tmp_path: Path, capsys: Any) -> None:
    options = words({**TINY, "steps": 400})
    arguments = ["train", "point-mass", *options, "--out", str(tmp_path), "--json", "--workers", "1"]
    assert run_command_line([*arguments, "--minutes", "1e-6", "--quiet"]) == 3
    said = capsys.readouterr()
    assert (json.loads(said.out)["status"], said.err) == ("budget", "")
    assert run_command_line(["resume", str(tmp_path), "--workers", "1"]) == 0
    said = capsys.readouterr().err
    assert "400 / 400 steps" in said
    assert "recipe" not in said, "the folder decides"
    assert run_command_line(arguments) == 2, "a folder that holds a run is not overwritten"
    data = json.loads((tmp_path / "result.json").read_text())
    assert data["status"] == "done"
    assert data["steps"] == 400
    for name in ("log.csv", "manifest.json", "policy.npz", "goals.npz", "report.html"):
        assert (tmp_path / name).is_file()
    assert run_command_line([*arguments, "--overwrite", "--minutes", "1e-6"]) == 3
    assert re.search(r"recipe (light: JAX has no GPU here; .*|adagoal: JAX has a GPU)\n", capsys.readouterr().err)
    page = (tmp_path / "report.html").read_text()
    assert 'id="space"' in page, "the goal space"
    assert len(page) < 3_000_000
    assert not list(tmp_path.glob("*.png"))
    assert run_command_line(["report", str(tmp_path), "--png"]) == 0
    assert (tmp_path / "curves.png").is_file()


def test_display_shows_the_step_of_each_test(capsys: Any) -> None:
    """The test of a cycle measures the policy before the cycle; the line shows the steps after it."""
    history = TrainingHistory([Config("point-mass", steps=60, episodes=4, horizon=5)], [], [], None, 0.1)
    with TrainingProgress() as progress:
        rule = {"radius": 12.5, "reachable": 0.43, "error": 1.234}
        for row in ({"cycle": 0, "steps": 0, "success": 0.25} | rule, {"cycle": 1, "steps": 20}):
            history.rows.append(row)
            progress(history)
        history.rows.append({"cycle": 2, "steps": 40, "success": 1.0})
        progress(history)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("20 / 60 steps")
    assert first.endswith("L 12.5, 43% of goals with D <= L, E 1.2  success 0.25 (at 0)")
    assert last.startswith("60 / 60 steps")
    assert last.endswith("success 1.00 (at 40)")


@pytest.mark.slow
def test_figure2_refuses_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(figure2.ENVS, "push", "point-mass")
    monkeypatch.setitem(figure2.LINES, "AdaGoal", figure2.LINES["AdaGoal"] | LEARNER)
    words = ["figure2", "--panel", "push-1", "--rule", "AdaGoal", "--out", str(tmp_path), "--json"]
    assert run_experiment([*words, "--seeds", "1", "--steps", "1005"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (tmp_path / "push-1" / "report.html").is_file()
    assert run_experiment([*words, "--seeds", "1", "--steps", "1100"]) == 0
    longer = json.loads(capsys.readouterr().out)
    assert (first[0]["steps"], longer[0]["steps"]) == (1010, 1100)
    assert run_experiment([*words, "--seeds", "2", "--steps", "1200"]) == 2
    assert "--out" in capsys.readouterr().err


def test_figure2_needs_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_experiment(["figure2", "--data", str(tmp_path)]) == 2
    assert "--data" in capsys.readouterr().err


def test_figure2_is_drawn_from_the_documented_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(__file__).parents[2] / "docs" / "data"
    assert run_experiment(["figure2", "--data", str(data), "--out", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["panel"] for row in rows} == {"push-1", "push-10", "pick-1", "pick-5"}
    best = {
        panel: max(rows, key=lambda r: (r["panel"] == panel, r["final"]))["rule"] for panel in ("push-10", "pick-5")
    }
    assert best == {"push-10": "AdaGoal", "pick-5": "AdaGoal"}
    assert (tmp_path / "figure2.png").stat().st_size > 10_000


def test_show_draws_the_test_results(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["show", str(finished)]) == 0
    title, *bars, mark = capsys.readouterr().out.splitlines()
    assert title == f"done: {CONFIG.env}, goal rule {CONFIG.goal_rule}, seed {CONFIG.seed}"
    assert mark == "│ all test goals reached"
    curve = adagoal.load(finished).curve()
    assert [bar.split()[:3] for bar in bars] == [[f"{p['steps']:,}", "steps", f"{p['success']:.2f}"] for p in curve]
