"""``adagoal train`` and ``evaluate``: goal-conditioned policies."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from adagoal.cli import options
from adagoal.cli.certify_command import (
    CLAIM_OPTIONS,
    draw_certificate,
    print_certificate,
    run_option,
    test_goals_option,
)
from adagoal.cli.options import setting_options, skip_drawing_on_interrupt
from adagoal.core.argument_checks import declared_settings
from adagoal.core.errors import InputError
from adagoal.core.file_io import write_json
from adagoal.core.user_code import stdout_to_stderr
from adagoal.deep.config import AUTO_RECIPE, RECIPES, Config, describe_auto_recipe, resolve_recipe
from adagoal.settings.exploration import ExecutionOptions
from adagoal.settings.training import ClaimSettings, TrainingOptions

if TYPE_CHECKING:
    from adagoal.runs.train_result import TrainResult

config_names = tuple(name for name in declared_settings(Config) if name != "env")


@click.command(
    cls=options.GroupedCommand,
    groups={
        "Problem": "recipe steps seed seeds until",
        "Goals": "goal_rule radius train_goals test_goals",
        "Execution": "workers minutes",
        "Output": "out overwrite as_json quiet help help_all",
    },
    epilog="Example: adagoal train FetchPush-v4 --train-goals scale=10 --test-goals scale=1 --seed 0 --out runs/push",
)
@options.env_argument
@click.option(
    "--recipe",
    type=click.Choice([AUTO_RECIPE, *sorted(RECIPES)]),
    default=AUTO_RECIPE,
    show_default=True,
    help="Named settings, which options override. auto: adagoal with a GPU, light without one. The other defaults are "
    "those of adagoal.",
)
# None: an option that is not typed keeps the value of the recipe
@setting_options(Config, *config_names, default=None)
@setting_options(TrainingOptions)
@setting_options(ExecutionOptions, "out", help="Folder of the run.  [default: runs/ENV-OPTION-VALUE...]")
@setting_options(ExecutionOptions, "overwrite", "step_timeout")
@setting_options(ClaimSettings, *CLAIM_OPTIONS, prefix="With --until certified: ", default=None)
@options.quiet_option
@options.json_option
@options.help_all_option
def train(env: str, recipe: str, out: Path | None, overwrite: bool, quiet: bool, as_json: bool, **given: Any) -> None:
    """Train a goal-conditioned policy on ENV with adaptive goals (an ensemble of critics, with hindsight).

    ENV is a Gymnasium id with goal-conditioned observations (FetchReach-v4, FetchPush-v4,
    FetchPickAndPlace-v4, PointMaze_UMaze-v3, AntMaze_UMaze-v5, ...), module:Id, or point-mass.
    """
    given = {name: value for name, value in given.items() if value is not None}
    from adagoal.api.train import train as start_training
    from adagoal.deep import require_deep_extra

    require_deep_extra(env)
    from adagoal.runs.progress_display import TrainingProgress

    # here, because the recipe auto imports JAX, which --help and the checks above need not wait for
    resolved = resolve_recipe(recipe)
    if out is None:
        out = options.default_run_folder(env, _folder_options(env, recipe, resolved, given))
    with stdout_to_stderr(), TrainingProgress(quiet, describe_auto_recipe(recipe, resolved)) as progress:
        trained = start_training(env, recipe=resolved, out=out, overwrite=overwrite, observe=progress, **given)
    report_training(trained, out, as_json)


def _folder_options(env: str, recipe: str, resolved: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that differ from the recipe or from their defaults: they name the default folder."""
    usual = Config(env, **RECIPES[resolved])
    named = {name: given[name] for name in config_names if name in given and given[name] != getattr(usual, name)}
    named |= {"recipe": recipe} if recipe != AUTO_RECIPE else {}
    named |= {"seeds": given["seeds"]} if given["seeds"] != 1 else {}
    return named | {name: given[name] for name in ("until", *CLAIM_OPTIONS) if name in given}


def report_training(trained: TrainResult, folder: Path, as_json: bool) -> None:
    """Print the result of training, write its report, and set the exit code."""
    from adagoal.runs.result_text import resume_training_command

    history = trained.history
    if trained.certificate is not None:
        write_json(folder / "certificate.json", trained.certificate.to_dict())
    rows = [
        {"seed": config.seed, "goal_rule": config.goal_rule}
        | {k: v for k, v in history.learning_curve(run)[-1].items() if k in ("steps", "success", "success_any")}
        for run, config in enumerate(history.configs)
    ]
    if as_json:
        click.echo(json.dumps({"status": trained.status, "out": str(folder), "runs": rows}, indent=1))
    else:
        for row in rows:
            click.echo(
                f"seed {row['seed']}  {row['goal_rule']}  {row['steps']} steps  "
                f"success {row['success']:.2f} (any step {row['success_any']:.2f})"
            )
        if trained.certificate is not None:
            print_certificate(trained.certificate)
    page = _write_training_report(trained, folder)
    if not as_json:
        click.echo(f"{trained.status}: {folder if page is None else page}")
        if not trained.status.finished:
            steps = history.steps_before_cycle(len(history.goals))
            click.echo(f"resume with: {resume_training_command(history.configs[0], folder, steps)}")
    if not trained.status.finished:
        raise click.exceptions.Exit(trained.status.exit_code)


def _write_training_report(trained: TrainResult, folder: Path) -> Path | None:
    """Write the figures and the page; return the page, or None after Ctrl-C."""
    page = None
    with skip_drawing_on_interrupt("report.html", f"adagoal report {quote(str(folder))}"):
        from adagoal.report import training_page as report

        try:
            if trained.certificate is not None:
                draw_certificate(trained.certificate, folder)
            page = report.write_training_report(folder, env=trained.history.configs[0].env)
        except InputError as error:
            # hours of training must not look lost because a figure failed
            raise InputError(f"{error.reason}; the trained policy is saved in {folder}", error.name) from error
    return page


@click.command(epilog="Example: adagoal evaluate runs/push --episodes 500 --test-goals scale=2")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--episodes", type=options.INTEGER, default=200, show_default=True, help="Number of test episodes.")
@run_option
@test_goals_option
@options.seed_option
@options.env_override_option
@options.trust_option
@options.json_option
def evaluate(folder: Path, as_json: bool, **given: Any) -> None:
    """Test the policy that adagoal train left in FOLDER: how often it succeeds, and which goals it misses.

    Writes FOLDER/evaluation.png, every test goal, reached or missed, and FOLDER/evaluation.json, from which adagoal
    report draws the success by distance.
    """
    from adagoal.deep import require_deep_extra

    require_deep_extra()
    from adagoal.report.figures import draw_reached_goals, save_figure
    from adagoal.runs.train_result import load_training

    with stdout_to_stderr():
        evaluation = load_training(folder).evaluate(**given)
    summary = evaluation.summary()
    # printed first, so a full disk or a read-only folder does not lose it
    if as_json:
        click.echo(json.dumps(summary, indent=1))
    else:
        _print_evaluation(summary, given["episodes"])
    save_figure(draw_reached_goals(evaluation.goals, evaluation.final_success), folder / "evaluation.png")
    write_json(folder / "evaluation.json", summary)
    if not as_json:
        click.echo(str(folder / "evaluation.png"))


def _print_evaluation(summary: dict[str, Any], episodes: int) -> None:
    low, high = summary["interval"]
    click.echo(
        f"success {summary['success']:.3f} at the last step (95%: {low:.3f} to {high:.3f}), "
        f"{summary['success_any']:.3f} at any step, {episodes} episodes"
    )
    for name, bins in summary["by"].items():
        click.echo(f"by {name}:")
        for part in bins:
            share = "-" if part["success"] is None else f"{part['success']:.2f}"
            click.echo(f"  {part['from']:8.3f} to {part['to']:8.3f}   {share:>4} of {part['episodes']}")
