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
from collections.abc import Iterator
from pathlib import Path


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
