"""``report.html`` of a training: one self-contained page, and the figures beside it, from the folder alone."""

from __future__ import annotations

import base64
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.files import busy, bytes_content, read_json, reading, replace, write_text
from adagoal.core.schema import COUNT, check_json
from adagoal.core.status import Status
from adagoal.deep.config import Config
from adagoal.deep.past import Past
from adagoal.report import curves, deep_curves, html
from adagoal.report import deep_figures as figures
from adagoal.report import deep_film as film
from adagoal.report.curves import Panel
from adagoal.report.picture import png
from adagoal.runs import saved
from adagoal.runs import training_files as files
from adagoal.runs.again import training
from adagoal.runs.saved import Saved, read
from adagoal.runs.signals import ask_to_stop
from adagoal.runs.words import Headline

PAGE, STRIP, EVALUATION, CERTIFICATE = "report.html", "strip.png", "evaluation.json", "certificate.json"
TITLES = {
    Status.DONE: "Finished",
    Status.CERTIFIED: "Certified",
    Status.BUDGET: "Stopped by the time limit",
    Status.INTERRUPTED: "Interrupted",
}
EARLIER = "Not shown: these files are about an earlier policy"
MAKES = {EVALUATION: "adagoal evaluate", CERTIFICATE: "adagoal certify"}
"""The command that writes a file."""
CHOSEN = 200_000
"""Chosen goals inside a page, at most."""


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """Entries that must be there; others may."""
    return {"type": "object", "required": list(properties), "properties": properties}


_NUMBER = {"type": "number"}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_POINT = {"type": "array", "items": _NUMBER}
_BIN = {"from": _NUMBER, "to": _NUMBER, "episodes": COUNT, "success": _SHARE | {"type": ["number", "null"]}}
_CELL = {"low": _POINT, "high": _POINT, "share": _SHARE, "rollouts": COUNT, "reached": COUNT}
_ABOUT = {"type": "object", "properties": {"policy": {"type": "string"}}}
RULES: dict[str, Any] = {
    EVALUATION: {
        "type": "object",
        "required": ["about", "by"],
        "properties": {
            "about": _ABOUT,
            "by": {"type": "object", "additionalProperties": {"type": "array", "items": _object(_BIN)}},
        },
    },
    CERTIFICATE: {
        "type": "object",
        "required": ["about", "statement", "cells"],
        "properties": {
            "about": _ABOUT,
            "statement": {"type": "string"},
            "cells": {
                "type": "array",
                "items": _object(_CELL | {"verdict": {"enum": list(figures.VERDICTS)}}),
            },
        },
    },
}
"""What the page reads of files that other commands leave in the folder."""


class Beside(NamedTuple):
    """Files that other commands left in the folder of a training."""

    current: dict[str, Any]
    """Contents of those that are about a policy of the folder, by name."""
    earlier: list[str]
    """Names of those that are about another policy: the training went on or was replaced since."""


Found = tuple[files.Record, dict[str, NDArray[Any]], Past, Beside]


def write(folder: str | Path, env: str | None = None, trust: bool = False) -> Path:
    """Draw the figures of a training into its folder, and write its page.

    The film is left out where the environment's code is not installed (``module:Id``), unless ``env`` names it again or
    ``trust`` allows it.
    """
    folder = Path(folder)
    about, arrays, past, beside = found(folder)
    pictures = {"curves.png": figures.learning_curves(about.curves)}
    if arrays["chosen"].shape[-1] >= 2:
        pictures |= _pictures(about.configs[0], arrays)
    for name, drawn in pictures.items():
        replace(folder / name, bytes_content(png(drawn)))
    film.write(about, env, trust)
    write_text(folder / PAGE, page(about, arrays, past, beside, pictures=list(pictures)))
    return folder / PAGE


def found(folder: Path) -> Found:
    """What the folder holds."""

    def load(held: Saved) -> Found:
        about = files.record(held)
        arrays = files.goals(held, about)
        past = files.past(held, about, min(2, arrays["chosen"].shape[-1]))
        return about, arrays, past, _beside(held, about)

    return read(folder, load)


def page(
    about: files.Record,
    arrays: dict[str, NDArray[Any]],
    past: Past,
    beside: Beside,
    live: bool = False,
    pictures: Sequence[str] = (),
) -> str:
    """The page of a training; ``pictures`` are files beside it, for readers without JavaScript."""
    from adagoal.report import charts

    first, extra = about.configs[0], beside.current
    panels, text = _curves(about, past, extra)
    drawn = charts.curves([(panel.x, panel.y, panel.log) for panel in panels]) | charts.goal_space()
    strip = about.path / STRIP
    return html.page(
        "deep.html",
        ("curves.js", "deep.js"),
        drawn,
        block(about, arrays, past, beside),
        live,
        title=f"adagoal: {first.env}, {first.goal_rule}",
        badge="",
        words=words(about, beside),
        pictures=pictures,
        panels=panels,
        parts=curves.parts(text),
        plane=arrays["chosen"].shape[-1] >= 2,
        trained=first.rule_is_a_file or first.needs_ensemble or first.algorithm == "critics",
        statement=extra[CERTIFICATE]["statement"] if CERTIFICATE in extra else "",
        measured=bool(past.tests) or EVALUATION in extra,
        folder=quote(str(about.path)),
        film=base64.b64encode(strip.read_bytes()).decode() if strip.is_file() else "",
        frames=film.FRAMES,
        parameters=first.to_json() | {"method": about.data["method"]},
    )


def block(about: files.Record, arrays: dict[str, NDArray[Any]], past: Past, beside: Beside, **more: Any) -> bytes:
    """The data of the page; ``more`` facts are those of a live one."""
    extra = beside.current
    panels, text = _curves(about, past, extra)
    chosen = arrays["chosen"][:, 0, :, :2]
    every = -(-chosen[..., 0].size // CHOSEN)
    boxes = {"train": "train_box_0", "test": "test_box_0", "table": "table"}
    facts = {
        "words": words(about, beside),
        "boxes": {name: arrays[key][:, :2].tolist() for name, key in boxes.items() if key in arrays},
        "episodes": about.configs[0].episodes,
        "every": every,
        "radius": about.configs[0].radius,
        "ends": _ends(about, arrays),
        "map_cycles": list(past.maps),
        "cells": extra.get(CERTIFICATE, {}).get("cells", []),
    }
    more_arrays = {"chosen": np.ascontiguousarray(chosen[::every], np.float32)}
    if "D" in arrays and arrays["D"].ndim == 3:
        more_arrays |= {name: np.ascontiguousarray(arrays[name][0], np.float32) for name in ("D", "E")}
    if past.maps and chosen.shape[-1] == 2:
        more_arrays["maps"] = np.ascontiguousarray([kept[0] for kept in past.maps.values()], np.float32)
    return curves.block(text, panels, more_arrays, **facts, **more)


def _curves(about: files.Record, past: Past, extra: dict[str, Any]) -> tuple[list[Panel], str]:
    """Panels, and tables in Markdown; ``extra`` are the files beside the training."""
    evaluated = extra.get(EVALUATION, {}).get("by", {})
    return deep_curves.panels(about, past, evaluated), deep_curves.text(about, evaluated)


def _ends(about: files.Record, arrays: dict[str, NDArray[Any]]) -> list[list[float]]:
    """Of the maps of D and E: the box around the training spaces of all runs, in the plane."""
    boxes = np.stack([arrays[f"train_box_{run}"][:, :2] for run in range(len(about.configs))])
    return [boxes[:, 0].min(0).tolist(), boxes[:, 1].max(0).tolist()]


def words(about: files.Record, beside: Beside) -> str:
    """What happened, as a piece of HTML."""
    status = Status(about.data["status"])
    share = statistics.fmean(curve[-1]["success"] for curve in about.curves)
    text = (
        f"{share:.0%} of the test goals held at the last step, after {about.curves[0][-1]['steps']:,} steps "
        f"({about.data['wall_seconds']:,.0f} s)."
    )
    steps = about.curves[0][-1]["steps"]
    command = "" if status.finished else training(about.configs[0], about.path, steps)
    head = Headline("good" if status.finished else "partial", TITLES[status], (text,))
    again = [f"{name}: repeat {MAKES[name]} {quote(str(about.path))}" for name in beside.earlier]
    troubles = [(EARLIER, again)] if again else []
    return html.environment().get_template("words.html").render(head=head, troubles=troubles, command=command)


def _beside(held: Saved, about: files.Record) -> Beside:
    """What ``evaluate`` and ``certify`` left in the folder, checked, by whether it is about a policy of the folder."""
    folder = about.path
    there = {name: read_json(folder / name) for name in RULES if os.path.lexists(folder / name)}
    for name, data in there.items():
        with reading(folder / name):
            check_json(RULES[name], data)
            for cell in data.get("cells", ()):
                if not len(cell["low"]) == len(cell["high"]) >= 1:
                    raise ValueError("a cell has no corners")
    own = {files.policy(held, about, run).fingerprint() for run in range(len(about.configs))} if there else set()
    current = {name: data for name, data in there.items() if data["about"].get("policy") in own}
    return Beside(current, [name for name in there if name not in current])


def _pictures(config: Config, arrays: dict[str, Any]) -> dict[str, Any]:
    """Where the first run chose its goals, and what its ensemble believes in the end."""
    train, test = arrays["train_box_0"], arrays["test_box_0"]
    drawn = {"goals.png": figures.goal_heat(arrays["chosen"][:, 0], train, test, arrays.get("table"))}
    if "D" in arrays:  # the run has ended
        ends = arrays["low"], arrays["high"]
        drawn["maps.png"] = figures.value_maps(arrays["D"][0], arrays["E"][0], *ends, test, config.radius)
    return drawn


class FolderTraining:
    """What a live page of a training shows: the last save in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stamp(self) -> str:
        """Of the last save, and whether a training is going on."""
        return f"{saved.stamp(self._folder)} {busy(self._folder)}"

    def page(self) -> str:
        """The page of the last save."""
        return page(*found(self._folder), live=True)

    def block(self) -> bytes:
        """Its data."""
        return block(*found(self._folder), running=busy(self._folder))

    def policy(self, goal: int) -> bytes:
        """A training has none by the number of a goal."""
        raise InputError("a training has no goals with numbers", "goal")

    def stop(self) -> None:
        """Ask the training to stop after this cycle."""
        ask_to_stop(self._folder)
