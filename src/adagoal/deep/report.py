"""``report.html`` of a deep run: one self-contained page with its figures."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

import numpy as np

from adagoal.core import files as storage
from adagoal.deep import figures, film
from adagoal.deep.training import TrainResult

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}img{max-width:100%}table{border-collapse:collapse}
td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}
code{background:#f3f3f3;padding:.1rem .3rem}p.note{color:#555;font-size:.9rem}"""


def write(result: TrainResult, folder: Path) -> Path:
    """Draw the figures into the folder and put them, with the numbers, on one page."""
    history = result.history
    curves = [history.curve(run) for run in range(len(history.configs))]
    config = history.configs[0]
    parts = [
        f"<h1>{html.escape(config.env)}, {html.escape(config.goal_rule)}</h1>",
        f"<p>{_headline(result, curves)}</p>",
        _table(history.configs, curves),
        "<h2>Learning</h2>",
        _image(folder, "curves.png", figures.learning_curves(curves)),
    ]
    if history.sizes.goal >= 2:
        chosen = np.stack(history.goals)[:, 0]
        heat = figures.goal_heat(chosen, history.train_boxes[0], history.test_boxes[0], history.table)
        maps = result.maps
        values = figures.value_maps(
            maps["D"][0], maps["E"][0], maps["low"], maps["high"], history.test_boxes[0], config.radius
        )
        parts += [
            "<h2>Where goals were chosen</h2>",
            _image(folder, "goals.png", heat),
            "<p class=note>First two goal coordinates, brighter: more often. Yellow: test space. Blue: table.</p>",
            "<h2>What the ensemble believes in the end</h2>",
            _image(folder, "maps.png", values),
            f"<p class=note>White: D = L = {config.radius:g} steps. Yellow: test space.</p>",
        ]
        if not config.needs_ensemble:
            parts.append("<p class=note>This rule needs no ensemble: it was not trained, and the maps say nothing.</p>")
    strip = film.write(folder)
    if strip is not None:
        parts += ["<h2>The final policy</h2>", f'<img alt="frames" src="{_inline(strip)}">']
    settings = ", ".join(f"{k} = {v}" for k, v in config.to_json().items())
    parts += ["<h2>Settings</h2>", f"<p class=note>{html.escape(settings)}</p>"]
    page = f"<!doctype html><meta charset=utf-8><title>adagoal: {html.escape(config.env)}</title><style>{STYLE}</style>"
    path = folder / "report.html"
    storage.write_text(path, page + "\n".join(parts))
    return path


def _headline(result: TrainResult, curves: list[list[dict[str, Any]]]) -> str:
    steps = curves[0][-1]["steps"]
    share = sum(c[-1]["success"] for c in curves) / len(curves)
    status = {
        "done": "Finished",
        "budget": "Stopped by the time limit, resumable",
        "interrupted": "Interrupted, resumable",
    }
    seconds = result.history.wall_seconds
    held = f"{share:.0%} of the test goals held at the last step"
    return f"{status[result.status]}: {held} after {steps:,} steps ({seconds:,.0f} s)."


def _table(configs: Any, curves: list[list[dict[str, Any]]]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(c.goal_rule)}</td><td>{c.seed}</td><td>{p[-1]['steps']:,}</td>"
        f"<td>{p[-1]['success']:.2f}</td><td>{p[-1]['success_any']:.2f}</td></tr>"
        for c, p in zip(configs, curves, strict=True)
    )
    return f"<table><tr><th>rule<th>seed<th>steps<th>success<th>any step</tr>{rows}</table>"


def _image(folder: Path, name: str, figure: Any) -> str:
    figures.save(figure, folder / name)
    return f'<img alt="{name}" src="{_inline(folder / name)}">'


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
