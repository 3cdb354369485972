"""What the examples of the gallery share: explore, print the certificates, and draw one bar per goal."""

from __future__ import annotations

import time
from typing import Any

from matplotlib.figure import Figure

import adagoal

BLUE, ORANGE, GREY = "#31588a", "#d1742f", "#9aa3ad"


def explore_timed(env: Any, title: str, radius: float, **arguments: Any) -> adagoal.Result:
    """Explore an environment with seed 0 and print the status, the steps and the time."""
    start = time.process_time()
    result = adagoal.explore(env, radius, seed=0, **arguments)
    seconds = time.process_time() - start
    print(f"{title}\n{result.status}: {result.steps:,} steps, {seconds:.0f} processor seconds, ", end="")
    print(f"{result.n_states} states met, L = {radius:g}, epsilon = {result.setting.epsilon:g}", flush=True)
    return result


def run_example(env: Any, name: str, title: str, radius: float, **arguments: Any) -> adagoal.Result:
    """Explore an environment, print its certificates, and write the picture ``NAME.png``."""
    result = explore_timed(env, title, radius, **arguments)
    rows = certificate_rows(result)
    width = max(len(label) for label, *_ in rows)
    for label, _, _, text in rows:
        print(f"  {label:{width}}  {text}")
    draw_rows(rows, radius, title, f"{name}.png")
    return result


def certificate_rows(result: adagoal.Result) -> list[tuple[str, float, float, str]]:
    """Return label, bounds and text of every goal, the nearest first; a goal never met has infinite bounds."""
    radius = result.setting.radius
    known = sorted(result.certificates.items(), key=lambda item: item[1])
    rows = []
    for goal, (lower, upper) in known:
        text = f"more than {radius:g}" if lower > radius else f"{lower:.2f} to {upper:.2f}"
        rows.append((result.goal_label(goal), lower, upper, text))
    # A certified run lists every goal within the radius. Hence the others need more steps.
    finished = result.status == "certified"
    missing = [goal for goal in range(len(result.goal_names or ())) if goal not in result.certificates]
    text = f"more than {radius:g} (never met)" if finished else "open"
    return rows + [(result.goal_label(goal), float("inf"), float("inf"), text) for goal in missing]


def draw_rows(rows: list[tuple[str, float, float, str]], radius: float, title: str, path: str) -> None:
    """Draw one bar per goal; the bar of a goal beyond the radius begins at the radius and leaves the picture."""
    figure = Figure((7.2, 1.2 + 0.25 * len(rows)), layout="constrained")
    ax = figure.subplots()
    right = 1.45 * radius
    for row, (_, lower, upper, text) in enumerate(rows):
        beyond = lower > radius
        left, end = (radius, right) if beyond else (lower, max(min(upper, right), lower + 0.008 * right))
        ax.barh(row, end - left, left=left, height=0.62, color=GREY if beyond else BLUE)
        place = (radius if beyond else end) + 0.012 * right
        box = None if beyond else {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over the line
        ax.text(place, row, text, va="center", fontsize=8, bbox=box)
    ax.axvline(radius, color=ORANGE)
    ax.set_yticks(range(len(rows)), [label for label, *_ in rows], fontsize=8)
    ax.set_xlim(0, right)
    ax.set_xlabel(f"expected steps from the start (line: radius L = {radius:g})", fontsize=9)
    ax.set_title(title, fontsize=10, loc="left")
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
