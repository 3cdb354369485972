"""What every experiment writes with: one table, one way to save a figure."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table as Screen

from adagoal.core.files import bytes_content, replace

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette, which colour-blind people can tell apart."""
GREY = "#666666"

Columns = Mapping[str, str | Callable[[Any], str]]
"""By its head, what a column shows of a row: a format of its fields ("{steps:.2e}"), or a function of the row."""


@dataclass(frozen=True)
class Table:
    """Texts in rows below a head; all columns but the first ``left`` are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    @staticmethod
    def of(rows: Iterable[Mapping[str, Any]], columns: Columns, left: int = 1) -> Table:
        """From plain data."""
        cells = [[c.format(**row) if isinstance(c, str) else c(row) for c in columns.values()] for row in rows]
        return Table(list(columns), cells, left)

    def markdown(self) -> str:
        """As Markdown."""
        rule = ["---"] * self.left + ["---:"] * (len(self.head) - self.left)
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.head, rule, *self.rows)) + "\n"

    def screen(self) -> Screen:
        """For a terminal."""
        table = Screen(box=None, pad_edge=False, header_style="bold", caption_justify="left")
        for i, name in enumerate(self.head):
            table.add_column(name, justify="left" if i < self.left else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG. It is drawn before the file is opened, so a kill meanwhile leaves nothing behind."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    replace(path, bytes_content(drawn.getvalue()))


def panels(columns: int, size: tuple[float, float], **options: object) -> tuple[Figure, list[Axes]]:
    """A figure with its panels in one row, without the frames that nobody reads."""
    figure = Figure(size, layout="constrained")
    axes = list(figure.subplots(1, columns, squeeze=False, **options).ravel())  # type: ignore[call-overload]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
