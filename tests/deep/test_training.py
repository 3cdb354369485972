"""Training learns, is deterministic, and resumes exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_training import TINY, load_policy

from adagoal import resume, train
from adagoal.core.file_io import read_json
from adagoal.deep import Config
from adagoal.deep.env_inspection import is_inside_box
from adagoal.runs.run_folder import find_saved_run

SMALL: dict[str, Any] = {
    "hidden": (64, 64),
    "updates": 40,
    "batch": 256,
    "ensemble_updates": 40,
    "ensemble_batch": 256,
    "candidates": 100,
    "buffer": 100_000,
}


LEARNING: dict[str, Any] = {
    "hidden": (32, 32), "batch": 128, "ensemble_batch": 128, "candidates": 200, "eval_episodes": 40, "steps": 4_800,
}  # fmt: skip
"""The settings of the tutorial, so they are compiled once."""


@pytest.mark.parametrize(
    "settings", [LEARNING, pytest.param({**SMALL, "eval_every": 25, "steps": 20_000}, marks=pytest.mark.slow)]
)
def test_point_mass_is_solved_from_a_goal_space_nine_times_too_large(settings: dict[str, Any]) -> None:
    result = train([Config("point-mass", train_goals="scale=3", radius=15, **settings)], workers=1)
    curve = result.history.learning_curve(0)
    assert result.status == "done"
    assert curve[0]["success"] < 0.2
    assert curve[-1]["success"] >= 0.9


def test_resume_equals_uninterrupted_run(tmp_path: Path) -> None:
    configs = [Config("point-mass", seed=seed, **TINY) for seed in (0, 1)]
    whole = train(configs, out=tmp_path / "whole")

    def interrupt(history: Any) -> None:
        if history.rows[-1]["cycle"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = train(configs, out=tmp_path / "parts", observe=interrupt, workers=1)
    assert stopped.status == "interrupted"
    finished = resume(tmp_path / "parts", workers=1)
    assert finished.status == "done"
    assert _curves(finished) == _curves(whole)
    (a, facts), (b, others) = (_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert (facts["cycle"], facts["configs"]) == (others["cycle"], others["configs"])


def test_runs_differ_by_seed_and_rule_in_one_program() -> None:
    rules = ("unigoal", "raregoal", "adagoal", "proportional", "mega", "omega", "discover")
    narrow = {"train_goals": "scale=0.5", **TINY}  # the point is often beyond these goals
    result = train([Config("point-mass", goal_rule=rule, **narrow) for rule in rules], workers=1)
    assert result.status == "done"
    chosen = np.stack(result.history.goals)
    assert len({chosen[:, run].tobytes() for run in range(len(rules))}) == len(rules)
    box = result.history.train_boxes[0]
    outside = [(~is_inside_box(box, chosen[2:, run])).any() for run in range(len(rules))]
    assert outside[4], "mega tries what was achieved, also beyond the goal space"
    assert not any(outside[:4])
    assert np.isfinite([row["critic_loss"] for row in result.history.rows if "critic_loss" in row]).all()


@pytest.mark.slow
def test_fetch_reach_is_solved(tmp_path: Path) -> None:
    result = train(
        [Config("FetchReach-v4", steps=9600, hidden=(128,) * 3, updates=80, ensemble_updates=80, eval_every=4)]
    )
    assert result.history.learning_curve(0)[-1]["success"] == 1.0


@pytest.mark.slow
def test_sigkill_and_resume_give_the_same_curve(tmp_path: Path) -> None:
    options = ["point-mass", "--steps", "6000", "--hidden", "32,32", "--updates", "20", "--ensemble-updates", "20"]
    options += ["--batch", "64", "--ensemble-batch", "64", "--candidates", "50", "--eval-every", "3", "--json"]
    start = [sys.executable, "-c", "from adagoal.cli.main import main; main()", "train"]
    subprocess.run([*start, *options, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    killed = subprocess.Popen(
        [*start, *options, "--checkpoint-every", "1", "--out", str(tmp_path / "parts")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log = tmp_path / "parts" / "log.csv"
    deadline = time.monotonic() + 120
    while (not log.is_file() or len(log.read_text().splitlines()) < 6) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert read_json(tmp_path / "parts" / "result.json")["status"] == "interrupted"
    resume = [sys.executable, "-m", "adagoal", "resume", str(tmp_path / "parts")]
    subprocess.run(resume, check=True, capture_output=True)
    one, two = (_rows(tmp_path / name / "log.csv") for name in ("whole", "parts"))
    assert one == two
    a, b = (load_policy(tmp_path / name) for name in ("whole", "parts"))
    np.testing.assert_array_equal(a([0.1, 0.2, 0.0, 0.0], [0.5, 0.5]), b([0.1, 0.2, 0.0, 0.0], [0.5, 0.5]))


def _checkpoint(folder: Path) -> tuple[dict[str, Any], Any]:
    return find_saved_run(folder).checkpoint_files().load_arrays("checkpoint.npz")  # type: ignore[union-attr]


def _rows(path: Path) -> list[list[str]]:
    """Return a log without its column of wall-clock seconds."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    at = rows[0].index("wall_seconds")
    return [row[:at] + row[at + 1 :] for row in rows]


def _curves(result: Any) -> list[Any]:
    rows = [result.history.learning_curve(run) for run in range(len(result.history.configs))]
    return [[{k: v for k, v in point.items() if k != "wall_seconds"} for point in curve] for curve in rows]
