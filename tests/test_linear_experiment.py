"""The linear experiment in small."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner

from adagoal.experiments import linear as experiment
from adagoal.experiments import linear_output, linear_runs, misfit, pool


def replace(monkeypatch, name, value):
    """In every module of the experiment that knows the name."""
    for module in (experiment, linear_output, linear_runs, pool):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)


@pytest.fixture
def small(monkeypatch):
    """Small worlds, in this process."""
    replace(monkeypatch, "SIZES", {60: "6x10", 70: "7x10"})
    replace(monkeypatch, "KERNELS", (2, 3))
    replace(monkeypatch, "NEAR", 1)
    replace(monkeypatch, "BEYOND", 1)
    replace(monkeypatch, "EPSILON", 2.0)
    replace(monkeypatch, "VTR_BUDGET", 1_000)
    replace(monkeypatch, "ProcessPoolExecutor", lambda *a, **k: ThreadPoolExecutor(1))


@pytest.mark.parametrize("part", ["states", "kernels", "methods"])
def test_parts(small, part, tmp_path):
    arguments = ["--part", part, "--seeds", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(experiment.linear, arguments)
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / f"linear-{part}.json").read_text())
    rows = [row for row in data["rows"] if row["method"] != "vtr"]
    assert {row["status"] for row in rows} == {"certified"}
    assert all(row["audit"] and row["width"] > 0 for row in rows)
    assert "audit ok" in done.output
    if part != "methods":
        assert (tmp_path / f"linear-{part}.png").stat().st_size > 0
    again = CliRunner().invoke(experiment.linear, arguments)
    assert "audit ok" not in again.output  # nothing was run a second time
    assert (tmp_path / f"linear-{part}.md").read_text() in again.output


def test_a_run_that_was_given_up_goes_on(small, tmp_path):
    task = experiment.Task("windy", 60, 4, "likelihood", 0)
    (short,) = experiment.run_all([task], tmp_path, 1, 1e-6, True)
    assert short["status"] == "interrupted"
    assert short["audit"] is None
    (whole,) = experiment.run_all([task], tmp_path, 1, 10.0, True)
    (fresh,) = experiment.run_all([task], tmp_path / "other", 1, 10.0, True)
    assert whole["status"] == "certified"
    assert (whole["steps"], whole["width"]) == (fresh["steps"], fresh["width"])


def test_the_goals_are_the_same_in_every_world():
    spots = []
    for S, shape in experiment.SIZES.items():
        rows, cols = map(int, shape.split("x"))
        goals = experiment.goal_space(experiment.Task("windy", S, 4, "likelihood", 0))
        spots.append({(g // cols - rows // 2, g % cols - cols // 2) for g in goals.tolist()})
    assert len(spots[0]) == 50
    assert spots[0] == spots[1] == spots[2]


def test_misfit_part(monkeypatch, tmp_path):
    monkeypatch.setattr(misfit, "ETAS", (0.8,))
    monkeypatch.setattr(misfit, "PLACES", {"everywhere": tuple(range(100))})
    monkeypatch.setattr(misfit, "FALSE_ALARM_BUDGET", 1_000)
    replace(monkeypatch, "EPSILON", 2.0)
    done = CliRunner().invoke(experiment.linear, ["--part", "misfit", "--seeds", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "linear-misfit.json").read_text())["rows"]
    assert [row["warned"] for row in rows if row["eta"]] == [4, 4]
    assert [row["warned"] for row in rows if not row["eta"]] == [0, 0]


def test_stray_worlds_are_no_mixtures_but_have_the_same_transitions():
    mdp = experiment.Task("windy", 100, 4, "likelihood", 0).model()
    changed = misfit.stray(mdp, 0.3, (55,))
    difference = abs(changed.kernel() - mdp.kernel()).sum(axis=1)
    assert np.flatnonzero(np.asarray(difference).ravel() > 1e-12).tolist() == [220, 221, 222, 223]
    m = mdp.mixture
    p = np.asarray(changed.kernel()[m.pair_of, m.successors]).ravel()
    fitted = m.features @ np.linalg.lstsq(m.features, p, rcond=None)[0]
    assert np.abs(fitted - p).max() > 0.02


def test_exponent():
    assert linear_output.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
