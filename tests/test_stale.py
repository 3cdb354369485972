"""Compiled code that may hold an older function inside of it is not used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adagoal.core.stale import remove_stale

INNER = "import numba\n\n@numba.njit(cache=True)\ndef inner(x):\n    return x + {}\n"
OUTER = "import numba\nfrom sample.inner import inner\n\n@numba.njit(cache=True)\ndef outer(x):\n    return inner(x)\n"


def ask(folder: Path, first: str = "", kept: Path | None = None) -> str:
    """What the compiled function of the sample says in a process of its own, and with a folder for compiled code."""
    code = f"{first}\nfrom sample.outer import outer\nprint(outer(1))"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("NUMBA_CACHE_DIR", None)
    if kept is not None:
        environment["NUMBA_CACHE_DIR"] = str(kept)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_function_inside_of_a_compiled_one_has_changed(elsewhere: bool, tmp_path: Path) -> None:
    package = tmp_path / "sample"
    folder = tmp_path / "compiled" if elsewhere else None
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "outer.py").write_text(OUTER)
    (package / "inner.py").write_text(INNER.format(1))
    assert ask(tmp_path, kept=folder) == "2"
    (package / "inner.py").write_text(INNER.format(10))
    assert ask(tmp_path, kept=folder) == "2"  # Numba alone does not see it
    path = str(Path(__file__).parents[1] / "src" / "adagoal" / "core" / "stale.py")
    look = f"import runpy, pathlib; runpy.run_path({path!r})['remove_stale'](pathlib.Path({str(package)!r}))"
    assert ask(tmp_path, look, folder) == "11"
    kept = sorted((folder or package).rglob("*.nbi"))
    assert kept
    assert ask(tmp_path, look, folder) == "11"
    assert sorted((folder or package).rglob("*.nbi")) == kept  # what is up to date stays


def test_importing_the_package_looks(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "src" / "adagoal"
    package = tmp_path / "adagoal"
    shutil.copytree(source / "core", package / "core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "__init__.py", package)
    old, new = package / "core" / "old.nbi", package / "core" / "new.nbi"
    for file in (old, new):
        file.touch()
    os.utime(old, (1, 1))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", "import adagoal.core"], env=environment, check=True)
    assert not old.exists()
    assert new.exists()


def test_no_folder_is_no_error(tmp_path: Path) -> None:
    remove_stale(tmp_path / "nowhere")
