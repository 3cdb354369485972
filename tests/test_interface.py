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
import pytest

import adagoal
from adagoal.cli.main import COMMANDS, cli
from adagoal.core import errors
from adagoal.core.run_settings import ClaimSettings, ExecutionOptions, ExplorationSettings, TrainingOptions
from adagoal.core.validation import SettingInfo, declared_settings

SNAPSHOT = Path(__file__).with_name("interface.json")


def command_options() -> dict[str, list[str]]:
    """Return the arguments and options of every command."""
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
    """Return the public names: parameters of functions, public members of classes."""
    found = {}
    for name in adagoal.__all__:
        value = getattr(adagoal, name)
        if inspect.isclass(value):
            found[name] = sorted(member for member in dir(value) if not member.startswith("_"))
        else:
            found[name] = [str(parameter).split(":")[0] for parameter in inspect.signature(value).parameters.values()]
    return found


def result_keys(result: adagoal.Result) -> list[str]:
    """Return the keys of ``result.json``, and those of its goals below ``goals``."""
    facts = result.to_dict()
    return sorted([*facts, *(f"goals.{key}" for key in facts["goals"][0])])


def interface() -> dict[str, Any]:
    """Return the content of the snapshot."""
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


def test_interface_equals_the_snapshot() -> None:
    assert interface() == json.loads(SNAPSHOT.read_text())


def declarations(*classes: type[Any]) -> dict[str, SettingInfo]:
    """Return the declared settings of several classes."""
    return {name: info for cls in classes for name, info in declared_settings(cls).items()}


@pytest.mark.parametrize(
    ("function", "classes", "other_defaults"),
    [
        # A run needs a radius or within, so neither has the default of the settings.
        (adagoal.explore, (ExplorationSettings, ExecutionOptions), {"env": inspect.Parameter.empty, "radius": None}),
        (adagoal.certify, (ClaimSettings,), {}),
    ],
)
def test_signatures_agree_with_the_declared_settings(
    function: Any, classes: tuple[type[Any], ...], other_defaults: dict[str, Any]
) -> None:
    parameters = inspect.signature(function).parameters
    for name, info in declarations(*classes).items():
        if name in other_defaults:
            assert parameters[name].default is other_defaults[name]
        else:
            assert (parameters[name].default or None) == (info.default or None), name


def test_docstring_of_explore_has_the_help_of_every_setting() -> None:
    text = " ".join((inspect.getdoc(adagoal.explore) or "").split())
    for name, info in declarations(ExplorationSettings, ExecutionOptions).items():
        assert f" {name}: {info.help}" in text
    for name in inspect.signature(adagoal.explore).parameters:
        assert name in text


@pytest.mark.parametrize(
    ("command", "classes", "arguments"),
    [
        ("explore", (ExplorationSettings, ExecutionOptions), {"env"}),
        ("certify", (ClaimSettings,), set()),
        ("train", (TrainingOptions,), set()),
    ],
)
def test_every_declared_setting_is_an_option_with_its_help(
    command: str, classes: tuple[type[Any], ...], arguments: set[str]
) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    options = {parameter.name: parameter for parameter in found.params}
    for name, info in declarations(*classes).items():
        if name not in arguments:
            option = options[name]
            assert isinstance(option, click.Option)
            assert (option.help or "").startswith(info.help.rstrip(".")), name


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(interface(), indent=1) + "\n")
