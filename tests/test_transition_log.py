"""Recorded steps of a run, and the table of its certificates."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.core.transition_data import TransitionCounts
from transition_recording import record_transition

GRID = {"radius": 6, "epsilon": 2.0, "seed": 3, "env_args": {"rows": 3, "cols": 3}}


def recorded(folder: Path) -> dict[str, np.ndarray]:
    """Return the recorded steps, after a check that they form a path."""
    steps = adagoal.transitions(folder)
    assert (steps["next_state"][:-1] == steps["state"][1:]).all()
    return steps


def test_recording_does_not_change_the_run(tmp_path: Path) -> None:
    plain, kept = tmp_path / "plain", tmp_path / "kept"
    adagoal.explore("grid", **GRID, out=plain)
    result = adagoal.explore("grid", **GRID, out=kept, record=True)
    assert (kept / "policies.npz").read_bytes() == (plain / "policies.npz").read_bytes()
    steps = recorded(kept)
    assert len(steps["state"]) == result.steps
    counts = TransitionCounts(9, 4, 0)
    for s, a, t in zip(*steps.values(), strict=True):
        if a == result.reset_action:
            assert t == 0
        else:
            record_transition(counts, s, a, t)
    np.testing.assert_array_equal(np.bincount(steps["state"], minlength=9), result.arrays["visits"])
    assert counts.n.sum() + (steps["action"] == result.reset_action).sum() == result.steps
    size = (kept / "transitions.npz").stat().st_size
    assert 10 * result.steps < size < 10 * result.steps + 1000


@pytest.mark.parametrize("method", ["certified", "ucbexplore"])
def test_every_method_records_its_steps(method: str, tmp_path: Path) -> None:
    result = adagoal.explore("trap-chain", 6, method=method, budget=3000, out=tmp_path / "run", record=True)
    assert len(recorded(tmp_path / "run")["state"]) == result.steps


def test_resume_appends_to_the_log(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    adagoal.explore("FrozenLake-v1", 5, 3.0, out=whole, record=True)
    calls = iter(range(10**9))
    adagoal.explore("FrozenLake-v1", 5, 3.0, out=cut, record=True, observe=lambda run: next(calls) < 20)
    before = len(recorded(cut)["state"])
    adagoal.resume(cut)
    assert 0 < before < len(recorded(cut)["state"])
    assert (cut / "transitions.npz").read_bytes() == (whole / "transitions.npz").read_bytes()


def test_steps_of_a_gym_environment_are_recorded(tmp_path: Path) -> None:
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    result = adagoal.explore(env, 4, 2.0, budget=2000, out=tmp_path, record=True)
    assert len(recorded(tmp_path)["state"]) == result.steps


def test_log_of_another_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    adagoal.explore("grid", **GRID, out=folder, record=True, budget=100)
    path = folder / "transitions.npz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(adagoal.InputError, match=r"transitions.npz: altered or damaged"):
        adagoal.resume(folder)
    with pytest.raises(adagoal.InputError, match=r"transitions.npz: altered or damaged"):
        adagoal.transitions(folder)
    adagoal.explore("grid", **GRID, out=folder, overwrite=True)
    with pytest.raises(adagoal.InputError, match="did not record its steps"):
        adagoal.transitions(folder)
    with pytest.raises(adagoal.InputError, match="record: needs a folder"):
        adagoal.explore("grid", **GRID, record=True)


def test_forged_steps_are_refused(tmp_path: Path) -> None:
    """The hash is right, but the steps do not add up to the counts."""
    from adagoal.core.file_io import arrays_content
    from adagoal.runs.run_folder import open_locked_folder

    folder = tmp_path / "run"
    adagoal.explore("grid", **GRID, out=folder, record=True, budget=100)
    steps = adagoal.transitions(folder)
    for change, said in (
        (lambda a: {**a, "state": a["state"][::-1] * 0}, "not those that were counted"),
        (lambda a: {name: array[:-1] for name, array in a.items()}, "not those that were counted"),
        (lambda a: {**a, "next_state": a["next_state"] + 9}, "not below 9"),
        (lambda a: {**a, "action": a["action"].astype(np.int64)}, "wrong type"),
    ):
        with open_locked_folder(folder, "exploration") as held:
            held.save_files(results={"transitions.npz": arrays_content(change(steps), compress=False)})
        with pytest.raises(adagoal.InputError, match=said):
            adagoal.resume(folder)


def test_certificates_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    command = ["explore", "grid", "--radius", "3", "--method", "bayes", "--quiet", "--out", str(folder)]
    assert run_command_line([*command, "--env-arg", "slip=0", "--record"]) == 0
    assert run_command_line(["export", str(folder), "--format", "csv"]) == 0
    (path,) = capsys.readouterr().out.splitlines()[-1:]
    with open(path, newline="") as file:
        rows = {int(row["goal"]): row for row in csv.DictReader(file)}
    result = adagoal.load(folder)
    assert rows.keys() == result.certificates.keys()
    for goal, (lower, upper) in result.certificates.items():
        assert float(rows[goal]["lower"]) == lower
        assert float(rows[goal]["upper"] or math.inf) == upper
        assert (rows[goal]["in_result"] == "1") == (goal in result.goals)
        assert rows[goal]["label"] == result.goal_label(goal)
    assert len(adagoal.transitions(folder)["state"]) == result.steps
