"""The experiments behind the tables and figures of the documents: ``python -m experiments NAME``, from a checkout.

python -m experiments                    list the experiments
python -m experiments price --seeds 5    run one; finished runs are kept as files, so the same command continues
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from adagoal.cli import main as cli
from adagoal.cli import options
from adagoal.cli.compare_command import RESUME_HELP, experiment_options, run_experiment_command
from adagoal.settings.exploration import ExperimentInfo
from experiments.catalogue import CATALOGUE


def command(name: str, asked: ExperimentInfo) -> click.Command:
    """Return the command of an experiment. An experiment with parts gets the option ``--part``."""

    def function(part: str = "all", **given: Any) -> None:
        run_experiment_command(asked, part, given)

    taken = experiment_options(name, asked)(function)
    for option in reversed(asked.options):
        taken = options.setting_option(option)(taken)
    if asked.parts:
        choice = click.Choice([*asked.parts, "all"])
        taken = click.option("--part", type=choice, default="all", show_default=True, help="Which.")(taken)
    example = f"Example: python -m experiments {name} {asked.example or f'--jobs 2 --out runs/{name}'}"
    return click.command(name, help=f"{asked.description}\n\n{RESUME_HELP}", epilog=example)(taken)


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
