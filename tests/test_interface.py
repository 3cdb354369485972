"""The interface that scripts outside the repository rely on, compared with the snapshot in ``interface.json``.

If a change is intended, write the snapshot again and review its diff:

    python tests/test_interface.py
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import click

import adagoal
from adagoal.cli.main import COMMANDS, cli
from adagoal.core import errors

SNAPSHOT = Path(__file__).with_name("interface.json")


def command_options() -> dict[str, list[str]]:
    """The arguments and options of every command, as they are typed."""
    found = {}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        found[name] = sorted(
            "/".join([*parameter.opts, *parameter.secondary_opts])
            if isinstance(parameter, click.Option)
            else str(parameter.metavar or parameter.name).upper()
            for parameter in command.params
        )
    return found


def public_names() -> dict[str, list[str]]:
    """Public names: parameters of functions, public members of classes."""
    found = {}
    for name in adagoal.__all__:
        value = getattr(adagoal, name)
        if inspect.isclass(value):
            found[name] = sorted(member for member in dir(value) if not member.startswith("_"))
        else:
            found[name] = [str(parameter).split(":")[0] for parameter in inspect.signature(value).parameters.values()]
    return found


def result_keys(result: adagoal.Result) -> list[str]:
    """The keys of ``result.json``; those of the goals below ``goals``."""
    facts = result.to_dict()
    return sorted([*facts, *(f"goals.{key}" for key in facts["goals"][0])])


def interface() -> dict[str, Any]:
    """Everything that the snapshot holds."""
    codes = {f"EXIT_{code.name}": code.value for code in errors.ExitCode}
    result = adagoal.explore("chain", radius=2, budget=500)
    return {
        "commands": command_options(),
        "exit codes": codes,
        "public names": public_names(),
        "statuses": sorted(map(str, errors.Status)),
        "result.json": result_keys(result),
        "arrays": sorted(result.arrays),
    }


def test_the_interface_is_that_of_the_snapshot() -> None:
    assert interface() == json.loads(SNAPSHOT.read_text())


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(interface(), indent=1) + "\n")
