"""``report.html`` of a training: one self-contained page with its figures, from the folder alone."""

from __future__ import annotations

from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

from numpy.typing import NDArray

from adagoal.core.files import write_text
from adagoal.core.status import Status
from adagoal.deep.config import Config
from adagoal.report import deep_figures as figures
from adagoal.report import deep_film as film
from adagoal.report import frame
from adagoal.runs import training_files as files
from adagoal.runs.saved import Saved, read

PAGE = "report.html"
TITLES = {Status.DONE: "Finished", Status.BUDGET: "Stopped by the time limit", Status.INTERRUPTED: "Interrupted"}


def write(folder: str | Path, env: str | None = None, trust: bool = False) -> Path:
    """Draw the figures of a training into its folder and put them, with the numbers, on one page.

    The strip of pictures is left out where the environment's code is not installed (``module:Id``), unless ``env``
    names it again or ``trust`` allows it.
    """
    folder = Path(folder)

    def found(saved: Saved) -> tuple[files.Record, dict[str, NDArray[Any]]]:
        about = files.record(saved)
        return about, files.goals(saved, about)

    about, arrays = read(folder, found)
    data, configs, curves = about.data, about.configs, about.curves
    body = _status(data, curves, folder) + _table(configs, curves)
    body += frame.figure(
        figures.learning_curves(curves),
        "Test success, and where the goals of training lay, over the steps.",
        folder / "curves.png",
    )
    if arrays["chosen"].shape[-1] >= 2:
        body += _places(configs[0], arrays, folder)
    strip = film.write(about, env, trust)
    if strip is not None:
        body += frame.picture(strip.read_bytes(), "The final policy on a far test goal.", 960)
    body += frame.facts("Settings of the first run", configs[0].to_json() | {"method": data["method"]})
    write_text(folder / PAGE, frame.page(f"adagoal: {configs[0].env}, {configs[0].goal_rule}", body))
    return folder / PAGE


def _status(data: dict[str, Any], curves: list[list[dict[str, Any]]], folder: Path) -> str:
    status = Status(data["status"])
    share = sum(curve[-1]["success"] for curve in curves) / len(curves)
    text = (
        f"{share:.0%} of the test goals held at the last step, after {curves[0][-1]['steps']:,} steps "
        f"({data['wall_seconds']:,.0f} s)."
    )
    more = ""
    if not status.finished:
        more = f"<p>Go on with <code>adagoal resume {escape(quote(str(folder)))}</code></p>"
    mood = "good" if status.finished else "partial"
    return f'<section class="{mood}"><h2>{TITLES[status]}</h2><p>{text}</p>{more}</section>'


def _table(configs: list[Config], curves: list[list[dict[str, Any]]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(config.goal_rule)}</td><td>{config.seed}</td><td>{curve[-1]['steps']:,}</td>"
        f"<td>{curve[-1]['success']:.2f}</td><td>{curve[-1]['success_any']:.2f}</td></tr>"
        for config, curve in zip(configs, curves, strict=True)
    )
    head = "".join(f"<th>{name}</th>" for name in ("goal rule", "seed", "steps", "success, last step", "any step"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<section><h2>Runs</h2>{table}</section>"


def _places(config: Config, arrays: dict[str, Any], folder: Path) -> str:
    """Where the first run chose its goals, and what its ensemble believes in the end."""
    train, test = arrays["train_box_0"], arrays["test_box_0"]
    heat = figures.goal_heat(arrays["chosen"][:, 0], train, test, arrays.get("table"))
    chosen = "Where goals were chosen: first two goal coordinates, brighter: more often. Yellow: test space."
    chosen += " Blue: table." if "table" in arrays else ""
    drawn = frame.figure(heat, chosen, folder / "goals.png")
    if "D" not in arrays:
        return drawn  # the run has not ended yet
    maps = figures.value_maps(arrays["D"][0], arrays["E"][0], arrays["low"], arrays["high"], test, config.radius)
    believed = f"What the ensemble believes in the end. White: D = L = {config.radius:g} steps. Yellow: test space."
    if not (config.rule_is_a_file or config.needs_ensemble):
        believed += " This rule needs no ensemble: it was not trained, and the maps say nothing."
    return drawn + frame.figure(maps, believed, folder / "maps.png")
