"""Tables and figures of the experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from adagoal.comparison.method_scores import TextTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ColumnFormats = Mapping[str, str | Callable[[Any], str]]
"""For each column head, how a row is shown: a format of its fields ("{steps:.2e}"), or a function of the row."""


def table_from_rows(rows: Iterable[Mapping[str, Any]], columns: ColumnFormats, left: int = 1) -> TextTable:
    """Return the table of plain data; the first ``left`` columns are aligned to the left."""
    cells = [[c.format(**row) if isinstance(c, str) else c(row) for c in columns.values()] for row in rows]
    return TextTable(list(columns), cells, left)


def figure_with_panels(
    columns: int, size: tuple[float, float], rows: int = 1, **options: object
) -> tuple[Figure, list[Axes]]:
    """Return a figure with its panels, row by row, without frames at the top and right."""
    from matplotlib.figure import Figure

    # Figures are made without pyplot, which would keep every one of them in memory until it is closed.
    figure = Figure(size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).ravel())  # type: ignore[call-overload]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
