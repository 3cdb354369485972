"""The figure scripts run on tiny settings, and their committed data says what the figures claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from adagoal.cli.main import run
from adagoal.experiments import constants, figure3, price, separation

DATA = Path(__file__).parent.parent / "docs" / "figures"


def test_figure3_on_a_few_episodes(tmp_path: Path) -> None:
    data = figure3.reproduce(figure3.RULES, range(2), jobs=1, episodes=9)
    assert [(row["rule"], row["first"], row["last"]) for row in data["rows"][:3]] == [
        ("UniGoal", 0, 2),
        ("UniGoal", 3, 5),
        ("UniGoal", 6, 8),
    ]
    for rule in figure3.RULES:
        assert [sum(window) for window in data["selected"][rule]] == [6, 6, 6]
        assert all(window[0] == 0 for window in data["selected"][rule])  # s0 is no goal
    figure3.draw(data, tmp_path / "figure3.png")
    assert (tmp_path / "figure3.png").stat().st_size > 10_000
    assert figure3.table(data["rows"]).count("\n") == 9
    again = figure3.selected_goals(figure3.Task("AdaGoal", 1, 9))
    assert again == figure3.selected_goals(figure3.Task("AdaGoal", 1, 9))


def test_places_of_the_claim() -> None:
    places = figure3.places()
    assert places["second_room"].tolist() == [47, 48, 50, 51]
    assert len(places["farthest"]) == 10
    assert 20 in places["farthest"]  # the centre of the spiral


def test_committed_figure3_shows_the_claim() -> None:
    """The paper's reading: AdaGoal ends at the fringe of the first room, RareGoal in the second room."""
    data = json.loads((DATA / "figure3.json").read_text())
    assert len(data["seeds"]) >= 20
    last = {row["rule"]: row for row in data["rows"] if row["last"] == 999}
    assert last["AdaGoal"]["second_room"]["max"] == 0.0
    assert last["AdaGoal"]["farthest"]["min"] > 0.7
    assert last["RareGoal"]["second_room"]["min"] > 0.9
    assert last["UniGoal"]["second_room"]["mean"] == pytest.approx(4 / 51, abs=0.02)


@pytest.mark.parametrize("command", [figure3.figure1, figure3.figure3])
def test_figure_commands(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure3.reproduce, "__defaults__", (6,))
    answer = CliRunner().invoke(command, ["--out", str(tmp_path), "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)[-1]["rule"] == "AdaGoal"
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".json"}


def test_separation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separation, "ETAS", (1e-2, 1e-6))
    answer = CliRunner().invoke(separation.separation, ["--seeds", "1", "--out", str(tmp_path), "--json"])
    assert answer.exit_code == 0, answer.output
    near, far = json.loads(answer.stdout)
    assert near["audits_passed"] == far["audits_passed"] == 1
    assert far["reset_steps"] < 10 * near["reset_steps"]
    assert far["reset_free_steps"] > 1000 * near["reset_free_steps"]
    assert (tmp_path / "separation.png").is_file()


def test_time_to_the_fork_has_the_right_median() -> None:
    """About ln 2 / eta rounds of L + 1 steps."""
    eta = 1e-3
    assert separation.first_met(eta, 0)[1] == pytest.approx(np.log(2) / eta * (separation.RADIUS + 1), rel=0.05)


def test_constants_are_shown_as_a_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "WORLDS", [price.World("chain", "chain", {"n_states": 3}, None, 4.0, 1.0)])
    assert run(["reproduce", "constants", "--out", str(tmp_path)]) == 0
    assert "| chain | 4 | 1 | " in capsys.readouterr().out
    assert run(["reproduce", "constants", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["literal"]["total"] > 1e9
