"""Declare an experiment and run it: every run once, each outcome a file; then the tables, the data and the figures.

    list_runs    the runs to make, as data that can be sent to another process
    measure_run  what one run measures, as plain data for JSON; it can run anywhere (:mod:`adagoal.parallel`)
    make_report  tables, data and figures, from all outcomes in the order of the runs

A new experiment is one file with these three functions, and an entry in :mod:`experiments.catalogue`.

Outcomes that the folder holds are not repeated. So an experiment that was stopped continues where it was, also with
more seeds. Tables are always made from the files, wherever and whenever the runs were made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adagoal.api.explore import explore
from adagoal.core.errors import InputError, Status, UnfinishedError
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.file_io import folder_lock, read_json, remove_partial_files, write_json, write_text
from adagoal.parallel import Engine, TaskInterrupted, TaskResources
from adagoal.report.curve_page import curve_page
from adagoal.runs.progress_display import Progress, ProgressDisplay
from adagoal.runs.result import Result
from adagoal.settings.exploration import ExplorationSettings
from adagoal.settings.goal_spec import to_goals_argument

if TYPE_CHECKING:  # worker processes import this module, and need none of these
    from matplotlib.figure import Figure
    from rich.table import Table

    from adagoal.report.curve_page import CurvePlot

ExperimentOptions = SimpleNamespace
"""Options of a call: ``out`` (a folder), ``quiet``, ``seeds`` (a range) and the experiment's own options."""
RunOutcome = Any
"""What a run measured, as read from its file: a dictionary or a list."""


@dataclass(frozen=True)
class ExperimentReport:
    """Results of an experiment."""

    rows: Any  # the table as plain data, for --json
    text: str  # the tables in Markdown, for NAME.md and for people
    data: Any  # all data behind the figures, for NAME.json
    figures: Mapping[str, Figure] = field(default_factory=dict)  # by file name
    finished: bool = True  # False: repeating the command would change the outcome
    plots: Sequence[CurvePlot] = ()  # the curves of the page


@dataclass(frozen=True)
class TextTable:
    """A table of texts. The first ``n_left_columns`` are aligned to the left, the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left_columns: int = 1

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---"] * self.n_left_columns + ["---:"] * (len(self.header) - self.n_left_columns)
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.header, rule, *self.rows)) + "\n"

    def to_rich_table(self) -> Table:
        """Return the table for a terminal."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left")
        for i, name in enumerate(self.header):
            table.add_column(name, justify="left" if i < self.n_left_columns else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


@dataclass(frozen=True)
class Experiment:
    """A declaration. ``measure_run`` is sent to other processes, so it must be a function of a module."""

    name: str
    list_runs: Callable[[ExperimentOptions], Sequence[Any]]
    measure_run: Callable[[Any, ExperimentOptions], RunOutcome]
    make_report: Callable[[Sequence[RunOutcome], ExperimentOptions], ExperimentReport]
    outcome_folder: str = ""  # folder of the outcomes below OUT; NAME-runs by default
    # File of the outcome of a run; by default its ``name`` or its fields, in ``outcome_folder``.
    outcome_file: Callable[[Any], str] | None = None
    # Further runs, which depend on the outcomes of the first ones.
    follow_up_runs: Callable[[Sequence[RunOutcome], ExperimentOptions], Sequence[Any]] | None = None
    # Whether the content of a file is the outcome of this run; if not, the run is repeated.
    is_complete: Callable[[Any, RunOutcome, ExperimentOptions], bool] = lambda run, outcome, options: True
    describe_outcome: Callable[[RunOutcome], str] | None = None  # in words, for the progress display
    # The outcomes so far as a table with at most this number of lines, for the progress display.
    live_table: Callable[[Sequence[RunOutcome], int], Table] | None = None
    task_resources: Callable[[ExperimentOptions], TaskResources] = lambda options: TaskResources()
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of its own options, and of ``seeds``
    file_stem: str = ""  # NAME of NAME.json and NAME.md; by default the name of the experiment

    def outcome_path(self, run: Any) -> str:
        """Return the file of a run, below OUT."""
        if self.outcome_file is not None:
            return self.outcome_file(run)
        name = getattr(run, "name", None) or "-".join(map(str, _flatten_fields(run)))
        return f"{self.outcome_folder or f'{self.name}-runs'}/{name.replace(', ', '-').replace(' ', '-')}.json"

    def fill_in_defaults(self, **given: Any) -> ExperimentOptions:
        """Return the given options and the defaults of all others; ``seeds`` may be a number."""
        shared = {"out": Path("runs") / self.name, "quiet": False, "seed": 0, "seeds": 1}
        options = ExperimentOptions(**{**shared, **self.defaults, **given})
        if isinstance(options.seeds, int):
            options.seeds = range(options.seed, options.seed + options.seeds)
        return options


def _flatten_fields(run: Any) -> list[Any]:
    return [part for field in run for part in _flatten_fields(field)] if isinstance(run, tuple) else [run]


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
        page = curve_page(f"adagoal: {experiment.name}", report.text, report.plots)
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
        try:
            for name, measured in engine.map(experiment.measure_run, missing, experiment.task_resources(options)):
                write_json(options.out / name, measured)
                # Read it back: JSON turns tuples into lists, and new outcomes must look like old ones.
                outcomes[name] = read_json(options.out / name)
                display.add_outcome(name, outcomes[name])
        except (KeyboardInterrupt, UnfinishedError) as error:
            # Without a finished run or a checkpoint there is nothing to continue.
            if any(options.out.glob("*")):
                saved = f"{display.n_done} of {display.n_total} runs are saved in {options.out}"
                error.add_note(f"{saved}; the same command continues")
            raise
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
    run: Callable[..., Any],
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
    result: Result = run(*arguments, observe=track_stop, progress=False, **options)
    # A signal and an observer give the same status, but a run cut short by a signal must not become an outcome.
    if result.status is Status.INTERRUPTED and not is_stopped:
        raise TaskInterrupted("the run was asked to stop")
    return result


def run_settings(setting: ExplorationSettings, observe: Callable[[ExplorationRun], bool | None]) -> Result:
    """Run the exploration with these settings."""
    given = {name: value for name, value in vars(setting).items() if name not in ("goal_space", "goal_sets")}
    return run_uninterrupted(explore, **given, goals=to_goals_argument(setting), observe=observe)
