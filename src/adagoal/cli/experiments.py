"""The options that ``adagoal compare`` shares with the experiments of a checkout, and how a command runs one."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from adagoal import engines
from adagoal.cli import options
from adagoal.compare.experiment import Experiment, ExperimentInfo
from adagoal.core.status import EXIT_UNFINISHED

if TYPE_CHECKING:  # imported where they are used: --help should not wait for them
    from adagoal.compare.runner import ExperimentDisplay

RESUME_HELP = "Finished runs are kept as files in the folder: stopped by Ctrl-C, the same command goes on where it was."


def experiment_options(name: str, asked: ExperimentInfo) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that all experiments have; the function gets them as it is to hand them to :func:`run_experiment_command`."""
    many, folder = click.IntRange(1, 10_000), options.OutputFolderParam(file_okay=False)
    seeds = click.option("--seeds", type=many, default=asked.seeds, show_default=True, help="Runs of each.")
    usual = f"[default: {asked.jobs or 'one for every core'}; ray: all cores]"
    where = click.Choice(engines.ENGINE_NAMES)
    found = [
        *([seeds, options.first_seed_option] if asked.seeds is not None else []),
        click.option("--jobs", type=click.IntRange(1, 1024), help=f"Runs at a time.  {usual}"),
        click.option("--engine", type=where, default="local", show_default=True, help="Where they run."),
        click.option("--address", metavar="HOST:PORT", help="A Ray cluster.  [default: a new one on this machine]"),
        click.option("--out", type=folder, default=Path("runs") / name, show_default=True, help="Folder."),
        click.option("--json", "as_json", is_flag=True, help="Print the table as JSON."),
        options.quiet_option,
    ]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(found):
            function = option(function)
        return function

    return decorate


def run_experiment_command(
    asked: ExperimentInfo,
    part: str,
    given: dict[str, Any],
    *,
    jobs: int | None,
    engine: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Run one experiment, or a part or all parts of one, and print the tables."""
    from adagoal.compare import runner

    parts = {name: found for name, found in load_experiments(asked).items() if part in ("all", name)}
    display = runner.ExperimentDisplay(given["quiet"])
    usual = asked.jobs if engine == "local" else None
    reports = {}
    with contextlib.closing(engines.make_engine(engine, jobs or usual, address, display.print_line)) as used:
        for name, experiment in parts.items():
            try:
                report = reports[name] = runner.run_experiment(
                    experiment, experiment.fill_in_defaults(**given), used, display
                )
            except KeyboardInterrupt:
                if not any(given["out"].glob("*")):  # no run, and no checkpoint of one
                    raise
                _exit_unfinished("interrupted", display, given["out"])
            except engines.WorkerLost as error:
                _exit_unfinished(f"error: {error}", display, given["out"])
            if not as_json:
                click.echo(report.text)
    if as_json:
        rows = {name: report.rows for name, report in reports.items()}
        click.echo(json.dumps(rows if len(parts) > 1 or "" not in parts else rows[""], indent=1))
    if not all(report.finished for report in reports.values()):
        raise click.exceptions.Exit(EXIT_UNFINISHED)


def load_experiments(asked: ExperimentInfo) -> Mapping[str, Experiment]:
    """The experiment itself, imported: its parts by name, or one part without a name."""
    module, _, name = asked.import_path.partition(":")
    found = getattr(importlib.import_module(module), name)
    return {"": found} if isinstance(found, Experiment) else found


def _exit_unfinished(reason: str, display: ExperimentDisplay, out: Path) -> NoReturn:
    """Say what is kept."""
    kept = f"{display.n_done} of {display.n_total} runs are kept in {out}"
    click.echo(f"{reason}: {kept}; the same command goes on", err=True)
    raise click.exceptions.Exit(EXIT_UNFINISHED) from None
