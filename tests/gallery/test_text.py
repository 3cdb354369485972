"""The quest of the text game is won in three commands, and its box cannot be opened before."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_quest import GOALS, TextGame, make_game

import adagoal


@pytest.mark.filterwarnings("default")
def test_the_quest_takes_three_commands(tmp_path: Path) -> None:
    result = adagoal.explore(TextGame(make_game(str(tmp_path))), 6, seed=1, goals=GOALS)
    assert result.status == "certified"
    lower, upper = result.certificate("game won")
    assert lower <= 3 <= upper
    assert [name for name in GOALS if result.goal(name) not in result.goals] == ["box open"]
