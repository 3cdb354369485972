"""The figures of the pages, as Bokeh makes them: empty, with named sources that the page's script fills.

So the same page serves a finished run and one that goes on. Bokeh is imported here alone, and this module only when a
page is written: it takes a second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, ContinuousTicker, HoverTool, Range1d, TapTool
from bokeh.models.annotations import Span
from bokeh.plotting import figure
from bokeh.plotting import figure as Figure

PLOT_BLUE, PLOT_ORANGE, PLOT_GREEN, PLOT_PINK, PLOT_GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a8f98"
"""Of Okabe and Ito's palette, which colour-blind people can tell apart; grey for what is beyond."""


@cache
def exploration_plots() -> dict[str, Any]:
    """Map, history of one goal, measured steps, progress: by the element that each goes into."""
    plots = {
        "map": _map_plot(),
        "shrink": _interval_plot(),
        "tries": _episode_length_plot(),
        "error": _largest_error_plot(),
        "open": _open_goals_plot(),
    }
    return {name: _plot_to_json(plot) for name, plot in plots.items()}


def curve_plots(panels: Sequence[tuple[str, str, bool]]) -> dict[str, Any]:
    """A plot for every panel, by the labels of its axes and whether they are logarithmic."""
    return {f"curve{i}": _plot_to_json(_curve_plot(i, *panel)) for i, panel in enumerate(panels)}


def goal_space_plots() -> dict[str, Any]:
    """Where a training chose its goals, what it believes about them, and which of them are certified."""
    return {"space": _plot_to_json(_goal_space_plot()), "cells": _plot_to_json(_verdict_plot())}


def _goal_space_plot() -> Figure:
    plot = _empty_plot(420, "pan,box_zoom,wheel_zoom,reset", x_axis_label="x", y_axis_label="y", name="space")
    source = _named_source("squares", "x", "y", "width", "height", "fill", "text")
    squares = plot.rect("x", "y", "width", "height", source=source, fill_color="fill", line_color=None)
    boxes = _named_source("boxes", "left", "right", "bottom", "top", "edge", "name")
    plot.quad("left", "right", "top", "bottom", source=boxes, fill_color=None, line_color="edge", line_width=3)
    plot.add_tools(HoverTool(renderers=[squares], tooltips=[("at", "(@x, @y)"), ("", "@text")]))
    return plot


def _verdict_plot() -> Figure:
    labels = {"x_axis_label": "goal coordinate 0", "y_axis_label": "goal coordinate 1"}
    plot = _empty_plot(420, "pan,box_zoom,wheel_zoom,reset", name="cells", **labels)
    source = _named_source("verdicts", "left", "right", "bottom", "top", "fill", "text")
    cells = plot.quad("left", "right", "top", "bottom", source=source, fill_color="fill", fill_alpha=0.8,
                      line_color="#ffffff")  # fmt: skip
    plot.add_tools(HoverTool(renderers=[cells], tooltips="@text"))
    return plot


def _curve_plot(number: int, x: str, y: str, log: bool) -> Figure:
    kind: dict[str, Any] = {"x_axis_type": "log", "y_axis_type": "log"} if log else {}
    plot = _empty_plot(
        320, "pan,box_zoom,wheel_zoom,reset", x_axis_label=x, y_axis_label=y, name=f"curve{number}", **kind
    )
    marks = _named_source(f"marks{number}", "x0", "x1", "y", "name")
    rules = plot.segment("x0", "y", "x1", "y", source=marks, line_color=PLOT_GREY, line_dash="dashed")
    lines = _named_source(f"lines{number}", "xs", "ys", "colour", "width", "alpha", "dash", "name", "seed")
    drawn = plot.multi_line("xs", "ys", source=lines, line_color="colour", line_width="width", line_alpha="alpha",
                            line_dash="dash")  # fmt: skip
    point = [("", "@name, @seed"), (x, "$data_x{0.[000]a}"), (y, "$data_y{0.000}")]
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=point), HoverTool(renderers=[rules], tooltips="@name: @y"))
    return plot


def _plot_to_json(plot: Figure) -> Any:
    """JSON for the page; the numbers of its parts are counted anew, so that equal figures are equal texts."""
    text = json.dumps(json_item(plot))
    names = dict.fromkeys(re.findall(r'"(p\d+)"', text))
    numbers = {name: f"m{i}" for i, name in enumerate(names)}
    return json.loads(re.sub(r'"(p\d+)"', lambda match: f'"{numbers[match[1]]}"', text))


def _named_source(name: str, *columns: str) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in columns}, name=name)


def _empty_plot(height: int, tools: str = "", **options: Any) -> Figure:
    plot = figure(
        height=height,
        **{"x_range": Range1d(start=1, end=100), "y_range": Range1d(start=1, end=100)} | options,
        sizing_mode="stretch_width",
        tools=tools,
        toolbar_location="above" if tools else None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=10,
        min_border_right=10,
    )
    plot.toolbar.logo = None
    plot.select(ContinuousTicker).desired_num_ticks = 4  # type: ignore[attr-defined]
    return plot


def _map_plot() -> Figure:
    """Places (cells of a grid, or states of a graph), the policy of the chosen goal, its path, and the agent."""
    plot = _empty_plot(460, "pan,box_zoom,wheel_zoom,reset", name="map", lod_threshold=None)
    plot.axis.visible = False
    plot.grid.visible = False
    walls, places = (
        _named_source("walls", "x", "y"),
        _named_source("places", "x", "y", "fill", "edge", "thick", "name", "text"),
    )
    plot.rect("x", "y", 1, 1, source=walls, fill_color="#3d434b", line_color=None, name="wall-cells")
    edges = _named_source("edges", "x0", "y0", "x1", "y1")
    plot.segment("x0", "y0", "x1", "y1", source=edges, line_color=PLOT_GREY, line_alpha=0.35, name="edge-lines")
    style: dict[str, Any] = {
        "fill_color": "fill",
        "line_color": "edge",
        "line_width": "thick",
        "nonselection_alpha": 1.0,
    }
    same: dict[str, Any] = {
        "selection_fill_color": "fill",
        "selection_line_color": "edge",
        "nonselection_line_color": "edge",
    }
    cells = plot.rect("x", "y", 0.94, 0.94, source=places, name="cells", **style, **same)
    nodes = plot.scatter("x", "y", size=13, source=places, name="nodes", visible=False, **style, **same)
    arrows = _named_source("arrows", "x0", "y0", "x1", "y1", "angle")
    plot.segment("x0", "y0", "x1", "y1", source=arrows, line_color="#ffffff", line_width=4.5, line_alpha=0.8)
    plot.segment("x0", "y0", "x1", "y1", source=arrows, line_color="#111111", line_width=1.8)
    plot.scatter("x1", "y1", size=9, marker="triangle", angle="angle", source=arrows, fill_color="#111111",
                 line_color="#ffffff")  # fmt: skip
    resets = _named_source("resets", "x", "y")
    plot.scatter("x", "y", size=8, marker="x", source=resets, line_color="#111111", line_width=2)
    path = _named_source("path", "x", "y")
    plot.line("x", "y", source=path, line_color="#ffffff", line_width=6, line_alpha=0.7)
    plot.line("x", "y", source=path, line_color=PLOT_ORANGE, line_width=3)
    marks = _named_source("marks", "x", "y", "marker", "size", "fill")
    plot.scatter("x", "y", marker="marker", size="size", source=marks, fill_color="fill", line_color="#111111",
                 line_width=1.5)  # fmt: skip
    about = [("goal", "@name"), ("", "@text")]
    plot.add_tools(HoverTool(renderers=[cells, nodes], tooltips=about), TapTool(renderers=[cells, nodes]))
    return plot


def _interval_plot() -> Figure:
    """The interval of the chosen goal over the steps."""
    plot = _empty_plot(
        240, x_axis_type="log", x_axis_label="steps", y_axis_label="expected steps to the goal", name="shrink"
    )
    band = _named_source("band", "x", "low", "high")
    plot.varea("x", "low", "high", source=band, fill_color=PLOT_BLUE, fill_alpha=0.25)
    plot.line("x", "high", source=band, line_color=PLOT_BLUE, line_width=2)
    plot.line("x", "low", source=band, line_color=PLOT_BLUE, line_width=2, line_dash="dashed")
    plot.add_layout(Span(dimension="height", line_color=PLOT_ORANGE, line_width=2, name="now-shrink"))
    plot.add_layout(Span(dimension="width", line_color=PLOT_GREY, line_dash="dotted", name="radius-shrink"))
    plot.add_tools(HoverTool(tooltips=[("steps", "@x{0,0}"), ("between", "@low{0.00} and @high{0.00}")], mode="vline"))
    return plot


def _episode_length_plot() -> Figure:
    """Measured steps of the episodes played in the page, beside the certificate."""
    plot = _empty_plot(200, x_axis_label="steps of an episode", y_axis_label="episodes", name="tries")
    bars = _named_source("bars", "left", "right", "top")
    plot.quad("left", "right", "top", 0, source=bars, fill_color=PLOT_GREEN, fill_alpha=0.7, line_color=None)
    certified = _named_source("certified", "left", "right", "top")
    plot.quad("left", "right", "top", 0, source=certified, fill_color=PLOT_BLUE, fill_alpha=0.25, line_color=PLOT_BLUE)
    plot.add_layout(Span(dimension="height", line_color=PLOT_ORANGE, line_width=3, name="mean"))
    return plot


def _largest_error_plot() -> Figure:
    """The largest error of an open goal over the steps."""
    log: dict[str, Any] = {"x_axis_type": "log", "y_axis_type": "log"}
    plot = _empty_plot(210, x_axis_label="steps", y_axis_label="largest error", name="error", **log)
    plot.line("x", "error", source=_named_source("trace-error", "x", "error"), line_color=PLOT_BLUE, line_width=2)
    plot.add_layout(Span(dimension="width", line_color=PLOT_GREY, line_dash="dashed", name="epsilon"))
    plot.add_layout(Span(dimension="height", line_color=PLOT_ORANGE, line_width=2, name="now-error"))
    plot.add_tools(HoverTool(tooltips=[("steps", "@x{0,0}"), ("error", "@error{0.000}")], mode="vline"))
    return plot


def _open_goals_plot() -> Figure:
    """The number of open goals over the steps."""
    plot = _empty_plot(210, x_axis_type="log", x_axis_label="steps", y_axis_label="open goals", name="open")
    plot.step(
        "x", "open", source=_named_source("trace-open", "x", "open"), line_color=PLOT_BLUE, line_width=2, mode="after"
    )
    plot.add_layout(Span(dimension="height", line_color=PLOT_ORANGE, line_width=2, name="now-open"))
    plot.add_tools(HoverTool(tooltips=[("steps", "@x{0,0}"), ("open goals", "@open")], mode="vline"))
    return plot
