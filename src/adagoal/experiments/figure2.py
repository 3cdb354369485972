"""Figure 2 of the paper: HER against AdaGoal on FetchPush and FetchPickAndPlace, goal space right or too large.

Four panels, (Push, PickAndPlace) x (training goals = test goals, training goals stretched by 10 or 5), three
goal rules in each with the same learner:

    HER       uniform goals
    paper     in proportion to the disagreement of an ensemble trained on the original goals (VDS), which is
              how the paper's deep section reads AdaGoal
    AdaGoal   the same draw under the constraint D(g) <= L that the deep section drops, ensemble with hindsight

All runs of a panel train side by side as one program. A panel that is done is kept as ``OUT/<panel>.json``
and not run again; one that was stopped goes on from its checkpoint. ``--data docs/data`` draws what is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from adagoal.cli import options
from adagoal.core.errors import InputError
from adagoal.core.files import write_json

ENVS = {"push": "FetchPush-v4", "pick": "FetchPickAndPlace-v4"}
STRETCH = {"push": 10, "pick": 5}
PANELS = tuple(f"{env}-{scale}" for env in ENVS for scale in (1, STRETCH[env]))
RULES: dict[str, dict[str, Any]] = {
    "AdaGoal": {"goal_rule": "adagoal-proportional"},
    "HER": {"goal_rule": "unigoal"},
    "paper": {"goal_rule": "proportional", "ensemble_relabel": 0.0},
}
CYCLES_A_TEST = {"push": 30, "pick": 50}
TEST_EPISODES = 48


def configs(
    panel: str, rules: Sequence[str], seeds: int, baseline_seeds: int, first: int, **settings: Any
) -> list[Any]:
    """The runs of a panel, seeds ``first`` on, with ``settings`` (steps, radius, ...) for all of them."""
    from adagoal.deep.config import Config

    env, scale = panel.split("-")
    shared = settings | {
        "train_goals": f"scale={scale}",
        "eval_every": CYCLES_A_TEST[env],
        "eval_episodes": TEST_EPISODES,
    }
    return [
        Config(ENVS[env], seed=seed, **RULES[name], **shared)
        for name in rules
        for seed in range(first, first + (seeds if name == "AdaGoal" else baseline_seeds))
    ]


def label(run: dict[str, Any]) -> str:
    """Which line of the figure a run belongs to."""
    return next(name for name, rule in RULES.items() if rule["goal_rule"] == run["goal_rule"])


def run_panel(panel: str, runs: list[Any], out: Path, minutes: float, workers: int) -> dict[str, Any]:
    """Train a panel, or return what is already there."""
    from adagoal.report import deep as report
    from adagoal.runs import training_files as kept
    from adagoal.runs.training import resume, train
    from adagoal.runs.training_progress import TrainingProgress

    file, folder = out / f"{panel}.json", out / panel
    if file.is_file():
        cached: dict[str, Any] = json.loads(file.read_text())
        held = [replace(config, steps=runs[0].steps) for config in kept.configs(cached)]
        if cached["status"] == "done" and cached["steps"] >= runs[0].steps and all(run in held for run in runs):
            return cached
        if kept.is_training(folder) and held != runs:
            raise InputError(
                f"--out: {folder} holds the panel with other seeds, rules or settings; choose another folder"
            )
    write_so_far = kept.after_tests(file, lambda data: data.update(panel=panel))
    with TrainingProgress() as show:

        def observe(history: Any) -> None:
            show(history)
            write_so_far(history)

        common: dict[str, Any] = {"minutes": minutes, "workers": workers, "observe": observe}
        if kept.is_training(folder):
            trained = resume(folder, steps=runs[0].steps, **common)
        else:
            trained = train(runs, folder, checkpoint_every=250, **common)
    report.write(folder)
    data = kept.to_json(trained.status, trained.history) | {"panel": panel}
    write_json(file, data)
    return data


@click.command(
    "figure2",
    help=__doc__.split("\n")[0] if __doc__ else "",
    epilog="Example: adagoal reproduce figure2 --env push --seeds 5 --baseline-seeds 3 --steps 300000",
)
@click.option("--env", type=click.Choice(sorted(ENVS)), help="Only the panels of this task.")
@click.option("--panel", type=click.Choice(PANELS), multiple=True, help="Only these panels.")
@click.option("--rule", type=click.Choice(list(RULES)), multiple=True, help="Only these lines.")
@click.option("--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="Runs of AdaGoal.")
@options.FIRST_SEED
@click.option("--baseline-seeds", type=click.IntRange(1, 100), help="Runs of the other rules. [default: --seeds]")
@click.option("--radius", type=click.FloatRange(1), default=40.0, show_default=True, help="L in steps.")
@click.option(
    "--radius-ramp",
    type=click.IntRange(0),
    default=100_000,
    show_default=True,
    help="Steps over which L grows to it; 0: fixed.",
)
@click.option("--steps", type=click.IntRange(1000), default=400_000, show_default=True, help="Training steps a run.")
@click.option("--minutes", type=options.Positive(), default=math.inf, help="Stop each panel after so long.")
@click.option("--workers", type=click.IntRange(0, 1024), default=0, help="Rollout processes. [default: one a core]")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/figure2"), show_default=True
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Train nothing: draw the panels deep-figure2-PANEL.json of this folder (docs/data) into OUT/figure2.png.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def command(
    env: str | None,
    panel: tuple[str, ...],
    rule: tuple[str, ...],
    seeds: int,
    seed: int,
    baseline_seeds: int | None,
    radius: float,
    radius_ramp: int,
    steps: int,
    minutes: float,
    workers: int,
    out: Path,
    data: Path | None,
    as_json: bool,
) -> None:
    from adagoal.deep import with_extra
    from adagoal.report import deep_figures as figures

    with_extra()
    chosen = [p for p in PANELS if (not panel or p in panel) and (env is None or p.startswith(env))]
    unfinished = False
    if data is None:
        for name in chosen:
            settings = {"steps": steps, "radius": radius, "radius_ramp": radius_ramp}
            runs = configs(name, rule or list(RULES), seeds, baseline_seeds or seeds, seed, **settings)
            unfinished |= run_panel(name, runs, out, minutes, workers)["status"] != "done"
        files = [out / f"{p}.json" for p in PANELS]
    else:
        files = [data / f"deep-figure2-{p}.json" for p in chosen]
        if not any(file.is_file() for file in files):
            raise InputError(f"--data: {data} holds none of {', '.join(file.name for file in files)}")
    panels = [json.loads(file.read_text()) for file in files if file.is_file()]
    figures.figure2(panels, out / "figure2.png", label)
    rows = table(panels)
    click.echo(json.dumps(rows, indent=1) if as_json else as_text(rows))
    if unfinished:
        raise click.exceptions.Exit(3)


def table(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per panel and rule: median success at some steps, steps to 90%, share of goals in the test space."""
    from adagoal.deep.history import median_at, reached

    rows = []
    for data in panels:
        for name in RULES:
            curves = [run["curve"] for run in data["runs"] if label(run) == name]
            if not curves:
                continue
            row: dict[str, Any] = {"panel": data["panel"], "rule": name, "seeds": len(curves), "steps": data["steps"]}
            for at in (100_000, 200_000, 400_000, 600_000):
                row[f"at_{at // 1000}k"] = median_at(curves, at) if at <= data["steps"] else None
            row["final"] = median_at(curves, data["steps"])
            row["steps_to_90"] = reached(curves, 0.9)
            last = [c[-1].get("inside_test") for c in curves if c[-1].get("inside_test") is not None]
            row["inside_test"] = round(sum(last) / len(last), 3) if last else None
            rows.append(row)
    return rows


def as_text(rows: list[dict[str, Any]]) -> str:
    lines = [list(rows[0])] + [[_cell(value) for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
