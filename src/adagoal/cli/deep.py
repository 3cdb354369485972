"""``adagoal train``: the deep world from the command line."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from adagoal.cli import options
from adagoal.core.errors import InputError
from adagoal.deep.config import NORMALISERS, RECIPES, VALUE_ACTIONS, Config

if TYPE_CHECKING:
    from adagoal.deep.history import History

BESIDE_RESUME = {"resumed", "steps", "workers", "minutes", "checkpoint_every", "as_json"}
_FIELDS = {field.name: field for field in dataclasses.fields(Config)}
_HELP = {
    "steps": "Environment steps of training.",
    "goal_rule": "unigoal (HER), proportional (VDS, the paper's), adagoal-proportional, adagoal, argmax, raregoal, ...",
    "radius": "L in steps: the constraint D(g) <= L of the AdaGoal rules.",
    "radius_ramp": "Steps over which L grows from a quarter to all of --radius; 0: fixed.",
    "train_goals": "Goal space of training: env, or scale=K[,air=P].",
    "test_goals": "Goal space of evaluation: env, or scale=K[,air=P].",
    "episodes": "Episodes per cycle.",
    "horizon": "Steps per episode; 0: the environment's own limit.",
    "noise": "Gaussian action noise.",
    "random": "Probability of a random action.",
    "updates": "DDPG updates per cycle.",
    "batch": "Transitions per update.",
    "learning_rate": "Adam's step size.",
    "gamma": "Discount.",
    "action_l2": "Weight of the squared action in the actor's loss.",
    "target_step": "How far target networks move each time.",
    "target_every": "Updates between two moves.",
    "buffer": "Replay capacity in transitions.",
    "relabel": "Share of hindsight goals in a batch.",
    "contact": "Share of a batch from episodes that moved the object.",
    "members": "J: Q-functions in the ensemble.",
    "candidates": "N: candidate goals per reset.",
    "ensemble_updates": "Ensemble updates per cycle.",
    "ensemble_batch": "Transitions per update and member.",
    "ensemble_relabel": "Share of hindsight goals in the ensemble's batches; 0: original goals (VDS).",
    "eval_every": "Cycles between two evaluations.",
    "eval_episodes": "Test episodes per evaluation.",
}


def _settings(function: Callable[..., None]) -> Callable[..., None]:
    """One option per field of :class:`Config`; an option that is not given keeps the recipe's value."""
    for name, text in reversed(_HELP.items()):
        default = _FIELDS[name].default
        option = click.option(f"--{name.replace('_', '-')}", type=type(default), help=f"{text} [default: {default}]")
        function = option(function)
    return function


@click.command(
    epilog="Example: adagoal train FetchPush-v4 --train-goals scale=10 --test-goals scale=1 --seed 0 --out runs/push"
)
@click.argument("env", required=False)
@click.option("--recipe", type=click.Choice(sorted(RECIPES)), default="adagoal", show_default=True,
              help="Named settings; single options override them.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="First seed.")
@click.option("--seeds", type=click.IntRange(1, 256), default=1, show_default=True, help="Runs side by side.")
@click.option("--hidden", help="Widths of the hidden layers. [default: 256,256,256]")
@click.option("--normaliser", type=click.Choice(NORMALISERS), help="What the goal normaliser sees. [default: achieved]")
@click.option("--value-action", type=click.Choice(VALUE_ACTIONS),
              help="Read the ensemble at the policy's action, or min over sampled ones. [default: policy]")  # fmt: skip
@_settings
@click.option("--workers", type=click.IntRange(0, 1024), default=0, help="Rollout processes. [default: one a core]")
@click.option("--minutes", type=options.Positive(), default=math.inf, help="Stop, resumable, after so long.")
@click.option(
    "--checkpoint-every", type=click.IntRange(1), default=50, show_default=True, help="Cycles between checkpoints."
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the run. [default: runs/ENV-...]"
)
@click.option("--resume", "resumed", type=click.Path(path_type=Path, file_okay=False), help="Go on in this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the final table as JSON.")
def train(
    env: str | None,
    recipe: str,
    seed: int,
    seeds: int,
    hidden: str | None,
    workers: int,
    minutes: float,
    checkpoint_every: int,
    out: Path | None,
    resumed: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a goal-conditioned policy on ENV with adaptive goals (DDPG + hindsight + value ensemble).

    ENV is a Gymnasium id with goal-conditioned observations (FetchReach-v4, FetchPush-v4,
    FetchPickAndPlace-v4, PointMaze_UMaze-v3, AntMaze_UMaze-v5, ...), module:Id, or point-mass.
    """
    from adagoal.deep import with_extra

    with_extra()
    given = {name: value for name, value in settings.items() if value is not None}
    common: dict[str, Any] = {"workers": workers, "minutes": minutes, "checkpoint_every": checkpoint_every}
    from adagoal.deep import report, result, training

    if resumed is not None:
        _only_beside_resume()
        with progress(given.get("steps", 0)) as watch:
            trained = training.resume(resumed, steps=given.get("steps", 0), watch=watch, **common)
        out = resumed
    else:
        if env is None:
            raise InputError("ENV: missing; for example FetchReach-v4, FetchPush-v4 or point-mass")
        if hidden is not None:
            given["hidden"] = _widths(hidden)
        first = Config(env, seed=seed, **{**RECIPES[recipe], **given})
        configs = [dataclasses.replace(first, seed=seed + i) for i in range(seeds)]
        out = out or Path("runs") / f"{env.replace(':', '-')}-{first.rule_name}-seed{seed}"
        if (out / training.CHECKPOINT).exists():
            raise InputError(f"--out: {out} already holds a run; go on with --resume {out}, or choose another folder")
        with progress(first.steps) as watch:
            trained = training.train(configs, out, watch=watch, **common)
    result.write_folder(trained, out)
    report.write(trained, out)
    rows = [
        {"seed": config.seed, "goal_rule": config.goal_rule}
        | {k: v for k, v in trained.history.curve(run)[-1].items() if k in ("steps", "success", "success_any")}
        for run, config in enumerate(trained.history.configs)
    ]
    if as_json:
        click.echo(json.dumps({"status": trained.status, "out": str(out), "runs": rows}, indent=1))
    else:
        for row in rows:
            click.echo(
                f"seed {row['seed']}  {row['goal_rule']}  {row['steps']} steps  "
                f"success {row['success']:.2f} (any step {row['success_any']:.2f})"
            )
        click.echo(f"{trained.status}: {out}/report.html")
    if trained.status != "done":
        raise click.exceptions.Exit(3)


@click.command(epilog="Example: adagoal evaluate runs/push --episodes 500 --test-goals scale=2")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--run", type=click.IntRange(0), default=0, show_default=True, help="Which of the runs side by side.")
@click.option("--episodes", type=click.IntRange(1, 1_000_000), default=200, show_default=True, help="Test episodes.")
@click.option("--test-goals", help="Goal space: env, or scale=K[,air=P]. [default: that of the training]")
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of starts and goals."
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def evaluate(folder: Path, run: int, episodes: int, test_goals: str | None, seed: int, as_json: bool) -> None:
    """Test the policy that adagoal train left in FOLDER: how often it succeeds, and which goals it misses.

    Writes FOLDER/evaluation.png: every test goal, reached or missed.
    """
    from adagoal.deep import with_extra

    with_extra()
    from adagoal.deep import figures
    from adagoal.deep.evaluation import evaluate as play

    found = play(folder, run=run, episodes=episodes, test_goals=test_goals, seed=seed)
    summary = found.summary()
    figures.save(figures.reached_and_missed(found.goals, found.held), folder / "evaluation.png")
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


def _only_beside_resume() -> None:
    """Refuse what the folder decides."""
    context = click.get_current_context()
    for parameter in context.command.params:
        typed = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if typed and parameter.name not in BESIDE_RESUME:
            name = parameter.opts[0] if parameter.opts[0].startswith("--") else "ENV"
            raise InputError(f"{name}: not beside --resume, which takes the folder's settings; --steps may be given")


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise InputError(f"--hidden: {text!r} needs widths such as 256,256,256") from None


@contextmanager
def progress(steps: int) -> Iterator[Callable[[History], None]]:
    """Live progress on standard error: a line that is rewritten on a terminal, one line per test elsewhere."""
    live = sys.stderr.isatty()
    began, first = time.monotonic(), -1
    tested = ""

    def watch(history: History) -> None:
        nonlocal first, tested
        runs = len(history.configs)
        done = history.steps(history.rows[-1]["cycle"] + 1)
        first = done if first < 0 else first
        speed = (done - first) / max(time.monotonic() - began, 1e-9)
        fresh = "success" in history.rows[-1]
        if fresh:
            tested = " ".join(f"{row['success']:.2f}" for row in history.rows[-runs:])
        line = f"{done} / {steps or history.configs[0].steps} steps  {speed:.0f} steps/s a run  success {tested}"
        if live or fresh:
            click.echo(("\r\x1b[K" if live else "") + line, err=True, nl=not live)

    yield watch
    if live:
        click.echo(err=True)
