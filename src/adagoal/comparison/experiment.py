"""Declaration of an experiment, which :mod:`adagoal.comparison.experiment_runner` runs.

    list_runs    the runs to make, as data that can be sent to another process
    measure_run  what one run measures, as plain data for JSON; it can run anywhere (:mod:`adagoal.parallel`)
    make_report  tables, data and figures, from all outcomes in the order of the runs

A new experiment is one file with these three functions, and an entry in :mod:`experiments.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adagoal.parallel import TaskResources
from adagoal.settings.fields import SettingInfo

if TYPE_CHECKING:  # worker processes import this module, and need none of these
    from matplotlib.figure import Figure
    from rich.table import Table

    from adagoal.report.curve_page import CurvePlot

ExperimentOptions = SimpleNamespace
"""Options of a call: ``out`` (a folder), ``quiet``, ``seeds`` (a range) and the experiment's own options."""
RunOutcome = Any
"""What a run measured, as read from its file: a dictionary or a list."""


@dataclass(frozen=True)
class ExperimentInfo:
    """What the command line needs to know about an experiment without importing it."""

    import_path: str = ""  # ``module:NAME`` of the declaration, or of a dictionary of parts
    description: str = ""  # one line
    options: tuple[SettingInfo, ...] = ()
    seeds: int | None = 5  # default number of seeds; None: the experiment has no seeds
    jobs: int | None = None  # default number of parallel runs on this machine; None: one per core
    example: str = ""  # options of the example in the help
    parts: tuple[str, ...] = ()  # names of the parts, if it has any


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
    info: ExperimentInfo = ExperimentInfo()
    file_stem: str = ""  # NAME of NAME.json and NAME.md; by default the name of the experiment

    def outcome_path(self, run: Any) -> str:
        """Return the file of a run, below OUT."""
        if self.outcome_file is not None:
            return self.outcome_file(run)
        name = getattr(run, "name", None) or "-".join(map(str, _flatten_fields(run)))
        return f"{self.outcome_folder or f'{self.name}-runs'}/{name.replace(', ', '-').replace(' ', '-')}.json"

    def fill_in_defaults(self, **given: Any) -> ExperimentOptions:
        """Return the given options and the defaults of all others; ``seeds`` may be a number."""
        defaults = {"out": Path("runs") / self.name, "quiet": False} | {
            option.name: option.default for option in self.info.options
        }
        options = ExperimentOptions(**defaults | {"seed": 0, "seeds": self.info.seeds} | given)
        if isinstance(options.seeds, int):
            options.seeds = range(options.seed, options.seed + options.seeds)
        return options


def _flatten_fields(run: Any) -> list[Any]:
    return [part for field in run for part in _flatten_fields(field)] if isinstance(run, tuple) else [run]
