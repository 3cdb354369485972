"""Dependencies point downwards: which room may know which."""

from __future__ import annotations

from pathlib import Path

from rooms import ROOMS, imports, misplaced


def test_no_import_points_upwards() -> None:
    assert misplaced() == []


def test_every_room_is_on_the_list() -> None:
    assert {own for _, own, _ in imports()} <= set(ROOMS)


def test_a_learner_that_looks_at_the_truth_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular" / "cheat.py").write_text("def peek():\n    from adagoal.exact.solver import distances\n")
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "upwards.py").write_text("import adagoal.cli.main\n")
    assert misplaced(tmp_path) == [
        "core/upwards.py (core) imports from cli",
        "tabular/cheat.py (tabular) imports from mdp",
    ]
