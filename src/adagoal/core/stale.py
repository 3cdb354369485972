"""Compiled code that is older than the source is removed before it is used.

Numba keeps compiled functions in ``__pycache__``, or in a folder of the user's where that cannot be written, and
compiles one anew when its own file has changed. It does not look at the files of the functions that this one calls and
contains. So after ``git pull``, or an edit, a run could go on with an old bound inside of a new one. Whatever was
compiled before the last change of any file is removed here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

INDEX = ".nbi"
"""The ending of the files through which Numba finds what it has compiled."""


def remove_stale(package: Path) -> None:
    """Remove the indices of compiled code that are older than any source file of the package."""
    files = list(_files(str(package))) if package.is_dir() else []
    changed = max((file.stat().st_mtime_ns for file in files if file.name.endswith(".py")), default=0)
    for file in [*files, *_elsewhere({os.path.dirname(file.path) for file in files if file.name.endswith(".py")})]:
        if file.name.endswith(INDEX):
            with contextlib.suppress(OSError):  # another process was faster, or the folder cannot be written
                if file.stat().st_mtime_ns < changed:
                    os.unlink(file)


def _elsewhere(folders: set[str]) -> Iterator[os.DirEntry[str]]:
    """What Numba keeps of the files in these folders outside of the package: each has a folder, named by its path."""
    own, cache = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for place in (own, os.path.join(cache, "numba")):
        for folder in map(os.path.abspath, folders) if place else ():
            name = f"{os.path.basename(folder)}_{hashlib.sha1(folder.encode(), usedforsecurity=False).hexdigest()}"
            with contextlib.suppress(OSError):  # there is nothing
                yield from _files(os.path.join(place or "", name))


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    """All files in the folder and below."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path)
        else:
            yield entry
