"""Remove cached Numba code whose callees have changed.

Numba caches compiled functions in ``__pycache__``, in the user's cache folder, or in ``NUMBA_CACHE_DIR``. It compiles a
function again when the file of that function changes, but not when a function that it calls, and has inlined, changes
in another file. So this module removes the cache entries of every module that imports a changed module, directly or
through others.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from pathlib import Path
from typing import Any


def remove_stale_numba_cache(package: Path) -> None:
    """Remove the cache entries of each module that are older than the module or than anything it imports."""
    sources = {path: path.stat().st_mtime_ns for path in package.rglob("*.py")}
    entries = list(_numba_cache_entries({path.parent for path in sources}))
    newest = max(sources.values(), default=0)
    if all(written >= newest for _, _, written in entries):
        return  # the common case: no file has changed, so the imports need not be read
    changed = _latest_source_changes(package, sources)
    for entry, source, written in entries:
        if written < changed.get(source, newest):
            with contextlib.suppress(OSError):  # another process was faster, or the folder is read-only
                entry.unlink()


def _numba_cache_entries(folders: set[Path]) -> Iterator[tuple[Path, Path, int]]:
    """Yield (index file, source file, modification time) of everything that Numba has cached for these folders."""
    own, cache = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in folders:
        name = f"{folder.name}_{hashlib.sha1(str(folder).encode(), usedforsecurity=False).hexdigest()}"
        for place in (folder / "__pycache__", Path(cache, "numba", name), *([Path(own, name)] if own else [])):
            for entry in place.glob("*.nbi"):  # named MODULE.FUNCTION-LINE.VERSION.nbi
                with contextlib.suppress(OSError):
                    yield entry, folder / f"{entry.name.partition('.')[0]}.py", entry.stat().st_mtime_ns


def _latest_source_changes(package: Path, sources: dict[Path, int]) -> dict[Path, int]:
    """Return the latest modification time among each file and everything it imports from the package."""
    imports = {path: {file for file in _imported_files(package, path) if file in sources} for path in sources}
    latest = {}
    for path in sources:
        reached, todo = {path}, [path]
        while todo:
            new = imports[todo.pop()] - reached
            reached |= new
            todo += new
        latest[path] = max(sources[file] for file in reached)
    return latest


def _imported_files(package: Path, path: Path) -> Iterator[Path]:
    """Yield the files that the imports of one file may name: ``from a.b import c`` is a/b.py or a/b/c.py."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.split(".")[0] == package.name:
                yield package.parent.joinpath(*name.split(".")).with_suffix(".py")


# Programs that JAX compiles are kept in a folder of the user's, so that the next process need not compile them again.
#
# JAX keeps them under ``JAX_COMPILATION_CACHE_DIR`` where that is set, and then nothing is done here. Otherwise they
# are in ``~/.cache/adagoal`` (or ``$XDG_CACHE_HOME/adagoal``), apart for every kind of processor: homes are shared by
# machines, and what was compiled for one may not run on another. What JAX itself makes of a program (its own version,
# the device, the compiler's options) is part of an entry's name. ``JAX_ENABLE_COMPILATION_CACHE=false`` switches it
# off.
#
# What cannot be read is compiled again, and what cannot be written is not kept; neither is worth a word. JAX does not
# write an entry anew, so that one that was cut off (a kill, a full disk) would never be of use again: it is removed.


MIN_COMPILE_SECONDS = 0.1
"""Seconds of compilation from which on a program is kept."""


def enable_jax_cache() -> None:
    """Keep programs from now on, in this process. Where there is no place for them nothing changes."""
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = _jax_cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_broken_entries(folder)
    except (OSError, RuntimeError):  # a home that cannot be written, or none at all
        return
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)


def _jax_cache_folder() -> Path:
    import llvmlite.binding as llvm

    kind = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    home = os.environ.get("XDG_CACHE_HOME", "")
    where = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return where / "adagoal" / hashlib.sha256(kind.encode()).hexdigest()[:12]


def _remove_broken_entries(folder: Path) -> None:
    for path in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another process may have removed it, or nobody can
            if not _is_complete_entry(path.read_bytes()):
                path.unlink()


def _is_complete_entry(entry: bytes) -> bool:
    """Whether what JAX compressed is all there; of another format than zlib's only that it is not empty."""
    if entry[:1] != b"\x78":
        return bool(entry)
    stream = zlib.decompressobj()
    try:
        stream.decompress(entry)
    except zlib.error:
        return False
    return stream.eof


# Jobs side by side: compiled functions, which let go of the interpreter, in threads.


def run_jobs_in_threads(jobs: Sequence[Callable[[], None]], threads: Executor | None) -> None:
    """Do all jobs, in these threads or without any. None of them is left running, whatever is raised."""
    if threads is None:
        for job in jobs:
            job()
        return
    begun = [threads.submit(job) for job in jobs]
    try:
        for one in begun:
            one.result()
    finally:
        wait(begun)
