"""``adagoal explore``, ``certify-data``, ``resume``, ``audit``, ``play``, ``report``, ``compare`` and ``envs``."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from adagoal.cli import options
from adagoal.cli.options import (
    echo_headline,
    echo_wrapped,
    exploration_lines,
    setting_options,
    skip_drawing_on_interrupt,
)
from adagoal.core import errors
from adagoal.core.errors import InputError
from adagoal.core.run_settings import ComparisonOptions, ExecutionOptions, ExplorationSettings, TrainingOptions
from adagoal.core.user_code import stdout_to_stderr
from adagoal.core.validation import declared_settings, parse_key_value
from adagoal.runs.run_folder import is_training_folder

if TYPE_CHECKING:
    from adagoal.runs.progress_display import CostEstimate
    from adagoal.runs.result import Result

LONG_AUDIT_SIZE = 10**6
"""Goals times states above which an audit takes more than a few seconds, so it says so first."""
MAX_PAIRS = 10  # pairs to try next that are printed


@click.command(
    cls=options.GroupedCommand,
    groups={
        "Problem": "radius epsilon delta within probability avoid method seed budget",
        "Goals": "goal_rule goals",
        "Environment": "env_args max_states",
        "Execution": "workers",
        "Output": "out overwrite quiet help help_all",
    },
    epilog="Example: adagoal explore two-room --radius 40 --epsilon 1 --delta 0.1 --seed 0 --out runs/rooms",
)
@options.env_argument
# the help names no default, because the radius must be given unless --within is
@setting_options(
    ExplorationSettings, "radius", default=None, help=declared_settings(ExplorationSettings)["radius"].help
)
@setting_options(ExplorationSettings, "within", "probability")
@options.avoid_option
@setting_options(ExplorationSettings, "epsilon", "delta", "method", "method_args")
@options.constants_option
@setting_options(ExplorationSettings, "goal_rule", "budget", "seed")
@setting_options(ExecutionOptions, "out", help="Folder of the run.  [default: runs/ENV-radius-L-OPTION-VALUE...]")
@setting_options(ExecutionOptions, "overwrite")
@setting_options(ExplorationSettings, "env_args")
@click.option(
    "--model-constants",
    type=options.ParsedParam("KEY=VALUE,...", lambda text: dict(map(parse_key_value, text.split(","))), "KEY=VALUE"),
    help="Constants of a PRISM or JANI model: N=4,K=2 is short for --env-arg N=4 --env-arg K=2.",
)
@options.goals_option(options.goals_help)
@options.start_option
@setting_options(ExplorationSettings, "start_seed", "max_states", "workers")
@setting_options(ExecutionOptions, "engine", "address", "step_timeout", "record")
@click.option(
    "--data", metavar="FILE", help="CSV file with recorded transitions of ENV, counted before the first step."
)
@click.option("--estimate", is_flag=True, help="Estimate steps and time, then stop.")
@click.option("--live", is_flag=True, help="Serve a live report of the run, and print its address.")
@options.json_option
@options.quiet_option
@options.help_all_option
def explore(
    constants: str | None,
    out: Path | None,
    estimate: bool,
    live: bool,
    as_json: bool,
    quiet: bool,
    model_constants: dict[str, Any] | None,
    start: str | None,
    **given: Any,
) -> None:
    """Find the goals of ENV that can be reached within a radius, a policy for each, and certificates.

    ENV is a built-in name, a Gymnasium id (adagoal envs lists them), or a file with a model: .npz, or .prism, .nm, .pm,
    .jani, .drn and .umb with the extra storm. Exit code 0: stopped by the rule; 3: budget spent or interrupted, adagoal
    resume DIR continues; 4: void, a check that the certificates rest on has failed.
    """
    options.announce_compilation(quiet)
    from adagoal.api import explore as api
    from adagoal.cli.inspection_commands import observe_with_live_page
    from adagoal.envs import registry
    from adagoal.methods import apply_constants
    from adagoal.runs.progress_display import CostEstimator, ExplorationProgress

    given["env_args"] |= model_constants or {}
    given["start_seed"] = registry.parse_start_option(start, given["start_seed"])
    (given["method_args"],) = apply_constants(constants, [(given["method"], given["method_args"])])
    first = "radius" if given["within"] is None else "within"
    # without the budget, because a run with a larger one continues in the same folder
    unnamed = {"env", "budget", first, *ExecutionOptions.__dataclass_fields__}
    named = {first: given[first]} | options.changed_options(given, unnamed)
    folder = out or options.default_run_folder(given["env"], named)
    # the arguments of a PRISM or JANI program are its constants, which have their own option
    has_constants = given["env"].endswith((".prism", ".nm", ".pm", ".jani"))
    with (
        options.rename_in_errors(**({"env_args": "model_constants"} if has_constants else {})),
        # an environment may print, and standard output is for the result alone
        stdout_to_stderr(),
        ExplorationProgress(given["budget"], quiet) as progress,
        observe_with_live_page(folder.absolute(), progress) if live else nullcontext(progress) as observer,
    ):
        estimator = CostEstimator(observer)
        result = api.explore(**given, out=folder, observe=estimator if estimate else observer)
    report_result(result, folder, as_json, estimator.cost_estimate)


def _parse_columns(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise InputError(f"must look like state=NAME, got {value!r}", param.name)
    return dict(value.split("=", 1) for value in values)


@click.command(name="certify-data", epilog="Example: adagoal certify-data lake.csv --radius 10 --start 0 --n-states 16")
@click.argument("data", metavar="FILE")
@setting_options(ExplorationSettings, "radius", required=True, metavar="L", help="L >= 1, in expected steps.")
@setting_options(ExplorationSettings, "epsilon", "delta")
@click.option(
    "--start", metavar="STATE", help="State to which the reset leads.  [default: the state in which episodes begin]"
)
@click.option("--actions", type=options.NAMES, help="All actions, if some are not in the file.")
@click.option("--reset-action", metavar="ACTION", help="The action that stands for the reset.")
@click.option(
    "--column", "columns", multiple=True, metavar="COLUMN=NAME", callback=_parse_columns,
    help="Name of a column in the file, as in --column next_state=s2; repeatable.",
)  # fmt: skip
@click.option("--n-states", type=options.INTEGER, help="Number of states, seen or not, if it is known.")
@click.option("--branching", type=options.INTEGER, help="No pair has more than this many successors, if you know it.")
@setting_options(ExecutionOptions, "out", help="Folder of the result.  [default: runs/FILE-radius-L]")
@options.json_option
def certify_data(data: str, out: Path | None, as_json: bool, **given: Any) -> None:
    """Certify which goals can be reached within a radius from the transitions in FILE alone, without a step.

    FILE is a CSV file with the columns state, action, next_state and, if known, terminated and episode; an event log
    with the columns case and activity; or minari:ID. Anybody may have chosen the actions, but no transition may be left
    out because of its outcome. Exit code 0: certified; 3: some goals are open, and the pairs to try next are listed; 4:
    void, a check that the certificates rest on has failed.
    """
    from adagoal.api import certify_data as api

    folder = out or options.default_run_folder(Path(data).stem, options.changed_options(given))
    result = api.certify_data(data, **given, out=folder)
    rows = [] if as_json else result.pairs_to_try()
    try:
        report_result(result, folder, as_json)
    finally:
        for row in rows[:MAX_PAIRS]:
            click.echo(
                f"try next: {row['action']} in {row['state']}, about {row['more']:,} times ({row['tries']:,} so far)"
            )
        if len(rows) > MAX_PAIRS:
            click.echo(f"... and {len(rows) - MAX_PAIRS} more pairs: result.pairs_to_try() lists all")


@click.command(epilog="Example: adagoal resume runs/two-room --budget 1e7")
@options.run_argument
@setting_options(ExplorationSettings, "budget", help="New limit on the steps of the whole run.  [default: the old one]")
@options.env_override_option
@click.option("--goal-rule", help="The goal rule, if the folder names a file (FILE.py:FUNCTION).")
@click.option("--goals", help="The goals, if the folder names a file (FILE.py:NAME).")
@options.trust_option
@setting_options(ExecutionOptions, "step_timeout", "engine", "address", default=None)
@setting_options(
    TrainingOptions, "workers", "minutes", "checkpoint_every", "tensorboard", prefix="Training: ", default=None
)
@options.json_option
@options.quiet_option
def resume(folder: Path, budget: int | None, as_json: bool, quiet: bool, **given: Any) -> None:
    """Resume the exploration or training run in DIR. The result is as if the run had never stopped."""
    is_training = is_training_folder(folder)
    if not is_training:
        options.announce_compilation(quiet)
    from adagoal.api.explore import resume as resume_run
    from adagoal.runs.progress_display import ExplorationProgress, TrainingProgress

    display = TrainingProgress(quiet) if is_training else ExplorationProgress(budget, quiet)
    with stdout_to_stderr(), display as progress:
        result: Any = resume_run(folder, budget, observe=progress, **given)
    if is_training:
        from adagoal.cli.policy_commands import report_training

        report_training(result, folder, as_json)
    else:
        report_result(result, folder, as_json)


@click.command(epilog="Example: adagoal audit runs/two-room")
@options.run_argument
@options.env_override_option
@options.trust_option
@click.option("--table", is_flag=True, help="Also print the exact values of every goal.")
@options.json_option
def audit(folder: Path, env: str | None, trust: bool, table: bool, as_json: bool) -> None:
    """Check the run in DIR exactly: C1 (every policy is within epsilon) and C2 (no goal missing, none too many).

    Exit code 0: both hold, and so does every certificate; 1: something fails; 2: no exact model is known.
    """
    from adagoal.api import explore as api
    from adagoal.runs.load_result import load_result

    result = load_result(folder)
    if not result.status.finished:
        click.echo("the run is not finished: its certificates must hold, C1 and C2 need not hold yet", err=True)
    if result.n_states * len(result.goals) >= LONG_AUDIT_SIZE:
        size = f"{len(result.goals):,} policies in {result.n_states:,} states"
        click.echo(f"computing exact values of {size}: this can take minutes", err=True)
    with stdout_to_stderr():
        verdict = api.audit(result, env, trust=trust)
    if as_json:
        click.echo(json.dumps(verdict.to_dict(), indent=1))
    else:
        for sentence in (*verdict.sentences(), *verdict.failures):
            echo_wrapped(sentence, "  ")
    if table and not as_json:
        click.echo(verdict.table())
    if not verdict.ok:
        raise click.exceptions.Exit(errors.ExitCode.CONTRADICTED)


@click.command(epilog="Example: adagoal play runs/lake --goals 12 --episodes 1000")
@options.run_argument
@options.goals_option('Only these goals: 3,7 or "(4, 5), (1, 2)".  [default: all]')
@click.option("--episodes", type=options.INTEGER, default=100, show_default=True, help="Episodes for each goal.")
@options.seed_option
@options.env_override_option
@options.trust_option
@setting_options(ExecutionOptions, "step_timeout")
@options.json_option
def play(folder: Path, as_json: bool, **given: Any) -> None:
    """Play the policies of the run in DIR in its environment, and compare measured steps with certified steps.

    Needs no exact model, unlike audit. Exit code 1: a measurement contradicts a certificate, that is, their intervals
    do not overlap. All intervals hold together with probability 99%, for any number of episodes. For training
    runs this is adagoal evaluate.
    """
    if is_training_folder(folder):
        from adagoal.cli.policy_commands import evaluate

        for name in ("goals", "step_timeout"):
            if given.pop(name):
                raise InputError("works for explorations only, and this run is training; leave it out", name)
        click.get_current_context().invoke(evaluate, folder=folder, as_json=as_json, **given)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from adagoal.api.policy_trials import play as play_policies
    from adagoal.runs.load_result import load_result

    result = load_result(folder)
    with stdout_to_stderr():
        trials = play_policies(folder, **given)
    if as_json:
        click.echo(json.dumps([trial.to_dict() for trial in trials], indent=1))
    else:
        quantity = "steps" if result.setting.within is None else "probability"
        bounds = f"{'certified' if result.guarantee else 'estimated'} {quantity}"
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


@click.command(epilog="Example: adagoal report runs/two-room")
@options.run_argument
@click.option("--png", is_flag=True, help="Also write the figures as PNG files.")
def report(folder: Path, png: bool) -> None:
    """Write report.html in DIR, the folder of an exploration or training run, again."""
    if is_training_folder(folder):
        from adagoal.report.training_page import write_training_report

        click.echo(write_training_report(folder, png=png))
        return
    from adagoal.report import write_report
    from adagoal.runs.load_result import load_result

    with stdout_to_stderr():
        page = write_report(load_result(folder), folder, png=png)
    click.echo(page)


@click.command(epilog="Example: adagoal compare two-room grid --radius 40,10 --goal-rules adagoal,unigoal --budget 1e6")
@click.argument("env", metavar="ENV...", nargs=-1, required=True, type=options.ENV)
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
@setting_options(ComparisonOptions)
@setting_options(ExecutionOptions, "engine", "address")
@setting_options(ExecutionOptions, "out", default=Path("runs/compare"), show_default=True, help="Folder.")
@options.json_option
@options.quiet_option
def compare(env: tuple[str, ...], as_json: bool, quiet: bool, **given: Any) -> None:
    """Run methods and goal rules on environments with a known model, and audit every run exactly while it runs.

    Writes table.md, table.json, table.html and, with the extra figures, figure.png. Finished runs are saved as files in
    the folder; after Ctrl-C, the same command continues.
    """
    from adagoal.comparison.method_comparison import compare as compare_methods

    with options.rename_in_errors(env="ENV", goal_rule="goal_rules"):
        comparison = compare_methods(env, progress=not quiet, **given)
    click.echo(json.dumps([score.to_dict() for score in comparison.scores], indent=1) if as_json else comparison)


@click.command(epilog="Example: adagoal envs --json")
@options.json_option
def envs(as_json: bool) -> None:
    """List the available environments, with the arguments that --env-arg takes."""
    from rich.console import Console
    from rich.table import Table

    from adagoal.envs import registry

    rows = registry.list_environments()
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=1))
        return
    table = Table("ENV", "description", "--env-arg (default)", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(row.name, row.description, ", ".join(f"{key}={value}" for key, value in row.arguments.items()))
    Console().print(table)


def report_result(result: Result, folder: Path, as_json: bool, estimate: CostEstimate | None = None) -> None:
    """Print the result, write the report, and set the exit code."""
    from adagoal.runs.result_text import resume_command

    if not as_json:
        echo_headline(result)
        for line in exploration_lines(result, folder, top=10):
            click.echo(line)
        if estimate is not None:
            echo_wrapped(f"estimate: {estimate}")
        for reason in result.void:
            echo_wrapped(f"void: {reason}", "  ", err=True)
        for warning in result.warnings:
            echo_wrapped(f"warning: {warning}", "  ", err=True)
    # the result is printed before the report, which imports Bokeh and may take longer than a short run
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
        if not result.status.finished and result.status is not errors.Status.VOID and not result.is_from_data:
            click.echo(f"resume with: {resume_command(result, folder)}")
    if result.status.exit_code:
        raise click.exceptions.Exit(result.status.exit_code)
