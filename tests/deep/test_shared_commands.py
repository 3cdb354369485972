"""Commands that work on folders of explorations and of training runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.core.errors import InputError


def test_resume_report_and_play_on_a_training_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(shutil.copytree(finished, tmp_path / "run"))
    assert run_command_line(["resume", folder, "--budget", "80", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] >= 80
    (tmp_path / "run" / "report.html").unlink()
    assert run_command_line(["report", folder]) == 0
    assert (tmp_path / "run" / "report.html").is_file()
    capsys.readouterr()
    assert run_command_line(["play", folder, "--episodes", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 10
    assert run_command_line(["play", folder, "--goals", "3"]) == 2
    assert "--goals: works for explorations only" in capsys.readouterr().err
    assert run_command_line(["audit", folder]) == 2


def test_options_of_the_other_kind_give_one_line_error(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^goals: is for explorations; this run is training"):
        adagoal.resume(finished, goals=[1])
    adagoal.explore("chain", 3, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"^workers: is for training runs; this is an exploration"):
        adagoal.resume(tmp_path / "run", workers=2)
    with pytest.raises(InputError, match=r"a run of adagoal train; test it with: adagoal evaluate .*adagoal resume "):
        adagoal.transitions(finished)


def test_evaluate_on_an_exploration_points_to_play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["explore", "chain", "--radius", "3", "--quiet", "--out", str(tmp_path)]) == 0
    assert run_command_line(["evaluate", str(tmp_path)]) == 2
    assert "exploration" in capsys.readouterr().err
