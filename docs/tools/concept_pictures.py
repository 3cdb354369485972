"""Draw the pictures of docs/concepts.md from one run in the two-room environment.

    python docs/tools/concept_pictures.py docs/figures

The run is ``adagoal.explore("two-room", radius=40, epsilon=1.0, delta=0.1, seed=0)``, the one of the README.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import adagoal

RADIUS, GOAL = 40, 23
MAP_STEPS = 800_000
"""The map shows D and E after this many steps: the closed room is beyond L by then, and other goals are open."""
WIDTH = 5.4
"""Inches. The texts of a wider picture would be too small on a phone."""
BLUE, ORANGE, GREY = "#31588a", "#d1742f", "#9aa3ad"


def draw_interval(result: adagoal.Result, path: Path) -> None:
    """Certificates of a few goals as bars beside the radius."""
    figure = Figure((WIDTH, 2.6), layout="constrained")
    ax = figure.subplots()
    goals = sorted(result.goals, key=lambda g: result.certificate(g).lower)[6::8]
    for row, goal in enumerate(goals):
        lower, upper = result.certificate(goal)
        ax.plot([lower, upper], [row, row], color=BLUE, linewidth=7, solid_capstyle="butt")
        beside = {"x": upper + 0.7, "ha": "left"} if lower < RADIUS / 3 else {"x": lower - 0.7, "ha": "right"}
        ax.text(y=row, s=f"{lower:.1f} to {upper:.1f}", va="center", fontsize=9, **beside)
    ax.axvline(RADIUS, color=ORANGE)
    ax.text(RADIUS + 0.4, 0, f"radius L = {RADIUS}", color=ORANGE, fontsize=9, va="center")
    ax.set_yticks(range(len(goals)), [f"goal {result.label(g)}" for g in goals], fontsize=9)
    ax.set_xlabel("expected steps from the start")
    ax.set_xlim(0, 52)
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def draw_map(result: adagoal.Result, D: Any, E: Any, path: Path) -> None:
    """D and E of every cell, and the goal that the rule selects."""
    cells = {g: tuple(map(int, result.label(g).strip("()").split(","))) for g in result.certificates}
    shape = tuple(np.max(list(cells.values()), 0) + 1)
    near = [g for g in cells if D[g] <= RADIUS]
    selected = max(near, key=lambda g: E[g])
    figure = Figure((WIDTH, 2.6), layout="constrained")
    for ax, values, title in zip(figure.subplots(1, 2), (D, E), ("D: distance", "E: error"), strict=True):
        picture = np.full(shape, np.nan)
        for g, cell in cells.items():
            picture[cell] = values[g] if D[g] <= RADIUS else np.nan
        ax.set_facecolor("#e8eaed")
        image = ax.imshow(picture, cmap="viridis")
        outline_beyond(ax, [cell for g, cell in cells.items() if D[g] > RADIUS])
        row, column = cells[selected]
        ax.plot(column, row, marker="*", markersize=13, color=ORANGE, markeredgecolor="white")
        ax.set_title(title, fontsize=10)
        ax.set_xticks([]), ax.set_yticks([])
        figure.colorbar(image, ax=ax, shrink=0.8, label="steps")
    figure.savefig(path, dpi=150)


def outline_beyond(ax: Axes, cells: list[tuple[int, ...]]) -> None:
    """Mark cells with D > L by a cross."""
    for row, column in cells:
        ax.text(column, row, "×", ha="center", va="center", color=GREY, fontsize=12)


def draw_shrinking(result: adagoal.Result, path: Path) -> None:
    """The bounds of one goal over the steps of the run."""
    steps = result.arrays["past_steps"]
    column = list(result.arrays["past_goals"]).index(GOAL)
    lower, upper = result.arrays["past_lower"][:, column], result.arrays["past_upper"][:, column]
    top = 60.0
    figure = Figure((WIDTH, 2.9), layout="constrained")
    ax = figure.subplots()
    ax.fill_between(steps, lower, np.minimum(upper, top), color=BLUE, alpha=0.25, step="post")
    ax.step(steps, lower, color=BLUE, where="post", label="lower bound")
    ax.step(
        steps,
        np.where(upper <= top, upper, np.nan),
        color=BLUE,
        where="post",
        linestyle="--",
        label="upper bound of the returned policy",
    )
    ax.axhline(RADIUS, color=ORANGE, label="radius L")
    ax.set_xscale("log")
    ax.set_xlim(1e3, result.steps)
    ax.set_ylim(0, top)
    ax.set_xlabel("steps of the run")
    ax.set_ylabel(f"expected steps to goal {result.label(GOAL)}")
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(folder: Path) -> None:
    """Run once and write the three pictures."""
    early: dict[str, Any] = {}

    def observe(run: Any) -> None:
        if not early and run.steps >= MAP_STEPS:
            columns = run.estimates.column
            early.update(D=run.estimates.D[columns].copy(), E=run.estimates.E[columns].copy())

    result = adagoal.explore("two-room", radius=RADIUS, epsilon=1.0, delta=0.1, seed=0, observe=observe)
    draw_interval(result, folder / "concept-interval.png")
    draw_map(result, early["D"], early["E"], folder / "concept-map.png")
    draw_shrinking(result, folder / "concept-bounds.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
