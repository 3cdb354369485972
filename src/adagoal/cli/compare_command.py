"""``adagoal compare``, and what it shares with the experiments of a checkout: options, and running them."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from adagoal import parallel
from adagoal.cli import options
from adagoal.cli.options import setting_options
from adagoal.core.errors import ExitCode
from adagoal.settings.exploration import ComparisonOptions, ExecutionOptions, ExperimentInfo, ExplorationSettings
from adagoal.settings.fields import declared_settings

# imported in functions, because --help should not wait for it
if TYPE_CHECKING:
    from adagoal.comparison.experiment import Experiment, ExperimentProgress

RESUME_HELP = "Finished runs are saved as files in the folder; after Ctrl-C, the same command continues."
COMPARE_INFO = ExperimentInfo(
    "adagoal.comparison.method_comparison:COMPARE", "Compare methods and goal rules over several seeds."
)


def experiment_options(name: str, info: ExperimentInfo) -> options.Decorator:
    """Return a decorator that adds the options of all experiments; see :func:`run_experiment_command`."""
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


def run_experiment_command(info: ExperimentInfo, part: str, given: dict[str, Any]) -> None:
    """Run an experiment, or one or all of its parts, and print the tables; ``given`` are the values of its options."""
    from adagoal.comparison.experiment import ExperimentProgress, run_experiment

    # where and how it runs changes no number, so the experiment does not get these options
    jobs, engine, address, as_json = (given.pop(name) for name in ("jobs", "engine", "address", "as_json"))
    parts = {name: experiment for name, experiment in load_experiments(info).items() if part in ("all", name)}
    display = ExperimentProgress(given["quiet"])
    # the experiment's own number is for one machine; a cluster has its own number of cores
    default_jobs = info.jobs if engine == "local" else None
    reports = {}
    opened_engine = parallel.make_engine(engine, jobs or default_jobs, address, display.print_line)
    with contextlib.closing(opened_engine):
        for name, experiment in parts.items():
            try:
                report = reports[name] = run_experiment(
                    experiment, experiment.fill_in_defaults(**given), opened_engine, display
                )
            except KeyboardInterrupt:
                # without a finished run or a checkpoint there is nothing to continue
                if not any(given["out"].glob("*")):
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


def load_experiments(info: ExperimentInfo) -> Mapping[str, Experiment]:
    """Import an experiment and return its parts by name; an experiment without parts has the name ""."""
    module, _, name = info.import_path.partition(":")
    experiment = getattr(importlib.import_module(module), name)
    return experiment if isinstance(experiment, Mapping) else {"": experiment}


def _exit_unfinished(reason: str, display: ExperimentProgress, out: Path) -> NoReturn:
    saved = f"{display.n_done} of {display.n_total} runs are saved in {out}"
    click.echo(f"{reason}: {saved}; the same command continues", err=True)
    raise click.exceptions.Exit(ExitCode.UNFINISHED) from None


@click.command(
    help="Run methods and goal rules on environments with a known model, and audit every run exactly while it runs. "
    f"Writes table.md, table.json, table.html and, with the extra figures, figure.png.\n\n{RESUME_HELP}",
    epilog="Example: adagoal compare two-room grid --radius 40,10 --goal-rules adagoal,unigoal --seeds 5 --budget 1e6",
)
@click.argument("worlds", metavar="ENV...", nargs=-1, required=True, type=options.ENV)
@click.option("--radius", type=options.NUMBERS, required=True, help="L: one number, or one for each ENV.")
@click.option(
    "--epsilon", type=options.NUMBERS, default="1", show_default=True, help="Accuracy: one number, or one for each ENV."
)
@setting_options(ExplorationSettings, "delta")
@click.option("--methods", type=options.NAMES, default="certified", show_default=True, help="NAME or NAME:KEY=VALUE.")
@options.constants_option
@click.option("--goal-rules", type=options.NAMES, default="adagoal,unigoal", show_default=True, help="As in explore.")
@setting_options(ExplorationSettings, "budget", default=10**7, help="Steps after which a run ends.  [default: 1e7]")
@setting_options(ExplorationSettings, "env_args")
@options.goals_option(options.goals_help)
@experiment_options("compare", COMPARE_INFO)
def compare(
    worlds: tuple[str, ...],
    radius: tuple[float, ...],
    epsilon: tuple[float, ...],
    env_args: dict[str, Any],
    **given: Any,
) -> None:
    from adagoal.comparison.method_comparison import pair_worlds

    with options.rename_in_errors(env="ENV", worlds="ENV", goal_rule="goal_rules"):
        given["worlds"] = pair_worlds(worlds, radius, epsilon, env_args)
        given["common"] = {name: given.pop(name) for name in ("delta", "constants", "budget", "goals")}
        given["common"]["seed"] = given["seed"]
        run_experiment_command(COMPARE_INFO, "all", given)
