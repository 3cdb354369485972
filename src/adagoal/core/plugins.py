"""What other installed packages add: worlds, goal rules and methods, by name.

A package declares them as entry points, for instance in its ``pyproject.toml``::

    [project.entry-points."adagoal.worlds"]
    corridor = "adagoal_corridor:corridor"

The groups are ``adagoal.worlds`` (a function that returns a Model; its arguments are the user's ``env_args``),
``adagoal.goal_rules`` (a rule) and ``adagoal.methods`` (a :class:`adagoal.methods.Method`). A plug-in is installed
code, as our own is: a folder may name it (docs/folder.md). Our own names come first, so that no plug-in can take one.

Entry points are looked up when a name is not one of ours, and a package is imported when one of its names is used.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.text import describe_exception

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
