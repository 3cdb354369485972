"""Help texts of the command line and the package, and the modules that they import."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable

import click
import pytest

import adagoal
from adagoal.cli.main import COMMANDS, cli, run_command_line
from experiments import constants, figure2, price
from experiments.__main__ import load_experiments
from experiments.__main__ import run as run_experiment
from experiments.catalogue import CATALOGUE


def test_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "adagoal", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("adagoal, version")


@pytest.mark.parametrize("command", ["", "explore", "compare", "export", "train"])
def test_help_imports_no_heavy_module(command: str) -> None:
    code = (
        "import sys; from adagoal.cli.main import run_command_line; "
        f"run_command_line([*{command.split()}, '--help']); print(sorted(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Usage: adagoal" in out
    for heavy in ("'jax'", "'matplotlib'", "'torch'", "'numba'", "'scipy'", "'gymnasium'"):
        assert heavy not in out


def test_catalogue_equals_the_experiments() -> None:
    """The catalogue repeats their settings, because experiments are imported only when they run."""
    output = {(name, option.name): option.choices for name, asked in CATALOGUE.items() for option in asked.options}
    assert output["price", "world"] == tuple(price.WORLDS)
    assert output["figure2", "env"] == tuple(sorted(figure2.ENVS))
    assert output["figure2", "panel"] == figure2.PANELS
    assert output["figure2", "rule"] == tuple(figure2.LINES)
    assert str(constants.LARGE) in CATALOGUE["constants"].options[0].help
    for name, asked in CATALOGUE.items():
        parts = load_experiments(asked)
        assert tuple(parts) == (asked.parts or ("",))
        assert all(part.defaults == CATALOGUE[name].defaults for part in parts.values())


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "train"])
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([name, "--help"]) == 0
    assert f"Example: adagoal {name}" in capsys.readouterr().out


@pytest.mark.parametrize(("main", "names"), [(run_command_line, COMMANDS), (run_experiment, CATALOGUE)])
def test_groups_without_a_command_show_their_help(
    main: Callable[[list[str]], int], names: Iterable[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


def test_dir_lists_public_names() -> None:
    assert set(adagoal.__all__) <= set(dir(adagoal)), "what an interactive shell completes"


def test_options_are_shown_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for line in ("explore --help", "explore --help-all", "train --help", "train --help-all"):
        assert run_command_line(line.split()) == 0
        shown[line] = capsys.readouterr().out
    headings = re.findall(r"^(\w+):$", shown["explore --help"], re.MULTILINE)
    assert headings == ["Problem", "Goals", "Environment", "Execution", "Output"]
    for command in ("explore", "train"):
        assert len(re.findall("^  -", shown[f"{command} --help"], re.MULTILINE)) < 20
        found = cli.get_command(click.Context(cli), command)
        assert found is not None
        for option in (parameter for parameter in found.params if isinstance(parameter, click.Option)):
            assert f"{option.opts[0]} " in shown[f"{command} --help-all"]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_default_stands_for_another_value(name: str) -> None:
    """A default is the value that is used, not a number such as 0 or -1 with a meaning of its own."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    for option in (parameter for parameter in found.params if isinstance(parameter, click.Option)):
        if shown := re.search(r"\[default: (-?[\d.]+)\]", option.help or ""):
            assert not re.search(rf"(?<![\w.]){float(shown[1]):g}: ", option.help or ""), option.opts


def test_choices_are_shown_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["explore", "--help"]) == 0
    assert "--radius L|auto|all" in capsys.readouterr().out
