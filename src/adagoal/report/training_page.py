"""``report.html`` of a training: one self-contained page, and the figures beside it, from the folder alone."""

from __future__ import annotations

import base64
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError, Status
from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value
from adagoal.core.file_io import (
    bytes_content,
    is_folder_locked,
    read_json,
    report_read_errors,
    write_atomically,
    write_text,
)
from adagoal.deep import policy_evaluation
from adagoal.deep.config import Config
from adagoal.deep.training_history import ValueMapHistory
from adagoal.report import curve_page, html_page
from adagoal.report import training_figures as figures
from adagoal.report import training_video as film
from adagoal.report.curve_page import Curve, CurvePanel
from adagoal.report.exploration_figures import figure_to_png
from adagoal.runs import folder_reader
from adagoal.runs import training_files as files
from adagoal.runs.folder_reader import SavedRun, read_saved_run
from adagoal.runs.result_text import Headline, resume_training_command
from adagoal.runs.stop_requests import request_stop

REPORT_FILE, VIDEO_STRIP_FILE, EVALUATION_FILE, CERTIFICATE_FILE = (
    "report.html",
    "strip.png",
    "evaluation.json",
    "certificate.json",
)
STATUS_TITLES = {
    Status.DONE: "Finished",
    Status.CERTIFIED: "Certified",
    Status.BUDGET: "Stopped by the time limit",
    Status.INTERRUPTED: "Interrupted",
}
OUTDATED_FILES_TITLE = "Not shown: these files are about an earlier policy"
WRITING_COMMANDS = {EVALUATION_FILE: "adagoal evaluate", CERTIFICATE_FILE: "adagoal certify"}
"""The command that writes a file."""
MAX_CHOSEN_GOALS = 200_000
"""Chosen goals inside a page, at most."""


def _open_object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Entries that must be there; others may."""
    return {"type": "object", "required": list(properties), "properties": properties}


_NUMBER_SCHEMA = {"type": "number"}
_SHARE_SCHEMA = {"type": "number", "minimum": 0, "maximum": 1}
_POINT_SCHEMA = {"type": "array", "items": _NUMBER_SCHEMA}
_BIN_PROPERTIES = {
    "from": _NUMBER_SCHEMA,
    "to": _NUMBER_SCHEMA,
    "episodes": COUNT_SCHEMA,
    "success": _SHARE_SCHEMA | {"type": ["number", "null"]},
}
_CELL_PROPERTIES = {
    "low": _POINT_SCHEMA,
    "high": _POINT_SCHEMA,
    "share": _SHARE_SCHEMA,
    "rollouts": COUNT_SCHEMA,
    "reached": COUNT_SCHEMA,
}
_ABOUT_SCHEMA = {"type": "object", "properties": {"policy": {"type": "string"}}}
EXTRA_FILE_SCHEMAS: dict[str, Any] = {
    EVALUATION_FILE: {
        "type": "object",
        "required": ["about", "by"],
        "properties": {
            "about": _ABOUT_SCHEMA,
            "by": {
                "type": "object",
                "additionalProperties": {"type": "array", "items": _open_object_schema(_BIN_PROPERTIES)},
            },
        },
    },
    CERTIFICATE_FILE: {
        "type": "object",
        "required": ["about", "statement", "cells"],
        "properties": {
            "about": _ABOUT_SCHEMA,
            "statement": {"type": "string"},
            "cells": {
                "type": "array",
                "items": _open_object_schema(_CELL_PROPERTIES | {"verdict": {"enum": list(figures.VERDICT_COLOURS)}}),
            },
        },
    },
}
"""What the page reads of files that other commands leave in the folder."""


class ExtraFiles(NamedTuple):
    """Files that other commands left in the folder of a training."""

    current_contents: dict[str, Any]
    """Contents of those that are about a policy of the folder, by name."""
    outdated_names: list[str]
    """Names of those that are about another policy: the training went on or was replaced since."""


TrainingContents = tuple[files.TrainingRecord, dict[str, NDArray[Any]], ValueMapHistory, ExtraFiles]


def write_training_report(folder: str | Path, env: str | None = None, trust: bool = False) -> Path:
    """Draw the figures of a training into its folder, and write its page.

    The film is left out where the environment's code is not installed (``module:Id``), unless ``env`` names it again or
    ``trust`` allows it.
    """
    folder = Path(folder)
    about, arrays, past, beside = read_training_folder(folder)
    pictures = {"curves.png": figures.draw_learning_curves(about.learning_curves)}
    if arrays["chosen"].shape[-1] >= 2:
        pictures |= _draw_goal_figures(about.configs[0], arrays)
    for name, drawn in pictures.items():
        write_atomically(folder / name, bytes_content(figure_to_png(drawn)))
    film.write_video_strip(about, env, trust)
    write_text(folder / REPORT_FILE, render_training_page(about, arrays, past, beside, pictures=list(pictures)))
    return folder / REPORT_FILE


def read_training_folder(folder: Path) -> TrainingContents:
    """What the folder holds."""

    def load(held: SavedRun) -> TrainingContents:
        about = files.read_training_record(held)
        arrays = files.read_goal_arrays(held, about)
        past = files.read_past_maps(held, about, min(2, arrays["chosen"].shape[-1]))
        return about, arrays, past, _read_extra_files(held, about)

    return read_saved_run(folder, load)


def render_training_page(
    about: files.TrainingRecord,
    arrays: dict[str, NDArray[Any]],
    past: ValueMapHistory,
    beside: ExtraFiles,
    live: bool = False,
    pictures: Sequence[str] = (),
) -> str:
    """The page of a training; ``pictures`` are files beside it, for readers without JavaScript."""
    from adagoal.report import bokeh_plots

    first, extra = about.configs[0], beside.current_contents
    panels, text = _training_curves(about, past, extra)
    drawn = (
        bokeh_plots.curve_plots([(panel.x, panel.y, panel.log_axes) for panel in panels])
        | bokeh_plots.goal_space_plots()
    )
    strip = about.path / VIDEO_STRIP_FILE
    return html_page.render_html_page(
        "deep.html",
        ("curves.js", "deep.js"),
        drawn,
        pack_training_data(about, arrays, past, beside),
        live,
        title=f"adagoal: {first.env}, {first.goal_rule}",
        badge="",
        words=render_training_summary(about, beside),
        pictures=pictures,
        panels=panels,
        parts=curve_page.parse_markdown(text),
        plane=arrays["chosen"].shape[-1] >= 2,
        trained=first.rule_is_a_file or first.needs_ensemble or first.algorithm == "critics",
        statement=extra[CERTIFICATE_FILE]["statement"] if CERTIFICATE_FILE in extra else "",
        measured=bool(past.tests) or EVALUATION_FILE in extra,
        folder=quote(str(about.path)),
        film=base64.b64encode(strip.read_bytes()).decode() if strip.is_file() else "",
        frames=film.N_FRAMES,
        parameters=first.to_json() | {"method": about.data["method"]},
    )


def pack_training_data(
    about: files.TrainingRecord, arrays: dict[str, NDArray[Any]], past: ValueMapHistory, beside: ExtraFiles, **more: Any
) -> bytes:
    """The data of the page; ``more`` facts are those of a live one."""
    extra = beside.current_contents
    panels, text = _training_curves(about, past, extra)
    chosen = arrays["chosen"][:, 0, :, :2]
    every = -(-chosen[..., 0].size // MAX_CHOSEN_GOALS)
    boxes = {"train": "train_box_0", "test": "test_box_0", "table": "table"}
    facts = {
        "words": render_training_summary(about, beside),
        "boxes": {name: arrays[key][:, :2].tolist() for name, key in boxes.items() if key in arrays},
        "episodes": about.configs[0].episodes,
        "every": every,
        "radius": about.configs[0].radius,
        "ends": _map_corners(about, arrays),
        "map_cycles": list(past.maps),
        "cells": extra.get(CERTIFICATE_FILE, {}).get("cells", []),
    }
    more_arrays = {"chosen": np.ascontiguousarray(chosen[::every], np.float32)}
    if "D" in arrays and arrays["D"].ndim == 3:
        more_arrays |= {name: np.ascontiguousarray(arrays[name][0], np.float32) for name in ("D", "E")}
    if past.maps and chosen.shape[-1] == 2:
        more_arrays["maps"] = np.ascontiguousarray([kept[0] for kept in past.maps.values()], np.float32)
    return curve_page.pack_curve_data(text, panels, more_arrays, **facts, **more)


def _training_curves(
    about: files.TrainingRecord, past: ValueMapHistory, extra: dict[str, Any]
) -> tuple[list[CurvePanel], str]:
    """Panels, and tables in Markdown; ``extra`` are the files beside the training."""
    evaluated = extra.get(EVALUATION_FILE, {}).get("by", {})
    return training_panels(about, past, evaluated), training_tables(about, evaluated)


def _map_corners(about: files.TrainingRecord, arrays: dict[str, NDArray[Any]]) -> list[list[float]]:
    """Of the maps of D and E: the box around the training spaces of all runs, in the plane."""
    boxes = np.stack([arrays[f"train_box_{run}"][:, :2] for run in range(len(about.configs))])
    return [boxes[:, 0].min(0).tolist(), boxes[:, 1].max(0).tolist()]


def render_training_summary(about: files.TrainingRecord, beside: ExtraFiles) -> str:
    """What happened, as a piece of HTML."""
    status = Status(about.data["status"])
    share = statistics.fmean(curve[-1]["success"] for curve in about.learning_curves)
    text = (
        f"{share:.0%} of the test goals held at the last step, after {about.learning_curves[0][-1]['steps']:,} steps "
        f"({about.data['wall_seconds']:,.0f} s)."
    )
    steps = about.learning_curves[0][-1]["steps"]
    command = "" if status.finished else resume_training_command(about.configs[0], about.path, steps)
    head = Headline("good" if status.finished else "partial", STATUS_TITLES[status], (text,))
    again = [f"{name}: repeat {WRITING_COMMANDS[name]} {quote(str(about.path))}" for name in beside.outdated_names]
    troubles = [(OUTDATED_FILES_TITLE, again)] if again else []
    return (
        html_page.template_environment()
        .get_template("words.html")
        .render(head=head, troubles=troubles, command=command)
    )


def _read_extra_files(held: SavedRun, about: files.TrainingRecord) -> ExtraFiles:
    """What ``evaluate`` and ``certify`` left in the folder, checked, by whether it is about a policy of the folder."""
    folder = about.path
    there = {name: read_json(folder / name) for name in EXTRA_FILE_SCHEMAS if os.path.lexists(folder / name)}
    for name, data in there.items():
        with report_read_errors(folder / name):
            check_json_value(EXTRA_FILE_SCHEMAS[name], data)
            for cell in data.get("cells", ()):
                if not len(cell["low"]) == len(cell["high"]) >= 1:
                    raise ValueError("a cell has no corners")
    own = {files.read_policy(held, about, run).fingerprint() for run in range(len(about.configs))} if there else set()
    current = {name: data for name, data in there.items() if data["about"].get("policy") in own}
    return ExtraFiles(current, [name for name in there if name not in current])


def _draw_goal_figures(config: Config, arrays: dict[str, Any]) -> dict[str, Any]:
    """Where the first run chose its goals, and what its ensemble believes in the end."""
    train, test = arrays["train_box_0"], arrays["test_box_0"]
    drawn = {"goals.png": figures.draw_goal_heatmaps(arrays["chosen"][:, 0], train, test, arrays.get("table"))}
    if "D" in arrays:  # the run has ended
        ends = arrays["low"], arrays["high"]
        drawn["maps.png"] = figures.draw_value_maps(arrays["D"][0], arrays["E"][0], *ends, test, config.radius)
    return drawn


class TrainingFolderSource:
    """What a live page of a training shows: the last save in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def version_stamp(self) -> str:
        """Of the last save, and whether a training is going on."""
        return f"{folder_reader.last_commit_stamp(self._folder)} {is_folder_locked(self._folder)}"

    def render_page(self) -> str:
        """The page of the last save."""
        return render_training_page(*read_training_folder(self._folder), live=True)

    def pack_data(self) -> bytes:
        """Its data."""
        return pack_training_data(*read_training_folder(self._folder), running=is_folder_locked(self._folder))

    def pack_policy(self, goal: int) -> bytes:
        """A training has none by the number of a goal."""
        raise InputError("a training has no goals with numbers", "goal")

    def request_stop(self) -> None:
        """Ask the training to stop after this cycle."""
        request_stop(self._folder)


# The curves and tables on the page of a training.


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
    edges = policy_evaluation.success_bin_edges(tests[..., 0])
    lines = []
    for quarter, part in enumerate(np.array_split(tests, 4)):
        name = f"tests of quarter {quarter + 1}"
        every = list(zip(seeds, np.moveaxis(part, 1, 0), strict=True)) if len(seeds) > 1 else []
        for seed, own in [(None, part), *every]:
            away, held = own.reshape(-1, 2).T
            lines += _binned_curve(name, policy_evaluation.success_by_bin(away, held > 0, edges), seed)
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
