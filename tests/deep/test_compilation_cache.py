"""Compiled JAX programs are cached for the next process."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adagoal.deep import jax_cache

SCRIPT = """
import jax
from adagoal.deep import jax_cache

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
jax_cache.enable_jax_cache(min_compile_seconds=0.0)
jax.jit(lambda x: x * 2 + 1)(3.0)
print(len(hits), jax.config.jax_compilation_cache_dir)
"""


def ask(**variables: str) -> tuple[int, str]:
    """Return the cache hits and the cache folder of a new process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | variables
    output = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    assert output.stderr == ""
    hits, folder = output.stdout.split()
    return int(hits), folder


def test_next_process_reuses_compiled_programs(tmp_path: Path) -> None:
    first, second = (ask(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    assert first[0] == 0
    assert second[0] >= 1
    assert first[1] == second[1]
    assert Path(first[1]).parent == tmp_path / "adagoal"
    for path in Path(first[1]).iterdir():
        os.truncate(path, 100)
    assert ask(XDG_CACHE_HOME=str(tmp_path))[0] == 0  # and nothing is printed


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None, Path], str | None]]:
    """Return a function that gives the cache folder, with or without an earlier setting and a cache home."""
    import jax

    config: Any = jax.config
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(config, name) for name in names}

    def ask(own: str | None, home: Path) -> str | None:
        config.update("jax_compilation_cache_dir", own)
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        jax_cache.enable_jax_cache()
        found: str | None = config.jax_compilation_cache_dir
        return found

    yield ask
    for name, value in before.items():
        config.update(name, value)


def test_cache_folder_of_the_user_is_not_changed(tmp_path: Path, kept: Any) -> None:
    assert kept(str(tmp_path / "own"), tmp_path) == str(tmp_path / "own")


def test_no_cache_without_a_writable_folder(tmp_path: Path, kept: Any) -> None:
    (tmp_path / "file").touch()
    assert kept(None, tmp_path / "file") is None
    assert kept(None, tmp_path) is not None


def test_truncated_cache_entry_is_removed(tmp_path: Path) -> None:
    whole = zlib.compress(bytes(1000))
    cut = {"a-cache": whole[:-1], "b-cache": b"", "c-cache": whole[:5] + b"\x01" + whole[6:]}
    for name, entry in {**cut, "d-cache": whole, "e": b""}.items():
        (tmp_path / name).write_bytes(entry)
    jax_cache._remove_broken_entries(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"d-cache", "e"}
