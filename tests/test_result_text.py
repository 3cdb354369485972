"""The text at the end of a run: its goals, and the command that resumes it."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.cli.options import exploration_lines
from adagoal.core.errors import InputError, Status
from adagoal.deep.config import Config
from adagoal.report import write_report
from adagoal.runs import result_text
from adagoal.runs.load_result import load_result


def test_resume_command_names_user_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rule.py").write_text("def rule(known):\n    return known.eligible.astype(float)\n")
    (tmp_path / "goals.py").write_text("def even(state):\n    return state % 2\n")
    code = {"goal_rule": f"{tmp_path}/rule.py:rule", "goals": f"{tmp_path}/goals.py:even"}
    out = tmp_path / "run"
    result = adagoal.explore("failing_envs:Chain-v0", 9, budget=200, out=out, **code)
    line = f"adagoal resume {out} --env failing_envs:Chain-v0 --goal-rule {code['goal_rule']} --goals {code['goals']}"
    assert result_text.resume_command(result, out) == f"{line} --budget 400"
    assert run_command_line([*result_text.resume_command(result, out).split()[1:], "--quiet"]) == 3
    assert load_result(out).steps == 400
    assert f"resume with: {line} --budget 800\n" in capsys.readouterr().out
    assert f"{line} --budget 800" in (out / "report.html").read_text()
    with pytest.raises(InputError, match=re.escape(f"resume it with {line}, or overwrite it")):
        adagoal.explore("failing_envs:Chain-v0", 9, out=out, **code)


def test_resume_command_of_a_training_run() -> None:
    config, folder = Config("arm:Arm-v0", steps=100, goal_rule="mine.py:rule"), Path("a b")
    assert (
        result_text.resume_training_command(config, folder, 50)
        == "adagoal resume 'a b' --env arm:Arm-v0 --goal-rule mine.py:rule"
    )
    assert (
        result_text.resume_training_command(Config("point-mass", steps=100), folder, 100)
        == "adagoal resume 'a b' --budget 200"
    )
    assert result_text.resume_training_command(Config("object:Arm"), folder, 50) == "adagoal.resume('a b', env=...)"


def test_summary_of_an_unfinished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Some goals have no upper bound yet, and the audit says that the run is not finished."""
    asked = ["--radius", "9", "--epsilon", "1", "--budget", "40", "--quiet", "--out", str(tmp_path)]
    assert run_command_line(["explore", "two-room", *asked]) == 3
    assert " or more open  " in capsys.readouterr().out
    assert run_command_line(["audit", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("the run is not finished")
    assert "certificates hold.\n" in output.out


@pytest.mark.parametrize(
    ("goals", "text"),
    [([4], "no goal can be reached within 2 steps."), ([1], "the one goal found is reached by its policy")],
)
def test_headline_of_a_run_with_few_goals(goals: list[int], text: str) -> None:
    result = adagoal.explore("chain", 2, env_args={"n_states": 6}, goals=goals)
    assert result.status == "certified"
    assert text in str(result_text.make_headline(result))


def test_goals_are_listed_at_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "utf-8"))
    for rows, last in ((1, "│ radius 20"), (4, "2 more: adagoal show 'a b' --top 12")):
        result = adagoal.explore("grid", 20, 4.0, env_args={"rows": rows, "cols": 3})
        listed = list(exploration_lines(result, Path("a b"), top=10))
        assert len(listed) == min(3 * rows + 1, 10 + 2)
        assert listed[0].startswith("(0, 0)  0.00 to 0.00  ━")
        assert listed[-1] == last


def test_resume_command_has_a_sufficient_budget(tmp_path: Path) -> None:
    """The page estimates the remaining steps, and the command beside it allows them."""
    done = adagoal.explore("chain", 4, budget=100)
    trace = np.array([(10 ** (k / 2), 1, 10.0 if k < 6 else 4.95, 1) for k in range(11)])  # at 100,000 steps
    result = replace(done, status=Status.BUDGET, steps=100_000, arrays={**done.arrays, "trace": trace})
    assert result_text.estimate_steps_left(result) == 400_000
    assert result_text.resume_command(result, tmp_path).endswith(" --budget 500000")
    page = write_report(result, tmp_path).read_text()
    assert "about 400,000 more steps" in page
    assert " --budget 500000" in page
    early = replace(result, arrays={**done.arrays, "trace": trace[:3]})
    assert result_text.estimate_steps_left(early) is None
    assert result_text.resume_command(early, tmp_path).endswith(" --budget 200000")


class NoReport:
    """Raises KeyboardInterrupt when the report module is imported."""

    def find_spec(self, name: str, *rest: Any) -> None:
        if name == "adagoal.report":
            raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["imported", "written"])
def test_ctrl_c_during_the_report_does_not_change_the_run(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    if moment == "imported":
        for name in [name for name in sys.modules if name.startswith("adagoal.report")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [NoReport(), *sys.meta_path])
    else:
        monkeypatch.setattr("adagoal.report.write_report", interrupted)
    asked = ["explore", "chain", "--radius", "4", "--epsilon", "2", "--quiet", "--out", str(tmp_path / "run")]
    assert run_command_line(asked) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Certified: ")
    assert output.err == f"interrupted: report.html was not written; adagoal report {tmp_path / 'run'} writes it\n"
    assert load_result(tmp_path / "run").status == "certified"
    assert run_command_line([*asked, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["status"], facts["report"]) == ("certified", None)
