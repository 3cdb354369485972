"""The curves and tables on the page of a training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adagoal.deep import evaluation
from adagoal.deep.past import ValueMapHistory
from adagoal.report.curves import Curve, CurvePanel
from adagoal.runs import training_files as files

GOAL_CURVES = {
    "inside_test": "in the test space",
    "on_table": "on the table",
    "reachable": "candidates with D ≤ L",
    "train_success": "reached in training",
}
"""What is known of the goals of training, by its name in a curve."""
DISTANCE_LABEL = "distance from the start"
EvaluationBins = Mapping[str, Sequence[Mapping[str, Any]]]
"""What ``evaluate`` measured: by the name of a distance or a coordinate, intervals with their success."""


def training_panels(about: files.TrainingRecord, past: ValueMapHistory, evaluated: EvaluationBins) -> list[CurvePanel]:
    """Test success and what the goals were over the steps; success by distance."""
    steps = "environment steps"
    tests = {"success": "last step", "success_any": "any step"}
    found = [CurvePanel("Test success", steps, "share of test goals", _curves_over_steps(about, tests), log_axes=False)]
    lines = _curves_over_steps(about, GOAL_CURVES)
    if lines:
        found.append(CurvePanel("The goals of training", steps, "share of chosen goals", lines, log_axes=False))
    if past.tests:
        lines = _success_by_distance(past, [config.seed for config in about.configs])
        found.append(
            CurvePanel(
                "Success by distance, in the tests", DISTANCE_LABEL, "share of test goals", lines, log_axes=False
            )
        )
    for name, bins in evaluated.items():
        lines = _binned_curve("last step", bins)
        if lines and name.startswith("distance"):
            found.append(
                CurvePanel(f"Success by {name}, evaluated", name, "share of test goals", lines, log_axes=False)
            )
    return found


def _success_by_distance(past: ValueMapHistory, seeds: Sequence[int]) -> list[Curve]:
    """Share of the test goals that were held, by their distance, in quarters of the training: all runs, and each."""
    tests = np.stack(past.tests).astype(np.float64)
    edges = evaluation.success_bin_edges(tests[..., 0])
    lines = []
    for quarter, part in enumerate(np.array_split(tests, 4)):
        name = f"tests of quarter {quarter + 1}"
        every = list(zip(seeds, np.moveaxis(part, 1, 0), strict=True)) if len(seeds) > 1 else []
        for seed, own in [(None, part), *every]:
            away, held = own.reshape(-1, 2).T
            lines += _binned_curve(name, evaluation.success_by_bin(away, held > 0, edges), seed)
    return lines


def _binned_curve(name: str, bins: Sequence[Mapping[str, Any]], seed: int | None = None) -> list[Curve]:
    """A curve through the middles of the intervals with episodes, if there are any."""
    known = [((part["from"] + part["to"]) / 2, part["success"]) for part in bins if part["success"] is not None]
    return [Curve(name, [x for x, _ in known], [y for _, y in known], seed)] if known else []


def _curves_over_steps(about: files.TrainingRecord, names: dict[str, str]) -> list[Curve]:
    """Curves of every run and, where there are several, their mean."""
    lines = []
    for key, name in names.items():
        runs = [
            ([point["steps"] for point in curve if key in point], [point[key] for point in curve if key in point])
            for curve in about.learning_curves
        ]
        if not all(x for x, _ in runs):
            continue
        mean = [statistics.fmean(values) for values in zip(*(y for _, y in runs), strict=False)]
        lines.append(Curve(name, runs[0][0][: len(mean)], mean))
        if len(runs) > 1:
            lines += [Curve(name, x, y, config.seed) for (x, y), config in zip(runs, about.configs, strict=True)]
    return lines


def training_tables(about: files.TrainingRecord, evaluated: EvaluationBins) -> str:
    """The tables, in Markdown: the runs and, where they were tested since, their success by distance."""
    rows = ["| goal rule | seed | steps | success, last step | any step |", "| --- | ---: | ---: | ---: | ---: |"]
    for config, curve in zip(about.configs, about.learning_curves, strict=True):
        rule = config.goal_rule.replace("|", "/")
        end = curve[-1]
        rows.append(f"| {rule} | {config.seed} | {end['steps']:,} | {end['success']:.2f} | {end['success_any']:.2f} |")
    for name, bins in evaluated.items():
        head = name.replace("|", "/")
        rows += ["", f"Success by {head}, as adagoal evaluate measured it:", ""]
        rows += ["| from | to | episodes | success |", "| ---: | ---: | ---: | ---: |"]
        for part in bins:
            share = "-" if part["success"] is None else f"{part['success']:.2f}"
            rows.append(f"| {part['from']:.3f} | {part['to']:.3f} | {part['episodes']} | {share} |")
    return "\n".join(rows)
