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

BLUE, ORANGE = "#31588a", "#d1742f"
GOAL = "crash:KeyError"


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
    """Draw one circle per state, one line lower for each call, and an arrow for every call that leads one further."""
    figure = Figure((5.4, 5.6), layout="constrained")
    ax: Any = figure.subplots()
    distance = {g: result.certificate(g).upper for g in result.goals}
    columns = {g: float(result.label(g) == GOAL) for g in distance}
    for (state, end), names in observed_moves(result).items():
        if state not in distance or end not in distance or distance[end] != distance[state] + 1:
            continue
        colour = ORANGE if result.label(end) == GOAL else BLUE
        style = {"arrowstyle": "-|>", "color": colour, "shrinkA": 7, "shrinkB": 7}
        ax.annotate("", (columns[end], distance[end]), (columns[state], distance[state]), arrowprops=style)
        place = (
            (columns[state] + columns[end]) / 2 + 0.06,
            (distance[state] + distance[end]) / 2 + 0.15 - 0.4 * columns[end],
        )
        ax.text(*place, ", ".join(names), va="center", fontsize=9, color=colour)
    for goal, column in columns.items():
        label = result.label(goal)
        ax.scatter(column, distance[goal], s=110, color=ORANGE if label == GOAL else BLUE, zorder=3)
        side = {"x": column + 0.09, "ha": "left"} if label == GOAL else {"x": column - 0.09, "ha": "right"}
        ax.text(y=distance[goal], s=label, va="center", fontsize=9, **side)
    ax.set_ylabel("calls from a fresh object (lower and upper bound agree)", fontsize=9)
    ax.set_yticks(range(11))
    ax.set_xticks([])
    ax.set_xlim(-0.9, 1.7)
    ax.invert_yaxis()
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    draw(adagoal.explore(breaker.machine(), radius=10, epsilon=0.5), Path(sys.argv[1]))
