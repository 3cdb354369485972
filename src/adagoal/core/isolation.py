"""Keep files of the current directory from being executed or read as configuration.

The current directory may be a run folder that somebody else made (docs/folder.md). Two things would use its files:

- A new interpreter: ``python -c``, with which :mod:`multiprocessing` starts a process, and ``python -m`` put the
  current directory first on ``sys.path``. So workers start with ``PYTHONSAFEPATH``. A spawned process then takes over
  the ``sys.path`` of the command, which ends with the current directory if the user named a module there.
- Libraries that look there while they are imported (:data:`FILES_READ_ON_IMPORT`). The command line and its workers import them
  with another current directory. A Python program that uses adagoal imports them as it likes.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

FILES_READ_ON_IMPORT = {"numba": ".numba_config.yaml", "matplotlib": "matplotlibrc", "glfw": "libglfw.so"}
"""Libraries, and the file of the current directory that they read or load while they are imported."""
SAFE_PATH_VARIABLE, SAFE_PATH_MARKER = "PYTHONSAFEPATH", "adagoal-worker"
"""Environment variable of Python, and the value by which a worker recognises that adagoal started it."""


def worker_environment() -> dict[str, str]:
    """Return the variables to add to the environment of a worker."""
    return {SAFE_PATH_VARIABLE: SAFE_PATH_MARKER + os.environ.get(SAFE_PATH_VARIABLE, "")}


@contextlib.contextmanager
def safe_import_path() -> Iterator[None]:
    """Interpreters started in this block do not import modules of the current directory."""
    before = os.environ.get(SAFE_PATH_VARIABLE)
    os.environ.update(worker_environment())
    try:
        yield
    finally:
        _set_safe_path(before or "")


def prepare_worker() -> None:
    """In a worker: ignore files of the current directory, and hide the safe path from processes of the environment."""
    found = os.environ.get(SAFE_PATH_VARIABLE, "")
    if found.startswith(SAFE_PATH_MARKER):
        _set_safe_path(found.removeprefix(SAFE_PATH_MARKER))
        ignore_local_files()


def ignore_local_files() -> None:
    """From now on, import the libraries of :data:`FILES_READ_ON_IMPORT` with another current directory."""
    if not any(isinstance(finder, _SafeImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SafeImportFinder())


class _SafeImportFinder(importlib.machinery.PathFinder):
    """Finds the libraries as usual, and changes how they are executed."""

    def find_spec(  # type: ignore[override]
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in FILES_READ_ON_IMPORT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def elsewhere(module: ModuleType) -> None:
                with _neutral_directory():
                    execute(module)
                if fullname == "numba":  # it looks again whenever it compiles
                    sys.modules["numba.core.config"]._config_fname = os.devnull  # type: ignore[attr-defined]

            spec.loader.exec_module = elsewhere  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _neutral_directory() -> Iterator[None]:
    here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))  # also one that was removed, or that may not be read
    os.chdir("/")  # glfw starts an interpreter that imports modules from there, so it must not be a package
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def _set_safe_path(value: str) -> None:
    if value:
        os.environ[SAFE_PATH_VARIABLE] = value
    else:
        os.environ.pop(SAFE_PATH_VARIABLE, None)
