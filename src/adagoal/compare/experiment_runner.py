"""Runs a declared experiment: every cell once, each finished one a file; then the tables, the data and the figures.

What the folder holds already is not run again, so that an experiment that was stopped goes on where it was, with more
seeds too. Tables are always made from what the files say, wherever and whenever the cells were run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from adagoal.api import explore as api
from adagoal.compare.comparison_output import save_figure
from adagoal.compare.experiment import Experiment, ExperimentOptions, ExperimentReport, RunOutcome
from adagoal.core.errors import InputError, Status
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.file_io import folder_lock, read_json, remove_partial_files, write_json, write_text
from adagoal.envs import registry
from adagoal.envs.model import TabularMDP
from adagoal.parallel import Engine, TaskInterrupted
from adagoal.report import curve_page
from adagoal.runs.result import Result
from adagoal.settings.exploration import ExplorationSettings
from adagoal.settings.goal_spec import to_goals_argument


def run_experiment(
    experiment: Experiment, options: ExperimentOptions, engine: Engine, display: ExperimentDisplay
) -> ExperimentReport:
    """Run what is missing; write NAME.json, NAME.md, NAME.html and the figures into the folder ``options.out``."""
    options.out = options.out.absolute()  # other processes, and environments, may change the current folder
    cells = experiment.list_runs(options)
    with folder_lock(options.out):
        for folder in {options.out, *((options.out / experiment.outcome_path(cell)).parent for cell in cells)}:
            remove_partial_files(folder)
        found = collect_outcomes(experiment, cells, options, engine, display)
        if experiment.follow_up_runs is not None:
            found += collect_outcomes(experiment, experiment.follow_up_runs(found, options), options, engine, display)
        report = experiment.make_report(found, options)
        stem = experiment.file_stem or experiment.name
        write_json(options.out / f"{stem}.json", report.data)
        write_text(options.out / f"{stem}.md", report.text)
        for name, figure in report.figures.items():
            save_figure(figure, options.out / name)
        page = options.out / f"{stem}.html"
        curve_page.write_curve_page(page, f"adagoal: {experiment.name}", report.text, report.panels, report.figures)
    return report


def collect_outcomes(
    experiment: Experiment, cells: Sequence[Any], options: ExperimentOptions, engine: Engine, display: ExperimentDisplay
) -> list[RunOutcome]:
    """What the cells measured, in their order."""
    files = {experiment.outcome_path(cell): cell for cell in cells}
    found = {name: _load_outcome(experiment, name, cell, options) for name, cell in files.items()}
    missing = {name: (cell, options) for name, cell in files.items() if found[name] is None}
    with display.track_runs(
        experiment, [outcome for outcome in found.values() if outcome is not None], len(files)
    ) as done:
        for name, measured in engine.map(experiment.measure_run, missing, experiment.task_resources(options)):
            write_json(options.out / name, measured)
            found[name] = read_json(options.out / name)
            done(name, found[name])
    return [found[experiment.outcome_path(cell)] for cell in cells]


def _load_outcome(experiment: Experiment, name: str, cell: Any, options: ExperimentOptions) -> RunOutcome | None:
    """The outcome of a cell that the folder holds, None where it is to be run."""
    file = options.out / name
    if not file.exists():
        return None
    outcome = read_json(file)
    try:
        return outcome if experiment.is_complete(cell, outcome, options) else None
    except (KeyError, TypeError, IndexError, AttributeError):
        raise InputError(f"{file}: damaged or incomplete; remove it to run this again") from None


class ExperimentDisplay:
    """Progress on standard error: a live display on a terminal, a line for every finished cell elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._is_live = self._console.is_terminal and not quiet
        self.n_done = self.n_total = 0
        """Cells."""

    def print_line(self, line: str) -> None:
        """A line of its own."""
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    @contextlib.contextmanager
    def track_runs(
        self, experiment: Experiment, kept: list[RunOutcome], total: int
    ) -> Iterator[Callable[[str, RunOutcome], None]]:
        """Around the run of some cells; what is yielded is told of every outcome."""
        found, last, began = list(kept), "", time.monotonic()
        self.n_done, self.n_total = len(found), total

        def screen() -> RenderableType:
            state = f"{len(found)} of {total} runs, {time.monotonic() - began:,.0f} s"
            if experiment.live_table is not None:
                table = experiment.live_table(found.copy(), self._console.height - 3)
                table.caption = state
                return table
            bar = ProgressBar(total=max(total, 1), completed=len(found), width=60)
            return Group(Text(f"{state}   {last}", overflow="crop", no_wrap=True), bar)

        def done(name: str, outcome: RunOutcome) -> None:
            nonlocal last
            found.append(outcome)
            self.n_done = len(found)
            last = experiment.describe_outcome(outcome) if experiment.describe_outcome is not None else name
            if not self._is_live:
                self.print_line(f"{len(found)} of {total} runs: {last}")

        if kept and len(kept) < total:
            self.print_line(f"{len(kept)} of {total} runs are there already")
        live = Live(get_renderable=screen, console=self._console, refresh_per_second=1, transient=True)
        with live if self._is_live else contextlib.nullcontext():
            yield done


# The run of a cell: :func:`adagoal.explore`, except that a run which somebody else cut short is no outcome.


class _StopTracker:
    """An observer, and whether it was the one who ended the run."""

    def __init__(self, observe: Callable[[ExplorationRun], bool | None]) -> None:
        self.observe, self.has_stopped_run = observe, False

    def __call__(self, run: ExplorationRun) -> bool:
        self.has_stopped_run = self.observe(run) is False
        return not self.has_stopped_run


def explore_uninterrupted(
    env: Any, *arguments: Any, observe: Callable[[ExplorationRun], bool | None] = lambda run: None, **options: Any
) -> Result:
    """:func:`adagoal.explore`; a signal that ended the run, not ``observe``, is raised as Interrupted."""
    watch = _StopTracker(observe)
    return _require_complete(api.explore(env, *arguments, observe=watch, **options), watch)


def run_settings(setting: ExplorationSettings, observe: Callable[[ExplorationRun], bool | None]) -> Result:
    """The run of a setting."""
    given = {name: value for name, value in vars(setting).items() if name not in ("goal_space", "goal_sets")}
    return explore_uninterrupted(**given, goals=to_goals_argument(setting), observe=observe)


def resume_uninterrupted(folder: Any, observe: Callable[[ExplorationRun], bool | None]) -> Result:
    """:func:`adagoal.resume`, likewise."""
    watch = _StopTracker(observe)
    return _require_complete(api.resume(folder, observe=watch), watch)


def _require_complete(result: Result, watch: _StopTracker) -> Result:
    if result.status is Status.INTERRUPTED and not watch.has_stopped_run:
        raise TaskInterrupted("the run was told to stop")
    return result


def make_known_model(setting: ExplorationSettings) -> TabularMDP:
    """The exact model of a setting's world, which has one."""
    found = registry.make_exact_model(setting.env, setting.env_args, setting.start_seed)
    assert found is not None, f"{setting.env} has no model"
    return found
