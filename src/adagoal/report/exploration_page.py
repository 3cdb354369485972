"""``report.html`` of an exploration: one page with everything in it, to be played with, readable without a network."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from shlex import quote
from typing import Any

from adagoal.api import explore as api
from adagoal.core.errors import InputError, Status
from adagoal.core.file_io import bytes_content, is_folder_locked, json_content, text_content
from adagoal.report import exploration_data, html_page
from adagoal.report.exploration_figures import draw_figures, figure_to_png, numbered_goal_name
from adagoal.report.html_page import pack_data_block
from adagoal.runs import folder_reader
from adagoal.runs.exploration_schemas import EXPLORATION_KIND
from adagoal.runs.folder_reader import SavedRun
from adagoal.runs.result import Result, load_result, require_exploration
from adagoal.runs.result_text import NO_GUARANTEE_TEXT, estimate_steps_left, make_headline, resume_command
from adagoal.runs.run_folder import open_locked_folder
from adagoal.runs.state_metadata import STATE_METADATA_FILE as VIEW
from adagoal.runs.state_metadata import StateMetadata
from adagoal.runs.stop_requests import request_stop
from adagoal.settings.fields import describe_settings

REPORT_FILE = "report.html"
MAX_WORST_GOALS = 5
"""Goals that are named in the list of the largest errors."""


def write_report(result: Result, folder: str | Path, view: StateMetadata | None = None) -> Path:
    """Write the figures, the page and the view (by default that of the result) into the folder, in one commit."""
    folder = Path(folder)
    if view is None:
        view = result.view
    drawn = draw_figures(result, view)
    with open_locked_folder(folder, EXPLORATION_KIND) as held:
        held.save_files(
            results={
                **{f"{name}.png": bytes_content(figure_to_png(figure)) for name, (figure, _) in drawn.items()},
                VIEW: json_content(view.to_dict()),
                REPORT_FILE: text_content(
                    render_exploration_page(
                        result, view, folder, {f"{name}.png": text for name, (_, text) in drawn.items()}
                    )
                ),
            }
        )
    return folder / REPORT_FILE


def render_exploration_page(
    result: Result, view: StateMetadata, folder: Path | None, pictures: dict[str, str], live: bool = False
) -> str:
    """The page; ``pictures`` are files beside it, with their captions, for readers without JavaScript.

    Without a ``folder`` there are no commands to go on with.
    """
    from adagoal.report import bokeh_plots

    facts, arrays = exploration_data.collect_page_data(result, view)
    return html_page.render_html_page(
        "exploration.html",
        ("model.js", "map.js", "goal.js", "exploration.js"),
        bokeh_plots.exploration_plots(),
        pack_data_block(facts, arrays),
        live,
        inside=int((arrays["policy_row"] >= 0).sum()),
        goals=len(result.goals),
        watch="" if folder is None else f"adagoal watch {quote(str(folder))}",
        title=f"adagoal: {result.setting.env}",
        **render_exploration_texts(result, view, folder),
        pictures=list(pictures.items()),
        grid=view.layout is not None,
        theta=_theta_intervals(result),
        parameters=_run_parameters(result),
        delta=result.setting.delta,
        epsilon=result.setting.epsilon,
        guarantee=result.guarantee,
        badge=_guarantee_badge(result),
    )


def pack_exploration_data(result: Result, view: StateMetadata, folder: Path, **more: Any) -> bytes:
    """The data of the page; ``more`` facts are those of a live one."""
    facts, arrays = exploration_data.collect_page_data(result, view)
    return pack_data_block(facts | render_exploration_texts(result, view, folder) | more, arrays)


def render_exploration_texts(result: Result, view: StateMetadata, folder: Path | None) -> dict[str, str]:
    """What happened (``words``) and what is ``unknown``, as pieces of HTML."""
    troubles = (("Void: no certificate can be given", result.void), ("Warnings", result.warnings))
    shown = {
        "head": make_headline(result),
        "command": "",
        "troubles": [(title, lines) for title, lines in troubles if lines],
        "unknown": _summarise_unknown(result, view, folder),
        "guarantee": result.guarantee,
        "badge": _guarantee_badge(result),
    }
    return {
        name: html_page.template_environment().get_template(f"{name}.html").render(shown)
        for name in ("words", "unknown")
    }


def _guarantee_badge(result: Result) -> str:
    return "" if result.guarantee else NO_GUARANTEE_TEXT


def _summarise_unknown(result: Result, view: StateMetadata, folder: Path | None) -> dict[str, Any]:
    """Where the error sits and, for an unfinished run, what it would take to finish."""
    worst = sorted(result.errors, key=lambda g: (-result.errors[g], g))
    goals = [
        (g, numbered_goal_name(result, view, g), _format_error(result.errors[g]))
        for g in worst[:MAX_WORST_GOALS]
        if result.errors[g] > 0
    ]
    if result.status not in (Status.BUDGET, Status.INTERRUPTED):
        most = max(result.errors.values(), default=0.0)
        lines = [f"No goal of the {len(result.goals)} may be more than {most:.3g} steps worse than the best policy."]
        return {"open": False, "lines": lines if result.guarantee and goals else [], "command": "", "goals": goals}
    needed = estimate_steps_left(result)
    left = "It is too early to say how many more steps the run would need."
    if needed is not None:
        left = f"At the recent pace it would need about {needed:,} more steps."
    lines = [f"Open goals: {len(result.open_goals)} of {len(result.goals)}.", left]
    again = "" if folder is None else resume_command(result, folder)
    return {"open": True, "lines": lines, "command": again, "goals": goals}


def _format_error(error: float) -> str:
    return f"{error:.3f} steps" if math.isfinite(error) else "no bound yet"


def _theta_intervals(result: Result) -> list[dict[str, Any]]:
    """The weights of a linear mixture with the intervals that hold them, and where to draw them."""
    if "theta" not in result.arrays:
        return []
    theta = result.arrays["theta"]
    least, most = float(theta.min()), float(theta.max())

    def place(value: float) -> float:
        return round(10 + 180 * (value - least) / max(most - least, 1e-12), 1)

    rows = [(estimate, low, high) for estimate, low, high in theta.tolist()]
    return [{"numbers": row, "middle": place(row[0]), "left": place(row[1]), "right": place(row[2])} for row in rows]


def _run_parameters(result: Result) -> dict[str, Any]:
    lines = describe_settings(result.setting)
    if result.setting.radius != result.radius:
        lines["radius"] = f"{result.radius:g} ({result.setting.radius})"
    return lines | {
        "goals considered": _describe_goals(result),
        "steps": f"{result.steps:,}",
        "episodes": f"{result.episodes:,}",
        "plans": f"{result.plans:,}",
        "seconds": f"{result.wall_seconds:.2f}",
        "states seen": int((result.arrays["visits"] > 0).sum()),
    }


def _describe_goals(result: Result) -> str:
    setting = result.setting
    if result.goal_names is not None:
        return f"{len(result.goal_names)} sets of states ({', '.join(setting.goal_sets or ())})"
    return "all states" if setting.goal_space is None else str(len(setting.goal_space))


# What a live page of an exploration shows: the run of this process, or the one in a folder, whoever writes there.


ResultAndView = tuple[Result, StateMetadata]


class LiveRunSource:
    """A run of this process, which publishes its answers as it goes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._version = folder, 0
        self._published: ResultAndView | None = None

    def publish_result(self, result: Result, view: StateMetadata) -> None:
        """Show this from now on."""
        self._published = result, view
        self._version += 1

    def version_stamp(self) -> str:
        """The number of the answer."""
        return str(self._version)

    def render_page(self) -> str:
        """The page of the last answer."""
        return render_exploration_page(*self._current_result(), self._folder, {}, live=True)

    def pack_data(self) -> bytes:
        """Its data."""
        return pack_exploration_data(*self._current_result(), self._folder, running=True)

    def pack_policy(self, goal: int) -> bytes:
        """One of its policies."""
        return pack_data_block({}, exploration_data.policy_arrays(self._current_result()[0], goal))

    def request_stop(self) -> None:
        """Ask the run to stop."""
        request_stop(self._folder)

    def _current_result(self) -> ResultAndView:
        if self._published is None:
            raise InputError("the run has not begun")
        return self._published


class RunFolderSource:
    """The run in a folder: its result or, while it goes on, what its last checkpoint would answer."""

    def __init__(self, folder: Path, env: api.EnvOverride = None, trust: bool = False) -> None:
        self._folder, self._env, self._trust = folder, env, trust
        self._lock = threading.Lock()
        self._cached: tuple[str, ResultAndView] | None = None

    def version_stamp(self) -> str:
        """Of the last save, and whether a run is going on."""
        return f"{folder_reader.last_commit_stamp(self._folder)} {is_folder_locked(self._folder)}"

    def render_page(self) -> str:
        """The page of the last save."""
        return render_exploration_page(*self._current_result(), self._folder, {}, live=True)

    def pack_data(self) -> bytes:
        """Its data."""
        return pack_exploration_data(*self._current_result(), self._folder, running=is_folder_locked(self._folder))

    def pack_policy(self, goal: int) -> bytes:
        """One of its policies."""
        return pack_data_block({}, exploration_data.policy_arrays(self._current_result()[0], goal))

    def request_stop(self) -> None:
        """Ask the run to stop."""
        if not is_folder_locked(self._folder):
            raise InputError(f"{self._folder}: no run is going on there")
        request_stop(self._folder)

    def _current_result(self) -> ResultAndView:
        with self._lock:
            now = str(folder_reader.last_commit_stamp(self._folder))
            if self._cached is None or self._cached[0] != now:
                self._cached = now, self._read_result()
            return self._cached[1]

    def _read_result(self) -> ResultAndView:
        if folder_reader.read_saved_run(self._folder, _result_is_current):
            result = load_result(self._folder)
            return result, result.view
        with api.open_restored_session(self._folder, self._env, self._trust) as session:
            return session.result(Status.INTERRUPTED), StateMetadata.from_env(session.run.env)


def _result_is_current(found: SavedRun) -> bool:
    """Whether the result is of the last save, and not older than the checkpoint."""
    require_exploration(found)
    result = found.manifest.results.get("result.json")
    states = [entry.generation for state in found.manifest.checkpoints[:1] for entry in state.values()]
    return result is not None and result.generation >= max(states, default=0)
