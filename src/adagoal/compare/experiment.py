"""What an experiment is: a declaration, from which one runner (:mod:`adagoal.compare.experiment_runner`) does the rest.

    cells    the runs to make, as data; they may be of any kind that can be sent to another process
    measure  what one cell measures: plain data for JSON. It runs anywhere (:mod:`adagoal.parallel`)
    report   the table, the data and the figures, from all outcomes in the order of their cells

A new experiment is one file with these three, and an entry in :mod:`experiments.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adagoal.parallel import TaskResources
from adagoal.settings.fields import SettingInfo

if TYPE_CHECKING:  # a worker needs neither
    from matplotlib.figure import Figure
    from rich.table import Table as Screen

    from adagoal.report.curve_page import CurvePanel

ExperimentOptions = SimpleNamespace
"""What was asked for: ``out`` (a folder), ``quiet``, ``seeds`` (a range) and the experiment's own options."""
RunOutcome = Any
"""What a cell measured, as it comes back from its file: a dictionary or a list."""


@dataclass(frozen=True)
class ExperimentInfo:
    """What an experiment asks of its user: all that the command line needs to know before it is run."""

    import_path: str = ""
    """``module:NAME`` of the declaration, or of a dictionary of parts."""
    description: str = ""
    """One line."""
    options: tuple[SettingInfo, ...] = ()
    seeds: int | None = 5
    """How many, unless told; None where an experiment has no seeds."""
    jobs: int | None = None
    """How many cells at a time on this machine, unless told; None: one for every core."""
    example: str = ""
    """Options of the example in the help."""
    parts: tuple[str, ...] = ()
    """Names of the parts, where it has some."""


@dataclass(frozen=True)
class ExperimentReport:
    """What an experiment found."""

    rows: Any
    """The table as plain data, for ``--json``."""
    text: str
    """The tables in Markdown, for NAME.md and for people."""
    data: Any
    """Everything behind the figures, for NAME.json."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By file name."""
    finished: bool = True
    """False where more of the same command would change the outcome."""
    panels: Sequence[CurvePanel] = ()
    """The curves of the page."""


def _always_complete(cell: Any, outcome: RunOutcome, options: ExperimentOptions) -> bool:
    return True


def _flatten_fields(cell: Any) -> list[Any]:
    return [part for field in cell for part in _flatten_fields(field)] if isinstance(cell, tuple) else [cell]


@dataclass(frozen=True)
class Experiment:
    """A declaration; see the top of this file. ``measure`` travels to other processes: a function of a module."""

    name: str
    list_runs: Callable[[ExperimentOptions], Sequence[Any]]
    measure_run: Callable[[Any, ExperimentOptions], RunOutcome]
    make_report: Callable[[Sequence[RunOutcome], ExperimentOptions], ExperimentReport]
    outcome_folder: str = ""
    """Of the outcomes, below OUT; NAME-runs unless told."""
    outcome_file: Callable[[Any], str] | None = None
    """Where the outcome of a cell is kept, unless by its fields (or its ``name``) in the folder."""
    follow_up_runs: Callable[[Sequence[RunOutcome], ExperimentOptions], Sequence[Any]] | None = None
    """Cells that depend on the outcomes of the first ones."""
    is_complete: Callable[[Any, RunOutcome, ExperimentOptions], bool] = _always_complete
    """Whether what a file holds is the outcome of this cell; if not, the cell is run (again)."""
    describe_outcome: Callable[[RunOutcome], str] | None = None
    """An outcome in words, for the progress."""
    live_table: Callable[[Sequence[RunOutcome], int], Screen] | None = None
    """The outcomes so far as a table of at most so many lines, for the progress on a terminal."""
    task_resources: Callable[[ExperimentOptions], TaskResources] = lambda options: TaskResources()
    info: ExperimentInfo = ExperimentInfo()
    file_stem: str = ""
    """NAME of NAME.json and NAME.md, where it is not the experiment's."""

    def outcome_path(self, cell: Any) -> str:
        """The file of a cell, below OUT."""
        if self.outcome_file is not None:
            return self.outcome_file(cell)
        name = getattr(cell, "name", None) or "-".join(map(str, _flatten_fields(cell)))
        return f"{self.outcome_folder or f'{self.name}-runs'}/{name.replace(', ', '-').replace(' ', '-')}.json"

    def fill_in_defaults(self, **given: Any) -> ExperimentOptions:
        """The options, with the defaults of those that are not given; ``seeds`` may be a number."""
        known = {"out": Path("runs") / self.name, "quiet": False} | {
            option.name: option.default for option in self.info.options
        }
        options = ExperimentOptions(**known | {"seed": 0, "seeds": self.info.seeds} | given)
        if isinstance(options.seeds, int):
            options.seeds = range(options.seed, options.seed + options.seeds)
        return options
