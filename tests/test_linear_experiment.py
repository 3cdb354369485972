"""The linear experiment on small models."""

import dataclasses
import json

import numpy as np
import pytest

from adagoal.parallel.engines import LocalEngine, TaskResources
from experiments import experiment as runner
from experiments import linear, linear_output, linear_runs, misfit
from experiments.__main__ import run as run_experiment


def replace(monkeypatch, name, value):
    """Replace a name in every module of the experiment that has it."""
    for module in (linear, linear_output, linear_runs):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)


@pytest.fixture
def small(monkeypatch):
    """Use small models and this process."""
    replace(monkeypatch, "SIZES", {60: "6x10", 70: "7x10"})
    replace(monkeypatch, "KERNELS", (2, 3))
    replace(monkeypatch, "NEAR", 1)
    replace(monkeypatch, "BEYOND", 1)
    replace(monkeypatch, "EPSILON", 2.0)
    replace(monkeypatch, "VTR_BUDGET", 1_000)
    for name, part in linear.PARTS.items():
        monkeypatch.setitem(
            linear.PARTS, name, dataclasses.replace(part, task_resources=lambda options: TaskResources())
        )


@pytest.mark.parametrize("part", [pytest.param("states", marks=pytest.mark.slow), "kernels", "methods"])
def test_parts_run_and_are_not_repeated(small, part, tmp_path, capsys):
    arguments = ["linear", "--part", part, "--seeds", "1", "--out", str(tmp_path)]
    assert run_experiment(arguments) == 0
    data = json.loads((tmp_path / f"linear-{part}.json").read_text())
    rows = [row for row in data["rows"] if row["method"] != "vtr"]
    assert {row["status"] for row in rows} == {"certified"}
    assert all(row["audit"] and row["width"] > 0 for row in rows)
    assert "audit ok" in capsys.readouterr().err
    if part != "methods":
        assert (tmp_path / f"linear-{part}.png").stat().st_size > 0
    assert run_experiment(arguments) == 0
    again = capsys.readouterr()
    assert "audit ok" not in again.err  # no run was repeated
    assert (tmp_path / f"linear-{part}.md").read_text() in again.out


def test_stopped_run_is_continued(small, tmp_path):
    cell = linear_runs.Cell("windy", 60, 4, "likelihood", 0)

    def outcome(folder, minutes):
        part = linear.PARTS["states"]
        options = part.fill_in_defaults(out=folder, minutes=minutes)
        (found,) = runner.collect_outcomes(
            part, [cell], options, LocalEngine(1, print), runner.RunsProgress(quiet=True)
        )
        return found

    short = outcome(tmp_path, 1e-6)
    assert short["status"] == "interrupted"
    assert short["audit"] is None
    whole, fresh = outcome(tmp_path, 10.0), outcome(tmp_path / "other", 10.0)
    assert whole["status"] == "certified"
    assert (whole["steps"], whole["width"]) == (fresh["steps"], fresh["width"])


def test_goals_are_the_same_in_every_model():
    spots = []
    for S, shape in linear_runs.SIZES.items():
        rows, cols = map(int, shape.split("x"))
        goals = linear_runs.goal_space(linear_runs.Cell("windy", S, 4, "likelihood", 0))
        spots.append({(g // cols - rows // 2, g % cols - cols // 2) for g in goals.tolist()})
    assert len(spots[0]) == 50
    assert spots[0] == spots[1] == spots[2]


@pytest.mark.slow
def test_misfit_part(monkeypatch, tmp_path):
    monkeypatch.setattr(misfit, "ETAS", (0.8,))
    monkeypatch.setattr(misfit, "PLACES", {"everywhere": tuple(range(100))})
    monkeypatch.setattr(misfit, "FALSE_ALARM_BUDGET", 300)
    replace(monkeypatch, "EPSILON", 4.0)
    assert run_experiment(["linear", "--part", "misfit", "--seeds", "1", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "linear-misfit.json").read_text())["rows"]
    assert [row["warned"] for row in rows if row["eta"]] == [4, 4]
    assert [row["warned"] for row in rows if not row["eta"]] == [0, 0]


def test_misspecified_models_are_not_mixtures_but_have_the_same_support():
    mdp = linear_runs.Cell("windy", 100, 4, "likelihood", 0).model()
    changed = misfit.stray(mdp, 0.3, (55,))
    difference = abs(changed.kernel() - mdp.kernel()).sum(axis=1)
    assert np.flatnonzero(np.asarray(difference).ravel() > 1e-12).tolist() == [220, 221, 222, 223]
    m = mdp.mixture
    p = np.asarray(changed.kernel()[m.pair_of_entry, m.successors]).ravel()
    fitted = m.features @ np.linalg.lstsq(m.features, p, rcond=None)[0]
    assert np.abs(fitted - p).max() > 0.02


def test_exponent():
    assert linear_output.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
