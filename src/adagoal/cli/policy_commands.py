"""``adagoal train``, ``evaluate`` and ``certify``: goal-conditioned policies and certificates of any policy."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from adagoal.cli import options
from adagoal.cli.options import echo_wrapped, setting_options, skip_drawing_on_interrupt
from adagoal.core.errors import InputError
from adagoal.core.file_io import write_json
from adagoal.core.run_settings import ClaimSettings, ExecutionOptions, TrainingOptions
from adagoal.core.user_code import is_file_spec, load_from_file, stdout_to_stderr
from adagoal.core.validation import declared_settings
from adagoal.deep import require_deep_extra
from adagoal.deep.config import AUTO_RECIPE, RECIPES, Config, describe_auto_recipe, resolve_recipe

if TYPE_CHECKING:
    from adagoal.certification.certificate import Certification
    from adagoal.runs.train_result import TrainResult

config_names = tuple(name for name in declared_settings(Config) if name != "env")
CLAIM_OPTIONS = ("success", "slack", "delta")
run_option = click.option(
    "--run", type=options.INTEGER, default=0, show_default=True, help="Index of the run, if trained with several seeds."
)
test_goals_option = click.option(
    "--test-goals", help="Goal space: env, or scale=K[,air=P].  [default: that of the training run]"
)


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
    require_deep_extra(env)
    from adagoal.api.train import train as start_training
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


@click.command(
    cls=options.GroupedCommand,
    groups={
        "Problem": "env versus starts goals criterion set_start radius",
        "Guarantee": "success slack delta halvings rollouts seed",
        "Trained policies": "run test_goals trust",
        "Execution": "workers out quiet as_json help",
    },
    epilog="Example: adagoal certify model.zip --env CartPole-v1 --start x=-2:2,theta=-0.2:0.2 --criterion survive:500",
)
@click.argument("policy", type=options.POLICY)
@click.option("--env", type=options.ENV, help="Gymnasium id.  [default: the environment of the training run]")
@click.option("--versus", metavar="POLICY", help="Compare with another policy: where is POLICY better, worse or equal?")
@click.option("--start", "starts", metavar="BOX", help="Vary the start: x=-2:2,theta=-0.2:0.2")
@click.option(
    "--goal",
    "goals",
    metavar="BOX",
    help="Vary the goal: x=-1:1,y=0:2 or -1:1,0:2  [default: goals of the environment]",
)
@click.option(
    "--criterion", metavar="TEXT", help='Success: survive:N, return:X or FILE.py:NAME.  [default: info["is_success"]]'
)
@click.option("--set-start", metavar="FILE.py:NAME", help="Function (env, start) that puts the environment there.")
@setting_options(ClaimSettings, "radius", *CLAIM_OPTIONS, "rollouts", "halvings")
@run_option
@test_goals_option
@options.seed_option
@options.trust_option
@setting_options(TrainingOptions, "workers")
@setting_options(ExecutionOptions, "out", help="Folder of the certificate.  [default: runs/certify-POLICY-ENV, or RUN]")
@options.quiet_option
@options.json_option
def certify(policy: str, out: Path | None, quiet: bool, as_json: bool, **given: Any) -> None:
    """Find out where POLICY succeeds: cells of goals or starts certified, refuted or open.

    POLICY is the folder of a run of adagoal train, a model.zip of Stable-Baselines3 (loading it runs the code in it),
    or a function action = f(observation): module:function or FILE.py:NAME. The same command continues a certification
    that was interrupted.

    --versus says where POLICY is better, worse or equal to another policy; then exit code 1 means that it is worse in
    some cell.

    Writes certificate.json, certificate.png (with the extra figures) and, unless POLICY is a folder, report.html.
    Exit code 0: all cells are certified; 1: all are decided, some refuted; 3: some are open.
    """
    from adagoal.api.certify import certify as certify_policy
    from adagoal.runs.progress_display import CertificationProgress

    for name in ("criterion", "set_start"):
        if is_file_spec(given[name]):
            given[name] = load_from_file(given[name], name)
        elif name == "set_start" and given[name] is not None:
            raise InputError(f"must look like FILE.py:NAME, got {given[name]!r}", name)
    is_folder = os.path.isdir(policy)
    folder = out or (Path(policy) if is_folder else _default_folder(policy, given["versus"], given["env"]))
    with stdout_to_stderr(), CertificationProgress(quiet) as display:
        certification = certify_policy(policy, out=folder, observe=display, **given)
    if as_json:
        click.echo(json.dumps(certification.to_dict(), indent=1))
    else:
        print_certificate(certification)
        picture = "certificate.json" if importlib.util.find_spec("matplotlib") is None else "certificate.png"
        file = folder / (picture if is_folder else "report.html")
        click.echo(f"{certification.outcome} after {certification.rollouts} rollouts: {file}")
    with skip_drawing_on_interrupt("certificate.png", "the same command"):
        draw_certificate(certification, folder)
        # the folder of a run has a page of its own, which shows the certificate
        if not is_folder:
            from adagoal.report.show import show

            show(certification).save(folder / "report.html")
    if certification.status.exit_code:
        raise click.exceptions.Exit(certification.status.exit_code)


def _default_folder(policy: str, versus: str | None, env: str | None) -> Path:
    names = [name.rpartition(":")[2] if ":" in name else Path(name).stem for name in (policy, versus) if name]
    return options.default_run_folder(f"certify-{'-versus-'.join(names)}-{env}", {})


def draw_certificate(certification: Certification, folder: Path) -> None:
    """Draw the certificate into a folder, if Matplotlib (the extra ``figures``) is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from adagoal.report.figures import draw_certified_cells, save_figure

    save_figure(draw_certified_cells(certification), folder / "certificate.png")


def print_certificate(certification: Certification) -> None:
    """Print the number of cells of each verdict, and what the certificate states."""
    for verdict in certification.claim.verdicts:
        share = f"{certification.share(verdict):6.1%} of the {certification.question.subject}s"
        click.echo(f"{verdict:9}  {certification.count(verdict):4} cells  {share}")
    echo_wrapped(certification.statement)
