"""The user's own code: a file named as ``FILE.py:NAME``, loaded only where the user, not a folder, has named it; and
functions that are called on the way."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TextIO

from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception


def is_file_spec(spec: object) -> bool:
    """Whether a text names code in a file."""
    return isinstance(spec, str) and ".py:" in spec


def load_from_file(spec: str, name: str) -> Any:
    """What the file calls NAME; ``name`` is the argument that is wrong where there is no such thing."""
    file, _, attribute = spec.rpartition(":")
    path = Path(file)
    if not os.path.isfile(path):  # unlike Path.is_file, which raises for a name that is too long
        raise InputError(f"no such file {file!r}", name)
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise EnvironmentFailure(f"{file} could not be loaded: {type(error).__name__}: {error}", name) from error
    if not hasattr(module, attribute):
        raise InputError(f"{file} has no function {attribute!r}", name)
    return getattr(module, attribute)


def call_observer(observe: Callable[..., bool | None] | None, *told: object) -> bool:
    """Whether an observer, told this, wants to go on. What the user's raises is the user's, what one of ours is not."""
    if observe is None:
        return True
    try:
        return observe(*told) is not False
    except Exception as error:
        if (getattr(observe, "__module__", None) or "").partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise EnvironmentFailure(f"the function raised {type(error).__name__}: {error}", "observe") from error


# What other installed packages add: worlds, goal rules and methods, by name.
#
# A package declares them as entry points, for instance in its ``pyproject.toml``::
#
#     [project.entry-points."adagoal.worlds"]
#     corridor = "adagoal_corridor:corridor"
#
# The groups are ``adagoal.worlds`` (a function that returns a Model; its arguments are the user's ``env_args``),
# ``adagoal.goal_rules`` (a rule) and ``adagoal.methods`` (a :class:`adagoal.methods.Method`). A plug-in is installed
# code, as our own is: a folder may name it (docs/folder.md). Our own names come first, so that no plug-in can take one.
#
# Entry points are looked up when a name is not one of ours, and a package is imported when one of its names is used.


ENV_GROUP, GOAL_RULE_GROUP, METHOD_GROUP = "adagoal.worlds", "adagoal.goal_rules", "adagoal.methods"


def list_plugin_names(group: str) -> list[str]:
    """The names that packages declare in a group; nothing is imported."""
    return sorted(entry_points(group=group).names)


def load_plugin(group: str, name: str, argument: str) -> Any | None:
    """What a package declares under a name, imported; None where no package does.

    ``argument`` is the one that named it, for the message where the package cannot be imported.
    """
    found = [*entry_points(group=group, name=name)]
    if not found:
        return None
    packages = sorted({point.dist.name if point.dist is not None else point.value for point in found})
    if len(packages) > 1:
        raise InputError(f"{name!r} is declared by several packages: {', '.join(packages)}", argument)
    try:
        return found[0].load()
    except (Exception, SystemExit) as error:
        text = f"{name!r} of the package {packages[0]} cannot be loaded ({describe_exception(error)})"
        raise EnvironmentFailure(text, argument) from error


# Standard output belongs to results: what other packages print meanwhile is led elsewhere.
#
# Environments print from Python and from C (banners, notices, progress), in the middle of whatever is being written.


@contextlib.contextmanager
def stdout_to_stderr(into: TextIO | None = None) -> Iterator[None]:
    """Lead everything that is written to standard output into another file: standard error by default.

    An environment may change the current folder too; at the end it is again what it was.
    """
    other = sys.stderr if into is None else into
    kept = _redirect_descriptor(other)
    try:
        with contextlib.redirect_stdout(other), contextlib.chdir("."):
            yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            other.flush()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def _redirect_descriptor(other: TextIO) -> int | None:
    """Let file descriptor 1 write into the other file; a copy of what it was, None where one of them is closed."""
    try:
        sys.stdout.flush()
        number = other.fileno()
        kept = os.dup(1)
        os.dup2(number, 1)
    except (OSError, ValueError, AttributeError):
        return None
    return kept
