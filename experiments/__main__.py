"""The experiments behind the tables and figures of the documents: ``python -m experiments NAME``, from a checkout.

python -m experiments                    list the experiments
python -m experiments price --seeds 5    run one; finished runs are kept as files, so the same command continues
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from adagoal.cli import main as cli
from adagoal.cli import options
from adagoal.cli.options import setting_options
from adagoal.core.errors import ExitCode
from adagoal.core.run_settings import ComparisonOptions, ExecutionOptions
from adagoal.core.validation import declared_settings
from adagoal.parallel import engines
from experiments.catalogue import CATALOGUE, ExperimentInfo

RESUME_HELP = "Finished runs are saved as files in the folder; after Ctrl-C, the same command continues."


def experiment_options(name: str, info: ExperimentInfo) -> options.Decorator:
    """Return a decorator that adds the options of all experiments; see :func:`run_experiments`."""
    declared = declared_settings(ComparisonOptions)
    jobs = declared["jobs"]
    if info.jobs is not None:
        jobs = replace(jobs, default_text=f"{info.jobs}; ray: all cores")
    shared: list[options.Decorator] = [
        options.setting_option(jobs),
        setting_options(ExecutionOptions, "engine", "address"),
        click.option(
            "--out", "-o", type=options.FOLDER, default=Path("runs") / name, show_default=True, help="Folder."
        ),
        options.json_option,
        options.quiet_option,
    ]
    if info.seeds is not None:
        seeds = replace(declared["seeds"], default=info.seeds)
        shared = [options.setting_option(seeds), setting_options(ComparisonOptions, "seed"), *shared]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(shared):
            function = option(function)
        return function

    return decorate


def run_experiments(info: ExperimentInfo, part: str, given: dict[str, Any]) -> None:
    """Run an experiment, or one or all of its parts, and print the tables; ``given`` are the values of its options."""
    # here, because --help should not wait for it
    from adagoal.comparison.method_comparison import RunsProgress
    from experiments.experiment import run_experiment

    # where and how it runs changes no number, so the experiment does not get these options
    jobs, engine, address, as_json = (given.pop(name) for name in ("jobs", "engine", "address", "as_json"))
    parts = {name: experiment for name, experiment in load_experiments(info).items() if part in ("all", name)}
    display = RunsProgress(given["quiet"])
    # the experiment's own number is for one machine; a cluster has its own number of cores
    default_jobs = info.jobs if engine == "local" else None
    reports = {}
    opened_engine = engines.make_engine(engine, jobs or default_jobs, address, display.print_line)
    with contextlib.closing(opened_engine):
        for name, experiment in parts.items():
            chosen = experiment.fill_in_defaults(**given)
            report = reports[name] = run_experiment(experiment, chosen, opened_engine, display)
            if not as_json:
                click.echo(report.text)
    if as_json:
        rows = {name: report.rows for name, report in reports.items()}
        click.echo(json.dumps(rows if len(parts) > 1 or "" not in parts else rows[""], indent=1))
    if not all(report.finished for report in reports.values()):
        raise click.exceptions.Exit(ExitCode.UNFINISHED)


def load_experiments(info: ExperimentInfo) -> Mapping[str, Any]:
    """Import an experiment and return its parts by name; an experiment without parts has the name ""."""
    module, _, name = info.import_path.partition(":")
    experiment = getattr(importlib.import_module(module), name)
    return experiment if isinstance(experiment, Mapping) else {"": experiment}


def command(name: str, asked: ExperimentInfo) -> click.Command:
    """Return the command of an experiment. An experiment with parts gets the option ``--part``."""

    def function(part: str = "all", **given: Any) -> None:
        run_experiments(asked, part, given)

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
