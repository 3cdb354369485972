"""The options that ``adagoal compare`` shares with the experiments of a checkout, and how a command runs one."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from adagoal import parallel
from adagoal.cli import options
from adagoal.compare.experiment import Experiment, ExperimentInfo
from adagoal.core.errors import ExitCode, InputError

if TYPE_CHECKING:  # imported where they are used: --help should not wait for them
    from adagoal.compare.experiment_runner import ExperimentProgress

RESUME_HELP = "Finished runs are kept as files in the folder: stopped by Ctrl-C, the same command goes on where it was."


def experiment_options(name: str, asked: ExperimentInfo) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that all experiments have; the function gets them as it is to hand them to
    :func:`run_experiment_command`."""
    many, folder = click.IntRange(1, 10_000), options.OutputFolderParam(file_okay=False)
    seeds = click.option("--seeds", type=many, default=asked.seeds, show_default=True, help="Runs of each.")
    usual = f"[default: {asked.jobs or 'one for every core'}; ray: all cores]"
    where = click.Choice(parallel.ENGINE_NAMES)
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
    from adagoal.compare import experiment_runner

    parts = {name: found for name, found in load_experiments(asked).items() if part in ("all", name)}
    display = experiment_runner.ExperimentProgress(given["quiet"])
    usual = asked.jobs if engine == "local" else None
    reports = {}
    with contextlib.closing(parallel.make_engine(engine, jobs or usual, address, display.print_line)) as used:
        for name, experiment in parts.items():
            try:
                report = reports[name] = experiment_runner.run_experiment(
                    experiment, experiment.fill_in_defaults(**given), used, display
                )
            except KeyboardInterrupt:
                if not any(given["out"].glob("*")):  # no run, and no checkpoint of one
                    raise
                _exit_unfinished("interrupted", display, given["out"])
            except parallel.WorkerLost as error:
                _exit_unfinished(f"error: {error}", display, given["out"])
            if not as_json:
                click.echo(report.text)
    if as_json:
        rows = {name: report.rows for name, report in reports.items()}
        click.echo(json.dumps(rows if len(parts) > 1 or "" not in parts else rows[""], indent=1))
    if not all(report.finished for report in reports.values()):
        raise click.exceptions.Exit(ExitCode.UNFINISHED)


def load_experiments(asked: ExperimentInfo) -> Mapping[str, Experiment]:
    """The experiment itself, imported: its parts by name, or one part without a name."""
    module, _, name = asked.import_path.partition(":")
    found = getattr(importlib.import_module(module), name)
    return {"": found} if isinstance(found, Experiment) else found


def _exit_unfinished(reason: str, display: ExperimentProgress, out: Path) -> NoReturn:
    """Say what is kept."""
    kept = f"{display.n_done} of {display.n_total} runs are kept in {out}"
    click.echo(f"{reason}: {kept}; the same command goes on", err=True)
    raise click.exceptions.Exit(ExitCode.UNFINISHED) from None


# ``adagoal compare``: methods and goal rules of the user's choice, side by side.


COMPARE_INFO = ExperimentInfo(
    "adagoal.compare.method_comparison:COMPARE", "Methods and goal rules side by side, over seeds."
)


class NumberListParam(click.ParamType["tuple[float, ...]"]):
    """One number, or one per world with commas."""

    name = "NUMBER[,NUMBER...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The numbers."""
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            return self.fail(f"{value!r} is not a number, nor several with commas between them", param, ctx)


@click.command(
    help="Run methods and goal rules side by side on worlds whose model is known, and audit them exactly on the way. "
    f"Writes table.md, table.json and figure.png.\n\n{RESUME_HELP}",
    epilog="Example: adagoal compare two-room grid --radius 40,10 --goal-rules adagoal,unigoal --seeds 5 --budget 1e6",
)
@click.argument("worlds", metavar="ENV...", nargs=-1, required=True, type=options.EnvParam())
@click.option("--radius", type=NumberListParam(), required=True, help="L, one for all worlds or one for each.")
@click.option(
    "--epsilon", type=NumberListParam(), default="1", show_default=True, help="One for all worlds or one for each."
)
@options.delta_option
@click.option(
    "--methods", type=options.NameListParam(), default="certified", show_default=True, help="NAME or NAME:KEY=VALUE."
)
@options.constants_option
@click.option(
    "--goal-rules", type=options.NameListParam(), default="adagoal,unigoal", show_default=True, help="As in explore."
)
@click.option(
    "--budget", type=options.StepCountParam(), default="1e7", show_default=True, help="Steps after which a run ends."
)
@options.env_args_option
@options.goal_options
@experiment_options("compare", COMPARE_INFO)
def compare(
    worlds: tuple[str, ...],
    radius: tuple[float, ...],
    epsilon: tuple[float, ...],
    env_args: dict[str, Any],
    jobs: int | None,
    engine: str,
    address: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    for env in worlds:
        if worlds.count(env) > 1:
            raise InputError(f"ENV: {env} is given twice; a comparison holds each world once")
    each = zip(
        worlds, _one_per_env("--radius", radius, worlds), _one_per_env("--epsilon", epsilon, worlds), strict=True
    )
    given["worlds"] = {env: {"radius": L, "epsilon": e, "env_args": env_args} for env, L, e in each}
    with options.blame_goal_option(dict(given)), _blame_list_options():
        given["goals"] = options.take_goals_argument(given)
        given["common"] = {name: given.pop(name) for name in ("delta", "constants", "budget", "goals")}
        given["common"]["seed"] = given["seed"]
        run_experiment_command(COMPARE_INFO, "all", given, jobs=jobs, engine=engine, address=address, as_json=as_json)


@contextlib.contextmanager
def _blame_list_options() -> Iterator[None]:
    """What is wrong with one of several worlds or rules is said of the option that has them all."""
    try:
        yield
    except InputError as error:
        name = {"env": "ENV", "goal_rule": "goal_rules"}.get(error.name or "", error.name)
        raise type(error)(error.reason, name) from error


def _one_per_env(option: str, numbers: tuple[float, ...], worlds: tuple[str, ...]) -> tuple[float, ...]:
    if len(numbers) not in (1, len(worlds)):
        raise InputError(f"{option}: give one number, or one for each of the {len(worlds)} worlds, not {len(numbers)}")
    return numbers * len(worlds) if len(numbers) == 1 else numbers
