"""The page of an exploration: its panels, one function for each; ``report.html``; and the live pages of a run.

The scripts name arrays like this, over S states, A actions, G goals (all goals that were seen: first those in X, then
by distance) and F moments of the run, the last of which is its end:

    goal, lower, upper, error, stand, tried, reached  [G]      number, certificate, state, episodes, successes
    member_row [G + 1], member                                 states of goal g: member[member_row[g]:member_row[g + 1]]
    moment_steps, moment_episodes  [F]                         when the moment was
    moment_lower, moment_upper, moment_stand, moment_chosen [G, F]   bounds at the moment, and choices until then
    moment_policy [R, S], moment_policy_row [G, F]             earlier policies, and which one is the goal's (-1: none)
    visits [S], place [S, 2], walls [W, 2], edges [M, 2]       the map: column and row, or layer and height
    row [S*A + 1], to [M], count [M]                           empirical model: the successors of x are row[x]:row[x+1]
    policy [P, T, S], policy_row [G]                           action tables, and which one is the goal's (-1: not here)
    trace [N, 4]                                               steps, episodes, largest error, open goals
"""

from __future__ import annotations

import math
import threading
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.environment import GridLayout
from adagoal.core.errors import InputError, Status, to_single_line
from adagoal.core.exploration_run import GoalStanding
from adagoal.core.file_io import is_folder_locked
from adagoal.report.html_page import (
    Panel,
    PanelContent,
    ReportPage,
    pack_data_block,
    render_macro,
    require_figures_extra,
)
from adagoal.report.live_server import ReportSource
from adagoal.runs import run_folder
from adagoal.runs.job import request_stop
from adagoal.runs.load_result import load_result, require_exploration
from adagoal.runs.result import Result
from adagoal.runs.result_text import NO_GUARANTEE_TEXT, estimate_steps_left, make_headline, resume_command
from adagoal.runs.run_folder import RunKind, SavedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from adagoal.api.explore import EnvOverride

Arrays = dict[str, NDArray[Any]]


class PageLimits:
    """How much a page contains at most."""

    # Entries of all action tables. The page stays below a few MB, and ``adagoal watch`` serves the other policies.
    policy_entries = 3_000_000
    moment_entries = 1_000_000  # goals times moments
    # Graphs with more edges are drawn without them: the browser becomes slow, and the drawing is black anyway.
    drawn_edges = 4_000


class ExplorationSource(NamedTuple):
    """What the panels of an exploration are made from."""

    result: Result
    folder: Path | None  # None: the page names no commands


def write_report(result: Result, folder: str | Path, png: bool = False) -> Path:
    """Write ``report.html`` into the folder of a run and return its path.

    ``png`` also writes the figures as PNG files. Everything is written in one commit: after a kill either all files are
    new or none.
    """
    figures: dict[str, Figure] = {}
    if png:
        require_figures_extra()
        from adagoal.report.figures import exploration_figures  # imports Matplotlib, which takes a second

        figures = exploration_figures(result)
    page = exploration_page(ExplorationSource(result, Path(folder)))
    return page.save(Path(folder), RunKind.EXPLORATION, figures)


def exploration_page(source: ExplorationSource) -> ReportPage:
    """Return the page of an exploration."""
    badge = _guarantee_badge(source.result)
    return ReportPage.collect(f"adagoal: {source.result.setting.env}", PANELS, source, badge)


def summary_panel(source: ExplorationSource) -> PanelContent:
    """Return the headline, with what makes the result void and its warnings."""
    result = source.result
    troubles = (("Void: no certificate can be given", result.void), ("Warnings", result.warnings))
    return PanelContent(html=render_macro("shared.html", "summary", make_headline(result), "", troubles, True))


def map_panel(source: ExplorationSource) -> PanelContent:
    """Return the goals with their bounds, now and in the course of the run, and where their states are drawn."""
    result, states = source.result, source.result.view
    goals = _order_goals(result)
    shape, place = _map_arrays(result)
    members = [result.members(g) for g in goals.tolist()]
    values = {
        "guarantee": result.guarantee,
        "within": result.setting.within,
        "measure": result.measure._asdict(),
        "epsilon": result.setting.epsilon,
        "steps": result.steps,
        "reset": result.reset_action,
        "start": None if states.start is None else int(states.start),
        "grid": states.layout is not None,
        "shape": shape,
        "marks": [] if states.layout is None else _named_cells(states.layout),
        "labels": [states.numbered_label(state) for state in range(len(result.arrays["visits"]))],
        "names": None if result.goal_names is None else [f"{g} {result.goal_label(g)}" for g in goals.tolist()],
    }
    arrays = {
        **_goal_arrays(result, goals),
        "member_row": np.cumsum([0, *map(len, members)]).astype(np.uint32),
        "member": np.array([state for part in members for state in part], np.uint32),
        **_moment_arrays(result, goals),
        **place,
    }
    return PanelContent(values, arrays, render_macro("exploration.html", "map", states.layout is not None))


def goal_panel(source: ExplorationSource) -> PanelContent:
    """Return the policies and the empirical model, with which the page plays episodes."""
    result, folder = source
    arrays = _empirical_model_rows(result) | _policy_tables(result, _order_goals(result))
    n_inside = int((arrays["policy_row"] >= 0).sum())
    watch = "result.policy(goal)" if folder is None else f"adagoal watch {quote(str(folder))}"
    run = "" if folder is None else repr(str(folder))
    html = render_macro("exploration.html", "goal", result.guarantee, n_inside, len(result.goals), watch, run)
    return PanelContent({}, arrays, html)


def progress_panel(source: ExplorationSource) -> PanelContent:
    """Return the largest error and the number of open goals over the steps."""
    trace = source.result.arrays["trace"].astype(float)
    return PanelContent({}, {"trace": trace}, render_macro("exploration.html", "progress"))


def unknown_panel(source: ExplorationSource) -> PanelContent:
    """Return the goals with the largest errors and, for an unfinished run, the steps that it may still need."""
    result, folder = source
    # The number breaks ties between equal errors, so equal results give equal pages.
    worst = sorted((g for g in result.errors if result.errors[g] > 0), key=lambda g: (-result.errors[g], g))[:5]
    error_texts = {
        g: f"{e:.3f}{result.measure.unit}" if math.isfinite(e) else "no bound yet" for g, e in result.errors.items()
    }
    goals = [(g, numbered_goal_name(result, g), error_texts[g]) for g in worst]
    is_open = result.status in (Status.BUDGET, Status.INTERRUPTED)
    lines, command = [], ""
    if is_open:
        needed = estimate_steps_left(result)
        left = "It is too early to estimate how many more steps the run needs."
        if needed is not None:
            left = f"At the recent pace the run needs about {needed:,} more steps."
        lines = [f"Open goals: {len(result.open_goals)} of {len(result.goals)}.", left]
        command = "" if folder is None else resume_command(result, folder)
    elif result.status is Status.CERTIFIED and goals:  # a void run claims nothing
        most = max(result.errors.values())
        lines = [
            f"Each of the {len(result.goals)} policies is at most {most:.3g}{result.measure.unit} worse than the best."
        ]
    shown = (is_open, lines, command, goals, result.guarantee, _guarantee_badge(result))
    return PanelContent(html=render_macro("exploration.html", "unknown", *shown))


def table_panel(source: ExplorationSource) -> PanelContent:
    """Return the frame of the table; its rows are the goals of the map."""
    result = source.result
    shown = (result.setting.epsilon, result.guarantee, _guarantee_badge(result), result.measure)
    return PanelContent(html=render_macro("exploration.html", "table", *shown))


def mixture_panel(source: ExplorationSource) -> PanelContent | None:
    """Return the weights of a linear mixture with their intervals, drawn as bars."""
    theta = source.result.arrays.get("theta")  # [d, 3]: weight, lower, upper
    if theta is None:
        return None
    # The picture is 200 pixels wide, with margins for the dot. The guard avoids 0 / 0 if all numbers are equal.
    positions = 10 + 180 * (theta - theta.min()) / max(theta.max() - theta.min(), 1e-12)
    bars = [
        {"numbers": numbers, "middle": round(middle, 1), "left": round(left, 1), "right": round(right, 1)}
        for numbers, (middle, left, right) in zip(theta.tolist(), positions.tolist(), strict=True)
    ]
    return PanelContent(html=render_macro("exploration.html", "mixture", bars, source.result.setting.delta))


def settings_panel(source: ExplorationSource) -> PanelContent:
    """Return the settings of the run and what it cost."""
    result, setting = source.result, source.result.setting
    considered = "all states" if setting.goal_space is None else str(len(setting.goal_space))
    if result.goal_names is not None:
        considered = f"{len(result.goal_names)} sets of states ({', '.join(setting.goal_sets or ())})"
    values = {
        "environment": setting.env,
        "environment arguments": _format_arguments(setting.env_args),
        "method": setting.method,
        "method arguments": _format_arguments(setting.method_args),
        "goal rule": setting.goal_rule,
        "goals considered": considered,
        # A radius such as "auto" grows during the run; the page shows where it ended, too.
        "radius": result.radius if setting.radius == result.radius else f"{result.radius:g} ({setting.radius})",
        "probability": "none" if setting.probability is None else setting.probability,
        "states to avoid": ", ".join(map(str, setting.avoid or ())) or "none",
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "seed": setting.seed,
        "budget": "none" if setting.budget is None else f"{setting.budget:,}",
        "start seed": "none" if setting.start_seed is None else setting.start_seed,
        "most states": "from the environment" if setting.max_states is None else setting.max_states,
        "steps": f"{result.steps:,}",
        "episodes": f"{result.episodes:,}",
        "plans": f"{result.plans:,}",
        "seconds": f"{result.wall_seconds:.2f}",
        "states seen": int((result.arrays["visits"] > 0).sum()),
    }
    claim = "the probability that any certificate is wrong, at most"
    notes = {
        "radius": "L: the run looks for all goals within this many expected steps",
        "epsilon": "the policy of a finished goal needs at most this many steps more than the best one",
        "delta": claim if result.guarantee else f"no meaning here: {setting.method} gives no guarantee",
    }
    return PanelContent(html=render_macro("shared.html", "settings", "Parameters", values, notes))


PANELS = (
    Panel("words", "", summary_panel),
    Panel("map", "Map", map_panel, ("model.js", "exploration.js", "map.js"), "two"),
    Panel("goal", "Choose a goal", goal_panel, ("goal.js",), "two"),
    Panel("progress", "Largest error and open goals, over the steps", progress_panel, ("progress.js",), "two"),
    Panel("unknown", "", unknown_panel),
    Panel("goals", "Goals", table_panel, ("goals.js",)),
    Panel("mixture", "", mixture_panel),
    Panel("settings", "", settings_panel),
)
"""A new panel is a function above, a line here, and a macro in ``templates/`` or a script in ``static/``."""


def numbered_goal_name(result: Result, goal: int) -> str:
    """Return the number of a goal, with its name if it has one."""
    if result.goal_names is None:
        return result.view.numbered_label(goal)
    return f"{goal} {to_single_line(result.goal_names[goal])}"


def _guarantee_badge(result: Result) -> str:
    """Return the warning that stands beside numbers without a guarantee."""
    return "" if result.guarantee else NO_GUARANTEE_TEXT


def _format_arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in arguments.items()) or "none"


def _named_cells(layout: GridLayout) -> list[tuple[int, int, str]]:
    """Return column, row and name of the cells that the environment names."""
    return [(column, row, name) for name, cells in layout.marks.items() for row, column in cells.tolist()]


def _order_goals(result: Result) -> Longs:
    X = set(result.goals)
    return np.array(sorted(result.certificates, key=lambda g: (g not in X, *result.certificates[g], g)), np.int64)


def _goal_arrays(result: Result, goals: Longs) -> Arrays:
    X, open_goals = set(result.goals), set(result.open_goals)
    bounds = np.array([result.certificates[g] for g in goals.tolist()], float).reshape(-1, 2)
    kinds = GoalStanding
    stand = [kinds.OPEN if g in open_goals else kinds.DONE if g in X else kinds.BEYOND for g in goals.tolist()]
    chosen, n_numbers = result.arrays["episode_goals"], _n_goal_numbers(result)
    reached = result.arrays["episode_reached"] & (chosen >= 0)  # -1: the goal was any state without bounds of its own
    return {
        "goal": goals.astype(np.int32),
        "lower": bounds[:, 0].copy(),
        "upper": bounds[:, 1].copy(),
        # NaN: a goal outside X has no error, and its cell in the table stays empty.
        "error": np.array([result.errors.get(g, math.nan) for g in goals.tolist()], float),
        "stand": np.array(stand, np.uint8),
        "tried": np.bincount(chosen[chosen >= 0], minlength=n_numbers)[goals].astype(np.uint32),
        "reached": np.bincount(chosen[reached], minlength=n_numbers)[goals].astype(np.uint32),
        "visits": result.arrays["visits"].astype(float),
    }


def _n_goal_numbers(result: Result) -> int:
    return len(result.arrays["visits"]) if result.goal_names is None else len(result.goal_names)


def _moment_arrays(result: Result, goals: Longs) -> Arrays:
    arrays = result.arrays
    steps, episodes = arrays["past_steps"], arrays["past_episodes"]
    n_moments = max(12, min(80, PageLimits.moment_entries // max(len(goals), 1)))  # enough for a film of a few seconds
    # A short run has fewer moments than the film, and np.unique removes those that rounding repeats.
    taken = np.unique(np.linspace(0, len(steps) - 1, n_moments).round().astype(int)) if len(steps) else np.zeros(0, int)
    steps, episodes = np.append(steps[taken], result.steps), np.append(episodes[taken], result.episodes)
    moments: Arrays = {
        "moment_steps": steps.astype(float),
        "moment_episodes": episodes.astype(float),
        "moment_chosen": _cumulative_choices(arrays["episode_goals"], episodes, goals, _n_goal_numbers(result)),
    }
    column = np.full(_n_goal_numbers(result) + 1, -1)  # the last entry: goal sets not found yet
    known = arrays["past_goals"] < len(column)  # a forged checkpoint may name any number
    column[arrays["past_goals"][known]] = np.flatnonzero(known)
    for name, empty in {"past_lower": 0.0, "past_upper": np.inf, "past_stand": 0}.items():
        table = np.full((len(goals), len(taken) + 1), empty, arrays[name].dtype)
        recorded = column[goals] >= 0
        table[recorded, :-1] = arrays[name][np.ix_(taken, column[goals[recorded]])].T
        moments[name.replace("past", "moment")] = table
    moments["moment_stand"] = moments["moment_stand"].astype(np.uint8)
    if "past_policy" in arrays:
        moments |= _moment_policies(result, taken, column[goals])
    # Moments are recorded now and then, so the last one comes from the result.
    end = _goal_arrays(result, goals)
    for name in ("lower", "upper", "stand"):
        moments[f"moment_{name}"][:, -1] = end[name]
    return moments


def _moment_policies(result: Result, taken: Longs, columns: Longs) -> Arrays:
    """Return the policies of the moments that are ``taken``, for the goals with these columns of the history."""
    policies, bounded = result.arrays["past_policy"], np.isfinite(result.arrays["past_upper"])
    rows = np.where(bounded, np.cumsum(bounded).reshape(bounded.shape) - 1, -1)
    # The last row and column stand for the end and for goals without a history: both have no policy here.
    shown = np.pad(rows[taken], ((0, 1), (0, 1)), constant_values=-1)[:, columns].T
    # By goal and then by moment: the policies of a goal hardly change, so their order decides the size of the page.
    known = shown >= 0
    return {
        "moment_policy": _compact_actions(policies[shown[known]], result.reset_action),
        "moment_policy_row": np.where(known, np.cumsum(known).reshape(known.shape) - 1, -1).astype(np.int32),
    }


def _cumulative_choices(chosen: NDArray[Any], episodes: Longs, goals: Longs, states: int) -> NDArray[np.uint32]:
    """Return how often every goal had been chosen until each moment, [G, F]."""
    parts = np.split(chosen, np.clip(episodes[:-1], 0, len(chosen))) if len(episodes) > 1 else [chosen]
    counted = [np.bincount(part[part >= 0], minlength=states)[goals] for part in parts[: len(episodes)]]
    return np.ascontiguousarray(np.cumsum(counted, axis=0).T.reshape(len(goals), len(episodes)), np.uint32)


def _map_arrays(result: Result) -> tuple[list[int], Arrays]:
    """Return the shape of the map, and the arrays of places, walls and edges."""
    states = len(result.arrays["visits"])
    if result.view.layout is not None:
        place = np.full((states, 2), np.nan, np.float32)
        cells = result.view.layout.cells[:states]
        inside = cells[:, 0] >= 0  # -1: the state has no cell
        place[: len(cells)][inside] = cells[inside][:, ::-1]
        walls = np.argwhere(result.view.layout.walls)[:, ::-1].astype(np.float32)
        return list(result.view.layout.shape), {"place": place, "walls": walls, "edges": np.zeros((0, 2), np.int32)}
    source, target = _observed_edges(result)
    seen = result.arrays["visits"] > 0
    # A state of a goal needs a place on the map even if it was never visited.
    seen[[state for goal in result.certificates for state in result.members(goal)]] = True
    # Without a known start, the most visited state is the best guess.
    start = result.view.start if result.view.start is not None else int(result.arrays["visits"].argmax())
    place = layered_positions(start, seen, source, target).astype(np.float32)
    layers = int(np.nanmax(place[:, 0], initial=0)) + 1
    edges = np.stack([source, target], 1) if len(source) <= PageLimits.drawn_edges else np.zeros((0, 2))
    return [1, layers], {"place": place, "walls": np.zeros((0, 2), np.float32), "edges": edges.astype(np.int32)}


def _observed_edges(result: Result) -> tuple[Longs, Longs]:
    """Return the observed pairs of a state and a different successor, each once, as two arrays [M]."""
    arrays, states = result.arrays, len(result.arrays["visits"])
    source, target = arrays["moves_pair"] // result.reset_action, arrays["moves_to"].astype(np.int64)
    # One number per pair of states: np.unique is much faster on numbers than on rows.
    both = np.unique((source * states + target)[source != target])
    return both // states, both % states


def _empirical_model_rows(result: Result) -> Arrays:
    arrays = result.arrays
    pairs = len(arrays["visits"]) * result.reset_action
    # Stable: the successors of a pair keep their order, so equal results give equal pages.
    order = np.argsort(arrays["moves_pair"], kind="stable")
    lengths = np.bincount(arrays["moves_pair"], minlength=pairs)
    return {
        "row": np.append(0, np.cumsum(lengths)).astype(np.uint32),
        "to": arrays["moves_to"][order].astype(np.uint32),
        "count": arrays["moves_count"][order].astype(float),
    }


def _policy_tables(result: Result, goals: Longs) -> Arrays:
    """Return as many policies as fit: first of goals with an upper bound, evenly spread from near to far."""
    tables = result.arrays["policy"]
    owner = {int(g): i for i, g in enumerate(result.arrays["policy_goals"])}
    wanted = [place for place, g in enumerate(goals.tolist()) if g in owner]
    room = max(PageLimits.policy_entries // max(math.prod(tables.shape[1:]), 1), 1)
    upper = {place: result.certificates[int(goals[place])].upper for place in wanted}
    # The page compares measured steps with the certificate, so goals with an upper bound come first.
    bounded, others = ([p for p in wanted if math.isfinite(upper[p]) == known] for known in (True, False))
    first = _spread_evenly(bounded, room)
    wanted = sorted([*first, *_spread_evenly(others, room - len(first))])
    policy_row = np.full(len(goals), -1, np.int32)
    policy_row[wanted] = np.arange(len(wanted))
    rows = [owner[int(goals[place])] for place in wanted]
    return {"policy": _compact_actions(tables[rows], result.reset_action), "policy_row": policy_row}


def _spread_evenly(places: list[int], room: int) -> list[int]:
    if len(places) <= room:
        return places
    return [places[i] for i in np.unique(np.linspace(0, len(places) - 1, room).round().astype(int))]


def _compact_actions(tables: NDArray[Any], reset: int) -> NDArray[Any]:
    # The largest number in a table is the reset.
    return np.ascontiguousarray(tables, np.uint8 if reset < 256 else np.uint16)


def layered_positions(start: int, seen: Bools, source: Longs, target: Longs) -> Floats:
    """Return where to draw the states of an environment without a map, [S, 2]: layer, and height in 0..1.

    The layer is the smallest number of observed transitions from the start. Within a layer states are sorted by the
    mean height of their predecessors in the layer before, which keeps most edges short (barycentre rule of layered
    graph drawing). States that were never seen are NaN. Edges [M] are given by source and target.
    """
    layer = _layers_from_start(start, seen, source, target)
    place = np.full((len(seen), 2), np.nan)
    height = np.full(len(seen), 0.5)
    for number in range(int(layer.max(initial=-1)) + 1):
        members = np.flatnonzero(layer == number)
        into = (layer[target] == number) & (layer[source] == number - 1)
        total = np.bincount(target[into], height[source[into]], minlength=len(seen))[members]
        count = np.bincount(target[into], minlength=len(seen))[members]
        # np.where computes both values everywhere, so the divisor must not be 0.
        wanted = np.where(count > 0, total / np.maximum(count, 1), 0.5)
        members = members[np.argsort(wanted, kind="stable")]
        height[members] = (np.arange(len(members)) + 0.5) / max(len(members), 1)
        place[members, 0], place[members, 1] = number, height[members]
    return place


def _layers_from_start(start: int, seen: Bools, source: Longs, target: Longs) -> Longs:
    """Return the layer of every state [S]; -1: never seen. Seen states without a path come last."""
    layer = np.full(len(seen), -1)
    layer[start] = 0
    for number in range(1, len(seen) + 1):
        reached = target[(layer[source] == number - 1) & (layer[target] < 0)]
        if not len(reached):
            break
        layer[reached] = number
    # No path: the start is a guess, or the state belongs to a goal and was never visited.
    layer[seen & (layer < 0)] = layer.max() + 1
    return layer


class ExplorationReportSource(ReportSource):
    """The live page of an exploration."""

    def current_source(self) -> ExplorationSource:
        """Return the latest result, or raise InputError before the first one."""
        raise NotImplementedError

    def current_page(self) -> ReportPage:
        return exploration_page(self.current_source())

    def pack_policy(self, goal: int) -> bytes:
        result = self.current_source().result
        return pack_data_block({}, {"policy": _compact_actions(result.policy(goal).actions, result.reset_action)})


class LiveRunSource(ExplorationReportSource):
    """A run of this process, which publishes its result from time to time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._version = 0
        self._published: ExplorationSource | None = None

    def publish_result(self, result: Result) -> None:
        """Show this result from now on."""
        self._published = ExplorationSource(result, self.folder)
        # After the result: a browser that saw the new number with the old result would not ask for the new one.
        self._version += 1

    def version_stamp(self) -> str:
        return str(self._version)

    def is_running(self) -> bool:
        return True  # the server ends with the run

    def current_source(self) -> ExplorationSource:
        if self._published is None:
            raise InputError("the run has not started yet")
        return self._published


class RunFolderSource(ExplorationReportSource):
    """The run in a folder: its result or, during the run, the result that its last checkpoint gives."""

    def __init__(self, folder: Path, env: EnvOverride = None, trust: bool = False) -> None:
        super().__init__(folder)
        self._env, self._trust = env, trust
        self._lock = threading.Lock()
        self._cached: tuple[str, ExplorationSource] | None = None

    def request_stop(self) -> None:
        # The next run removes old requests, so without a run this one would have no effect.
        if not is_folder_locked(self.folder):
            raise InputError(f"{self.folder}: no run is active there")
        request_stop(self.folder)

    def current_source(self) -> ExplorationSource:
        """Return the result of the last save. Requests come from several threads, so only one of them reads."""
        with self._lock:
            # The stamp comes first: if the run saves in between, the next request reads again.
            stamp = str(run_folder.last_commit_stamp(self.folder))
            if self._cached is None or self._cached[0] != stamp:
                self._cached = stamp, self._read_source()
            return self._cached[1]

    def _read_source(self) -> ExplorationSource:
        # Reading a result takes less than restoring a run, which needs its environment and perhaps code to trust.
        if run_folder.read_saved_run(self.folder, _result_is_current):
            return ExplorationSource(load_result(self.folder), self.folder)
        # Learners and Gymnasium, which `adagoal report` does without, take a third of a second to import.
        from adagoal.api.explore import open_restored_session

        with open_restored_session(self.folder, self._env, self._trust) as session:
            return ExplorationSource(session.result(Status.INTERRUPTED), self.folder)


def _result_is_current(saved_run: SavedRun) -> bool:
    # A resumed run leaves the old result in the folder while its checkpoints are newer.
    require_exploration(saved_run)
    result = saved_run.manifest.results.get("result.json")
    checkpoints = [entry.generation for state in saved_run.manifest.checkpoints[:1] for entry in state.values()]
    return result is not None and result.generation >= max(checkpoints, default=0)
