"""Keep Python from executing or reading files of the current directory.

The current directory may be a run folder that another person made (docs/folder.md). Two things would use its files:

- A new interpreter. ``python -c``, with which :mod:`multiprocessing` starts a process, and ``python -m`` put the
  current directory first on ``sys.path``. Workers therefore start with ``PYTHONSAFEPATH``. A spawned process then
  copies the ``sys.path`` of the command, which ends with the current directory if the user named a module there.
- Libraries that look there while they are imported. The command line and its workers import these libraries from
  another current directory. A Python program that uses adagoal imports them as usual.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

# In the value of PYTHONSAFEPATH. Python accepts any text as "on", so the value can carry a mark.
_WORKER_MARK = "adagoal-worker"


def safe_path_variables() -> dict[str, str]:
    """Return the environment variables that a worker needs to ignore modules of the current directory.

    The value keeps the user's own setting, and the mark by which :func:`prepare_worker` recognises a worker.
    """
    return {"PYTHONSAFEPATH": _WORKER_MARK + os.environ.get("PYTHONSAFEPATH", "")}


def prepare_worker() -> None:
    """In a worker: ignore local files, and restore the user's variable for processes that the environment starts."""
    value = os.environ.get("PYTHONSAFEPATH", "")
    if value.startswith(_WORKER_MARK):
        del os.environ["PYTHONSAFEPATH"]
        if own_value := value.removeprefix(_WORKER_MARK):
            os.environ["PYTHONSAFEPATH"] = own_value
        ignore_local_files()


def ignore_local_files() -> None:
    """From now on, import libraries that read files of the current directory from another directory."""
    # First in the list: the finder that comes first decides, and one below the standard ones is never asked.
    if not any(isinstance(finder, _SafeImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SafeImportFinder())


class _SafeImportFinder(importlib.machinery.PathFinder):
    """Finds the libraries as usual, but executes them in another directory."""

    # matplotlib reads matplotlibrc, numba .numba_config.yaml, and glfw loads libglfw.so
    libraries = ("numba", "matplotlib", "glfw")

    def find_spec(  # type: ignore[override]
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.libraries:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_elsewhere(module: ModuleType) -> None:
                with _neutral_directory():
                    execute(module)
                # Numba reads its configuration again before each compilation, then from the current directory.
                if fullname == "numba":
                    sys.modules["numba.core.config"]._config_fname = os.devnull  # type: ignore[attr-defined]

            spec.loader.exec_module = execute_elsewhere  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _neutral_directory() -> Iterator[None]:
    # A descriptor also leads back to a directory that was removed or may not be read.
    before = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    # glfw starts an interpreter, which imports modules from here; only the administrator can put a file into "/".
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)
