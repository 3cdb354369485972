"""Cached compiled code that inlines an outdated function is not used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from adagoal.core.compiled_code import remove_stale_numba_cache

INNER = "import numba\n\n@numba.njit(cache=True)\ndef inner(x):\n    return x + {}\n"
OUTER = "import numba\nfrom sample.inner import inner\n\n@numba.njit(cache=True)\ndef outer(x):\n    return inner(x)\n"


STALE = Path(__file__).parents[1] / "src" / "adagoal" / "core" / "compiled_code.py"
SCRIPT = """
import os, pathlib, runpy, sys
import numba

for look, kept in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()  # which need not import Numba again
    if not child:
        numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = kept
        if look:
            runpy.run_path({stale!r})["remove_stale_numba_cache"](pathlib.Path("sample").resolve())
        from sample.outer import outer
        print(outer(1), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Run processes one after the other, each with or without the removal of stale code, and with its cache folder."""


def ask(folder: Path, look: str, *kept: str) -> list[str]:
    """Return the value of the compiled sample function in a new process."""
    words = [word for place in kept for word in (look, place)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(stale=str(STALE)), *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_change_of_an_inlined_function_recompiles_its_caller(tmp_path: Path) -> None:
    """With the cache beside the sources, and in a separate folder."""
    package, elsewhere = tmp_path / "sample", tmp_path / "compiled"
    places = ("", str(elsewhere))
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "outer.py").write_text(OUTER)
    (package / "inner.py").write_text(INNER.format(1))
    assert ask(tmp_path, "", *places) == ["2", "2"]
    (package / "inner.py").write_text(INNER.format(10))
    assert ask(tmp_path, "", *places) == ["2", "2"]  # Numba alone does not detect the change
    assert ask(tmp_path, "look", *places) == ["11", "11"]
    kept = [sorted(place.rglob("*.nbi")) for place in (package, elsewhere)]
    assert all(kept)
    assert ask(tmp_path, "look", *places) == ["11", "11"]
    assert [sorted(place.rglob("*.nbi")) for place in (package, elsewhere)] == kept  # up-to-date code stays


def test_changed_file_discards_only_its_dependents(tmp_path: Path) -> None:
    package = tmp_path / "sample"
    cache = package / "__pycache__"
    cache.mkdir(parents=True)
    sources = {"inner": "", "outer": "from sample.inner import f\n", "far": "from sample import outer\n", "other": "\n"}
    entries = {name: cache / f"{name}.f-1.py311.nbi" for name in sources}
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
        os.utime(package / f"{name}.py", (1, 1))
        entries[name].touch()
        os.utime(entries[name], (2, 2))
    remove_stale_numba_cache(package)
    assert all(entry.exists() for entry in entries.values())
    os.utime(package / "inner.py", (3, 3))
    remove_stale_numba_cache(package)
    assert [name for name, entry in entries.items() if entry.exists()] == ["other"]
    assert entries["other"].stat().st_mtime == 3  # marked as checked: the next start parses nothing


def test_importing_the_package_removes_stale_entries(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "src" / "adagoal"
    package = tmp_path / "adagoal"
    shutil.copytree(source / "core", package / "core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "__init__.py", package)
    cache = package / "core" / "__pycache__"
    cache.mkdir()
    old, new = cache / "transition_data.f-1.py311.nbi", cache / "transition_data.f-2.py311.nbi"
    for file in (old, new):
        file.touch()
    os.utime(old, (1, 1))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", "import adagoal.core"], env=environment, check=True)
    assert not old.exists()
    assert new.exists()


def test_missing_cache_folder_is_not_an_error(tmp_path: Path) -> None:
    remove_stale_numba_cache(tmp_path / "nowhere")
