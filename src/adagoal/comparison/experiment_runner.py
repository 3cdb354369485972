"""Runs a declared experiment: every run once, each outcome a file; then the tables, the data and the figures.

Outcomes that the folder holds are not repeated. So an experiment that was stopped continues where it was, also with
more seeds. Tables are always made from the files, wherever and whenever the runs were made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from adagoal.api.explore import explore
from adagoal.comparison.experiment import Experiment, ExperimentOptions, ExperimentReport, RunOutcome
from adagoal.core.errors import InputError, Status
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.file_io import folder_lock, read_json, remove_partial_files, write_json, write_text
from adagoal.parallel import Engine, TaskInterrupted
from adagoal.report.curve_page import curve_page
from adagoal.runs.progress_display import Progress, ProgressDisplay
from adagoal.runs.result import Result
from adagoal.settings.exploration import ExplorationSettings
from adagoal.settings.goal_spec import to_goals_argument


def run_experiment(
    experiment: Experiment, options: ExperimentOptions, engine: Engine, display: ExperimentProgress
) -> ExperimentReport:
    """Make the missing runs, and write NAME.json, NAME.md, NAME.html and the figures into ``options.out``."""
    # Other processes, and environments, may change the current folder.
    options.out = options.out.absolute()
    runs = experiment.list_runs(options)
    with folder_lock(options.out):
        # Under the lock, because another process may be writing such files.
        for folder in {options.out, *((options.out / experiment.outcome_path(run)).parent for run in runs)}:
            remove_partial_files(folder)
        outcomes = collect_outcomes(experiment, runs, options, engine, display)
        if experiment.follow_up_runs is not None:
            more = experiment.follow_up_runs(outcomes, options)
            outcomes += collect_outcomes(experiment, more, options, engine, display)
        report = experiment.make_report(outcomes, options)
        stem = experiment.file_stem or experiment.name
        write_json(options.out / f"{stem}.json", report.data)
        write_text(options.out / f"{stem}.md", report.text)
        for name, figure in report.figures.items():
            from adagoal.report.figures import save_figure  # Matplotlib takes a second, and workers do not need it

            save_figure(figure, options.out / name)
        page = curve_page(
            f"adagoal: {experiment.name}", report.text, report.plots, {name: name for name in report.figures}
        )
        write_text(options.out / f"{stem}.html", page.render())
    return report


def collect_outcomes(
    experiment: Experiment, runs: Sequence[Any], options: ExperimentOptions, engine: Engine, display: ExperimentProgress
) -> list[RunOutcome]:
    """Return the outcomes in the order of the runs; make the runs whose files are missing."""
    files = {experiment.outcome_path(run): run for run in runs}
    outcomes = {name: _load_outcome(experiment, name, run, options) for name, run in files.items()}
    missing = {name: (run, options) for name, run in files.items() if outcomes[name] is None}
    with display:
        display.begin(experiment, [outcome for outcome in outcomes.values() if outcome is not None], len(files))
        for name, measured in engine.map(experiment.measure_run, missing, experiment.task_resources(options)):
            write_json(options.out / name, measured)
            # Read it back: JSON turns tuples into lists, and new outcomes must look like old ones.
            outcomes[name] = read_json(options.out / name)
            display.add_outcome(name, outcomes[name])
    return [outcomes[experiment.outcome_path(run)] for run in runs]


def _load_outcome(experiment: Experiment, name: str, run: Any, options: ExperimentOptions) -> RunOutcome | None:
    file = options.out / name
    if not file.exists():
        return None
    outcome = read_json(file)
    try:
        return outcome if experiment.is_complete(run, outcome, options) else None
    except (KeyError, TypeError, IndexError, AttributeError):
        raise InputError(f"{file}: damaged or incomplete; remove it to repeat this run") from None


class ExperimentProgress(ProgressDisplay):
    """Progress of an experiment: a table or a bar if the display is live, else one line per finished run."""

    throttled, ticking = False, True

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        self._experiment: Experiment | None = None
        self._outcomes: list[RunOutcome] = []
        self._last_outcome, self._started = "", 0.0
        self.n_total = 0

    @property
    def n_done(self) -> int:
        """Number of finished runs."""
        return len(self._outcomes)

    def begin(self, experiment: Experiment, outcomes: Sequence[RunOutcome], total: int) -> None:
        """Show an experiment; ``outcomes`` were in the folder already."""
        self._experiment, self._outcomes, self.n_total = experiment, list(outcomes), total
        self._last_outcome, self._started = "", time.monotonic()
        if 0 < len(outcomes) < total:
            self.print_line(f"{len(outcomes)} of {total} runs are in the folder already")
        self()

    def add_outcome(self, name: str, outcome: RunOutcome) -> None:
        """Show that a run has finished."""
        assert self._experiment is not None
        self._outcomes.append(outcome)
        describe = self._experiment.describe_outcome
        self._last_outcome = name if describe is None else describe(outcome)
        self()

    def describe(self) -> Progress:
        """Return the number of runs, and the table of the outcomes so far if the experiment has one."""
        assert self._experiment is not None
        seconds = time.monotonic() - self._started
        state = f"{self.n_done} of {self.n_total} runs"
        plain_line = f"{state}: {self._last_outcome}" if self._last_outcome else ""
        table = None
        if self.is_live and self._experiment.live_table is not None:
            # A copy: the clock describes again in a thread of its own, while the main thread adds outcomes.
            table = self._experiment.live_table(self._outcomes.copy(), self._console.height - 3)
            table.caption = f"{state}, {seconds:,.0f} s"
        share = self.n_done / max(self.n_total, 1)
        return Progress([f"{state}, {seconds:,.0f} s   {self._last_outcome}"], share, plain_line, table)


def run_uninterrupted(
    run: Callable[..., Result],
    *arguments: Any,
    observe: Callable[[ExplorationRun], bool | None] = lambda run: None,
    **options: Any,
) -> Result:
    """Call :func:`adagoal.explore` or resume; raise TaskInterrupted if a signal, and not ``observe``, ended the run."""
    is_stopped = False

    def track_stop(run: ExplorationRun) -> bool:
        nonlocal is_stopped
        is_stopped = observe(run) is False
        return not is_stopped

    # The display of the experiment is the only one, also in a notebook.
    result = run(*arguments, observe=track_stop, progress=False, **options)
    # A signal and an observer give the same status, but a run cut short by a signal must not become an outcome.
    if result.status is Status.INTERRUPTED and not is_stopped:
        raise TaskInterrupted("the run was asked to stop")
    return result


def run_settings(setting: ExplorationSettings, observe: Callable[[ExplorationRun], bool | None]) -> Result:
    """Run the exploration with these settings."""
    given = {name: value for name, value in vars(setting).items() if name not in ("goal_space", "goal_sets")}
    return run_uninterrupted(explore, **given, goals=to_goals_argument(setting), observe=observe)
