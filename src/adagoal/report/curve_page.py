"""Pages with curves and tables: the page of a comparison or an experiment, and two panels of the training page.

Curves are plain numbers (:class:`CurvePlot`). Tables are those of a Markdown text. The reader can switch curves on and
off, show every seed, and search and sort the tables.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from adagoal.report.html_page import Panel, PanelContent, ReportPage, render_macro


@dataclass(frozen=True)
class Curve:
    """One curve. Curves of one name share a colour and a switch."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    seed: int | None = None  # None: the curve of all seeds, for instance their median


@dataclass(frozen=True)
class CurvePlot:
    """One plot with several curves."""

    title: str
    x: str  # label of the axis
    y: str
    lines: Sequence[Curve]
    reference_lines: Mapping[str, float] = field(default_factory=dict)  # heights of horizontal lines, by name
    log_axes: bool = True


def curves_by_seed(name: str, points: Iterable[tuple[int, float, float]]) -> list[Curve]:
    """Return the curve of medians and one curve per seed, from points (seed, x, y) in any order."""
    by_seed: dict[int, list[tuple[float, float]]] = {}
    by_x: dict[float, list[float]] = {}
    for seed, x, y in points:
        by_seed.setdefault(seed, []).append((x, y))
        by_x.setdefault(x, []).append(y)
    medians = [(x, statistics.median(ys)) for x, ys in by_x.items()]
    curves: list[tuple[int | None, list[tuple[float, float]]]] = [(None, medians), *by_seed.items()]
    return [Curve(name, [x for x, _ in sorted(c)], [y for _, y in sorted(c)], seed) for seed, c in curves if c]


def curve_page(title: str, text: str, plots: Sequence[CurvePlot]) -> ReportPage:
    """Return the page of a Markdown text and its curves."""
    return ReportPage.collect(title, PANELS, (plots, text))


def curves_panel(plots: Sequence[CurvePlot]) -> PanelContent | None:
    """Return the curves: all points in two arrays, and for every curve the range that belongs to it."""
    if not plots:
        return None
    lines = [line for plot in plots for line in plot.lines]
    ends = np.cumsum([len(line.x) for line in lines]).tolist()
    # One iterator for all plots: each plot takes as many ranges as it has lines, and zip stops before the next one.
    ranges = iter(zip([0, *ends[:-1]], ends, strict=True))
    curves = []
    for plot in plots:
        drawn = zip(plot.lines, ranges, strict=False)
        entries = [{"name": line.name, "seed": line.seed, "from": start, "to": end} for line, (start, end) in drawn]
        labels = {"title": plot.title, "x": plot.x, "y": plot.y, "log": plot.log_axes}
        curves.append({**labels, "marks": dict(plot.reference_lines), "lines": entries})
    arrays = {axis: np.array([v for line in lines for v in getattr(line, axis)], float) for axis in ("x", "y")}
    html = render_macro("shared.html", "curves", [plot.title for plot in plots])
    return PanelContent({"curves": curves}, arrays, html)


def tables_panel(text: str) -> PanelContent:
    """Return the paragraphs and tables of a Markdown text."""
    parts = parse_markdown(text)
    tables = [part["rows"] for part in parts if part["rows"]]
    return PanelContent({"tables": tables}, {}, render_macro("shared.html", "tables", parts))


PANELS: tuple[Panel[tuple[Sequence[CurvePlot], str]], ...] = (
    Panel("curves", "Curves", lambda source: curves_panel(source[0]), ("curves.js",)),
    Panel("tables", "", lambda source: tables_panel(source[1]), ("tables.js",)),
)


def parse_markdown(text: str) -> list[dict[str, Any]]:
    """Return the paragraphs (``words``) and tables (``rows``, the head first) of a Markdown text in their order."""
    # The page shows plain text, so the marks of emphasis and code are removed.
    parts: list[dict[str, Any]] = []
    lines = [line.strip() for line in text.splitlines()]
    for kind, group in groupby(lines, lambda line: "table" if line.startswith("|") else "words" if line else ""):
        if kind == "words":
            parts.append({"words": re.sub(r"[*`]", "", " ".join(group)), "rows": []})
        elif kind == "table":
            rows = [[re.sub(r"[*`]", "", cell).strip() for cell in line.strip("|").split("|")] for line in group]
            is_rule = [all(re.fullmatch(r":?-+:?", cell) for cell in row) for row in rows]
            parts.append({"words": "", "rows": [row for row, rule in zip(rows, is_rule, strict=True) if not rule]})
    return parts
