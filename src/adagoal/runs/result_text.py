"""A result as text: headline, HTML summary, the command that resumes a run, and a path to a goal as a test script."""

from __future__ import annotations

import ast
import builtins
import contextlib
import heapq
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.environment import CallTexts
from adagoal.core.errors import OBJECT_ENV_PREFIX, Failure, InputError, Status
from adagoal.core.user_code import is_file_spec
from adagoal.runs.progress_display import extrapolate_total_steps

if TYPE_CHECKING:
    from adagoal.core.run_settings import ExplorationSettings
    from adagoal.deep.config import Config
    from adagoal.runs.result import Result
    from adagoal.runs.train_result import TrainResult


class Measure(NamedTuple):
    """What the bounds of a result measure, in words and numbers: expected steps, or probabilities.

    In a run with ``radius`` a certificate bounds expected steps: the best policy needs at least *lower*, the returned
    one at most *upper*. In a run with ``within`` it bounds probabilities: the returned policy reaches the goal with at
    least *lower*, no policy with more than *upper*. Texts, figures and pages read the difference here.
    """

    quantity: str  # on axes and in tables
    unit: str  # after a number
    threshold: float  # decides whether a goal belongs to the result
    threshold_text: str
    top: float  # end of an axis
    scope: str  # of the goals of the result: "... goals within 40 steps"
    beyond: str  # of the other goals
    promise: str  # what a certified result says about its goals and policies
    owners: tuple[str, str]  # whose value the lower and the upper bound are
    digits: int  # of a number on a map
    sign: int  # 1 if small bounds are good, -1 if large ones are

    def sort_key(self, row: dict[str, Any]) -> tuple[float, int]:
        """Sort rows of :meth:`Result.table`, the best goals first."""
        return self.sign * row["lower"], row["goal"]


def measure_of(result: Result) -> Measure:
    """Return what the bounds of this result measure."""
    epsilon, k, p = result.setting.epsilon, result.setting.within, result.setting.probability
    if k is None or p is None:
        L = result.radius
        return Measure(
            quantity="expected steps",
            unit=" steps",
            threshold=L,
            threshold_text=f"radius {L:g}",
            top=L + epsilon,
            scope=f"within {L:g} steps",
            beyond="beyond the radius",
            promise=f"is reached by its policy in at most {L + epsilon:g} expected steps and at most {epsilon:g} more "
            f"than the best policy needs, and no goal that can be reached within {L:g} steps is missing.",
            owners=("best policy", "returned policy"),
            digits=0,
            sign=1,
        )
    return Measure(
        quantity=f"probability within {k} steps",
        unit="",
        threshold=p,
        threshold_text=f"probability {p:g}",
        top=1.0,
        scope=f"within {k} steps with probability at least {p:g}",
        beyond="below the probability",
        promise=f"is reached by its policy within {k} steps with a probability of at least {max(p - epsilon, 0.0):g} "
        f"and at most {epsilon:g} less than that of the best policy, and no goal that can be reached with probability "
        f"{p:g} is missing.",
        owners=("returned policy", "best policy"),
        digits=2,
        sign=-1,
    )


MAX_SUMMARY_ROWS = 15  # goals in the summary of a notebook
NO_GUARANTEE_TEXT = "no guarantee"


def result_to_html(result: Result) -> str:
    """Return the summary of a result for a notebook: one line, and the nearest goals with their intervals as bars.

    Every name is escaped. Styles are attributes of the elements, because notebooks remove style sheets.
    """
    red, grey, orange = "#c0392b", "#7f8c8d", "#d68910"
    colours = {Status.CERTIFIED: "#2e8b57", Status.VOID: red, Status.STOPPED: grey, Status.DONE: grey}
    colour = colours.get(result.status, orange)
    measure = result.measure
    rows = sorted((row for row in result.table() if row["in_result"]), key=measure.sort_key)
    shown = rows[:MAX_SUMMARY_ROWS]
    longest = max((row["upper"] for row in shown if math.isfinite(row["upper"])), default=measure.threshold)
    lines = [
        f'<p><b style="color:{colour}">{result.status}</b> {escape(_format_summary_line(result))}</p>',
        *(f'<p style="color:{red}">{escape(reason)}</p>' for reason in result.void),
        *(f"<p>warning: {escape(warning)}</p>" for warning in result.warnings),
    ]
    if shown:
        header = _format_row("th", ("goal", measure.quantity, "", "worse than the best by at most"))
        # The longest bound is 0 if the start is the only goal.
        goals = "".join(_format_goal_row(row, max(longest, 1e-9), colour) for row in shown)
        lines.append(f"<table><thead>{header}</thead><tbody>{goals}</tbody></table>")
    if len(rows) > len(shown):
        lines.append(f"<p>and {len(rows) - len(shown)} more: <code>result.table()</code> lists all</p>")
    return "<div>" + "".join(lines) + "</div>"


def training_to_html(trained: TrainResult) -> str:
    """Return the summary of training for a notebook: one row per run, with the success of its last test as a bar."""
    config = trained.history.configs[0]
    title = f"<p><b>{trained.status}</b> · {escape(config.env)} · goal rule {escape(config.goal_rule)}</p>"
    rows = []
    for run, own in enumerate(trained.history.configs):
        last = trained.curve(run)[-1]
        bar = _format_bar(0.0, 100.0 * last["success"], "#2e8b57", 1.0)
        rows.append(_format_row("td", (str(own.seed), f"{last['steps']:,}", f"{last['success']:.2f}", bar)))
    header = _format_row("th", ("seed", "steps", "test goals reached", ""))
    return f"<div>{title}<table><thead>{header}</thead><tbody>{''.join(rows)}</tbody></table></div>"


def _format_summary_line(result: Result) -> str:
    setting = result.setting
    goals = _goal_count_text(len(result.goals)) + (f", {len(result.open_goals)} open," if result.open_goals else "")
    promise = f"δ = {setting.delta:g}" if result.guarantee else NO_GUARANTEE_TEXT
    return (
        f"· {setting.env} · {goals} {result.measure.scope} (ε = {setting.epsilon:g}, {promise}) · "
        f"{result.steps:,} steps in {result.wall_seconds:.1f} s"
    )


def _format_goal_row(row: dict[str, Any], longest: float, colour: str) -> str:
    lower, upper = row["lower"], row["upper"]
    is_bounded = math.isfinite(upper)
    # A goal without an upper bound may begin beyond the longest bound. A tight interval keeps 1% of the width, because
    # it would be invisible otherwise.
    left = 100.0 * min(lower / longest, 1.0)
    width = max(100.0 * (upper - lower) / longest, 1.0) if is_bounded else 100.0 - left
    cells = (
        escape(row["label"]),
        f"{lower:.2f} to {upper:.2f}" if is_bounded else f"{lower:.2f} or more",
        _format_bar(left, width, colour, 1.0 if is_bounded else 0.3),
        (f"{row['error']:.2g}" if is_bounded else "") + (" (open)" if row["open"] else ""),
    )
    return _format_row("td", cells)


def _format_bar(left: float, width: float, colour: str, opacity: float) -> str:
    """Return a bar from ``left``, both in percent of its frame."""
    frame = "display:inline-block;position:relative;width:16em;height:0.8em;background:rgba(128,128,128,0.15)"
    bar = f"position:absolute;left:{left:.1f}%;width:{width:.1f}%;height:100%;background:{colour};opacity:{opacity}"
    return f'<span style="{frame}"><span style="{bar}"></span></span>'


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
    if result.is_from_data:
        transitions = int(result.arrays["moves_count"].sum())
        cost = f"It used {transitions:,} recorded transitions and took no step, in {result.wall_seconds:.1f} s."
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
            f"{_goal_count_text(len(result.goals))} {result.measure.scope}, by the stopping rule of "
            f"{result.setting.method}. This method proves nothing: treat the numbers as estimates."
        )
        return Headline("none", f"Stopped, {NO_GUARANTEE_TEXT}", (claim, cost))
    why = "budget spent" if result.status is Status.BUDGET else "interrupted"
    why = "the data do not suffice" if result.is_from_data else why
    return Headline(
        "partial" if result.guarantee else "none", f"Not finished ({why})", (*_unfinished_sentences(result), cost)
    )


def _certified_promise(result: Result) -> str:
    n, confidence = len(result.goals), f"with probability {_confidence_text(result)} or more"
    if not n:
        return f"{confidence}, no goal can be reached {result.measure.scope}."
    return f"{confidence}, {'the one goal' if n == 1 else f'each of the {n} goals'} found {result.measure.promise}"


def _unfinished_sentences(result: Result) -> tuple[str, ...]:
    if result.certified_radius is not None:
        return (f"the largest radius that was certified is {result.certified_radius:g}:", _certified_promise(result))
    done = len(result.goals) - len(result.open_goals)
    status = (
        f"of the {_goal_count_text(len(result.goals))} that may lie {result.measure.scope}, {done} "
        f"{'has' if done == 1 else 'have'} a finished certificate and {len(result.open_goals)} "
        f"{'is' if len(result.open_goals) == 1 else 'are'} open."
    )
    if not result.guarantee:
        return (status, f"The method {result.setting.method} gives {NO_GUARANTEE_TEXT}.")
    return (
        status,
        f"Every interval holds already, all together with probability {_confidence_text(result)} or more, "
        f"but goals that were never seen may be missing, and open goals may turn out to lie {result.measure.beyond}.",
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
    budget = None
    if result.status is Status.BUDGET:
        budget = max(2 * result.steps, _round_up_two_digits(result.steps + (estimate_steps_left(result) or 0)))
    return exploration_resume_command(folder, result.setting, result.model is not None, budget)


def exploration_resume_command(
    folder: Path, setting: ExplorationSettings, has_model: bool, budget: int | None = None
) -> str:
    """Return the command that continues an exploration; ``has_model``: the folder holds the model of the user."""
    goals = (setting.goal_sets or {}).get("file")
    return _format_resume_command(folder, "" if has_model else setting.env, setting.goal_rule, goals, budget)


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
    # The command line cannot name an object.
    if env.startswith(OBJECT_ENV_PREFIX):
        return f"adagoal.resume({str(folder)!r}, env=...)"
    words = ["adagoal", "resume", str(folder)]
    words += ["--env", env] if ":" in env else []
    words += ["--goal-rule", rule] if is_file_spec(rule) else []
    words += ["--goals", goals] if goals is not None else []
    words += ["--budget", str(budget)] if budget is not None else []
    return join(words)


class ActionPath(NamedTuple):
    """Actions from the start to a goal."""

    actions: list[int]
    end: int  # the state of the goal that it leads to
    probability: float  # product of the observed frequencies; 1 if no call on the way had another effect


def most_likely_path(arrays: Mapping[str, NDArray[Any]], n_actions: int, start: int, ends: Sequence[int]) -> ActionPath:
    """Return the most likely path in the empirical model of a result, the shortest if several are equally likely.

    It is a shortest path for the costs (-ln p, 1) in lexicographic order. Without randomness the first cost is zero, so
    the path has the fewest calls.
    """
    pairs, successors, counts = arrays["moves_pair"], arrays["moves_to"], arrays["moves_count"]
    total = np.bincount(pairs, counts)
    moves: dict[int, list[tuple[float, int, int]]] = {}
    for pair, successor, count in zip(pairs.tolist(), successors.tolist(), counts.tolist(), strict=True):
        cost = math.log(total[pair] / count)
        moves.setdefault(pair // n_actions, []).append((cost, pair % n_actions, successor))
    wanted, done = set(ends), set()
    queue: list[tuple[float, int, int, list[int]]] = [(0.0, 0, start, [])]
    while queue:
        cost, steps, state, actions = heapq.heappop(queue)
        if state in wanted:
            return ActionPath(actions, state, math.exp(-cost))
        if state in done:
            continue
        done.add(state)
        for extra, action, successor in moves.get(state, ()):
            if successor not in done:
                heapq.heappush(queue, (cost + extra, steps + 1, successor, [*actions, action]))
    raise InputError("the run has observed no way to this goal; choose one of result.goals")


def write_script(
    texts: CallTexts | None, path: ActionPath, label: str, goal: str, find_state: Callable[[Any], int | None]
) -> str:
    """Return a test that makes the calls of a path and checks the state ``label`` at its end.

    ``find_state`` maps a key to its state. Without texts the calls are steps of a Gymnasium environment.
    """
    texts = texts or CallTexts((), "env.reset()", (), None, {})
    calls = [texts.calls[a] if a < len(texts.calls) else f"env.step({a})" for a in path.actions]
    body = [texts.make]
    # A failure and a key of the same text are different states.
    is_failure = texts.calls and find_state(Failure(label)) == path.end
    kind, _, name = label.partition(":") if is_failure else ("", "", "")
    if path.probability < 1.0:
        body.append(f"# the system is random: this happened in {path.probability:.3g} of such attempts")
    if kind == "crash" and calls:
        # A class that is no builtin would have to be imported, and its module is not known.
        if hasattr(builtins, name):
            body += [*calls[:-1], f"with pytest.raises({name}):  # {label}", f"    {calls[-1]}"]
        else:
            body += [*calls[:-1], "with pytest.raises(Exception) as raised:", f"    {calls[-1]}"]
            body += [f"assert raised.typename == {name!r}"]
    elif kind == "fails" and name in texts.invariants:
        check, function = texts.invariants[name], texts.invariants[name].partition("(")[0]
        # Outside of the block, since a NameError inside would count as a failure of the invariant.
        is_imported = "." in function or any(line.endswith(f" import {function}") for line in texts.imports)
        body += [*calls, *([] if is_imported else [f"{function}  # the function that was given to adagoal.machine"])]
        body += [f"with pytest.raises(Exception):  # {label}", f"    assert {check} in (None, True)"]
    else:
        literal = None if texts.state is None else _key_literal(label, path.end, find_state)
        body += [*calls, f"# state: {label}" if literal is None else f"assert {texts.state} == {literal}"]
    # A goal of any name becomes a function name.
    test = re.sub(r"\W+", "_", goal).strip("_").lower() or "goal"
    lines = [f"def test_{test}():", *(f"    {line}" for line in body)]
    return "\n".join([*_import_lines(texts.imports, body), *lines]) + "\n"


def _import_lines(imports: Sequence[str], body: list[str]) -> list[str]:
    """Return the imports that the lines of a test need, one line per module, and two empty lines."""
    words = set(re.findall(r"\w+", "\n".join(body)))
    names: dict[str, list[str]] = {}
    for line in imports:
        module, _, name = line.removeprefix("from ").partition(" import ")
        if name in words:
            names.setdefault(module, []).append(name)
    lines = [f"from {module} import {', '.join(sorted(found))}" for module, found in sorted(names.items())]
    lines = ["import pytest", *lines] if "pytest" in words else lines
    return [*lines, "", ""] if lines else []


def _key_literal(label: str, state: int, find_state: Callable[[Any], int | None]) -> str | None:
    """Return the key of a state as a Python literal, or None if its label is not one."""
    candidates: list[Any] = [label]
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        candidates.insert(0, ast.literal_eval(label))
    return next((repr(key) for key in candidates if find_state(key) == state), None)
