"""The commands around one run: explore, resume, audit, play, report; and the list of environments."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from adagoal.cli import options
from adagoal.cli.options import skip_drawing_on_interrupt
from adagoal.core import errors
from adagoal.core.errors import InputError
from adagoal.core.user_code import stdout_to_stderr

if TYPE_CHECKING:  # imported where they are used: --help should not wait for Numba
    from adagoal.runs.cost_estimate import CostEstimate
    from adagoal.runs.result import Result

RADIUS_HELP = (
    "L >= 1, in expected steps; auto: double it until the budget is spent, all: until every goal is certified, which "
    "may never be where one cannot be reached (auto:F, all:F: another factor)."
)
RULE_HELP = "Which goal to try next: a name, name:key=value, or FILE.py:FUNCTION."
folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.command(epilog="Example: adagoal explore two-room --radius 40 --epsilon 1 --delta 0.1 --seed 0 --out runs/rooms")
@click.argument("env", metavar="ENV", type=options.EnvParam())
@click.option("--radius", type=options.RadiusParam(), metavar="L|auto|all", required=True, help=RADIUS_HELP)
@options.epsilon_option
@options.delta_option
@click.option("--method", default="certified", show_default=True, help="How uncertainty is measured.")
@options.key_value_option("--method-arg", "method_args", "Argument of the method; repeatable.")
@options.constants_option
@click.option("--goal-rule", default="adagoal", show_default=True, help=RULE_HELP)
@click.option("--budget", type=options.StepCountParam(), help="Stop after so many steps, resumable.  [default: none]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@click.option(
    "--out",
    type=options.OutputFolderParam(),
    help="Folder of the run.  [default: runs/ENV-radius-L, with options that are not the default]",
)
@click.option("--overwrite", is_flag=True, help="Replace what another run left in the folder.")
@options.env_args_option
@options.model_constants_option
@options.goal_options
@options.start_option
@options.start_seed_option
@click.option("--max-states", type=int, help="Bound on the number of states, where the environment has none.")
@options.workers_option
@options.engine_option
@options.address_option
@options.step_timeout_option
@click.option("--estimate", is_flag=True, help="Stop as soon as the cost of the whole run can be told, and tell it.")
@click.option("--live", is_flag=True, help="Serve the page of the run on this machine while it goes on.")
@click.option("--record", is_flag=True, help="Keep every step in the folder, 10 bytes each (transitions.npz).")
@options.json_option
@options.quiet_option
def explore(
    constants: str | None,
    out: Path | None,
    overwrite: bool,
    step_timeout: float | None,
    engine: str,
    address: str | None,
    estimate: bool,
    live: bool,
    record: bool,
    as_json: bool,
    quiet: bool,
    model_constants: dict[str, Any] | None,
    start: str | None,
    **given: Any,
) -> None:
    """Find the goals of ENV that can be reached within a radius, a policy for each, and certificates.

    ENV is a built-in name, a Gymnasium id (adagoal envs lists them), or a file with a model: .npz, or .prism, .nm, .pm,
    .jani, .drn and .umb with the extra storm. Exit code 0: stopped by the rule; 3: budget
    spent or interrupted, go on with adagoal resume DIR; 4: void, a check that the certificates rest on has failed.
    """
    from adagoal import methods
    from adagoal.api import explore as api
    from adagoal.cli.inspection_commands import observe_with_live_page
    from adagoal.envs import registry
    from adagoal.runs.cost_estimate import CostEstimator
    from adagoal.runs.progress_display import ExplorationProgress

    given["env_args"] |= model_constants or {}
    given["start_seed"] = registry.parse_start_option(start, given["start_seed"])
    (given["method_args"],) = methods.apply_constants(constants, [(given["method"], given["method_args"])])
    folder = out or options.default_run_folder(given["env"], _non_default_options(given))
    where: dict[str, Any] = {"step_timeout": step_timeout, "engine": engine, "address": address}
    kept: dict[str, Any] = {"out": folder, "overwrite": overwrite, "record": record}
    with (
        options.blame_goal_option(dict(given)),
        stdout_to_stderr(),
        _blame_model_constants(given["env"]),
        ExplorationProgress(given["budget"], quiet) as progress,
        observe_with_live_page(live, folder.absolute(), progress) as shown,
    ):
        given["goals"] = options.take_goals_argument(given)
        observe = CostEstimator(shown)
        result = api.explore(**given, **where, **kept, observe=observe if estimate else shown)
    _report_result(result, folder, as_json, observe.cost_estimate)


def _non_default_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the radius, and the other options that differ from their defaults: they name the default folder.

    The budget is left out: with a larger one the run in the folder is resumed.
    """
    defaults = {parameter.name: parameter.default for parameter in click.get_current_context().command.params}
    rest = {name: given[name] for name in given if name not in ("env", "radius", "budget")}
    told = {name: value for name, value in rest.items() if value not in (None, {}, (), defaults[name])}
    return {"radius": given["radius"], **told}


@contextlib.contextmanager
def _blame_model_constants(env: str) -> Iterator[None]:
    """The arguments of a program, PRISM's or JANI's, are its constants, which have an option of their own."""
    try:
        yield
    except InputError as error:
        if error.name == "env_args" and env.endswith((".prism", ".nm", ".pm", ".jani")):
            raise InputError(error.reason, "model_constants") from error
        raise


@click.command(epilog="Example: adagoal resume runs/two-room --budget 1e7")
@folder_argument
@click.option(
    "--budget",
    type=options.StepCountParam(),
    help="New limit on the steps, those done included.  [default: the old one]",
)
@options.env_override_option
@options.goal_rule_override_option
@options.goals_override_option
@options.trust_option
@options.step_timeout_option
@options.engine_option
@options.address_option
@options.json_option
@options.quiet_option
def resume(
    folder: Path,
    budget: int | None,
    step_timeout: float | None,
    engine: str,
    address: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Go on with the run in DIR, an exploration or a training; the result is as if it had never stopped."""
    if _holds_training(folder):
        from adagoal.cli.training_commands import resume_training

        said = {"engine": engine != "local" or address, "goals": given.pop("goals") is not None}
        for name, asked in said.items():
            if asked:
                raise InputError("is for explorations; this is a training", name)
        again = {"budget": budget, "step_timeout": step_timeout}
        resume_training(folder, as_json=as_json, quiet=quiet, **again, **given)
        return
    from adagoal.api import explore as api
    from adagoal.runs.progress_display import ExplorationProgress

    with stdout_to_stderr(), ExplorationProgress(budget, quiet) as progress:
        where: dict[str, Any] = {"step_timeout": step_timeout, "engine": engine, "address": address}
        result = api.resume_exploration(folder, budget, **where, observe=progress, **given)
    _report_result(result, folder, as_json)


MAX_PRINTED_GOALS = 10
"""Goals that are shown at the end of a run."""
LONG_AUDIT_SIZE = 10**6
"""Goals times states from which on an audit says that it takes a while."""


@click.command(epilog="Example: adagoal audit runs/two-room")
@folder_argument
@options.env_override_option
@options.trust_option
@options.json_option
def audit(folder: Path, env: str | None, trust: bool, as_json: bool) -> None:
    """Check the run in DIR exactly: C1 (every policy is within epsilon) and C2 (no goal missing, none too many).

    Exit code 0 where both hold and no certificate is broken, 1 where not, 2 where no exact model is known.
    """
    from adagoal.api import explore as api

    result = _load_exploration(folder)
    if not result.status.finished:
        click.echo(
            "the run is not finished: its certificates must hold, but C1 and C2 are promised at its end", err=True
        )
    if result.n_states * len(result.goals) >= LONG_AUDIT_SIZE:
        size = f"{len(result.goals):,} policies in {result.n_states:,} states"
        click.echo(f"exact values of {size}: this can take minutes, most for goals that are open", err=True)
    with stdout_to_stderr():
        verdict = api.audit(result, env, trust=trust)
    click.echo(json.dumps(verdict.to_dict(), indent=1) if as_json else verdict.table())
    if not verdict.ok:
        raise click.exceptions.Exit(errors.ExitCode.CONTRADICTED)


@click.command(epilog="Example: adagoal play runs/lake --goal 12 --episodes 1000")
@folder_argument
@options.selected_goals_option
@options.goal_labels_option
@click.option(
    "--episodes", type=click.IntRange(1, 10**9), default=100, show_default=True, help="Attempts at each goal."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything random.")
@options.env_override_option
@options.trust_option
@options.step_timeout_option
@options.json_option
def play(folder: Path, as_json: bool, **given: Any) -> None:
    """Try the policies of the run in DIR in its environment: measured steps beside certified ones.

    Needs no model, so it also works where audit cannot. Exit code 1 where a measurement contradicts a certificate: its
    interval misses it. All intervals hold together with probability 99%, however few the attempts are. For a training
    this is adagoal evaluate.
    """
    if _holds_training(folder):
        from adagoal.cli.training_commands import evaluate

        for name in ("goals", "goal_labels", "step_timeout"):
            if given.pop(name):
                raise InputError("is for explorations; this is a training", name)
        click.get_current_context().invoke(evaluate, folder=folder, as_json=as_json, **given)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from adagoal.api.policy_trials import play as try_out

    result = _load_exploration(folder)
    labelled = [_goal_by_label(result, label) for label in given.pop("goal_labels")]
    given["goals"] = [*(given["goals"] or ()), *labelled] or None
    with stdout_to_stderr():
        trials = try_out(folder, **given)
    if as_json:
        click.echo(json.dumps([trial.to_dict() for trial in trials], indent=1))
    else:
        bounds = "certified steps" if result.guarantee else "estimated steps"
        table = Table("goal", "", bounds, "measured", "99% interval", "", box=None, pad_edge=False)
        for trial in trials:
            low, high = trial.interval
            table.add_row(
                *(str(trial.goal), Text(trial.label)),
                f"{trial.certificate.lower:.2f} to {trial.certificate.upper:.2f}",
                f"{trial.mean:.2f}",
                f"{low:.2f} to {high:.2f}" if math.isfinite(high) else f"{low:.2f} or more",
                "" if trial.agrees else "contradicts",
            )
        Console().print(table)
    if not all(trial.agrees for trial in trials):
        raise click.exceptions.Exit(errors.ExitCode.CONTRADICTED)


def _goal_by_label(result: Result, label: str) -> int:
    """One of the result's goals, by its label."""
    try:
        number = result.goal(label)
    except InputError as error:
        raise InputError(error.reason, "goal_labels") from error
    if number not in result.goals:
        text = f"{label!r} is number {number}, which is not among the {len(result.goals)} goals of the result"
        raise InputError(text, "goal_labels")
    return number


@click.command(epilog="Example: adagoal report runs/two-room")
@folder_argument
@click.option("--png", is_flag=True, help="Also write the figures as PNG files.")
def report(folder: Path, png: bool) -> None:
    """Write report.html in DIR again, for an exploration or a training run."""
    if _holds_training(folder):
        from adagoal.report.training_page import write_training_report

        click.echo(write_training_report(folder, png=png))
        return
    from adagoal.report import write_report

    with stdout_to_stderr():
        page = write_report(_load_exploration(folder), folder, png=png)
    click.echo(page)


@click.command(epilog="Example: adagoal envs --json")
@options.json_option
def envs(as_json: bool) -> None:
    """List what ENV can be, with the arguments that --env-arg takes."""
    from rich.console import Console
    from rich.table import Table

    from adagoal.envs import registry

    rows = registry.list_environments()
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=1))
        return
    table = Table("ENV", "what it is", "--env-arg (default)", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(row.name, row.description, ", ".join(f"{key}={value}" for key, value in row.arguments.items()))
    Console().print(table)


def _print_goals(result: Result, folder: Path) -> None:
    """The goals with their intervals, where they are few; where to find the others."""
    rows = [row for row in result.table() if row["within"] and result.status is not errors.Status.VOID]
    for row in rows[:MAX_PRINTED_GOALS]:
        upper = f"to {row['upper']:.2f} steps" if math.isfinite(row["upper"]) else "steps or more"
        click.echo(f"  {row['label']}: {row['lower']:.2f} {upper}{', open' if row['open'] else ''}")
    if len(rows) > MAX_PRINTED_GOALS:
        click.echo(
            f"  ... and {len(rows) - MAX_PRINTED_GOALS} more: "
            f"adagoal export {quote(str(folder))} --format csv lists all"
        )


def _report_result(result: Result, folder: Path, as_json: bool, estimate: CostEstimate | None = None) -> None:
    """Print the result, write the report, and set the exit code."""
    from adagoal.runs.result_text import make_headline, resume_command

    if not as_json:
        click.echo(make_headline(result))
        _print_goals(result, folder)
        if estimate is not None:
            click.echo(f"estimate: {estimate}")
        for reason in result.void:
            click.echo(f"void: {reason}", err=True)
        for warning in result.warnings:
            click.echo(f"warning: {warning}", err=True)
    page = None
    with skip_drawing_on_interrupt("report.html", f"adagoal report {quote(str(folder))}"):
        from adagoal.report import write_report

        page = write_report(result, folder)
    if as_json:
        cost = {} if estimate is None else {"estimate": asdict(estimate)}
        where = {"out": str(folder), "report": None if page is None else str(page)}
        click.echo(json.dumps({**result.to_dict(), **where, **cost}, indent=1))
    else:
        if page is not None:
            click.echo(f"report: {page}")
        if not result.status.finished and result.status is not errors.Status.VOID:
            click.echo(f"go on with: {resume_command(result, folder)}")
    if result.status.exit_code:
        raise click.exceptions.Exit(result.status.exit_code)


def _holds_training(folder: Path) -> bool:
    from adagoal.runs.folder_reader import is_training_folder, require_run_folder

    return is_training_folder(require_run_folder(folder))


def _load_exploration(folder: Path) -> Result:
    """The result in a folder."""
    from adagoal.runs.folder_reader import require_run_folder
    from adagoal.runs.result import load_result

    return load_result(require_run_folder(folder))
