"""A result in a notebook: what happened in one line, and the nearest goals with their intervals as bars.

Styles stand in the elements, as notebooks do not keep style sheets, and colours are those of the page around them.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from adagoal.core.status import Status

if TYPE_CHECKING:
    from adagoal.runs.result import Result

MAX_SUMMARY_ROWS = 15
"""Goals that are shown, at most."""
STATUS_COLOURS = {
    Status.CERTIFIED: "#2e8b57",
    Status.VOID: "#c0392b",
    Status.STOPPED: "#7f8c8d",
    Status.DONE: "#7f8c8d",
}
UNFINISHED_COLOUR = "#d68910"
BAR = "display:inline-block;position:relative;width:16em;height:0.8em;background:rgba(128,128,128,0.15)"
HEAD = ("goal", "expected steps", "", "worse than the best by at most")
CELL_STYLE = "text-align:left;padding:0.1em 1em 0.1em 0"


def result_to_html(result: Result) -> str:
    """HTML of a few lines; every name in it is escaped."""
    colour = STATUS_COLOURS.get(result.status, UNFINISHED_COLOUR)
    rows = sorted((row for row in result.table() if row["within"]), key=lambda row: (row["lower"], row["goal"]))
    shown = rows[:MAX_SUMMARY_ROWS]
    longest = max((row["upper"] for row in shown if math.isfinite(row["upper"])), default=result.radius)
    lines = [
        f'<p><b style="color:{colour}">{result.status}</b> {escape(_format_facts(result))}</p>',
        *(f'<p style="color:{STATUS_COLOURS[Status.VOID]}">{escape(reason)}</p>' for reason in result.void),
        *(f"<p>warning: {escape(warning)}</p>" for warning in result.warnings),
    ]
    if shown:
        head = "".join(
            f'<th style="{CELL_STYLE}">{name}</th>'
            for name in ("goal", "expected steps", "", "worse than the best by at most")
        )
        body = "".join(_format_goal_row(row, max(longest, 1e-9), colour) for row in shown)
        lines.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    if len(rows) > len(shown):
        lines.append(f"<p>and {len(rows) - len(shown)} more: <code>result.table()</code> has all of them</p>")
    return "<div>" + "".join(lines) + "</div>"


def _format_facts(result: Result) -> str:
    setting, still = result.setting, len(result.open_goals)
    goals = "1 goal" if len(result.goals) == 1 else f"{len(result.goals)} goals"
    found = goals + (f", {still} open," if still else "")
    promise = f"δ = {setting.delta:g}" if result.guarantee else "no guarantee"
    return (
        f"· {setting.env} · {found} within {result.radius:g} steps (ε = {setting.epsilon:g}, {promise}) · "
        f"{result.steps:,} steps in {result.wall_seconds:.1f} s"
    )


def _format_goal_row(row: dict[str, Any], longest: float, colour: str) -> str:
    lower, upper = row["lower"], row["upper"]
    known = math.isfinite(upper)
    left = 100.0 * min(lower / longest, 1.0)
    width = max(100.0 * (upper - lower) / longest, 1.0) if known else 100.0 - left
    bar = f"position:absolute;left:{left:.1f}%;width:{width:.1f}%;height:100%;background:{colour}"
    cells = (
        escape(row["label"]),
        f"{lower:.2f} to {upper:.2f}" if known else f"{lower:.2f} or more",
        f'<span style="{BAR}"><span style="{bar};opacity:{1.0 if known else 0.3}"></span></span>',
        (f"{row['error']:.2g}" if known else "") + (" (open)" if row["open"] else ""),
    )
    return "<tr>" + "".join(f'<td style="{CELL_STYLE}">{cell}</td>' for cell in cells) + "</tr>"
