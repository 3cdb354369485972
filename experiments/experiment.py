"""Declare an experiment and run it: every run once, each outcome a file; then the tables, the data and the figures.

    list_runs    the runs to make, as data that can be sent to another process
    measure_run  what one run measures, as plain data for JSON; it can run anywhere (:mod:`adagoal.parallel.engines`)
    make_report  tables, data and figures, from all outcomes in the order of the runs

A new experiment is one file with these three functions, and an entry in :mod:`experiments.catalogue`.

Outcomes that the folder holds are not repeated. So an experiment that was stopped continues where it was, also with
more seeds. Tables are always made from the files, wherever and whenever the runs were made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adagoal.comparison import method_comparison
from adagoal.comparison.method_comparison import RunsProgress
from adagoal.comparison.method_scores import RunOutcome
from adagoal.core.file_io import folder_lock, remove_partial_files, write_json, write_text
from adagoal.parallel.engines import Engine, TaskResources
from adagoal.report.html_page import curve_page

if TYPE_CHECKING:  # worker processes import this module, and need none of these
    from matplotlib.figure import Figure

    from adagoal.report.html_page import CurvePlot

ExperimentOptions = SimpleNamespace
"""Options of a call: ``out`` (a folder), ``quiet``, ``seeds`` (a range) and the experiment's own options."""


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
    experiment: Experiment, options: ExperimentOptions, engine: Engine, display: RunsProgress
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
    experiment: Experiment, runs: Sequence[Any], options: ExperimentOptions, engine: Engine, display: RunsProgress
) -> list[RunOutcome]:
    """Return the outcomes in the order of the runs; make the runs whose files are missing."""
    files = {experiment.outcome_path(run): run for run in runs}
    outcomes = method_comparison.collect_outcomes(
        experiment.measure_run,
        {name: (run, options) for name, run in files.items()},
        options.out,
        engine,
        display,
        lambda name, outcome: experiment.is_complete(files[name], outcome, options),
        experiment.describe_outcome,
        experiment.task_resources(options),
    )
    return [outcomes[experiment.outcome_path(run)] for run in runs]
