"""Load user files and plug-ins, nothing from the current directory; call observers; let Ctrl-C interrupt user code.

A file is named as ``FILE.py:NAME``. Only the user can name one; a folder cannot.

A plug-in is an installed package that adds environments, goal rules or methods as entry points (docs/extending.md). A
folder may name one, because installed code is as trusted as adagoal itself (docs/folder.md). Built-in names come first,
so a plug-in cannot replace one. Entry points are read only if a name is not built in, and a package is imported when
its name is used.

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
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception, describe_user_exception


class PluginGroup(StrEnum):
    """Groups of entry points."""

    ENVIRONMENTS = "adagoal.environments"  # functions that return a Model and take the user's env_args
    GOAL_RULES = "adagoal.goal_rules"
    METHODS = "adagoal.methods"  # adagoal.methods.Method


def is_file_spec(spec: object) -> bool:
    """Return whether a text has the form ``FILE.py:NAME``."""
    return isinstance(spec, str) and ".py:" in spec


def load_from_file(spec: str, name: str) -> Any:
    """Execute the file of ``FILE.py:NAME`` and return NAME; errors name the argument ``name``."""
    file, _, attribute = spec.rpartition(":")
    path = Path(file)
    # Path.is_file would raise for a name that is too long.
    if not os.path.isfile(path):
        raise InputError(f"no such file {file!r}", name)
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    # A script without a main guard may call sys.exit. That must not end the run without a message.
    except (Exception, SystemExit) as error:
        raise EnvironmentFailure(f"{file} could not be loaded: {describe_user_exception(error)}", name) from error
    if not hasattr(module, attribute):
        raise InputError(f"{file} has no function {attribute!r}", name)
    return getattr(module, attribute)


def list_plugin_names(group: str) -> list[str]:
    """Return the names that packages declare in a group, without importing the packages."""
    # Imported here, because it takes longer than all else that ``adagoal --help`` imports from here.
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group).names)


def load_plugin(group: str, name: str, argument: str) -> Any | None:
    """Import what a package declares under a name; None if no package does. Errors name ``argument``."""
    from importlib.metadata import entry_points

    points = [*entry_points(group=group, name=name)]
    if not points:
        return None
    packages = sorted({point.dist.name if point.dist is not None else point.value for point in points})
    # The order of entry points is that of sys.path, so taking the first would depend on the installation.
    if len(packages) > 1:
        raise InputError(
            f"{name!r} is declared by several packages: {', '.join(packages)}; uninstall all but one", argument
        )
    try:
        return points[0].load()
    except (Exception, SystemExit) as error:
        text = f"{name!r} of the package {packages[0]} cannot be loaded ({describe_exception(error)})"
        raise EnvironmentFailure(text, argument) from error


def call_observer(observe: Callable[..., bool | None] | None, *arguments: object) -> bool:
    """Call the observer and return False if it asked to stop.

    Exceptions of user observers are re-raised as EnvironmentFailure, those of adagoal's own observers unchanged.
    """
    if observe is None:
        return True
    try:
        return observe(*arguments) is not False
    except Exception as error:
        # A bug in an observer of this package keeps its traceback; it is not the user's mistake.
        if (getattr(observe, "__module__", None) or "").partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise EnvironmentFailure(f"the function raised {describe_user_exception(error)}", "observe") from error


class UserCodeSection:
    """A block that runs an environment, a goal rule or a goal function: the only place that Ctrl-C interrupts.

    Anywhere else ``KeyboardInterrupt`` could be raised while compiled code is entered, where Numba turns it into a
    ``SystemError`` or a crash, or between two tables that belong together. An interrupt that comes there is raised
    when the next block begins.
    """

    def __init__(self) -> None:
        self._is_inside = self._is_pending = self._was_raised = False

    def __enter__(self) -> None:
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt
        # The flag comes last: a signal handler may run between these lines, and raises once the flag is set.
        self._was_raised = False
        self._is_inside = True

    def __exit__(self, *_: object) -> None:
        self._is_inside = False
        # Raise again, because the user's code may have caught it, for example with a bare except.
        if self._was_raised:
            self._was_raised = False
            raise KeyboardInterrupt

    def request_interrupt(self) -> None:
        """Raise ``KeyboardInterrupt``, now or when the next block begins; for a signal handler."""
        if self._is_inside:
            # A second signal must not interrupt the user's clean-up after the first, so it waits for the next block.
            self._is_inside, self._was_raised = False, True
            raise KeyboardInterrupt
        self._is_pending = True

    def discard_interrupt(self) -> None:
        """Drop an interrupt that was not raised yet."""
        self._is_pending = self._was_raised = False


# One per process, because signal handlers are. Every step enters it, so it is a plain object that costs as little as
# a null context.
USER_CODE_SECTION = UserCodeSection()


@contextlib.contextmanager
def stdout_to_stderr(file: TextIO | None = None) -> Iterator[None]:
    """Redirect standard output to a file, by default standard error, and restore the current directory afterwards."""
    target = sys.stderr if file is None else file
    saved = None
    # Standard output belongs to results, but environments print, also from C: hence the descriptor. One of the two
    # streams may be closed, or have no descriptor, as in a notebook.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        number = target.fileno()
        saved = os.dup(1)
        os.dup2(number, 1)
    try:
        with contextlib.redirect_stdout(target), contextlib.chdir("."):
            yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            target.flush()
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


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
