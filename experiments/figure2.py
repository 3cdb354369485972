"""Figure 2 of the paper: HER against AdaGoal on FetchPush and FetchPickAndPlace, goal space right or too large.

Four panels, (Push, PickAndPlace) x (training goals = test goals, training goals stretched by 10 or 5), three
goal rules in each with the same learner:

    HER       uniform goals
    paper     in proportion to the disagreement of an ensemble trained on the original goals (VDS), which is
              how the paper's deep section reads AdaGoal
    AdaGoal   the same draw under the constraint D(g) <= L that the deep section drops, ensemble with hindsight

The learner is DDPG with an ensemble beside it, which the documented figure was made with.
All runs of a panel train side by side as one program: a panel is a cell, kept as ``OUT/<panel>.json``. One that was
stopped goes on from its checkpoint. ``--data docs/data`` trains nothing and draws what is there.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adagoal.comparison.method_scores import RunOutcome, TextTable
from adagoal.core.errors import InputError, Status
from adagoal.core.file_io import read_json, write_json
from adagoal.parallel.engines import TaskInterrupted, TaskResources
from adagoal.report.html_page import Curve, CurvePlot, curves_by_seed
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport

ENVS = {"push": "FetchPush-v4", "pick": "FetchPickAndPlace-v4"}
STRETCH = {"push": 10, "pick": 5}
PANELS = tuple(f"{env}-{scale}" for env in ENVS for scale in (1, STRETCH[env]))
LINES: dict[str, dict[str, Any]] = {
    "AdaGoal": {"goal_rule": "adagoal-proportional"},
    "HER": {"goal_rule": "unigoal"},
    "paper": {"goal_rule": "proportional", "ensemble_relabel": 0.0},
}
"""Settings of the lines in every panel."""
COLOURS = {"AdaGoal": "#0072b2", "HER": "#d55e00", "paper": "#7f7f7f"}
NAMES = {"AdaGoal": "AdaGoal, D ≤ L", "HER": "HER (uniform)", "paper": "paper (disagreement, no constraint)"}
CYCLES_A_TEST = {"push": 30, "pick": 50}
TEST_EPISODES = 48


class Cell(NamedTuple):
    """A panel and its runs, of the type :class:`adagoal.deep.config.Config`."""

    panel: str
    runs: list[Any]


def cells(options: ExperimentOptions) -> list[Cell]:
    """Return the selected panels; with ``--data`` there is nothing to train."""
    from adagoal.deep import require_deep_extra

    require_deep_extra()
    if options.data is not None:
        return []
    settings = {"steps": options.steps, "radius": options.radius, "radius_ramp": options.radius_ramp}
    return [Cell(panel, configs(panel, options, **settings)) for panel in chosen(options)]


def chosen(options: ExperimentOptions) -> list[str]:
    """Return the panels that ``--panel`` and ``--env`` select."""
    wanted = [panel for panel in PANELS if not options.panel or panel in options.panel]
    return [panel for panel in wanted if options.env is None or panel.startswith(options.env)]


def configs(panel: str, options: ExperimentOptions, **settings: Any) -> list[Any]:
    """Return the runs of a panel; ``settings`` (steps, radius, ...) apply to all."""
    from adagoal.deep.config import Config

    env, scale = panel.split("-")
    seeds = options.seeds
    fewer = range(seeds[0], seeds[0] + options.baseline_seeds) if options.baseline_seeds else seeds
    shared = settings | {
        "algorithm": "ddpg",
        "action_l2": 1.0,
        "contact": 0.0,
        "swap_goals": 0.0,
        "train_goals": f"scale={scale}",
        "eval_every": CYCLES_A_TEST[env],
        "eval_episodes": TEST_EPISODES,
    }
    return [
        Config(ENVS[env], seed=seed, **LINES[name], **shared)
        for name in options.rule or LINES
        for seed in (seeds if name == "AdaGoal" else fewer)
    ]


def kept(cell: Cell, outcome: RunOutcome, options: ExperimentOptions) -> bool:
    """Return whether the panel is finished, with these runs and steps."""
    from adagoal.runs.run_folder import is_training_folder
    from adagoal.runs.train_result import configs_from_json

    held = [replace(config, steps=options.steps) for config in configs_from_json(outcome)]
    wanted = [run.resolve_for_horizon(held[0].horizon, fetch=True) for run in cell.runs]
    if outcome["status"] == Status.DONE and outcome["steps"] >= options.steps and all(run in held for run in wanted):
        return True
    folder = options.out / cell.panel
    if is_training_folder(folder) and held != wanted:
        raise InputError(
            f"{folder} holds the panel with other seeds, rules or settings; choose another folder", name="out"
        )
    return False


def train_panel(cell: Cell, options: ExperimentOptions) -> dict[str, Any]:
    """Train a panel, or resume it from its checkpoint, and write its report."""
    from adagoal.api.train import resume_training, train
    from adagoal.report import training_page as page
    from adagoal.runs.run_folder import is_training_folder
    from adagoal.runs.train_result import training_to_json

    def observe(history: Any) -> None:
        tested = history.rows[-len(cell.runs) :]
        if "success" not in tested[0]:
            return
        so_far = training_to_json(Status.INTERRUPTED, history) | {"panel": cell.panel}
        write_json(options.out / f"{cell.panel}.json", so_far)
        if not options.quiet:
            success = " ".join(f"{row['success']:.2f}" for row in tested)
            print(f"{cell.panel}: {tested[0]['steps']} of {options.steps} steps, success {success}", file=sys.stderr)

    folder = options.out / cell.panel
    shared: dict[str, Any] = {"minutes": options.minutes, "workers": options.workers or None, "observe": observe}
    if is_training_folder(folder):
        trained = resume_training(folder, options.steps, **shared)
    else:
        trained = train(cell.runs, out=folder, **shared)
    if trained.status == Status.INTERRUPTED:
        raise TaskInterrupted("the training was told to stop; its checkpoint is kept")
    page.write_training_report(folder)
    return training_to_json(trained.status, trained.history) | {"panel": cell.panel}


def label(run: dict[str, Any]) -> str:
    """Return the line of the figure that a run belongs to."""
    return next(name for name, rule in LINES.items() if rule["goal_rule"] == run["goal_rule"])


def steps_to_success(curves: Sequence[Sequence[dict[str, Any]]], share: float) -> int | None:
    """Return the steps at which the median test success over runs first reaches a share; None if it never does."""
    for points in zip(*curves, strict=False):
        if statistics.median(p["success"] for p in points) >= share:
            return int(points[0]["steps"])
    return None


def median_success_at(curves: Sequence[Sequence[dict[str, Any]]], steps: int) -> float | None:
    """Return the median test success over runs at the last test not after ``steps``."""
    known = [[p["success"] for p in points if p["steps"] <= steps] for points in curves]
    return statistics.median(values[-1] for values in known) if all(known) else None


def rows(panels: Sequence[RunOutcome]) -> list[dict[str, Any]]:
    """Return one row per panel and rule: median success, steps to 90%, share of goals in the test space."""
    found = []
    for data in panels:
        for name in LINES:
            curves = [run["curve"] for run in data["runs"] if label(run) == name]
            if not curves:
                continue
            row: dict[str, Any] = {"panel": data["panel"], "rule": name, "seeds": len(curves), "steps": data["steps"]}
            for at in (100_000, 200_000, 400_000, 600_000):
                row[f"at_{at // 1000}k"] = median_success_at(curves, at) if at <= data["steps"] else None
            row["final"] = median_success_at(curves, data["steps"])
            row["steps_to_90"] = steps_to_success(curves, 0.9)
            last = [c[-1].get("inside_test") for c in curves if c[-1].get("inside_test") is not None]
            row["inside_test"] = round(sum(last) / len(last), 3) if last else None
            found.append(row)
    return found


def figure(panels: Sequence[RunOutcome]) -> Figure:
    """Draw success (top) and properties of the goals (bottom), one column per panel.

    Bottom: share of chosen goals in the test space and on the table; where training and test goals are the same
    (scale 1) that says nothing, and the share of candidates believed reachable is drawn instead.
    """
    drawn = Figure((4.2 * len(panels), 6.6), layout="constrained")
    axes = drawn.subplots(2, len(panels), squeeze=False, sharex="col")
    for column, data in enumerate(panels):
        env, scale = data["panel"].split("-")
        axes[0, column].set_title(f"Fetch{'Push' if env == 'push' else 'PickAndPlace'}, λ = {scale}")
        for name in LINES:
            curves = [run["curve"] for run in data["runs"] if label(run) == name]
            if curves:
                seeds = f"{len(curves)} seed{'s' if len(curves) > 1 else ''}"
                _draw_band(axes[0, column], curves, "success", COLOURS[name], f"{NAMES[name]}, {seeds}")
                if scale == "1":
                    _draw_band(axes[1, column], curves, "reachable", COLOURS[name], NAMES[name], style=":")
                else:
                    _draw_band(axes[1, column], curves, "inside_test", COLOURS[name], NAMES[name])
                    _draw_band(axes[1, column], curves, "on_table", COLOURS[name], NAMES[name], style="--")
        axes[1, column].set_xlabel("environment steps (thousands)")
        axes[1, column].set_ylabel(
            "candidates with D ≤ L" if scale == "1" else "chosen goals in the test space\n(dashed: on the table)"
        )
        for row in (0, 1):
            axes[row, column].set_ylim(0, 1.02)
            axes[row, column].grid(alpha=0.25)
    axes[0, 0].set_ylabel("test success, last step")
    for column in range(len(panels)):
        axes[0, column].legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.04), frameon=False)
    return drawn


def _draw_band(
    axes: Axes, curves: Sequence[Sequence[dict[str, Any]]], key: str, colour: str, label: str, style: str = "-"
) -> None:
    """Draw the mean over runs of a quantity against steps, and the range between the worst and the best run."""
    shared = min(len(c) for c in curves)
    points = [list(c[:shared]) for c in curves]
    rows = [i for i in range(shared) if all(key in c[i] for c in points)]
    steps = np.array([points[0][i]["steps"] for i in rows]) / 1000
    values = np.array([[c[i][key] for i in rows] for c in points], float)
    axes.plot(steps, values.mean(0), style, color=colour, label=label, lw=1.8)
    if len(values) > 1:
        axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.15, lw=0)


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the report of all panels in the folder, also those of earlier commands."""
    files = [options.out / f"{panel}.json" for panel in PANELS]
    if options.data is not None:
        files = [options.data / f"deep-figure2-{panel}.json" for panel in chosen(options)]
    panels = [read_json(file) for file in files if file.is_file()]
    if not panels:
        raise InputError(f"{options.data} holds none of {', '.join(file.name for file in files)}", name="data")
    found = rows(panels)
    lines = [[_text(value) for value in row.values()] for row in found]
    finished = all(outcome["status"] == Status.DONE for outcome in outcomes)
    text = TextTable(list(found[0]), lines, n_left_columns=2).to_markdown()
    return ExperimentReport(found, text, found, {"figure2.png": figure(panels)}, finished, curves(panels))


def curves(panels: Sequence[dict[str, Any]]) -> list[CurvePlot]:
    """Return test success over the steps, with every seed."""
    found = []
    for data in panels:
        lines: list[Curve] = []
        for name in LINES:
            runs = [run for run in data["runs"] if label(run) == name]
            points = ((run["seed"], point["steps"], point["success"]) for run in runs for point in run["curve"])
            lines += curves_by_seed(NAMES[name], points)
        found.append(CurvePlot(data["panel"], "environment steps", "test success, last step", lines, log_axes=False))
    return found


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


FIGURE2 = Experiment(
    "figure2",
    cells,
    train_panel,
    report,
    outcome_file=lambda cell: f"{cell.panel}.json",
    is_complete=kept,
    task_resources=lambda options: TaskResources(cores=options.workers or os.cpu_count() or 1, gpu=True),
    defaults=CATALOGUE["figure2"].defaults,
)
