"""``report.html`` of an exploration: one page with everything in it, to be played with, readable without a network."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import quote
from typing import Any

from adagoal.core.files import bytes_content, json_content, text_content
from adagoal.core.status import Status
from adagoal.report import data, html
from adagoal.report.packed import packed
from adagoal.report.picture import png
from adagoal.report.plots import figures, goal_name
from adagoal.runs.again import command, steps_left
from adagoal.runs.folder import hold
from adagoal.runs.result import Result
from adagoal.runs.schemas import KIND
from adagoal.runs.view import FILE as VIEW
from adagoal.runs.view import View
from adagoal.runs.words import NO_GUARANTEE, headline

PAGE = "report.html"
WORST = 5
"""Goals that are named in the list of the largest errors."""


def write_report(result: Result, folder: str | Path, view: View | None = None) -> Path:
    """Write the figures, the page and the view (by default that of the result) into the folder, in one commit."""
    folder = Path(folder)
    if view is None:
        view = result.view
    drawn = figures(result, view)
    with hold(folder, KIND) as held:
        held.save(
            results={
                **{f"{name}.png": bytes_content(png(figure)) for name, (figure, _) in drawn.items()},
                VIEW: json_content(view.to_dict()),
                PAGE: text_content(
                    page(result, view, folder, {f"{name}.png": text for name, (_, text) in drawn.items()})
                ),
            }
        )
    return folder / PAGE


def page(result: Result, view: View, folder: Path | None, pictures: dict[str, str], live: bool = False) -> str:
    """The page; ``pictures`` are files beside it, with their captions, for readers without JavaScript.

    Without a ``folder`` there are no commands to go on with.
    """
    from adagoal.report import charts

    facts, arrays = data.collected(result, view)
    return html.page(
        "exploration.html",
        ("model.js", "map.js", "goal.js", "exploration.js"),
        charts.exploration(),
        packed(facts, arrays),
        live,
        inside=int((arrays["policy_row"] >= 0).sum()),
        goals=len(result.goals),
        watch="" if folder is None else f"adagoal watch {quote(str(folder))}",
        title=f"adagoal: {result.setting.env}",
        **words(result, view, folder),
        pictures=list(pictures.items()),
        grid=view.layout is not None,
        theta=_theta(result),
        parameters=_parameters(result),
        delta=result.setting.delta,
        epsilon=result.setting.epsilon,
        guarantee=result.guarantee,
        badge=_badge(result),
    )


def block(result: Result, view: View, folder: Path, **more: Any) -> bytes:
    """The data of the page; ``more`` facts are those of a live one."""
    facts, arrays = data.collected(result, view)
    return packed(facts | words(result, view, folder) | more, arrays)


def words(result: Result, view: View, folder: Path | None) -> dict[str, str]:
    """What happened (``words``) and what is ``unknown``, as pieces of HTML."""
    troubles = (("Void: no certificate can be given", result.void), ("Warnings", result.warnings))
    shown = {
        "head": headline(result),
        "command": "",
        "troubles": [(title, lines) for title, lines in troubles if lines],
        "unknown": _unknown(result, view, folder),
        "guarantee": result.guarantee,
        "badge": _badge(result),
    }
    return {name: html.environment().get_template(f"{name}.html").render(shown) for name in ("words", "unknown")}


def _badge(result: Result) -> str:
    return "" if result.guarantee else NO_GUARANTEE


def _unknown(result: Result, view: View, folder: Path | None) -> dict[str, Any]:
    """Where the error sits and, for an unfinished run, what it would take to finish."""
    worst = sorted(result.errors, key=lambda g: (-result.errors[g], g))
    goals = [(g, goal_name(result, view, g), _steps(result.errors[g])) for g in worst[:WORST] if result.errors[g] > 0]
    if result.status not in (Status.BUDGET, Status.INTERRUPTED):
        most = max(result.errors.values(), default=0.0)
        lines = [f"No goal of the {len(result.goals)} may be more than {most:.3g} steps worse than the best policy."]
        return {"open": False, "lines": lines if result.guarantee and goals else [], "command": "", "goals": goals}
    needed = steps_left(result)
    left = "It is too early to say how many more steps the run would need."
    if needed is not None:
        left = f"At the recent pace it would need about {needed:,} more steps."
    lines = [f"Open goals: {len(result.open_goals)} of {len(result.goals)}.", left]
    again = "" if folder is None else command(result, folder)
    return {"open": True, "lines": lines, "command": again, "goals": goals}


def _steps(error: float) -> str:
    return f"{error:.3f} steps" if math.isfinite(error) else "no bound yet"


def _theta(result: Result) -> list[dict[str, Any]]:
    """The weights of a linear mixture with the intervals that hold them, and where to draw them."""
    if "theta" not in result.arrays:
        return []
    theta = result.arrays["theta"]
    least, most = float(theta.min()), float(theta.max())

    def place(value: float) -> float:
        return round(10 + 180 * (value - least) / max(most - least, 1e-12), 1)

    rows = [(estimate, low, high) for estimate, low, high in theta.tolist()]
    return [{"numbers": row, "middle": place(row[0]), "left": place(row[1]), "right": place(row[2])} for row in rows]


def _parameters(result: Result) -> dict[str, Any]:
    setting = result.setting
    return {
        "environment": setting.env,
        "environment arguments": _pairs(setting.env_args),
        "method": setting.method,
        "method arguments": _pairs(setting.method_args),
        "goal rule": setting.goal_rule,
        "goals considered": _goals(result),
        "radius": result.radius if setting.radius == result.radius else f"{result.radius:g} ({setting.radius})",
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "seed": setting.seed,
        "budget": "none" if setting.budget is None else f"{setting.budget:,}",
        "start seed": "none" if setting.start_seed is None else setting.start_seed,
        "bound on states": "from the environment" if setting.max_states is None else setting.max_states,
        "steps": f"{result.steps:,}",
        "episodes": f"{result.episodes:,}",
        "plans": f"{result.plans:,}",
        "seconds": f"{result.wall_seconds:.2f}",
        "states seen": int((result.arrays["visits"] > 0).sum()),
    }


def _goals(result: Result) -> str:
    setting = result.setting
    if result.goal_names is not None:
        return f"{len(result.goal_names)} sets of states ({', '.join(setting.goal_sets or ())})"
    return "all states" if setting.goal_space is None else str(len(setting.goal_space))


def _pairs(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in arguments.items()) or "none"
