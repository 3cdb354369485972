"""PNG figures of training runs: chosen goals, maps of D and E, reached goals, certified cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from adagoal.core.types import Bools, Floats

if TYPE_CHECKING:
    from adagoal.certification.certificate import CellVerdict, Certification

VERDICT_COLOURS = {"certified": "#0072b2", "refuted": "#d55e00", "open": "#999999"}
VERDICT_COLOURS |= {"better": "#0072b2", "worse": "#d55e00", "equal": "#009e73"}


def goal_figures(arrays: dict[str, Any], radius: float) -> dict[str, tuple[Figure, str]]:
    """Return the figures of the goal space, if it has two coordinates or more, with their captions, by file name."""
    if arrays["chosen"].shape[-1] < 2:
        return {}
    train, test = arrays["train_box_0"], arrays["test_box_0"]
    goals = draw_goal_heatmaps(arrays["chosen"][:, 0], train, test, arrays.get("table"))
    figures = {"goals.png": (goals, "Chosen goals of the first run, in four quarters of training.")}
    if "D" in arrays:  # the run is finished
        ends = arrays["low"], arrays["high"]
        maps = draw_value_maps(arrays["D"][0], arrays["E"][0], *ends, test, radius)
        figures["maps.png"] = maps, "D and E of the first run at the end, with the line D = L."
    return figures


def draw_goal_heatmaps(chosen: Floats, train: Floats, test: Floats, table: Floats | None) -> Figure:
    """Draw chosen goals ``[cycles, B, goal]`` over the first two coordinates, in four quarters of training."""
    figure = Figure((12, 3.7), layout="tight")
    axes = figure.subplots(1, 4, sharex=True, sharey=True)
    edges = [np.linspace(train[0, i], train[1, i], 31) for i in (0, 1)]
    for k, (ax, part) in enumerate(zip(axes, np.array_split(chosen, 4), strict=True)):
        flat = part.reshape(-1, part.shape[-1])
        counts, _, _ = np.histogram2d(flat[:, 0], flat[:, 1], bins=edges)
        # The square root makes rare choices visible beside frequent ones.
        ax.imshow(np.sqrt(counts.T), origin="lower", aspect="equal", cmap="magma", extent=(*train[:, 0], *train[:, 1]))
        draw_box_outline(ax, test, "#ffd166")
        if table is not None:
            draw_box_outline(ax, table, "#8ecae6")
        ax.set_title(f"quarter {k + 1} of training", fontsize=9)
    axes[0].set_ylabel("y")
    for ax in axes:
        ax.set_xlabel("x")
    return figure


def draw_value_maps(D: Floats, E: Floats, low: Floats, high: Floats, test: Floats, radius: float) -> Figure:
    """Draw final distance and disagreement ``[n, n]`` over the training space, with the line D = L."""
    figure = Figure((9, 3.8), layout="tight")
    axes = figure.subplots(1, 2)
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    for ax, values, name, top in ((axes[0], D, "D(g), steps", 2 * radius), (axes[1], E, "E(g), disagreement", np.inf)):
        # Far goals have huge D; without a limit the rest would have one colour.
        limit, extend = (top, "max") if values.max() > top else (None, "neither")
        image = ax.imshow(values.T, origin="lower", extent=extent, cmap="viridis", aspect="equal", vmax=limit)
        figure.colorbar(image, ax=ax, shrink=0.8, extend=extend)
        # Matplotlib warns if a contour has no points.
        if D.min() < radius < D.max():
            ax.contour(D.T, levels=[radius], extent=extent, colors="white", linewidths=1)
        draw_box_outline(ax, test, "#ffd166")
        ax.set(title=name, xlabel="x", ylabel="y")
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


def draw_box_outline(axes: Axes, box: Floats, colour: str) -> None:
    """Draw the first two coordinates of a box ``[2, goal]``."""
    low, high = box[0, :2], box[1, :2]
    halo = patheffects.withStroke(linewidth=3.5, foreground="black")  # visible on bright and dark colours
    axes.add_patch(Rectangle((low[0], low[1]), *(high - low), fill=False, ec=colour, lw=1.4, path_effects=[halo]))
