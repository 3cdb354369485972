"""The figures of a run. Colour maps are even in lightness, so that colour-blind readers see the same."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, LogNorm, Normalize, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle

from adagoal.core.errors import to_single_line
from adagoal.core.types import Bools, Floats, GridLayout, Longs
from adagoal.runs.result import Result
from adagoal.runs.state_metadata import StateMetadata

COLOUR_MAP = colormaps["viridis"]
FINISHED_COLOUR, OPEN_COLOUR, NEUTRAL_COLOUR = "#31588a", "#d1742f", "#9aa3ad"
N_TIME_WINDOWS = 3
HEATMAP_COLUMNS = 48
"""Time windows of the heat map."""
MAX_HEATMAP_ROWS = 120
"""Goals of the heat map, at most; more are drawn in groups."""
MAX_NAMED_GOALS = 40
"""Goals up to which their names are written."""
MAX_AXIS_NAME_LENGTH = 28
"""Characters of a name beside an axis, at most."""


def draw_figures(result: Result, view: StateMetadata) -> dict[str, tuple[Figure, str]]:
    """Every figure by file name, with its caption."""
    drawn: dict[str, tuple[Figure, str]] = {}
    if view.layout is not None and result.goal_names is None:
        drawn["goals"] = (
            draw_goal_map(result, view),
            "Bounds on the expected number of steps from the start to every cell.",
        )
    else:
        drawn["goals"] = (
            draw_intervals(result, view),
            "Bounds on the expected number of steps from the start to every goal.",
        )
    if len(result.arrays["episode_goals"]):
        drawn["selection"] = draw_goal_selection(result, view), "Which goals were chosen, over time."
    if len(result.arrays["trace"]):
        drawn["progress"] = draw_progress(result), "What was still unknown, over the steps."
    drawn["visits"] = draw_visits(result, view), "How often every state was visited."
    return drawn


def draw_goal_map(result: Result, view: StateMetadata) -> Figure:
    """Lower and upper bounds on the grid; goals outside the set X are grey."""
    assert view.layout is not None
    L, epsilon = result.radius, result.setting.epsilon
    norm = Normalize(0.0, L + epsilon)
    states = len(view.layout.cells)
    chosen, opened = (np.isin(np.arange(states), goals) for goals in (result.goals, result.open_goals))
    seen = np.isin(np.arange(states), list(result.certificates))
    width, height = map_size_inches(view.layout, 2)
    figure = Figure((width + 1.0, height + 1.0), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(1, 2)
    titles = "at least (best policy)", "at most (returned policy)"
    for which, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        values = np.full(states, np.nan)
        for goal, bounds in result.certificates.items():
            if chosen[goal] and math.isfinite(bounds[which]):
                values[goal] = bounds[which]
        cells = draw_grid_map(ax, view, values, norm, COLOUR_MAP, shown=chosen, seen=seen, marked=opened, numbers=".0f")
        ax.set_title(title, fontsize=10)
    figure.colorbar(cells, ax=axes, shrink=0.8, label="expected steps")
    patches = [Patch(color=WALL_COLOUR, label="wall"), Patch(facecolor=OUTSIDE_COLOUR, label=f"beyond {L:g} steps")]
    patches += [
        Patch(facecolor=UNSEEN_COLOUR, edgecolor=NEUTRAL_COLOUR, hatch="///", label="never seen, or no bound yet")
    ]
    if result.open_goals:
        patches += [Patch(facecolor="none", edgecolor=OPEN_COLOUR, linewidth=2, label="open")]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=8)
    return figure


def draw_intervals(result: Result, view: StateMetadata) -> Figure:
    """The certificates sorted by their lower bounds."""
    L, epsilon = result.radius, result.setting.epsilon
    X, still = set(result.goals), set(result.open_goals)
    order = sorted(result.certificates, key=lambda g: (g not in X, *result.certificates[g], g))
    top = max([L + epsilon, *(min(result.certificates[g].lower, 2 * L) for g in order)]) * 1.08
    lower = np.array([result.certificates[g].lower for g in order])
    upper = np.minimum([result.certificates[g].upper for g in order], top)
    colours = [OPEN_COLOUR if g in still else FINISHED_COLOUR if g in X else NEUTRAL_COLOUR for g in order]
    place = np.arange(len(order))
    figure = Figure((9.0, 4.0), layout="constrained")
    ax = figure.subplots()
    segments = [[(x, low), (x, up)] for x, low, up in zip(place, lower, upper, strict=True)]
    ax.add_collection(LineCollection(segments, colors=colours, linewidths=max(1.0, min(6.0, 300 / max(len(order), 1)))))
    ax.scatter(place, lower, c=colours, s=8)
    ax.axhline(L, color="black", linewidth=0.8)
    ax.axhline(L + epsilon, color="black", linewidth=0.8, linestyle=":")
    ax.annotate("L and L + epsilon", (0, L), xytext=(2, 3), textcoords="offset points", fontsize=8)
    ax.set(xlim=(-1, len(order)), ylim=(0, top), ylabel="expected steps from the start", xlabel="goals, sorted")
    if len(order) <= MAX_NAMED_GOALS:
        ax.set_xticks(
            place, [_short_goal_name(result, view, g) for g in order], rotation=90, fontsize=7, parse_math=False
        )
    names = {FINISHED_COLOUR: "in X, finished", OPEN_COLOUR: "in X, open", NEUTRAL_COLOUR: "outside X"}
    used = [Patch(color=colour, label=text) for colour, text in names.items() if colour in colours]
    figure.legend(handles=used, loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    return _style_axes(figure)


def draw_goal_selection(result: Result, view: StateMetadata) -> Figure:
    """How often each goal was chosen: three maps, or goals by time windows."""
    chosen = result.arrays["episode_goals"].astype(np.int64)
    if view.layout is None or result.goal_names is not None:
        return _draw_selection_heatmap(result, view, chosen)
    states = len(view.layout.cells)
    parts = np.array_split(chosen, N_TIME_WINDOWS)
    shares = [np.bincount(part[part >= 0], minlength=states) / max(len(part), 1) for part in parts]
    seen = result.arrays["visits"][:states] > 0
    norm = PowerNorm(0.5, 0.0, max(float(s.max()) for s in shares) or 1.0)  # rare choices should be seen too
    width, height = map_size_inches(view.layout, N_TIME_WINDOWS)
    figure = Figure((width + 1.0, height + 0.5), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(1, N_TIME_WINDOWS)
    first = 0
    for ax, part, share in zip(axes, parts, shares, strict=True):
        cells = draw_grid_map(ax, view, share, norm, COLOUR_MAP, shown=seen, seen=seen, total=True)
        never = (part < 0).sum() / max(len(part), 1)
        unseen = f", {never:.0%} at states never seen" if never > 0.005 else ""
        spoken = f"episodes {first + 1:,} to {first + len(part):,}{unseen}" if len(part) else "no episodes"
        ax.set_title(spoken, fontsize=9)
        first += len(part)
    figure.colorbar(cells, ax=axes, shrink=0.8, label="share of episodes")
    return figure


def _draw_selection_heatmap(result: Result, view: StateMetadata, chosen: Longs) -> Figure:
    order = sorted({int(g) for g in chosen}, key=lambda g: (result.certificates.get(g, (-1.0, 0.0)), g))
    columns = min(HEATMAP_COLUMNS, len(chosen))
    groups = np.array_split(np.array(order), min(MAX_HEATMAP_ROWS, len(order)))
    row = {int(g): i for i, group in enumerate(groups) for g in group}
    share = np.zeros((len(groups), columns))
    for j, part in enumerate(np.array_split(chosen, columns)):
        np.add.at(share[:, j], [row[int(g)] for g in part], 1.0 / len(part))
    figure = Figure((9.0, 4.5), layout="constrained")
    ax = figure.subplots()
    ax.grid(False)
    extent = (0.0, float(len(chosen)), len(groups) - 0.5, -0.5)
    image = ax.imshow(
        share, aspect="auto", cmap=COLOUR_MAP, norm=PowerNorm(0.5), interpolation="nearest", extent=extent
    )
    ax.set(xlabel="episode", ylabel="goals, near ones first")
    if len(groups) <= MAX_NAMED_GOALS:
        names = [_short_goal_name(result, view, g) if g >= 0 else "never seen" for g in order]
        ax.set_yticks(range(len(groups)), names, fontsize=7, parse_math=False)
    else:
        ax.set_yticks([])
    figure.colorbar(image, ax=ax, label="share of episodes")
    return figure


def draw_progress(result: Result) -> Figure:
    """The largest error of an open goal, and the number of open goals, against the steps."""
    steps, _, error, still = result.arrays["trace"].T
    if result.status.finished and not isinstance(result.setting.radius, str):
        steps, error, still = (np.append(a, v) for a, v in ((steps, result.steps), (error, np.nan), (still, 0.0)))
    figure = Figure((9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(steps, np.where(error > 0, error, np.nan), color=FINISHED_COLOUR)
    left.axhline(
        result.setting.epsilon, color=OPEN_COLOUR, linestyle="--", label=f"epsilon = {result.setting.epsilon:g}"
    )
    left.set(xlabel="steps", ylabel="largest error of an open goal")
    left.legend(frameon=False, fontsize=8)
    right.step(steps, still, where="post", color=FINISHED_COLOUR)
    right.set(xscale="log", xlabel="steps", ylabel="open goals", ylim=(0, None))
    return _style_axes(figure)


def draw_visits(result: Result, view: StateMetadata) -> Figure:
    """Visits on the map, or sorted."""
    counts = result.arrays["visits"].astype(float)
    norm = LogNorm(1.0, max(float(counts.max()), 2.0))
    if view.layout is not None:
        counts = np.pad(counts, (0, max(len(view.layout.cells) - len(counts), 0)))[: len(view.layout.cells)]
        width, height = map_size_inches(view.layout, 1)
        figure = Figure((width + 1.2, height + 0.3), layout="constrained")
        ax = figure.subplots()
        cells = draw_grid_map(ax, view, counts, norm, COLOUR_MAP, shown=counts > 0, seen=counts > 0, total=True)
        figure.colorbar(cells, ax=ax, shrink=0.8, label="visits")
        return figure
    figure = Figure((9.0, 2.8), layout="constrained")
    ax = figure.subplots()
    ranked = np.sort(counts[counts > 0])[::-1]
    ax.step(np.arange(1, len(ranked) + 1), ranked, where="mid", color=FINISHED_COLOUR)
    ax.set(yscale="log", xlabel="states, most visited first", ylabel="visits")
    return _style_axes(figure)


def numbered_goal_name(result: Result, view: StateMetadata, goal: int) -> str:
    """A goal's number, with its name if it has one."""
    return (
        view.numbered_label(goal) if result.goal_names is None else f"{goal} {to_single_line(result.goal_names[goal])}"
    )


def _short_goal_name(result: Result, view: StateMetadata, goal: int) -> str:
    """A goal beside an axis, where there is little room."""
    return to_single_line(numbered_goal_name(result, view, goal), MAX_AXIS_NAME_LENGTH)


def _style_axes(figure: Figure) -> Figure:
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="#e6e9ed", linewidth=0.6)
        ax.set_axisbelow(True)
    return figure


# Values of states drawn on a grid with walls.


WALL_COLOUR, OUTSIDE_COLOUR, UNSEEN_COLOUR, MARK_COLOUR = "#3d434b", "#d3d7dc", "#ffffff", "#d1742f"
MAX_COLUMNS_WITH_NUMBERS = 16
"""Columns up to which numbers are written into the cells."""
MAX_HATCHED_CELLS = 2500
"""Cells up to which each one gets its own hatching and outline."""


def map_size_inches(layout: GridLayout, panels: int) -> tuple[float, float]:
    """Width and height in inches of ``panels`` maps side by side."""
    rows, columns = layout.shape
    width = 9.0 / panels if panels > 1 else 4.5
    height = min(max(width * rows / columns, 0.8), 6.0)
    return panels * min(width, height * columns / rows + 0.4), height


def draw_grid_map(
    ax: Axes,
    view: StateMetadata,
    values: Floats,
    norm: Normalize,
    cmap: Colormap,
    *,
    shown: Bools,
    seen: Bools,
    marked: Bools | None = None,
    total: bool = False,
    numbers: str = "",
) -> AxesImage:
    """Draw ``values`` [S]; states that share a cell are added up (``total``) or the smallest counts.

    A cell none of whose states is ``shown`` is grey, one without a value is hatched; ``marked`` cells are outlined.
    """
    layout = view.layout
    assert layout is not None
    cells, shape = layout.cells, layout.shape
    placed = cells[:, 0] >= 0
    grid = np.full(shape, np.nan)
    for state in np.flatnonzero(placed & shown & ~np.isnan(values)):
        cell = tuple(cells[state])
        if np.isnan(grid[cell]):
            grid[cell] = values[state]
        else:
            grid[cell] = grid[cell] + values[state] if total else min(grid[cell], values[state])
    background = np.full((*shape, 3), to_rgb(UNSEEN_COLOUR))
    background[tuple(cells[placed & seen & ~shown].T)] = to_rgb(OUTSIDE_COLOUR)
    background[layout.walls] = to_rgb(WALL_COLOUR)
    ax.imshow(background, interpolation="nearest")
    image = ax.imshow(np.ma.masked_invalid(grid), cmap=cmap, norm=norm, interpolation="nearest")
    grey = np.zeros(shape, bool)
    grey[tuple(cells[placed & seen & ~shown].T)] = True
    if layout.walls.size <= MAX_HATCHED_CELLS:
        for r, c in np.argwhere(np.isnan(grid) & ~layout.walls & ~grey).tolist():
            ax.add_patch(Rectangle((c - 0.5, r - 0.5), 1, 1, fill=False, hatch="///", edgecolor="#c3c9d0", linewidth=0))
        for r, c in cells[placed & marked].tolist() if marked is not None else []:
            ax.add_patch(Rectangle((c - 0.42, r - 0.42), 0.84, 0.84, fill=False, edgecolor=MARK_COLOUR, linewidth=1.6))
    home = None if view.start is None or not placed[view.start] else tuple(cells[view.start].tolist())
    if home is not None:
        ax.plot(home[1], home[0], marker="*", color="white", markeredgecolor="black", markersize=9, markeredgewidth=0.8)
    if numbers and shape[1] <= MAX_COLUMNS_WITH_NUMBERS:
        for r, c in np.argwhere(~np.isnan(grid)).tolist():
            if (r, c) != home:
                ink = _readable_text_colour(cmap, norm(grid[r, c]))
                ax.text(c, r, format(grid[r, c], numbers), ha="center", va="center", fontsize=7, color=ink)
    if shape[1] <= 3 * MAX_COLUMNS_WITH_NUMBERS:
        ax.hlines(np.arange(0.5, shape[0] - 1), -0.5, shape[1] - 0.5, colors="white", linewidth=0.5)
        ax.vlines(np.arange(0.5, shape[1] - 1), -0.5, shape[0] - 0.5, colors="white", linewidth=0.5)
    ax.set_axis_off()
    return image


def _readable_text_colour(cmap: Colormap, share: float) -> str:
    """Black or white, whichever is readable on the colour."""
    red, green, blue, _ = cmap(share)
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"


# Figures as pictures: the files beside a page.


FIGURE_DPI = 130


def figure_to_png(drawn: Figure) -> bytes:
    """A figure as a picture."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # names of states may be in any script
        drawn.savefig(buffer, format="png", dpi=FIGURE_DPI)
    return buffer.getvalue()
