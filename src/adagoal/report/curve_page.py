"""The page of an experiment: curves that can be switched on and off, seeds included, and tables that can be sorted.

An experiment says what it found in Markdown; the tables of the page are those of that text. Curves are plain numbers
(:class:`CurvePanel`).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.file_io import write_text
from adagoal.report import html_page
from adagoal.report.html_page import pack_data_block


@dataclass(frozen=True)
class Curve:
    """One curve."""

    name: str
    """What it is a curve of: those of one name share a colour, and are switched together."""
    x: Sequence[float]
    y: Sequence[float]
    seed: int | None = None
    """None for the curve of all seeds, their median for instance."""


@dataclass(frozen=True)
class CurvePanel:
    """One plot."""

    title: str
    x: str
    y: str
    lines: Sequence[Curve]
    reference_lines: Mapping[str, float] = field(default_factory=dict)
    """Heights worth a line, by name."""
    log_axes: bool = True


def curves_by_seed(name: str, points: Iterable[tuple[int, float, float]]) -> list[Curve]:
    """The curves of every seed and that of their medians, from points (seed, x, y) in any order."""
    by_seed: dict[int, list[tuple[float, float]]] = {}
    by_x: dict[float, list[float]] = {}
    for seed, x, y in points:
        by_seed.setdefault(seed, []).append((x, y))
        by_x.setdefault(x, []).append(y)
    middle = [(x, statistics.median(ys)) for x, ys in by_x.items()]
    curves: list[tuple[int | None, list[tuple[float, float]]]] = [(None, middle), *by_seed.items()]
    return [Curve(name, [x for x, _ in sorted(c)], [y for _, y in sorted(c)], seed) for seed, c in curves if c]


def write_curve_page(path: Path, title: str, text: str, panels: Sequence[CurvePanel], pictures: Iterable[str]) -> Path:
    """Write the page; ``pictures`` are files beside it, for readers without JavaScript."""
    write_text(path, render_curve_page(title, text, panels, pictures=list(pictures)))
    return path


def render_curve_page(
    title: str, text: str, panels: Sequence[CurvePanel], live: bool = False, pictures: Sequence[str] = ()
) -> str:
    """The page of a text in Markdown and its curves."""
    from adagoal.report import bokeh_plots

    drawn = bokeh_plots.curve_plots([(panel.x, panel.y, panel.log_axes) for panel in panels])
    shown = {"title": title, "badge": "", "pictures": pictures, "parts": parse_markdown(text), "panels": panels}
    return html_page.render_html_page(
        "curves.html", ("curves.js",), drawn, pack_curve_data(text, panels), live, **shown
    )


def pack_curve_data(
    text: str, panels: Sequence[CurvePanel], arrays: Mapping[str, NDArray[Any]] | None = None, **more: Any
) -> bytes:
    """The data of the page; ``arrays`` and ``more`` facts are those of a page that shows more than this."""
    lines = [line for panel in panels for line in panel.lines]
    ends = np.cumsum([len(line.x) for line in lines]).tolist()
    starts = [0, *ends[:-1]]
    places = iter(zip(starts, ends, strict=False))
    described = [
        {
            "title": panel.title,
            "marks": dict(panel.reference_lines),
            "log": panel.log_axes,
            "lines": [
                {"name": line.name, "seed": line.seed, "from": start, "to": end}
                for line, (start, end) in zip(panel.lines, places, strict=False)
            ],
        }
        for panel in panels
    ]
    joined = {
        axis: np.concatenate([np.asarray(getattr(line, axis), float) for line in lines] or [np.zeros(0)])
        for axis in ("x", "y")
    }
    tables = [part["rows"] for part in parse_markdown(text) if part["rows"]]
    return pack_data_block({"panels": described, "tables": tables} | more, {**joined, **(arrays or {})})


def parse_markdown(text: str) -> list[dict[str, Any]]:
    """Paragraphs and tables of a Markdown text, in their order: words, or rows of cells with the head first."""
    found: list[dict[str, Any]] = []
    lines = [line.strip() for line in text.splitlines()]
    for kind, run in groupby(lines, lambda line: "table" if line.startswith("|") else "words" if line else ""):
        if kind == "words":
            found.append({"words": re.sub(r"[*`]", "", " ".join(run)), "rows": []})
        elif kind == "table":
            rows = [[re.sub(r"[*`]", "", cell).strip() for cell in line.strip("|").split("|")] for line in run]
            found.append({"words": "", "rows": [row for row in rows if not _is_separator_row(row)]})
    return found


def _is_separator_row(row: Sequence[str]) -> bool:
    return all(re.fullmatch(r":?-+:?", cell) for cell in row)
