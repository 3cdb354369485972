"""Imports between packages point downwards only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "adagoal"
LAYERS = (
    *("core", "parallel", "envs", "planning", "exact", "certified", "tabular", "linear"),
    *("baselines", "certification", "deep", "loop", "methods", "runs", "api", "sb3", "report", "comparison", "cli"),
)
"""From bottom to top: a package imports only from packages before it."""
LEARNERS = ("certified", "tabular", "linear", "baselines", "deep", "loop", "methods")
"""Packages that may not import ``exact``, which knows the true model."""
PACKAGE_OF_MODULE = {"goal_rules": "core", "__main__": "cli"}
"""Top-level modules that belong to a package."""
PUBLIC_API = ("__init__.py", "deep/__init__.py", "sb3/__init__.py")
"""Modules that name objects of higher layers and import them on access."""

RESULTS = ("runs/result.py", "runs/train_result.py")
"""Modules that may import the package itself, because the methods of a result call the public functions."""


def imports(source: Path = SOURCE) -> Iterator[tuple[str, str, str]]:
    """Yield (file, its package, imported package) for every import of the package's own modules, in functions too."""
    for file in sorted(source.rglob("*.py")):
        name = file.relative_to(source).as_posix()
        if name in PUBLIC_API:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                parts = module.split(".")
                if parts[0] == "adagoal":
                    yield (
                        name,
                        package_of(name.removesuffix(".py").split("/")[0]),
                        package_of(parts[min(1, len(parts) - 1)]),
                    )


def package_of(module: str) -> str:
    """Return the package of a top-level module."""
    return PACKAGE_OF_MODULE.get(module, module)


def misplaced_imports(source: Path = SOURCE) -> list[str]:
    """Return the imports that point upwards, or from a learner to the true model."""
    found = []
    for file, own, other in imports(source):
        if other == "adagoal":
            upwards = file not in RESULTS
        else:
            upwards = own != other and LAYERS.index(other) > LAYERS.index(own)
        if upwards or (own in LEARNERS and other == "exact"):
            found.append(f"{file} ({own}) imports from {other}")
    return sorted(set(found))


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
