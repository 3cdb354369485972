"""Matplotlib figures: explorations, curves, test goals and certificates; and how a figure is saved.

The interactive pages do not need these files. ``adagoal report DIR --png`` writes them for papers and slides.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from adagoal.certification.certificate import CellVerdict, Certification
from adagoal.core.array_types import Bools, Floats
from adagoal.core.errors import to_single_line
from adagoal.core.file_io import bytes_content, write_atomically
from adagoal.report.exploration_page import numbered_goal_name
from adagoal.report.html_page import Curve, CurvePlot
from adagoal.runs.result import Result

COLOUR_BLIND_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Palette of Okabe and Ito, which colour-blind people can tell apart."""
GUIDE_COLOUR = "#666666"
VERDICT_COLOURS = {"certified": "#0072b2", "refuted": "#d55e00", "open": "#999999"}
VERDICT_COLOURS |= {"better": "#0072b2", "worse": "#d55e00", "equal": "#009e73"}


class GoalColour:
    """Colours of goals."""

    FINISHED, OPEN, NEUTRAL = "#31588a", "#d1742f", "#9aa3ad"


def figure_to_png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # names of states may be in a script that the font lacks
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG. It is drawn before the file is opened, so a kill leaves no partial file."""
    write_atomically(path, bytes_content(figure_to_png(figure)))


def draw_curve_plots(plots: Sequence[CurvePlot]) -> Figure:
    """Draw the curves of a page: the curve of all seeds, and a band between the quartiles of the seeds."""
    columns = min(len(plots), 3)
    rows = -(-len(plots) // columns)
    figure = Figure((1.0 + 4.6 * columns, 0.6 + 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(plots) :]:
        ax.set_axis_off()
    names = list(dict.fromkeys(line.name for plot in plots for line in plot.lines))
    legend = {}
    for ax, plot in zip(axes, plots, strict=False):
        for line in plot.lines:
            if line.seed is not None:
                continue
            repeat, i = divmod(names.index(line.name), len(COLOUR_BLIND_PALETTE))
            colour = COLOUR_BLIND_PALETTE[i]
            (legend[line.name],) = ax.plot(line.x, line.y, color=colour, linestyle=("-", "--", ":", "-.")[repeat % 4])
            seeds = [other for other in plot.lines if other.name == line.name and other.seed is not None]
            # Quartiles need the values of all seeds at the same x.
            if len(seeds) > 1 and all(list(other.x) == list(line.x) for other in seeds):
                low, high = np.quantile([other.y for other in seeds], (0.25, 0.75), axis=0)
                ax.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
        for name, height in plot.reference_lines.items():
            ax.axhline(height, color=GUIDE_COLOUR, linewidth=0.8)
            ax.annotate(name, (0.02, height), xycoords=("axes fraction", "data"), va="bottom", fontsize=7)
        scale = "log" if plot.log_axes else "linear"
        ax.set(xscale=scale, yscale=scale, xlabel=plot.x, ylabel=plot.y)
        # Titles contain names that users chose: a dollar sign must not begin a formula.
        ax.set_title(plot.title, parse_math=False)
        ax.spines[["top", "right"]].set_visible(False)
    n_columns = min(columns + 1, len(legend))
    handles, labels = list(legend.values()), list(legend)
    figure.legend(handles, labels, loc="outside lower center", ncols=n_columns, frameon=False, fontsize=8)
    return figure


def exploration_figures(result: Result) -> dict[str, Figure]:
    """Return the figures of an exploration by file name."""
    figures = {"goals.png": draw_goal_bounds(result)}
    steps, _, error, _ = result.arrays["trace"].T
    # A result from data has no steps.
    if ((error > 0) & (steps > 0)).any():
        lines, epsilon = [Curve("largest error of an open goal", steps, error)], {"epsilon": result.setting.epsilon}
        plot = CurvePlot("", "steps", "largest error", lines, epsilon)
        figures["progress.png"] = draw_curve_plots([plot])
    return figures


def draw_goal_bounds(result: Result) -> Figure:
    """Draw the certificates as intervals, sorted by their lower bounds."""
    measure, epsilon = result.measure, result.setting.epsilon
    L = measure.threshold
    X, open_goals = set(result.goals), set(result.open_goals)
    order = sorted(result.certificates, key=lambda g: (g not in X, *result.certificates[g], g))
    # Goals far beyond the radius must not squeeze the others.
    top = max([measure.top, *(min(result.certificates[g].lower, 2 * L) for g in order)]) * 1.08
    lower = np.array([result.certificates[g].lower for g in order])
    upper = np.minimum([result.certificates[g].upper for g in order], top)
    colours = [
        GoalColour.OPEN if g in open_goals else GoalColour.FINISHED if g in X else GoalColour.NEUTRAL for g in order
    ]
    place = np.arange(len(order))
    figure = Figure((9.0, 4.0), layout="constrained")
    ax = figure.subplots()
    segments = [[(x, low), (x, up)] for x, low, up in zip(place, lower, upper, strict=True)]
    ax.add_collection(LineCollection(segments, colors=colours, linewidths=max(1.0, min(6.0, 300 / max(len(order), 1)))))
    ax.scatter(place, lower, c=colours, s=8)
    ax.axhline(L, color="black", linewidth=0.8)
    ax.axhline(L + measure.sign * epsilon, color="black", linewidth=0.8, linestyle=":")
    marks = "L and L + epsilon" if measure.sign > 0 else "p and p - epsilon"
    ax.annotate(marks, (0, L), xytext=(2, 3), textcoords="offset points", fontsize=8)
    ax.set(xlim=(-1, len(order)), ylim=(0, top), ylabel=f"{measure.quantity} from the start", xlabel="goals, sorted")
    if len(order) <= 40:  # more names would overlap
        names = [to_single_line(numbered_goal_name(result, g), 28) for g in order]
        ax.set_xticks(place, names, rotation=90, fontsize=7, parse_math=False)
    legend = {GoalColour.FINISHED: "in X, finished", GoalColour.OPEN: "in X, open", GoalColour.NEUTRAL: "outside X"}
    used = [Patch(color=colour, label=text) for colour, text in legend.items() if colour in colours]
    figure.legend(handles=used, loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def draw_reached_goals(goals: Floats, reached: Bools) -> Figure:
    """Draw test goals ``[n, goal]`` by whether they were ``reached`` [n]: first against second and third coordinate."""
    views = [(0, i) for i in range(1, min(goals.shape[1], 3))] or [(0, 0)]
    figure = Figure((4.6 * len(views), 4.2), layout="tight")
    axes = figure.subplots(1, len(views), squeeze=False)
    for ax, (i, j) in zip(axes[0], views, strict=True):
        ax.scatter(*goals[reached][:, [i, j]].T, s=22, c="#0072b2", marker="o", label=f"reached ({reached.sum()})")
        ax.scatter(*goals[~reached][:, [i, j]].T, s=26, c="#d55e00", marker="x", label=f"missed ({(~reached).sum()})")
        ax.set(xlabel=f"goal coordinate {i}", ylabel=f"goal coordinate {j}")
        ax.grid(alpha=0.25)
    axes[0, 0].legend(fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    return figure


def draw_certified_cells(certification: Certification) -> Figure:
    """Draw the cells by their verdict.

    One coordinate: intervals of the success probability. Two: boxes, with the percentage of successful rollouts. More:
    two coordinates per panel, with the certified share over the others.
    """
    cells, names, claim = certification.cells, certification.variables, certification.claim
    low, high = (np.stack([getattr(cell, end) for cell in cells]) for end in ("low", "high"))
    # such as the height of goals on a table
    varying = [i for i in range(len(names)) if high[:, i].max() > low[:, i].min()] or [0]
    views = [(varying[0], j) for j in varying[1:4]] or [(varying[0], varying[0])]
    figure = Figure((5.6 * len(views), 4.8), layout="tight")
    axes = figure.subplots(1, len(views), squeeze=False)
    for ax, (i, j) in zip(axes[0], views, strict=True):
        ax.set(xlabel=names[i], ylabel=claim.measure if i == j else names[j])
        if i == j:
            _draw_intervals(ax, certification, i)
        elif len(varying) == 2:
            _draw_verdicts(ax, certification, i, j)
        else:
            share, extent = verdict_share_map(cells, claim.verdicts[0], i, j)
            # a cell that is not better may be equal, so only a cell that is not certified is drawn in orange
            ends = [VERDICT_COLOURS["refuted"], "#f5f5f5", VERDICT_COLOURS["certified"]][claim.least < 0.0 :]
            colours = LinearSegmentedColormap.from_list("verdicts", ends)
            image = ax.imshow(share.T, origin="lower", extent=extent, aspect="auto", cmap=colours, vmin=0.0, vmax=1.0)
            figure.colorbar(image, ax=ax, label=f"{claim.verdicts[0]} share over the other coordinates")
    patches = [
        Rectangle((0, 0), 1, 1, fc=VERDICT_COLOURS[name], label=f"{name} {certification.share(name):.0%}")
        for name in claim.verdicts
    ]
    axes[0, 0].legend(handles=patches, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    return figure


def _draw_intervals(axes: Axes, certification: Certification, i: int) -> None:
    """Draw the bounds of every cell, what its rollouts say, and what the claim asks for."""
    claim = certification.claim
    for cell in certification.cells:
        left, width, colour = cell.low[i], cell.high[i] - cell.low[i], VERDICT_COLOURS[cell.verdict]
        # a list with a single value has no extent
        box = (left, cell.at_least), width or 1.0, cell.at_most - cell.at_least
        axes.add_patch(Rectangle(*box, fc=colour, ec="white", alpha=0.45))
        if cell.rollouts:
            rate = claim.rate(cell)
            axes.plot([left, left + (width or 1.0)], [rate, rate], color=colour, lw=2, solid_capstyle="butt")
    for height in claim.marks:
        axes.axhline(height, color="black", lw=0.8, ls=":")
    axes.set_ylim(claim.least - 0.02, 1.02)
    axes.autoscale_view(scaley=False)


def _draw_verdicts(axes: Axes, certification: Certification, i: int, j: int) -> None:
    claim = certification.claim
    for cell in certification.cells:
        low, size = cell.low[[i, j]], (cell.high - cell.low)[[i, j]]
        axes.add_patch(Rectangle((low[0], low[1]), size[0], size[1], fc=VERDICT_COLOURS[cell.verdict], ec="white"))
        if cell.rollouts:
            # differences are shown with their sign
            percent = format(100 * claim.rate(cell), "+.0f" if claim.least < 0.0 else ".0f")
            x, y = low + size / 2
            axes.text(x, y, percent, ha="center", va="center", fontsize=7, color="white")
    axes.autoscale_view()


def verdict_share_map(
    cells: Sequence[CellVerdict], verdict: str, i: int, j: int
) -> tuple[Floats, tuple[float, float, float, float]]:
    """Return the share of a verdict over the other coordinates on a grid ``[n, n]`` of two, and the grid's extent."""
    n = 100
    low, high = (np.stack([getattr(cell, end) for cell in cells]) for end in ("low", "high"))
    size = high - low
    # A coordinate in which goals do not vary has no extent; as a factor 0 it would erase every volume.
    depth = np.where(size > 0.0, size, 1.0).prod(1) / np.where(size > 0.0, size, 1.0)[:, [i, j]].prod(1)
    grid = [np.linspace(low[:, k].min(), high[:, k].max(), 2 * n + 1)[1::2] for k in (i, j)]
    inside = [(low[:, k, None] <= g) & (g <= high[:, k, None]) for k, g in zip((i, j), grid, strict=True)]
    has_verdict = np.array([cell.verdict == verdict for cell in cells])
    total, own = (np.einsum("c,cx,cy->xy", depth * part, *inside) for part in (1.0, has_verdict))
    return own / total, (low[:, i].min(), high[:, i].max(), low[:, j].min(), high[:, j].max())
