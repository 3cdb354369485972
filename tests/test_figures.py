"""The figure scripts run on tiny settings, and the committed data supports the claims of the figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adagoal.core.run_settings import ExplorationSettings
from adagoal.parallel.engines import LocalEngine
from experiments import constants, figure3, intervals, linear_output, price, scaling, separation
from experiments import experiment as runner
from experiments.__main__ import run as run_experiment

DATA = Path(__file__).parent.parent / "docs" / "figures"


def test_figure3_on_a_few_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure3, "EPISODES", 9)
    options = figure3.FIGURE3.fill_in_defaults(seeds=2, out=tmp_path)
    report = runner.run_experiment(figure3.FIGURE3, options, LocalEngine(1, print), runner.RunsProgress(quiet=True))
    data = report.data
    for panel in report.plots:
        assert [(line.name, line.seed) for line in panel.lines[:3]] == [("UniGoal", seed) for seed in (None, 0, 1)]
        assert all(list(line.x) == list(range(1, 10)) for line in panel.lines), "a point for every episode"
    assert [(row["rule"], row["first"], row["last"]) for row in data["rows"][:3]] == [
        ("UniGoal", 0, 2),
        ("UniGoal", 3, 5),
        ("UniGoal", 6, 8),
    ]
    for rule in figure3.GOAL_RULES:
        assert [sum(window) for window in data["selected"][rule]] == [6, 6, 6]
        assert all(window[0] == 0 for window in data["selected"][rule])  # s0 is not a goal
    assert (tmp_path / "figure3.png").stat().st_size > 10_000
    assert (tmp_path / "figure3.md").read_text().count("\n") == 11
    cell = figure3.Cell("AdaGoal", 1, 9)
    assert figure3.selected_goals(cell, options) == json.loads(
        (tmp_path / figure3.FIGURE3.outcome_path(cell)).read_text()
    )


def test_regions_of_figure3() -> None:
    places = figure3.places()
    assert places["second_room"].tolist() == [47, 48, 50, 51]
    assert len(places["farthest"]) == 10
    assert 20 in places["farthest"]  # the centre of the spiral


def test_committed_figure3_shows_the_claim() -> None:
    """As in the paper, AdaGoal ends at the border of the first room, RareGoal in the second room."""
    data = json.loads((DATA / "figure3.json").read_text())
    assert len(data["seeds"]) >= 20
    last = {row["rule"]: row for row in data["rows"] if row["last"] == 999}
    assert last["AdaGoal"]["second_room"]["max"] == 0.0
    assert last["AdaGoal"]["farthest"]["min"] > 0.7
    assert last["RareGoal"]["second_room"]["min"] > 0.9
    assert last["UniGoal"]["second_room"]["mean"] == pytest.approx(4 / 51, abs=0.02)


@pytest.mark.parametrize("name", ["figure1", "figure3"])
def test_figure_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figure3, "EPISODES", 6)
    assert run_experiment([name, "--jobs", "1", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["rule"] == "AdaGoal"
    pages = {f"{name}.{kind}" for kind in ("png", "json", "md", "html")}
    assert {path.name for path in tmp_path.iterdir()} == {*pages, "figure3-runs"}


def test_separation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(separation, "ETAS", (1e-2, 1e-6))
    assert run_experiment(["separation", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path), "--json"]) == 0
    near, far = json.loads(capsys.readouterr().out)
    assert near["audits_passed"] == far["audits_passed"] == 1
    assert far["reset_steps"] < 10 * near["reset_steps"]
    assert far["reset_free_steps"] > 1000 * near["reset_free_steps"]
    assert (tmp_path / "separation.png").is_file()


def test_time_to_the_fork_has_the_predicted_median() -> None:
    """About ln 2 / eta rounds of L + 1 steps."""
    eta = 1e-3
    assert separation.first_met(eta, 0)[1] == pytest.approx(np.log(2) / eta * (separation.RADIUS + 1), rel=0.05)


def test_constants_are_shown_as_a_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        constants, "WORLDS", {"chain": ExplorationSettings("chain", {"n_states": 3}, radius=4.0, epsilon=1.0)}
    )
    assert run_experiment(["constants", "--out", str(tmp_path)]) == 0
    assert "| chain | 4 | 1 | " in capsys.readouterr().out
    assert run_experiment(["constants", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["literal"]["total"] > 1e9


@pytest.mark.slow
def test_interval_table_includes_the_certified_method(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        intervals, "WORLDS", {"chain": ExplorationSettings("chain", {"n_states": 3}, radius=3.0, epsilon=1.0)}
    )
    line = ["intervals", "--seeds", "1", "--jobs", "1", "--budget", "800", "--out", str(tmp_path)]
    assert run_experiment(line) == 0
    output = capsys.readouterr().out
    assert "| chain | 3 | 1 | " in output
    assert "> 8e+02" in output
    assert "0 failed the exact audit" in output
    assert run_experiment([*line, "--json"]) == 0
    nothing, branching = json.loads(capsys.readouterr().out)
    assert nothing["certified"] < nothing["clopper-pearson"]
    assert branching["hoeffding"] is not None


def test_price_experiment_runs_and_audits_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price, "_compile", lambda: None)
    monkeypatch.setattr(
        price, "WORLDS", {"small": ExplorationSettings("chain", {"n_states": 4}, radius=4.0, epsilon=1.0)}
    )
    found = price._measure(price.Cell("small", "adagoal", 0), 60.0)
    assert (found["status"], found["world"]) == ("certified", "small")
    assert found["steps"] > 0


def test_pages_of_figures_have_all_curves() -> None:
    """The committed runs give one curve per method or rule, with its seeds."""
    data = {
        name: json.loads((DATA / f"{name}.json").read_text()) for name in ("scaling", "separation", "linear-states")
    }
    options = scaling.SCALING.fill_in_defaults(seeds=data["scaling"]["seeds"], full=False)
    pages = {"scaling": scaling.report(data["scaling"]["runs"], options).plots}
    pages["linear"] = linear_output.states(data["linear-states"]["rows"], options).plots
    pages["separation"] = [separation.panel(data["separation"]["rows"], data["separation"]["seeds"])]
    assert {name: len(panels) for name, panels in pages.items()} == {"scaling": 4, "linear": 2, "separation": 1}
    for panels in pages.values():
        for panel in panels:
            kinds = [line.seed is None for line in panel.lines]
            assert sum(kinds) >= 2, "curves of all seeds"
            assert not all(kinds), "and of each"
            assert all(list(line.x) == sorted(line.x) and len(line.x) == len(line.y) for line in panel.lines)
