"""Figures of deep runs: learning curves, where goals were chosen, disagreement maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from adagoal.core.files import replace
from adagoal.core.types import Bools, Floats
from adagoal.deep.certification import Cell
from adagoal.report.frame import DPI

VERDICTS = {"certified": "#0072b2", "refuted": "#d55e00", "open": "#999999"}
"""Colours of the cells of a certificate."""
Curves = Sequence[Sequence[dict[str, Any]]]
"""Per run, the points of its learning curve (see ``History.curve``)."""


def band(axes: Axes, curves: Curves, key: str, colour: str, label: str, style: str = "-") -> None:
    """Mean over runs of a quantity against steps, with the range between the worst and the best run."""
    shared = min(len(c) for c in curves)
    points = [list(c[:shared]) for c in curves]
    rows = [i for i in range(shared) if all(key in c[i] for c in points)]
    steps = np.array([points[0][i]["steps"] for i in rows]) / 1000
    values = np.array([[c[i][key] for i in rows] for c in points], float)
    axes.plot(steps, values.mean(0), style, color=colour, label=label, lw=1.8)
    if len(values) > 1:
        axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.15, lw=0)


def learning_curves(curves: Curves) -> Figure:
    """Success at the last and at any step, and where the goals lay."""
    figure = Figure((10, 3.4), layout="tight")
    left, right = figure.subplots(1, 2)
    band(left, curves, "success", "#0072b2", "last step")
    band(left, curves, "success_any", "#e69f00", "any step")
    left.set(ylim=(0, 1.02), xlabel="environment steps (thousands)", ylabel="test success")
    for key, colour, name in (
        ("inside_test", "#0072b2", "in the test space"),
        ("on_table", "#56b4e9", "on the table"),
        ("reachable", "#999999", "candidates with D ≤ L"),
        ("train_success", "#d55e00", "reached in training"),
    ):
        if all(key in point for curve in curves for point in curve[1:-1]):
            band(right, curves, key, colour, name)
    right.set(ylim=(0, 1.02), xlabel="environment steps (thousands)", ylabel="share of chosen goals")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    return figure


def goal_heat(chosen: Floats, train: Floats, test: Floats, table: Floats | None) -> Figure:
    """Chosen goals ``[cycles, B, goal]`` over the first two coordinates, in four quarters of the training."""
    figure = Figure((12, 3.7), layout="tight")
    axes = figure.subplots(1, 4, sharex=True, sharey=True)
    edges = [np.linspace(train[0, i], train[1, i], 31) for i in (0, 1)]
    for k, (ax, part) in enumerate(zip(axes, np.array_split(chosen, 4), strict=True)):
        flat = part.reshape(-1, part.shape[-1])
        counts, _, _ = np.histogram2d(flat[:, 0], flat[:, 1], bins=edges)
        ax.imshow(np.sqrt(counts.T), origin="lower", aspect="equal", cmap="magma", extent=(*train[:, 0], *train[:, 1]))
        outline(ax, test, "#ffd166")
        if table is not None:
            outline(ax, table, "#8ecae6")
        ax.set_title(f"quarter {k + 1} of training", fontsize=9)
    axes[0].set_ylabel("y")
    for ax in axes:
        ax.set_xlabel("x")
    return figure


def value_maps(D: Floats, E: Floats, low: Floats, high: Floats, test: Floats, radius: float) -> Figure:
    """Final distance and disagreement over the training space ``[n, n]``, with the line D = L."""
    figure = Figure((9, 3.8), layout="tight")
    axes = figure.subplots(1, 2)
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    for ax, values, name, top in ((axes[0], D, "D(g), steps", 2 * radius), (axes[1], E, "E(g), disagreement", np.inf)):
        cut = values.max() > top
        image = ax.imshow(
            values.T, origin="lower", extent=extent, cmap="viridis", aspect="equal", vmax=top if cut else None
        )
        figure.colorbar(image, ax=ax, shrink=0.8, extend="max" if cut else "neither")
        if D.min() < radius < D.max():
            ax.contour(D.T, levels=[radius], extent=extent, colors="white", linewidths=1)
        outline(ax, test, "#ffd166")
        ax.set(title=name, xlabel="x", ylabel="y")
    return figure


def reached_and_missed(goals: Floats, reached: Bools) -> Figure:
    """Test goals ``[n, goal]``, reached ``[n]`` or missed: first against second coordinate, and against the third."""
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


def certified_cells(cells: Sequence[Cell]) -> Figure:
    """Cells of the goal space by their verdict, with the share of rollouts that reached: two coordinates a panel."""
    views = [(0, i) for i in range(1, min(len(cells[0].low), 3))] or [(0, 0)]
    figure = Figure((5.2 * len(views), 4.8), layout="tight")
    axes = figure.subplots(1, len(views), squeeze=False)
    flat = len(cells[0].low) <= 2 or all(np.ptp([end[2:] for c in cells for end in (c.low, c.high)], 0) == 0)
    for ax, (i, j) in zip(axes[0], views, strict=True):
        for cell in cells:
            low, size = cell.low[[i, j]], (cell.high - cell.low)[[i, j]]
            style: dict[str, Any] = {"fc": VERDICTS[cell.verdict], "ec": "white", "alpha": 0.9 if flat else 0.3}
            ax.add_patch(Rectangle((low[0], low[1]), size[0], size[1], **style))
            if flat and cell.rollouts and j == 1:
                words = f"{100 * cell.reached / cell.rollouts:.0f}"
                ax.text(*(low + size / 2), words, ha="center", va="center", fontsize=7, color="white")
        ax.autoscale_view()
        ax.set(xlabel=f"goal coordinate {i}", ylabel=f"goal coordinate {j}")
    shares = {verdict: sum(cell.share for cell in cells if cell.verdict == verdict) for verdict in VERDICTS}
    keys = [Rectangle((0, 0), 1, 1, fc=VERDICTS[name], label=f"{name} {share:.0%}") for name, share in shares.items()]
    axes[0, 0].legend(handles=keys, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    return figure


def outline(axes: Axes, box: Floats, colour: str) -> None:
    """The first two coordinates of a box ``[2, goal]``."""
    low, high = box[0, :2], box[1, :2]
    halo = patheffects.withStroke(linewidth=3.5, foreground="black")  # to be seen on bright and on dark
    axes.add_patch(Rectangle((low[0], low[1]), *(high - low), fill=False, ec=colour, lw=1.4, path_effects=[halo]))


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a file, whole or not at all, with its folder if need be."""
    replace(path, lambda file: figure.savefig(file, dpi=DPI, format="png"))
