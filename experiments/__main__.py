"""The experiments behind the tables and figures of the documents: ``python -m experiments NAME``, from a checkout.

python -m experiments                    list the experiments
python -m experiments price --seeds 5    run one; finished runs are kept as files, so the same command continues
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from adagoal.cli import main as cli
from adagoal.cli import options
from adagoal.cli.compare_command import RESUME_HELP, experiment_options, run_experiment_command
from adagoal.compare.experiment import ExperimentInfo, ExperimentOption
from experiments.catalogue import CATALOGUE


class Whole(options.StepCountParam):
    """A whole number with a smallest value."""

    name = "N"

    def __init__(self, low: float) -> None:
        self._low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if number < self._low:
            self.fail(f"{number} is not in the range x>={self._low:g}", param, ctx)
        return number


def command(name: str, asked: ExperimentInfo) -> click.Command:
    """Return the command of an experiment. An experiment with parts gets the option ``--part``."""

    def function(part: str = "all", **given: Any) -> None:
        engine = {key: given.pop(key) for key in ("jobs", "engine", "address", "as_json")}
        run_experiment_command(asked, part, given, **engine)

    taken = experiment_options(name, asked)(function)
    for option in reversed(asked.options):
        taken = _click(option)(taken)
    if asked.parts:
        choice = click.Choice([*asked.parts, "all"])
        taken = click.option("--part", type=choice, default="all", show_default=True, help="Which.")(taken)
    example = f"Example: python -m experiments {name} {asked.example or f'--jobs 2 --out runs/{name}'}"
    return click.command(name, help=f"{asked.description}\n\n{RESUME_HELP}", epilog=example)(taken)


def _click(option: ExperimentOption) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the Click decorator for an option of the experiment."""
    kind: click.ParamType[Any]
    if option.kind is bool:
        return click.option(_flag(option), option.name, is_flag=True, help=option.help)
    if option.kind is int:
        kind = Whole(option.minimum or 0)
    elif option.kind is float:
        kind = options.PositiveFloatParam() if option.minimum is None else click.FloatRange(option.minimum)
    elif option.kind is Path:
        kind = click.Path(path_type=Path, file_okay=False, exists=True)
    else:
        kind = click.Choice(option.choices)
    told = "default" in option.help or option.multiple or option.default in (None, float("inf"))
    default = None if option.multiple else option.default
    return click.option(
        *(_flag(option), option.name),
        type=kind,
        default=default,
        multiple=option.multiple,
        show_default=not told,
        help=option.help,
    )


def _flag(option: ExperimentOption) -> str:
    return "--" + option.name.replace("_", "-")


@click.group(
    cls=cli.OrderedGroup, invoke_without_command=True, epilog="Example: python -m experiments figure3 --seeds 20"
)
@click.pass_context
def experiments(ctx: click.Context) -> None:
    """Run an experiment: its figure, its table, and the data behind them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for _name, _asked in CATALOGUE.items():
    experiments.add_command(command(_name, _asked))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    return cli.run_command_line(arguments, experiments, "python -m experiments")


if __name__ == "__main__":
    sys.exit(run())
