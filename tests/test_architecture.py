"""Imports between packages point downwards only."""

from __future__ import annotations

from pathlib import Path

from import_layers import LAYERS, imports, misplaced_imports


def test_no_import_points_upwards() -> None:
    assert misplaced_imports() == []


def test_every_package_has_a_layer() -> None:
    assert {own for _, own, _ in imports()} <= set(LAYERS)


def test_learner_that_imports_the_true_model_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tabular").mkdir()
    (tmp_path / "tabular" / "cheat.py").write_text("def peek():\n    from adagoal.exact.solver import distances\n")
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "upwards.py").write_text("import adagoal.cli.main\n")
    (tmp_path / "core" / "around.py").write_text("import adagoal\n\n\ndef run():\n    return adagoal.explore\n")
    assert misplaced_imports(tmp_path) == [
        "core/around.py (core) imports from adagoal",
        "core/upwards.py (core) imports from cli",
        "tabular/cheat.py (tabular) imports from exact",
    ]
