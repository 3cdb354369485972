"""What an experiment is: a declaration, from which one runner (:mod:`adagoal.compare.runner`) does the rest.

    cells    the runs to make, as data; they may be of any kind that can be sent to another process
    measure  what one cell measures: plain data for JSON. It runs anywhere (:mod:`adagoal.engines`)
    report   the table, the data and the figures, from all outcomes in the order of their cells

A new experiment is one file with these three, and an entry in :mod:`experiments.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adagoal.engines import Needs

if TYPE_CHECKING:  # a worker needs neither
    from matplotlib.figure import Figure
    from rich.table import Table as Screen

    from adagoal.report.curves import Panel

Options = SimpleNamespace
"""What was asked for: ``out`` (a folder), ``quiet``, ``seeds`` (a range) and the experiment's own options."""
Outcome = Any
"""What a cell measured, as it comes back from its file: a dictionary or a list."""


@dataclass(frozen=True)
class Option:
    """One of an experiment's own options."""

    name: str
    kind: type
    """int, float, bool, str or Path"""
    default: Any
    help: str
    low: float | None = None
    """The smallest value; a float of which nothing is said must be > 0."""
    choices: Sequence[str] = ()
    many: bool = False
    """May be given several times; the value is a tuple."""


@dataclass(frozen=True)
class Asked:
    """What an experiment asks of its user: all that the command line needs to know before it is run."""

    home: str = ""
    """``module:NAME`` of the declaration, or of a dictionary of parts."""
    about: str = ""
    """One line."""
    options: tuple[Option, ...] = ()
    seeds: int | None = 5
    """How many, unless told; None where an experiment has no seeds."""
    jobs: int | None = None
    """How many cells at a time on this machine, unless told; None: one for every core."""
    example: str = ""
    """Options of the example in the help."""
    parts: tuple[str, ...] = ()
    """Names of the parts, where it has some."""


@dataclass(frozen=True)
class Report:
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
    panels: Sequence[Panel] = ()
    """The curves of the page."""


def _always(cell: Any, outcome: Outcome, options: Options) -> bool:
    return True


def _flat(cell: Any) -> list[Any]:
    return [part for field in cell for part in _flat(field)] if isinstance(cell, tuple) else [cell]


@dataclass(frozen=True)
class Experiment:
    """A declaration; see the top of this file. ``measure`` travels to other processes: a function of a module."""

    name: str
    cells: Callable[[Options], Sequence[Any]]
    measure: Callable[[Any, Options], Outcome]
    report: Callable[[Sequence[Outcome], Options], Report]
    folder: str = ""
    """Of the outcomes, below OUT; NAME-runs unless told."""
    file: Callable[[Any], str] | None = None
    """Where the outcome of a cell is kept, unless by its fields (or its ``name``) in the folder."""
    more: Callable[[Sequence[Outcome], Options], Sequence[Any]] | None = None
    """Cells that depend on the outcomes of the first ones."""
    kept: Callable[[Any, Outcome, Options], bool] = _always
    """Whether what a file holds is the outcome of this cell; if not, the cell is run (again)."""
    line: Callable[[Outcome], str] | None = None
    """An outcome in words, for the progress."""
    live: Callable[[Sequence[Outcome], int], Screen] | None = None
    """The outcomes so far as a table of at most so many lines, for the progress on a terminal."""
    needs: Callable[[Options], Needs] = lambda options: Needs()
    asks: Asked = Asked()
    stem: str = ""
    """NAME of NAME.json and NAME.md, where it is not the experiment's."""

    def place(self, cell: Any) -> str:
        """The file of a cell, below OUT."""
        if self.file is not None:
            return self.file(cell)
        name = getattr(cell, "name", None) or "-".join(map(str, _flat(cell)))
        return f"{self.folder or f'{self.name}-runs'}/{name.replace(', ', '-').replace(' ', '-')}.json"

    def chosen(self, **given: Any) -> Options:
        """The options, with the defaults of those that are not given; ``seeds`` may be a number."""
        known = {"out": Path("runs") / self.name, "quiet": False} | {
            option.name: option.default for option in self.asks.options
        }
        options = Options(**known | {"seed": 0, "seeds": self.asks.seeds} | given)
        if isinstance(options.seeds, int):
            options.seeds = range(options.seed, options.seed + options.seeds)
        return options
