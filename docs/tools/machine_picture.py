"""Draw the picture of docs/state-machines.md: the states of the circuit breaker by distance.

python docs/tools/machine_picture.py docs/figures/state-machine.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import adagoal

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "circuit-breaker"))
import breaker

BLUE, ORANGE, GREY = "#31588a", "#d1742f", "#9aa3ad"
GOAL = "crash:KeyError"
ROWS = {GOAL: 0.8}


def observed_moves(result: adagoal.Result) -> dict[tuple[int, int], list[str]]:
    """Return the calls that lead from one state to another, as the run observed them."""
    texts = result.view.call_texts
    assert texts is not None
    calls = [line.partition(".")[2] for line in texts.calls]
    moves: dict[tuple[int, int], list[str]] = {}
    for pair, end in zip(result.arrays["moves_pair"].tolist(), result.arrays["moves_to"].tolist(), strict=True):
        moves.setdefault((pair // len(calls), end), []).append(calls[pair % len(calls)])
    return moves


def draw(result: adagoal.Result, path: Path) -> None:
    """Draw one circle per state, at its distance, and an arrow for every call that leads one state further."""
    figure = Figure((10.5, 2.9), layout="constrained")
    ax: Any = figure.subplots()
    distance = {g: result.certificate(g).upper for g in result.goals}
    rows = {g: ROWS.get(result.label(g), 0.0) for g in distance}
    for (state, end), names in observed_moves(result).items():
        if state not in distance or end not in distance or distance[end] != distance[state] + 1:
            continue
        colour = ORANGE if result.label(end) == GOAL else BLUE
        style = {"arrowstyle": "-|>", "color": colour, "shrinkA": 11, "shrinkB": 11}
        ax.annotate("", (distance[end], rows[end]), (distance[state], rows[state]), arrowprops=style)
        middle = (distance[state] + distance[end]) / 2 - 0.5 * rows[end], (rows[state] + rows[end]) / 2
        ax.text(middle[0], middle[1] - 0.06, "\n".join(names), ha="center", va="top", fontsize=7, color=colour)
    for goal, row in rows.items():
        failed = result.label(goal) == GOAL
        ax.scatter(distance[goal], row, s=190, color=ORANGE if failed else BLUE, zorder=3)
        name = (
            result.label(goal) if failed else "\n".join(result.label(goal).strip("()").replace("'", "").split(", ", 1))
        )
        place = {"x": distance[goal] + 0.2, "y": row, "ha": "left", "va": "center"}
        place = place if failed else {"x": distance[goal], "y": row - 0.3, "ha": "center", "va": "top"}
        ax.text(s=name, fontsize=8, **place)
    ax.set_xlabel("calls from a fresh object (lower and upper bound agree)", fontsize=9)
    ax.set_xticks(range(11))
    ax.set_yticks([])
    ax.set_xlim(-0.6, 10.6)
    ax.set_ylim(-0.9, 1.1)
    ax.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    draw(adagoal.explore(breaker.machine(), radius=10, epsilon=0.5), Path(sys.argv[1]))
