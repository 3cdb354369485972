"""What a run says at its end: its goals, and the command that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import adagoal
from adagoal.cli import runs
from adagoal.cli.main import run
from adagoal.deep.config import Config
from adagoal.runs import again
from adagoal.runs.result import load


def test_the_command_that_goes_on_names_code_that_the_folder_may_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rule.py").write_text("def rule(known):\n    return known.eligible.astype(float)\n")
    (tmp_path / "goals.py").write_text("def even(state):\n    return state % 2\n")
    code = {"goal_rule": f"{tmp_path}/rule.py:rule", "goals": f"{tmp_path}/goals.py:even"}
    out = tmp_path / "run"
    result = adagoal.explore("odd_envs:Chain-v0", 9, budget=200, out=out, **code)
    line = f"adagoal resume {out} --env odd_envs:Chain-v0 --goal-rule {code['goal_rule']} --goals {code['goals']}"
    assert again.command(result, out) == f"{line} --budget 400"
    assert run([*again.command(result, out).split()[1:], "--quiet"]) == 3
    assert load(out).steps == 400
    assert f"go on with: {line} --budget 800\n" in capsys.readouterr().out
    assert f"{line} --budget 800" in (out / "report.html").read_text()


def test_the_command_that_goes_on_with_a_training() -> None:
    config, folder = Config("arm:Arm-v0", steps=100, goal_rule="mine.py:rule"), Path("a b")
    assert again.training(config, folder, 50) == "adagoal resume 'a b' --env arm:Arm-v0 --goal-rule mine.py:rule"
    assert again.training(Config("point-mass", steps=100), folder, 100) == "adagoal resume 'a b' --budget 200"
    assert again.training(Config("object:Arm"), folder, 50) == "adagoal.deep.resume('a b', env=...)"


def test_a_run_that_is_not_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goals without an upper bound yet, and an audit that asks for more than has been promised."""
    asked = ["--radius", "9", "--epsilon", "1", "--budget", "40", "--quiet", "--out", str(tmp_path)]
    assert run(["explore", "two-room", *asked]) == 3
    assert " steps or more, open\n" in capsys.readouterr().out
    assert run(["audit", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("the run is not finished")
    assert told.out.endswith("every certificate holds\n")


def test_the_goals_are_listed_at_the_end_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    for rows, last in ((1, "  (0, 2): "), (4, "  ... and 2 more: adagoal export 'a b' ")):
        runs._list(adagoal.explore("grid", 20, 4.0, env_args={"rows": rows, "cols": 3}), Path("a b"))
        listed = capsys.readouterr().out.splitlines()
        assert len(listed) == min(3 * rows, 10 + 1)
        assert listed[0] == "  (0, 0): 0.00 to 0.00 steps"
        assert listed[-1].startswith(last)
