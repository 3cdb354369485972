"""``report.html``: one page with everything in it, readable without a network."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.files import bytes_content, json_content, text_content
from adagoal.core.status import Status
from adagoal.report import frame
from adagoal.report.plots import figures, goal_name
from adagoal.report.words import NO_GUARANTEE, headline
from adagoal.runs.folder import hold
from adagoal.runs.result import Result
from adagoal.runs.schemas import KIND
from adagoal.runs.view import FILE as VIEW
from adagoal.runs.view import View
from adagoal.worlds import registry

PAGE = "report.html"


def write_report(result: Result, folder: str | Path, view: View | None = None) -> Path:
    """Write the figures and the page into the folder, in one commit; the view is stored beside them, or read."""
    folder = Path(folder)
    if view is None:
        view = result.view if result.view.start is not None else _built_again(result)
    drawn = figures(result, view)
    images = {name: frame.png(figure) for name, (figure, _) in drawn.items()}
    pictures = "".join(frame.picture(images[name], text, frame.width(figure)) for name, (figure, text) in drawn.items())
    with hold(folder, KIND) as held:
        held.save(
            results={
                **{f"{name}.png": bytes_content(image) for name, image in images.items()},
                VIEW: json_content(view.to_dict()),
                PAGE: text_content(_page(result, view, folder, pictures)),
            }
        )
    return folder / PAGE


def _built_again(result: Result) -> View:
    """For a run that did not keep its view: that of the environment made again, or a bare one."""
    setting = result.setting
    try:
        env = registry.installed(setting.env, trust=False)
        return View.of(registry.make_world(env, setting.env_args, setting.start_seed, setting.max_states)[0])
    except InputError:
        return View()


def _page(result: Result, view: View, folder: Path, pictures: str) -> str:
    badge = "" if result.guarantee else f' <span class="badge">{NO_GUARANTEE}</span>'
    body = (
        f"{_status(result, folder)}{_warnings(result)}{_open(result, view, badge)}"
        f"{pictures}{_certificates(result, view, badge)}{_outside(result, view)}{_theta(result)}"
        f"{_parameters(result)}"
    )
    return frame.page(f"adagoal: {result.setting.env}", body, badge)


def _status(result: Result, folder: Path) -> str:
    head = headline(result)
    more = ""
    if result.status in (Status.BUDGET, Status.INTERRUPTED):
        more = f"<p>Go on with <code>adagoal resume {escape(quote(str(folder)))}</code></p>"
    text = " ".join(head.sentences)
    text = escape(text[:1].upper() + text[1:])
    return f'<section class="{head.mood}"><h2>{escape(head.title)}</h2><p>{text}</p>{more}</section>'


def _warnings(result: Result) -> str:
    sections = (("Void: no certificate can be given", result.void), ("Warnings", result.warnings))
    items = {title: "".join(f"<li>{escape(text)}</li>" for text in lines) for title, lines in sections if lines}
    return "".join(
        f'<section class="warning"><h2>{title}</h2><ul>{text}</ul></section>' for title, text in items.items()
    )


def _open(result: Result, view: View, badge: str) -> str:
    if not result.open_goals:
        return ""
    table = _goal_table(result, view, result.open_goals)
    return f'<section class="partial"><h2>Open goals, with what is known so far{badge}</h2>{table}</section>'


def _certificates(result: Result, view: View, badge: str) -> str:
    still = set(result.open_goals)
    done = [g for g in result.goals if g not in still]
    if not done:
        return ""
    note = (
        f"The best policy needs at least <i>lower</i> expected steps, the returned one at most <i>upper</i>. "
        f"Finished means: at most {result.setting.epsilon:g} steps from the best, shown by the interval or by "
        "comparing actions along the way, which may be the sharper of the two."
    )
    title = "Certificates" if result.guarantee else "Estimates"
    return f"<section><h2>{title}{badge}</h2><p>{note}</p>{_goal_table(result, view, done)}</section>"


def _outside(result: Result, view: View) -> str:
    X = set(result.goals)
    others = [g for g in result.certificates if g not in X]
    if not others:
        return ""
    summary = f"<summary>{len(others)} goals seen beyond the radius of {result.radius:g} steps</summary>"
    return f"<section><details>{summary}{_goal_table(result, view, others)}</details></section>"


def _goal_table(result: Result, view: View, goals: Iterable[int]) -> str:
    tried = result.arrays["episode_goals"]
    aimed = np.bincount(tried[tried >= 0], minlength=1)
    reached = np.bincount(tried[(tried >= 0) & result.arrays["episode_reached"]], minlength=1)
    rows = []
    for goal in sorted(goals, key=lambda g: (*result.certificates[g], g)):
        lower, upper = result.certificates[goal]
        up = f'<td data-v="{upper}">{upper:.3f}</td>' if math.isfinite(upper) else '<td data-v="1e300">none yet</td>'
        times = int(aimed[goal]) if goal < len(aimed) else 0
        hits = int(reached[goal]) if goal < len(reached) else 0
        visits = int(result.arrays["visits"][result.members(goal)].sum())
        rows.append(
            f'<tr><td data-v="{goal}">{escape(goal_name(result, view, goal))}</td>'
            f'<td data-v="{lower}">{lower:.3f}</td>{up}'
            + "".join(f'<td data-v="{count}">{count:,}</td>' for count in (visits, times, hits))
            + "</tr>"
        )
    head = "".join(f"<th>{name}</th>" for name in ("goal", "lower", "upper", "visits", "episodes", "reached"))
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _theta(result: Result) -> str:
    """The weights of a linear mixture, with the region that holds them."""
    if "theta" not in result.arrays:
        return ""
    theta = result.arrays["theta"]
    least, most = float(theta.min()), float(theta.max())
    rows = "".join(
        f"<tr><td>{i}</td><td>{estimate:.4f}</td><td>{low:.4f}</td><td>{high:.4f}</td>"
        f"<td>{_bar(estimate, low, high, least, most)}</td></tr>"
        for i, (estimate, low, high) in enumerate(theta.tolist())
    )
    head = f"<th>kernel</th><th>weight</th><th>at least</th><th>at most</th><th>{least:.2f} to {most:.2f}</th>"
    note = (
        f"All intervals hold together with probability {1 - result.setting.delta:g} or more, if the world is a mixture."
        " The region behind them is an ellipsoid: weight + theta_region u with ||u|| &le; 1 (theta_region: model.npz)."
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<section><h2>The mixture</h2><p>{note}</p>{table}</section>"


def _bar(estimate: float, low: float, high: float, least: float, most: float) -> str:
    """An interval and its estimate, drawn between least and most."""
    x, left, right = (10 + 180 * (v - least) / max(most - least, 1e-12) for v in (estimate, low, high))
    return (
        f'<svg width="200" height="14" role="img" aria-label="{low:.4f} to {high:.4f}">'
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="7" y2="7" stroke="#0072b2" stroke-width="3"/>'
        f'<circle cx="{x:.1f}" cy="7" r="4" fill="#d55e00"/></svg>'
    )


def _parameters(result: Result) -> str:
    setting = result.setting
    shown: dict[str, Any] = {
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
    return frame.facts("Parameters", shown)


def _goals(result: Result) -> str:
    setting = result.setting
    if result.goal_names is not None:
        return f"{len(result.goal_names)} sets of states ({', '.join(setting.goal_sets or ())})"
    return "all states" if setting.goal_space is None else str(len(setting.goal_space))


def _pairs(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in arguments.items()) or "none"
