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

from adagoal.core.files import bytes_content, write_atomically

COLOUR_BLIND_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette, which colour-blind people can tell apart."""
GUIDE_COLOUR = "#666666"

ColumnFormats = Mapping[str, str | Callable[[Any], str]]
"""By its head, what a column shows of a row: a format of its fields ("{steps:.2e}"), or a function of the row."""


@dataclass(frozen=True)
class TextTable:
    """Texts in rows below a head; all columns but the first ``left`` are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left_columns: int = 1

    @staticmethod
    def from_rows(rows: Iterable[Mapping[str, Any]], columns: ColumnFormats, left: int = 1) -> TextTable:
        """From plain data."""
        cells = [[c.format(**row) if isinstance(c, str) else c(row) for c in columns.values()] for row in rows]
        return TextTable(list(columns), cells, left)

    def to_markdown(self) -> str:
        """As Markdown."""
        rule = ["---"] * self.n_left_columns + ["---:"] * (len(self.header) - self.n_left_columns)
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.header, rule, *self.rows)) + "\n"

    def to_rich_table(self) -> Screen:
        """For a terminal."""
        table = Screen(box=None, pad_edge=False, header_style="bold", caption_justify="left")
        for i, name in enumerate(self.header):
            table.add_column(name, justify="left" if i < self.n_left_columns else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG. It is drawn before the file is opened, so a kill meanwhile leaves nothing behind."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    write_atomically(path, bytes_content(drawn.getvalue()))


def figure_with_panels(columns: int, size: tuple[float, float], **options: object) -> tuple[Figure, list[Axes]]:
    """A figure with its panels in one row, without the frames that nobody reads."""
    figure = Figure(size, layout="constrained")
    axes = list(figure.subplots(1, columns, squeeze=False, **options).ravel())  # type: ignore[call-overload]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
