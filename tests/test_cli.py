"""The command line: exit codes, one-line errors for bad input, interrupted runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import damaged_folders
from adagoal.cli import run_commands
from adagoal.cli.main import run_command_line, spell_options
from adagoal.cli.options import default_run_folder
from adagoal.core.errors import InputError
from adagoal.core.file_io import folder_lock
from adagoal.runs.load_result import load_result
from adagoal.runs.run_folder import CHECKPOINTS_FOLDER, MANIFEST_FILE

SMALL = ("explore", "grid", "--radius", "6", "--env-arg", "rows=3", "--env-arg", "cols=3")
LONG = ("explore", "two-room", "--radius", "15", "--quiet")
CHILD = (
    "import adagoal.runs.run_folder as folder; folder.save_interval_elapsed = lambda since, cost: since > 0.1; "
    "from adagoal.cli.main import main; main()"
)


class Failing(gymnasium.Env[int, int]):
    """Works for 500 steps, then raises."""

    observation_space = gymnasium.spaces.Discrete(5)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps, self.place = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps > 500:
            raise RuntimeError("the motor is hot")
        self.place = min(self.place + 1, 4) if action else max(self.place - 1, 0)
        return self.place, 0.0, False, False, {}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("cli") / "finished_run"
    assert run_command_line([*SMALL, "--out", str(folder), "--quiet"]) == 0
    return folder


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error, after a check that it is one line."""
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["grid", "--radius", "-3"],
            "--radius: must be a number in [1, 1e+09] or auto, all, auto:F, all:F (factor F in (1, 100]), got -3",
        ),
        (["grid", "--radius", "nan"], "--radius"),
        (["grid", "--radius", "inf"], "--radius"),
        (["grid", "--radius", "1e10"], "--radius"),
        (["grid", "--radius", "auto:1e9", "--budget", "10"], "--radius"),
        (["grid", "--radius", "5", "--epsilon", "1e-10"], "--epsilon"),
        (["grid", "--radius", "5", "--delta", "1e-310"], "--delta"),
        (
            ["grid", "--radius", "5", "--budget", "1e19"],
            "--budget: must be a whole number in 1..2**62, got 10000000000000000000",
        ),
        (["grid", "--radius", "far"], "--radius"),
        (["grid"], "--radius: missing; give the number of steps to look, for instance --radius 20"),
        (["grid", "--radius", "auto"], "--radius: auto needs a budget"),
        (["grid", "--radius", "5", "--epsilon", "0"], "--epsilon: must be a number in [1e-09, 1e+09]"),
        (["grid", "--radius", "5", "--epsilon", "nan"], "--epsilon"),
        (["grid", "--radius", "5", "--epsilon", "inf"], "--epsilon"),
        (["grid", "--radius", "5", "--delta", "0"], "--delta: must be a number in [1e-300, 1)"),
        (["grid", "--radius", "5", "--delta", "1"], "--delta"),
        (["grid", "--radius", "5", "--delta", "nan"], "--delta"),
        (["gird", "--radius", "5"], "unknown environment 'gird'"),
        (
            ["grid", "--radius", "5", "--env-arg", "rows=3", "--env-arg", "rows=4"],
            "--env-arg: rows is given 2 times; give each name once",
        ),
        (["grid", "--radius", "5", "--goal-rule", "best"], "--goal-rule: unknown rule 'best'"),
        (["grid", "--radius", "5", "--goal-rule", "missing.py:rule"], "--goal-rule: no such file"),
        (["grid", "--radius", "5", "--goal-rule", "discover"], "--goal-rule: this rule needs a target, which only"),
        (["grid", "--radius", "5", "--method", "magic"], "--method: unknown method 'magic'"),
        (["grid", "--radius", "5", "--method-arg", "x=1"], "--method-arg"),
        (["grid", "--radius", "5", "--method-arg", "x"], "key=value"),
        (["grid", "--radius", "5", "--env-arg", "slip=2"], "slip: must be a number in [0, 1)"),
        (["grid", "--radius", "5", "--env-arg", "colour=1"], "--env-arg"),
        (["grid-file", "--radius", "5", "--env-arg", "path=5"], "--env-arg: path"),
        (["grid", "--radius", "5", "--goal-rule", "raregoal:alpha=nan"], "alpha must be a number in [1e-09, 1e+09]"),
        (["grid", "--radius", "5", "--goal-rule", "goid:low=2"], "--goal-rule: goid: low must be a number in [0, 1]"),
        (["grid", "--radius", "5", "--goals", "20"], "--goals: must be one or more states in 0..19, got "),
        (["grid", "--radius", "5", "--goals", "-1"], "--goals"),
        (["grid", "--radius", "5", "--goals", "a"], "--goals"),
        (["grid", "--radius", "5", "--goals", "9" * 30], "--goals: must be one or more states in 0..19, got "),
        (["grid", "--radius", "5", "--env-arg", "rows=" + "[" * 900 + "]" * 900], "--env-arg: rows: must be"),
        (["grid", "--radius", "5", "--env-arg", "rows=" + "[" * 100_000], "--env-arg: rows: must be"),
        (["grid", "--radius", "5", "--budget", "0"], "--budget: must be a whole number in 1..2**62, got 0"),
        (["grid", "--radius", "5", "--budget", "1.5"], "--budget"),
        (["grid", "--radius", "5", "--seed", "-1"], "--seed"),
        (
            ["grid", "--radius", "5", "--seed", "1" * 47],
            "--seed: must be a whole number in 0..2**128 - 1, got a whole number of 153",
        ),
        (["grid", "--radius", "5", "--sed", "1"], "--sed"),
    ],
)
def test_bad_input_gives_one_line_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_command_line(["explore", *arguments, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert said in error_line(capsys)
    assert not (tmp_path / "run").exists()


def test_closed_standard_output_is_no_error() -> None:
    line = f"{sys.executable} -m adagoal envs >&-"
    ended = subprocess.run(line, shell=True, stderr=subprocess.PIPE, check=True)
    assert ended.stderr == b""


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/none"])
def test_folder_without_write_permission_gives_one_line_error(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert run_command_line([*SMALL, "--out", str(tmp_path / place), "--quiet"]) == 2
    assert str(tmp_path / place) in error_line(capsys)
    assert (tmp_path / "file").read_text() == "mine"


def test_foreign_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "certified").mkdir()
    (tmp_path / "certified" / "thesis.txt").write_text("years of work")
    assert run_command_line([*SMALL, "--out", str(tmp_path), "--quiet"]) == 0
    assert (tmp_path / "certified" / "thesis.txt").exists()


def test_two_processes_cannot_use_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with folder_lock(tmp_path):
        assert run_command_line([*SMALL, "--out", str(tmp_path), "--quiet"]) == 2
    assert "another run is writing there" in error_line(capsys)
    assert run_command_line([*SMALL, "--out", str(tmp_path), "--quiet"]) == 0


def test_environment_error_gives_one_line_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gymnasium.register("Failing-v0", Failing)
    try:
        assert run_command_line(["explore", "Failing-v0", "--radius", "4", "--out", str(tmp_path), "--quiet"]) == 2
    finally:
        gymnasium.registry.pop("Failing-v0")
    assert "the motor is hot" in error_line(capsys)
    kept = load_result(tmp_path)
    assert kept.status == "interrupted"
    assert 0 < kept.steps <= 1100


def test_goal_rule_error_gives_one_line_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text("def rule(known):\n    raise KeyError('no idea')\n")
    rule = f"{tmp_path}/rule.py:rule"
    assert run_command_line([*SMALL, "--goal-rule", rule, "--out", str(tmp_path / "run"), "--quiet"]) == 2
    assert "no idea" in error_line(capsys)


@pytest.mark.parametrize("command", ["audit", "report"])
@pytest.mark.parametrize("file", ["result.json", "policies.npz"])
@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing"])
def test_damaged_folder_gives_one_line_error(
    command: str, file: str, damage: str, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "run")
    _damage(folder / file, damage)
    assert run_command_line([command, str(folder)]) == 2
    assert file in error_line(capsys)


@pytest.mark.parametrize(
    "change", [{"radius": None}, {"steps": None}, {"open_goals": [77]}, {"env_args": [1]}, {"goals": [{"goal": 99}]}]
)
def test_inconsistent_result_gives_one_line_error(
    change: dict[str, Any], finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def forge(data: dict[str, Any]) -> None:
        data |= change
        data["goals"] = [{"lower": 0, "upper": 1, "error": 0, **row} for row in data["goals"]]

    folder = shutil.copytree(finished_run, tmp_path / "run")
    damaged_folders.forged_json(folder, "result.json", forge)
    for command in ("audit", "report"):
        assert run_command_line([command, str(folder)]) == 2
        assert "damaged" in error_line(capsys)


@pytest.mark.parametrize("name", ["policy", "policy_goals", "visits", "trace", "episode_goals"])
def test_inconsistent_policies_give_one_line_error(
    name: str, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "run")
    damaged_folders.forged_arrays(folder, "policies.npz", lambda arrays: arrays.pop(name))
    for command in ("audit", "report"):
        assert run_command_line([command, str(folder)]) == 2
        assert "damaged" in error_line(capsys)


@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing"])
def test_older_checkpoint_replaces_a_damaged_one(
    damage: str, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "run")
    newer = max((folder / CHECKPOINTS_FOLDER).iterdir())
    _damage(newer, damage)
    assert run_command_line(["resume", str(folder), "--quiet"]) == 0, "the checkpoint before it is used"
    output = capsys.readouterr().err
    assert output.startswith(f"warning: {newer}: ")
    assert "the checkpoint before it is used" in output
    for file in (folder / CHECKPOINTS_FOLDER).iterdir():
        _damage(file, damage)
    assert run_command_line(["resume", str(folder), "--quiet"]) == 2
    assert "checkpoint-0" in error_line(capsys)


def _damage(file: Path, how: str) -> None:
    if how == "truncated":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif how == "garbage":
        file.write_bytes(b"\x00{]" * 100)
    else:
        file.unlink()


def test_folder_without_a_run_gives_one_line_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in ("audit", "resume", "report"):
        assert run_command_line([command, str(tmp_path / "nowhere")]) == 2
        assert "nowhere is not a folder" in error_line(capsys)


def test_saved_result_has_no_checkpoint(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_result(finished_run).save(tmp_path / "copy")
    for command in ("play", "resume", "export"):
        assert run_command_line([command, str(tmp_path / "copy")]) == 2
        assert "holds no checkpoint, which resume, play and exports for model checkers need" in error_line(capsys)
    assert run_command_line(["audit", str(tmp_path / "copy")]) == 0


def test_run_with_other_settings_is_not_overwritten(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished_run / "result.json").read_bytes()
    assert run_command_line([*SMALL, "--out", str(finished_run), "--seed", "1"]) == 2
    assert "holds a run with another seed" in error_line(capsys)
    assert (finished_run / "result.json").read_bytes() == before


def test_finished_run_is_not_repeated(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "run")
    before = (folder / "result.json").stat().st_mtime_ns
    line = [*SMALL, "-o", str(folder), "-q"]
    assert run_command_line(line) == 0
    shown = capsys.readouterr()
    assert shown.err == f"warning: {folder} already contains this finished run; --overwrite runs it again\n"
    assert shown.out.startswith("Certified: ")
    assert (folder / "result.json").stat().st_mtime_ns == before
    assert run_command_line([*line, "--record"]) == 0, "the steps are not in the folder"
    assert run_command_line([*line, "--overwrite"]) == 0
    assert capsys.readouterr().err == ""
    assert (folder / "result.json").stat().st_mtime_ns != before


def test_finished_run_with_a_rule_file_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rule.py").write_text("def rule(known):\n    return known.E\n")
    line = [*SMALL, "--goal-rule", f"{tmp_path}/rule.py:rule", "-o", str(tmp_path / "run"), "-q"]
    assert [run_command_line(line), run_command_line(line)] == [0, 0]
    assert capsys.readouterr().err == "", "the file may have changed"


@pytest.mark.parametrize("width", [10, 30, 80, 200])
def test_show(
    width: int, finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run_command_line(["show", str(finished_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[-1] == "│ radius 6"
    if width >= 80:
        rows = [line for line in lines if line.startswith("(")]
        assert len(rows) == len(load_result(finished_run).goals)
        assert rows[0].startswith("(0, 0)  0.00 to 0.00  ━ ")
        assert all("│" in row for row in rows)
        lowers = [float(row.split()[2]) for row in rows]
        assert lowers == sorted(lowers)


def test_show_opens_the_report(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run_command_line(["show", str(finished_run), "--open", "--top", "2"]) == 0
    assert opened == [(finished_run / "report.html").as_uri()]
    assert "7 more: adagoal show" in capsys.readouterr().out
    folder = shutil.copytree(finished_run, tmp_path / "run")
    (folder / "report.html").unlink()
    assert run_command_line(["show", str(folder), "--open"]) == 2
    assert f"{folder}/report.html does not exist; adagoal report {folder} writes it" in error_line(capsys)


def test_result_file_has_all_fields_and_passes_the_audit(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((finished_run / "result.json").read_text())
    wanted = {"status", "env", "method", "goal_rule", "radius", "epsilon", "delta", "seed"}
    assert wanted | {"steps", "episodes", "plans", "wall_seconds", "goals"} <= data.keys()
    assert all({"goal", "lower", "upper"} <= row.keys() for row in data["goals"])
    assert run_command_line(["audit", str(finished_run)]) == 0
    assert "The audit found no error.\n" in capsys.readouterr().out
    assert run_command_line(["audit", str(finished_run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_summaries_fit_the_terminal(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    for command in (["audit", str(finished_run)], ["show", str(finished_run)], ["check", "FrozenLake-v1"]):
        assert run_command_line(command) == 0
        out = capsys.readouterr().out.splitlines()
        assert max(map(len, out)) <= 50
        assert not any(line.rstrip().endswith("-") for line in out), "options are not broken"
    monkeypatch.delenv("COLUMNS")
    assert run_command_line(["audit", str(finished_run)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4, "a pipe gets one sentence per line"


def test_check_names_command_line_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["check", "Blackjack-v1", "--steps", "50"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Blackjack-v1: adagoal can explore it\n")
    assert "at most 10,000 (--max-states)" in out
    assert out.endswith("Next: adagoal explore Blackjack-v1 --radius 20\n")
    assert (
        run_command_line(["check", "Taxi-v4", "--env-arg", "is_rainy=True", "--start-seed", "3", "--steps", "50"]) == 0
    )
    assert "--radius 20 --env-arg is_rainy=True --start-seed 3\n" in capsys.readouterr().out
    assert run_command_line(["check", "CartPole-v1"]) == 2
    assert "say how many with --max-states" in capsys.readouterr().out


def test_failed_audit_has_exit_code_one(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "run")
    damaged_folders.forged_json(folder, "result.json", lambda data: data["goals"].pop())
    assert run_command_line(["audit", str(folder)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "The audit found errors."
    assert out[2].startswith("C2 fails: 1 goals are missing within ")
    assert "C2: missing, although V* = " in out[-1], "the goals with errors are listed"
    assert run_command_line(["audit", str(folder), "--table"]) == 1
    assert "C2 FAILS" in capsys.readouterr().out


def test_large_audit_announces_its_duration(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_commands, "LONG_AUDIT_SIZE", 1)
    assert run_command_line(["audit", str(finished_run)]) == 0
    assert "this can take minutes" in capsys.readouterr().err


def test_budget_then_resume_equals_one_run(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path /= "a b"
    part = [*SMALL, "--out", str(tmp_path), "--quiet"]
    assert run_command_line([*part, "--budget", "2e3", "--json"]) == 3
    partial = json.loads(capsys.readouterr().out)
    assert (partial["status"], partial["steps"]) == ("budget", 2000)
    assert partial["open_goals"], "open goals are listed as open"
    assert run_command_line(part) == 2, "an unfinished run is not started again"
    assert f"adagoal resume '{tmp_path}'" in error_line(capsys), "ready to be copied"
    assert run_command_line(["resume", str(tmp_path), "--quiet"]) == 3, "no steps are left"
    assert f"resume with: adagoal resume '{tmp_path}' --budget 4000\n" in capsys.readouterr().out
    assert run_command_line(["resume", str(tmp_path), "--budget", "1e9", "--quiet"]) == 0
    assert load_result(tmp_path).status == "certified"
    assert run_command_line(["audit", str(tmp_path)]) == 0


def test_interrupted_run_resumes_to_the_same_result(tmp_path: Path) -> None:
    """Interrupted by Ctrl-C; ``test_kill_and_resume.py`` has killed runs."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run_command_line([*LONG, "--out", str(whole)]) == 0

    child = subprocess.Popen([sys.executable, "-c", CHILD, *LONG, "--out", str(cut)], stdout=subprocess.DEVNULL)
    _wait_for_checkpoints(child, cut, 3)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) == 3
    partial = load_result(cut)
    assert partial.status == "interrupted"
    assert partial.open_goals
    assert set(partial.open_goals) <= set(partial.goals)
    assert (cut / "report.html").exists()

    assert run_command_line(["resume", str(cut), "--quiet"]) == 0
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (whole, cut))
    assert first.pop("wall_seconds") > 0
    assert second.pop("wall_seconds") > 0
    assert first == second
    ours, theirs = (load_result(folder).arrays for folder in (whole, cut))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def _wait_for_checkpoints(child: subprocess.Popen[bytes], folder: Path, times: int) -> None:
    """Wait until the child process has written this many checkpoints."""
    file, seen, deadline = folder / MANIFEST_FILE, 0, time.monotonic() + 120
    before = os.stat(file).st_mtime_ns if file.exists() else 0
    while seen < times:
        assert child.poll() is None, "the run must not end by itself"
        assert time.monotonic() < deadline
        time.sleep(0.005)
        now = os.stat(file).st_mtime_ns if file.exists() else 0
        seen, before = seen + (now != before), now


def test_commands_work_without_a_writable_cache_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package is read-only and there is no home: Numba would raise when a command is imported."""

    def refuse(name: str) -> None:
        raise RuntimeError("cannot cache function '_watch': no locator available for file 'sanity.py'")

    monkeypatch.setattr("importlib.import_module", refuse)
    assert run_command_line(["envs"]) == 2
    assert "NUMBA_CACHE_DIR" in error_line(capsys)


def test_messages_spell_arguments_as_options() -> None:
    command = run_commands.explore
    assert spell_options("overwrite=True runs it again", command) == "--overwrite runs it again"
    assert spell_options("start_seed=0 or max_states=: give one", command) == "--start-seed 0 or --max-states: give one"
    assert spell_options('give start="random".', command) == "give --start random."
    for text in ("got 'seed=3'", "adagoal.explore('x', seed=...)", "f(seed=3)", "x=-2:2", "overwrite=False"):
        assert spell_options(text, command) == text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("explroe", "unknown command 'explroe'. Did you mean 'explore'?"),
        ("fly", "unknown command 'fly'; adagoal --help lists the commands"),
        (
            "explore chain --radius 3 --method certifed",
            "--method: unknown method 'certifed'. Did you mean 'certified'?",
        ),
        (
            "explore chain --radius 3 --goal-rule adagaol",
            "--goal-rule: unknown rule 'adagaol'. Did you mean 'adagoal'?",
        ),
    ],
)
def test_misspelt_names_get_suggestions(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["-o", str(tmp_path)] if "explore" in line else []
    assert run_command_line([*line.split(), *out]) == 2
    assert error_line(capsys) == f"error: {message}\n"


def test_envs_lists_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["envs", "--json"]) == 0
    assert "two-room" in [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert run_command_line(["envs"]) == 0
    assert "two-room" in capsys.readouterr().out


def test_random_start_can_be_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["explore", "FrozenLake-v1", "--radius", "3", "--budget", "2000", "--out", str(tmp_path), "--quiet"]
    assert run_command_line([*line, "--start", "random", "--start-seed", "1"]) == 2
    assert "error: --start: random cannot be combined with a start seed" in capsys.readouterr().err
    assert run_command_line([*line, "--start", "random"]) in (0, 3)
    assert load_result(tmp_path).setting.start_seed == "random"
    assert run_command_line(["audit", str(tmp_path)]) in (0, 1)
    assert run_command_line(["check", "FrozenLake-v1", "--start", "random"]) == 0
    assert "virtual start, state 16" in capsys.readouterr().out


def test_estimate_prints_cost_of_the_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["explore", "grid", "--env-arg", "rows=3", "--radius", "8", "--epsilon", "1", "--quiet", "--estimate"]
    assert run_command_line([*line, "--out", str(tmp_path / "run"), "--json"]) == 3
    output = json.loads(capsys.readouterr().out)
    cost = output["estimate"]
    assert output["status"] == "interrupted"
    assert cost["done"] == pytest.approx(output["steps"] / cost["steps"])
    assert cost["seconds"] > 0
    assert cost["bytes"] > 1e7
    assert run_command_line(["resume", str(tmp_path / "run"), "--quiet", "--json"]) == 0
    assert 1 / 3 < cost["steps"] / json.loads(capsys.readouterr().out)["steps"] < 3
    assert run_command_line([*line, "--out", str(tmp_path / "again")]) == 3
    assert "estimate: about " in capsys.readouterr().out


@pytest.mark.parametrize("command", ["explore grid --radius 3 --epsilon 2", "train FetchReach-v4", "export ."])
def test_empty_folder_name_gives_one_line_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([*command.split(), "--out", ""]) == 2
    assert "--out" in capsys.readouterr().err


def test_default_folders_of_different_runs_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["explore", "chain", "--epsilon", "2", "--quiet"]
    for options in ("--radius 4", "--radius 3", "--radius 3 --env-arg n_states=4 --goals 1,2"):
        assert run_command_line([*line, *options.split()]) == 0
    folders = {"chain-radius-4-epsilon-2", "chain-radius-3-epsilon-2"}
    folders.add("chain-radius-3-epsilon-2-n_states-4-goals-1-2")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == folders
    assert "report: runs/chain-radius-4-epsilon-2/report.html\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ("", "point-mass"),
        ("--seed 0 --steps 100", "point-mass-steps-100"),
        ("--train-goals scale=2 --hidden 64,32 --seeds 2", "point-mass-train-goals-scale-2-hidden-64-32-seeds-2"),
        ("--recipe light --goal-rule mine.py:rule", "point-mass-goal-rule-mine.py-rule-recipe-light"),
    ],
)
def test_default_folders_of_different_training_runs_differ(
    options: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    asked: dict[str, Any] = {}

    def train(env: str, **given: Any) -> None:
        asked.update(given)
        raise InputError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("adagoal.api.train.train", train)
    assert run_command_line(["train", "point-mass", *options.split(), "--quiet"]) == 2
    assert asked["out"] == Path("runs") / folder


def test_long_default_folder_name_is_a_valid_file_name() -> None:
    first, second = (default_run_folder("grid", {"goal_states": range(last)}).name for last in (200, 201))
    assert first != second
    assert len(first) < 120
