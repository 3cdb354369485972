"""Load and call code that the user brings: files, plug-ins, observers, interrupts, and what environments print.

A file is named as ``FILE.py:NAME``. Only the user can name one; a folder cannot.

A plug-in is an installed package that adds environments, goal rules or methods as entry points (docs/extending.md). A
folder may name one, because installed code is as trusted as adagoal itself (docs/folder.md). Built-in names come first,
so a plug-in cannot replace one. Entry points are read only if a name is not built in, and a package is imported when
its name is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TextIO

from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception


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
        raise EnvironmentFailure(f"{file} could not be loaded: {type(error).__name__}: {error}", name) from error
    if not hasattr(module, attribute):
        raise InputError(f"{file} has no function {attribute!r}", name)
    return getattr(module, attribute)


def list_plugin_names(group: str) -> list[str]:
    """Return the names that packages declare in a group, without importing the packages."""
    return sorted(entry_points(group=group).names)


def load_plugin(group: str, name: str, argument: str) -> Any | None:
    """Import what a package declares under a name; None if no package does. Errors name ``argument``."""
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
        raise EnvironmentFailure(f"the function raised {type(error).__name__}: {error}", "observe") from error


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
