"""``adagoal train`` and ``adagoal evaluate``: the deep world from the command line."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from adagoal.cli import options
from adagoal.cli.options import skip_drawing_on_interrupt
from adagoal.core.errors import InputError, Status
from adagoal.core.file_io import write_json
from adagoal.core.user_code import stdout_to_stderr
from adagoal.deep import setting_fields
from adagoal.deep.config import AUTO_RECIPE, RECIPES, Config, describe_auto_recipe, resolve_recipe

if TYPE_CHECKING:
    from adagoal.deep.certification import Certification
    from adagoal.runs.train_result import TrainResult

OPTIONS_WITH_RESUME = {"folder", "env", "goal_rule", "trust", "steps", "workers", "minutes", "checkpoint_every"}
OPTIONS_WITH_RESUME |= {"step_timeout", "tensorboard", "quiet", "as_json"}


class LayerWidthsParam(click.ParamType["tuple[int, ...]"]):
    """Whole numbers with commas between them."""

    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers."""
        try:
            return tuple(int(width) for width in str(value).split(","))
        except ValueError:
            return self.fail(f"{value!r} needs widths such as 256,256,256", param, ctx)


def _add_config_options(function: Callable[..., None]) -> Callable[..., None]:
    """One option per setting of :class:`Config` but the environment; one that is not given keeps the recipe's value."""
    defaults = {field.name: field.default for field in dataclasses.fields(Config)}
    for name, about in reversed(setting_fields.declared_settings(Config).items()):
        if name == "env":
            continue
        plain = about.kind if about.kind in (int, float, str) else LayerWidthsParam()
        kind = click.Choice(list(about.choices)) if about.choices else plain
        shown = defaults[name]
        shown = ",".join(map(str, shown)) if isinstance(shown, tuple) else shown
        option = f"--{name.replace('_', '-')}"
        function = click.option(option, type=kind, help=f"{about.help}  [default: {shown}]")(function)
    return function


@click.command(
    epilog="Example: adagoal train FetchPush-v4 --train-goals scale=10 --test-goals scale=1 --seed 0 --out runs/push"
)
@click.argument("env", metavar="[ENV]", required=False, type=options.EnvParam())
@click.option("--recipe", type=click.Choice([AUTO_RECIPE, *sorted(RECIPES)]), default=AUTO_RECIPE, show_default=True,
              help="Named settings, which options override. auto: adagoal with a GPU, light without one. Defaults "
                   "shown below are those of adagoal.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, 256), default=1, show_default=True,
              help="Runs side by side, with consecutive seeds.")  # fmt: skip
@_add_config_options
@click.option("--workers", type=click.IntRange(0, 1024), default=0, help="Rollout processes.  [default: one per core]")
@click.option("--minutes", type=options.PositiveFloatParam(), default=math.inf, help="Stop, resumable, after so long.")
@click.option(
    "--checkpoint-every",
    type=click.IntRange(0),
    default=0,
    help="Cycles between checkpoints.  [default: as often as their size allows]",
)
@options.step_timeout_option
@click.option(
    "--out",
    type=options.OutputFolderParam(file_okay=False),
    help="Folder of the run.  [default: runs/ENV, with options that are not the default]",
)
@click.option("--overwrite", is_flag=True, help="Replace the run in the folder, once this one has a checkpoint.")
@click.option("--resume", "folder", type=click.Path(path_type=Path, file_okay=False),
              help="Go on in this folder, as adagoal resume does.")  # fmt: skip
@options.trust_option
@click.option("--until", type=click.Choice(["certified"]),
              help="End earlier: when all cells of test goals that are believed within L are certified.")  # fmt: skip
@click.option("--success", type=float, help="Of --until certified, as in adagoal certify.  [default: 0.9]")
@click.option("--slack", type=float, help="Of --until certified, likewise.  [default: 0.05]")
@click.option("--delta", type=float, help="Of --until certified, likewise.  [default: 0.05]")
@click.option("--tensorboard", type=click.Path(path_type=Path, file_okay=False),
              help="Folder for the numbers of every cycle, to be seen with TensorBoard.")  # fmt: skip
@options.quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the final table as JSON.")
def train(
    env: str | None,
    recipe: str,
    seeds: int,
    out: Path | None,
    overwrite: bool,
    folder: Path | None,
    trust: bool,
    quiet: bool,
    as_json: bool,
    workers: int,
    minutes: float,
    checkpoint_every: int,
    step_timeout: float | None,
    tensorboard: Path | None,
    until: str | None,
    success: float | None,
    slack: float | None,
    delta: float | None,
    **given: Any,
) -> None:
    """Train a goal-conditioned policy on ENV with adaptive goals (an ensemble of critics, with hindsight).

    ENV is a Gymnasium id with goal-conditioned observations (FetchReach-v4, FetchPush-v4,
    FetchPickAndPlace-v4, PointMaze_UMaze-v3, AntMaze_UMaze-v5, ...), module:Id, or point-mass.
    """
    given = {name: value for name, value in given.items() if value is not None}
    common: dict[str, Any] = {"workers": workers, "minutes": minutes, "checkpoint_every": checkpoint_every}
    common["step_timeout"] = step_timeout
    common["tensorboard"] = tensorboard
    if folder is not None:
        _refuse_options_with_resume()
        known = {"budget": given.get("steps"), "goal_rule": given.get("goal_rule")}
        resume_training(folder, as_json=as_json, quiet=quiet, env=env, trust=trust, **known, **common)
        return
    if trust:
        raise InputError("is for --resume: a new training runs what you name", name="trust")
    if env is None:
        raise InputError("missing; for example FetchReach-v4, FetchPush-v4 or point-mass", name="env")
    from adagoal.api.train import train as begin
    from adagoal.deep import require_deep_extra

    require_deep_extra()
    from adagoal.runs.training_observers import TrainingProgress

    named = resolve_recipe(recipe)
    claim = {"until": until, "success": success, "slack": slack, "delta": delta}
    if out is None:
        usual = Config(env, **RECIPES[named])
        told = {name: value for name, value in given.items() if value != getattr(usual, name)}
        told |= {} if recipe == AUTO_RECIPE else {"recipe": recipe}
        told |= {} if seeds == 1 else {"seeds": seeds}
        out = options.default_run_folder(
            env, told | {name: value for name, value in claim.items() if value is not None}
        )
    common |= claim
    with stdout_to_stderr(), TrainingProgress(quiet, describe_auto_recipe(recipe, named)) as progress:
        common |= {"out": out, "overwrite": overwrite, "observe": progress}
        trained = begin(env, recipe=named, seeds=seeds, **common, **given)
    report_training(trained, out, as_json)


def resume_training(folder: Path, *, as_json: bool, quiet: bool = False, **given: Any) -> None:
    """Resume the training run in a folder and report; ``given`` are arguments of :func:`adagoal.resume`."""
    from adagoal.api.train import resume_training as resume
    from adagoal.deep import require_deep_extra

    require_deep_extra()
    from adagoal.runs.training_observers import TrainingProgress

    with stdout_to_stderr(), TrainingProgress(quiet) as progress:
        trained = resume(folder, observe=progress, **given)
    report_training(trained, folder, as_json)


def report_training(trained: TrainResult, folder: Path, as_json: bool) -> None:
    """Print the result of the training in a folder, write its report, and set the exit code."""
    from adagoal.runs.result_text import resume_training_command

    history = trained.history
    if trained.certificate is not None:
        save_certificate(trained.certificate, folder)
    for note in trained.notes:
        click.echo(f"note: {note}", err=True)
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
            click.echo(f"go on with: {resume_training_command(history.configs[0], folder, steps)}")
    if not trained.status.finished:
        raise click.exceptions.Exit(trained.status.exit_code)


def _write_training_report(trained: TrainResult, folder: Path) -> Path | None:
    """Write the figures and the page of a training; return the page, or None after Ctrl-C."""

    page = None
    with skip_drawing_on_interrupt("report.html", f"adagoal report {quote(str(folder))}"):
        from adagoal.report import training_page as report

        try:
            if trained.certificate is not None:
                draw_certificate(trained.certificate, folder)
            page = report.write_training_report(folder, env=trained.history.configs[0].env)
        except InputError as error:
            raise InputError(f"{error.reason}; the training itself is in {folder}", error.name) from error
    return page


@click.command(epilog="Example: adagoal evaluate runs/push --episodes 500 --test-goals scale=2")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--run", type=click.IntRange(0), default=0, show_default=True, help="Which of the runs side by side.")
@click.option("--episodes", type=click.IntRange(1, 1_000_000), default=200, show_default=True, help="Test episodes.")
@click.option("--test-goals", help="Goal space: env, or scale=K[,air=P].  [default: that of the training]")
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of starts and goals."
)
@options.env_override_option
@options.trust_option
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def evaluate(
    folder: Path,
    run: int,
    episodes: int,
    test_goals: str | None,
    seed: int,
    env: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Test the policy that adagoal train left in FOLDER: how often it succeeds, and which goals it misses.

    Writes FOLDER/evaluation.png, every test goal, reached or missed, and FOLDER/evaluation.json, from which adagoal
    report draws the success by distance.
    """
    from adagoal.deep import require_deep_extra

    require_deep_extra()
    from adagoal.report.figures import save_figure
    from adagoal.report.training_figures import draw_reached_goals
    from adagoal.runs.train_result import load_training

    given: dict[str, Any] = {"test_goals": test_goals, "seed": seed, "run": run, "env": env, "trust": trust}
    with stdout_to_stderr():
        found = load_training(folder).evaluate(episodes, **given)
    summary = found.summary()
    save_figure(draw_reached_goals(found.goals, found.final_success), folder / "evaluation.png")
    write_json(folder / "evaluation.json", summary)
    if as_json:
        click.echo(json.dumps(summary, indent=1))
        return
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
    click.echo(str(folder / "evaluation.png"))


def _refuse_options_with_resume() -> None:
    """Refuse what the folder decides."""
    context = click.get_current_context()
    for parameter in context.command.params:
        typed = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if typed and parameter.name not in OPTIONS_WITH_RESUME:
            takes = "not beside --resume, which takes the folder's settings; --steps may be given"
            raise InputError(takes, name=parameter.name)


# ``adagoal certify``: which goals a trained policy reaches.


STATUS_SENTENCES = {
    Status.CERTIFIED: "every cell is certified",
    Status.DECIDED: "every cell is decided, some are refuted,",
}


@click.command(epilog="Example: adagoal certify runs/push --radius 50 --success 0.9 --delta 0.05")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
@click.option("--radius", type=int, required=True, help="L: steps in which a goal must be reached.")
@click.option("--success", type=float, default=0.9, show_default=True, help="Cells below this probability are refuted.")
@click.option("--slack", type=float, default=0.05, show_default=True,
              help="Cells are certified for the success less this; 0 needs --rollouts.")  # fmt: skip
@click.option("--delta", type=float, default=0.05, show_default=True,
              help="Probability of one wrong verdict or more, all cells together.")  # fmt: skip
@click.option(
    "--rollouts", type=options.StepCountParam(), help="Stop after so many.  [default: until every cell is decided]"
)
@click.option("--halvings", type=int, default=6, show_default=True, help="Of the goal space, at most; 6 make 64 cells.")
@click.option("--run", type=click.IntRange(0), default=0, show_default=True, help="Which of the runs side by side.")
@click.option("--test-goals", help="Goal space: env, or scale=K[,air=P].  [default: that of the training]")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Decides everything.")
@click.option("--workers", type=click.IntRange(0, 1024), default=0, help="Rollout processes.  [default: one per core]")
@options.env_override_option
@options.trust_option
@options.quiet_option
@options.json_option
def certify(folder: Path, quiet: bool, as_json: bool, **given: Any) -> None:
    """Find the goals that the policy in RUN reaches within L steps: cells certified, refuted or open.

    Writes RUN/certificate.json and RUN/certificate.png, and alters nothing else. Exit code 0: all cells are
    certified; 1: all are decided, some refuted; 3: some are open.
    """
    from adagoal.api.certify import certify as find
    from adagoal.runs.progress_display import CertificationProgress

    with stdout_to_stderr(), CertificationProgress(quiet) as display:
        found = find(folder, observe=display, **given)
    save_certificate(found, folder)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        print_certificate(found)
        click.echo(
            f"{STATUS_SENTENCES.get(found.status, found.status)} "
            f"after {found.rollouts} rollouts: {folder / 'certificate.png'}"
        )
    with skip_drawing_on_interrupt("certificate.png", "the same command"):
        draw_certificate(found, folder)
    if found.status.exit_code:
        raise click.exceptions.Exit(found.status.exit_code)


def save_certificate(found: Certification, folder: Path) -> None:
    """Write the certificate into the folder of its training."""
    write_json(folder / "certificate.json", found.to_dict())


def draw_certificate(found: Certification, folder: Path) -> None:
    """Write the picture of a certificate into the folder of its training."""
    from adagoal.report.figures import save_figure
    from adagoal.report.training_figures import draw_certified_cells

    save_figure(draw_certified_cells(found.cells), folder / "certificate.png")


def print_certificate(found: Certification) -> None:
    """Say what was found."""
    from adagoal.deep.certification import Verdict

    for verdict in Verdict:
        click.echo(f"{verdict:9}  {found.count(verdict):4} cells  {found.share(verdict):6.1%} of the goals")
    click.echo(found.statement)
