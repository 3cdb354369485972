"""A result in words: its headline, its summary in a notebook, and the command that continues an unfinished run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from adagoal.core.errors import OBJECT_ENV_PREFIX, Status
from adagoal.core.user_code import is_file_spec
from adagoal.runs.progress_display import extrapolate_total_steps

if TYPE_CHECKING:
    from adagoal.deep.config import Config
    from adagoal.runs.result import Result

MAX_SUMMARY_ROWS = 15  # goals in the summary of a notebook
NO_GUARANTEE_TEXT = "no guarantee"


def result_to_html(result: Result) -> str:
    """Return the summary of a result for a notebook: one line, and the nearest goals with their intervals as bars.

    Every name is escaped. Styles are attributes of the elements, because notebooks remove style sheets.
    """
    red, grey, orange = "#c0392b", "#7f8c8d", "#d68910"
    colours = {Status.CERTIFIED: "#2e8b57", Status.VOID: red, Status.STOPPED: grey, Status.DONE: grey}
    colour = colours.get(result.status, orange)
    rows = [row for row in result.table() if row["within"]]
    shown = rows[:MAX_SUMMARY_ROWS]
    longest = max((row["upper"] for row in shown if math.isfinite(row["upper"])), default=result.radius)
    lines = [
        f'<p><b style="color:{colour}">{result.status}</b> {escape(_format_summary_line(result))}</p>',
        *(f'<p style="color:{red}">{escape(reason)}</p>' for reason in result.void),
        *(f"<p>warning: {escape(warning)}</p>" for warning in result.warnings),
    ]
    if shown:
        header = _format_row("th", ("goal", "expected steps", "", "worse than the best by at most"))
        # The longest bound is 0 if the start is the only goal.
        goals = "".join(_format_goal_row(row, max(longest, 1e-9), colour) for row in shown)
        lines.append(f"<table><thead>{header}</thead><tbody>{goals}</tbody></table>")
    if len(rows) > len(shown):
        lines.append(f"<p>and {len(rows) - len(shown)} more: <code>result.table()</code> lists all</p>")
    return "<div>" + "".join(lines) + "</div>"


def _format_summary_line(result: Result) -> str:
    setting = result.setting
    goals = _goal_count_text(len(result.goals)) + (f", {len(result.open_goals)} open," if result.open_goals else "")
    promise = f"δ = {setting.delta:g}" if result.guarantee else NO_GUARANTEE_TEXT
    return (
        f"· {setting.env} · {goals} within {result.radius:g} steps (ε = {setting.epsilon:g}, {promise}) · "
        f"{result.steps:,} steps in {result.wall_seconds:.1f} s"
    )


def _format_goal_row(row: dict[str, Any], longest: float, colour: str) -> str:
    lower, upper = row["lower"], row["upper"]
    is_bounded = math.isfinite(upper)
    # A goal without an upper bound may begin beyond the longest bound. A tight interval keeps 1% of the width, because
    # it would be invisible otherwise.
    left = 100.0 * min(lower / longest, 1.0)
    width = max(100.0 * (upper - lower) / longest, 1.0) if is_bounded else 100.0 - left
    frame = "display:inline-block;position:relative;width:16em;height:0.8em;background:rgba(128,128,128,0.15)"
    bar = f"position:absolute;left:{left:.1f}%;width:{width:.1f}%;height:100%;background:{colour}"
    cells = (
        escape(row["label"]),
        f"{lower:.2f} to {upper:.2f}" if is_bounded else f"{lower:.2f} or more",
        f'<span style="{frame}"><span style="{bar};opacity:{1.0 if is_bounded else 0.3}"></span></span>',
        (f"{row['error']:.2g}" if is_bounded else "") + (" (open)" if row["open"] else ""),
    )
    return _format_row("td", cells)


def _format_row(tag: str, cells: tuple[str, ...]) -> str:
    style = "text-align:left;padding:0.1em 1em 0.1em 0"
    return "<tr>" + "".join(f'<{tag} style="{style}">{cell}</{tag}>' for cell in cells) + "</tr>"


@dataclass(frozen=True)
class Headline:
    """What happened, in a title and sentences."""

    mood: str  # decides the colour: good, partial, or none (no guarantee)
    title: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.title}:", *self.sentences))


def make_headline(result: Result) -> Headline:
    """Return the status of a run, what it means, and what it cost."""
    cost = f"It took {result.steps:,} steps in {result.episodes:,} episodes and {result.wall_seconds:.1f} s."
    if result.status is Status.CERTIFIED:
        # A curriculum has chosen the radius itself, so the reader must be told which it was.
        chosen = (f"{result.radius:g} is the radius at which every goal was certified.",)
        radius = chosen if isinstance(result.setting.radius, str) else ()
        return Headline("good", "Certified", (_certified_promise(result), *radius, cost))
    if result.status is Status.VOID:
        claim = "a check that the certificates depend on has failed, so nothing is certified:"
        return Headline("none", "Void", (claim, "; ".join(result.void) + ".", cost))
    if result.status is Status.STOPPED:
        claim = (
            f"{_goal_count_text(len(result.goals))} within {result.radius:g} steps, by the stopping rule of "
            f"{result.setting.method}. This method proves nothing: treat the numbers as estimates."
        )
        return Headline("none", f"Stopped, {NO_GUARANTEE_TEXT}", (claim, cost))
    why = "budget spent" if result.status is Status.BUDGET else "interrupted"
    return Headline(
        "partial" if result.guarantee else "none", f"Not finished ({why})", (*_unfinished_sentences(result), cost)
    )


def _certified_promise(result: Result) -> str:
    L, epsilon = result.radius, result.setting.epsilon
    return (
        f"with probability {_confidence_text(result)} or more, each of the {_goal_count_text(len(result.goals))} found "
        f"is reached by its policy in at most {L + epsilon:g} expected steps and at most {epsilon:g} more than the "
        f"best policy needs, and no goal that can be reached within {L:g} steps is missing."
    )


def _unfinished_sentences(result: Result) -> tuple[str, ...]:
    if result.certified_radius is not None:
        return (f"the largest radius that was certified is {result.certified_radius:g}:", _certified_promise(result))
    done = len(result.goals) - len(result.open_goals)
    status = (
        f"of the {_goal_count_text(len(result.goals))} that may lie within {result.radius:g} steps, {done} "
        f"{'has' if done == 1 else 'have'} a finished certificate and {len(result.open_goals)} "
        f"{'is' if len(result.open_goals) == 1 else 'are'} open."
    )
    if not result.guarantee:
        return (status, f"The method {result.setting.method} gives {NO_GUARANTEE_TEXT}.")
    return (
        status,
        f"Every interval holds already, all together with probability {_confidence_text(result)} or more, "
        "but goals that were never seen may be missing, and open goals may turn out to lie beyond the radius.",
    )


def _goal_count_text(n: int) -> str:
    return f"{n} goal" if n == 1 else f"{n} goals"


def _confidence_text(result: Result) -> str:
    return f"{100 * (1 - result.setting.delta):.6g}%"


def resume_command(result: Result, folder: Path) -> str:
    """Return the command that continues a run.

    It names the user's code again, because a folder must not decide which code runs. If the budget is spent, the
    command gives at least twice as much, and more if the run is expected to need more.
    """
    setting = result.setting
    goals = (setting.goal_sets or {}).get("file")
    # The folder holds the model of the user, so no environment need be given again.
    env = setting.env if result.model is None else ""
    budget = None
    if result.status is Status.BUDGET:
        budget = max(2 * result.steps, _round_up_two_digits(result.steps + (estimate_steps_left(result) or 0)))
    return _format_resume_command(folder, env, setting.goal_rule, goals, budget)


def estimate_steps_left(result: Result) -> int | None:
    """Return the steps that an unfinished run may still need, or None if it is too early to say."""
    trace = [(int(s), int(e), float(m), int(o)) for s, e, m, o in result.arrays["trace"]]
    total = extrapolate_total_steps(trace, result.setting.epsilon)
    return None if total is None else _round_up_two_digits(max(total - result.steps, 0.0))


def _round_up_two_digits(steps: float) -> int:
    # More digits would suggest a precision that the extrapolation does not have.
    unit: int = 10 ** max(len(str(math.ceil(steps))) - 2, 0)
    return unit * math.ceil(steps / unit)


def resume_training_command(config: Config, folder: Path, steps: int) -> str:
    """Return the command that continues training after ``steps`` steps."""
    budget = 2 * steps if steps >= config.steps else None
    return _format_resume_command(folder, config.env, config.goal_rule, None, budget)


def _format_resume_command(folder: Path, env: str, rule: str, goals: str | None, budget: int | None) -> str:
    # An object cannot be named on the command line.
    if env.startswith(OBJECT_ENV_PREFIX):
        return f"adagoal.resume({str(folder)!r}, env=...)"
    words = ["adagoal", "resume", str(folder)]
    words += ["--env", env] if ":" in env else []
    words += ["--goal-rule", rule] if is_file_spec(rule) else []
    words += ["--goals", goals] if goals is not None else []
    words += ["--budget", str(budget)] if budget is not None else []
    return join(words)
