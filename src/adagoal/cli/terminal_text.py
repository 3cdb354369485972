"""Text for a terminal: wrapped lines, and the goals of a run as bars."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from adagoal.core.errors import Status

if TYPE_CHECKING:
    from adagoal.runs.result import Result


def echo_headline(result: Result) -> None:
    """Print what happened, one sentence per line."""
    from adagoal.runs.result_text import make_headline

    headline = make_headline(result)
    first, *others = headline.sentences
    for sentence in (f"{headline.title}: {first}", *others):
        echo_wrapped(sentence)


def echo_wrapped(text: str, indent: str = "", err: bool = False) -> None:
    """Print a text within the width of the terminal; a pipe or a file gets it in one line."""
    width = shutil.get_terminal_size((100_000, 24)).columns
    # an option must stay in one piece, so it can be copied
    click.echo(textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False), err=err)


def exploration_lines(result: Result, folder: Path, top: int) -> Iterator[str]:
    """Yield the ``top`` best goals of a result as bars, and the command that shows all of them."""
    # the intervals of a void run mean nothing
    rows = [row for row in result.table() if row["within"] and result.status is not Status.VOID]
    measure = result.measure
    rows.sort(key=measure.sort_key)
    bars = []
    for row in rows[:top]:
        lower, upper = row["lower"], row["upper"]
        numbers = f"{lower:.2f} to {upper:.2f}" if math.isfinite(upper) else f"{lower:.2f} or more"
        bars.append((row["label"], numbers + " open" * row["open"], lower, upper))
    yield from draw_bars(bars, measure.threshold, measure.threshold_text)
    if len(rows) > top:
        width = shutil.get_terminal_size((80, 24)).columns
        yield click.wrap_text(f"{len(rows) - top} more: adagoal show {quote(str(folder))} --top {len(rows)}", width)


def draw_bars(rows: Sequence[tuple[str, str, float, float]], mark: float, mark_text: str) -> Iterator[str]:
    """Draw (label, numbers, lower, upper) as one line each of the terminal, with a line at ``mark``."""
    from rich.cells import cell_len, set_cell_size

    # a pipe has no width; 80 columns suit a file or a pager
    width = shutil.get_terminal_size((80, 24)).columns
    # an old Windows console or a pipe may have an encoding without lines
    solid, dashed, line = "━┄│" if "utf" in (sys.stdout.encoding or "").lower() else "=-|"
    longest = max([mark, *(upper for *_, upper in rows if math.isfinite(upper))])
    # cells, not characters: a label may have wide characters
    label_width = min(max((cell_len(label) for label, *_ in rows), default=0), width // 3)
    number_width = max((len(numbers) for _, numbers, *_ in rows), default=0)
    columns = max(width - label_width - number_width - 4, 1)

    def column(value: float) -> int:
        # min, because round(inf) raises
        return round(min(value / longest, 1.0) * (columns - 1))

    for label, numbers, lower, upper in rows:
        shade = solid if math.isfinite(upper) else dashed
        bar = (" " * column(lower) + shade * (column(upper) - column(lower) + 1)).ljust(columns)
        bar = bar[: column(mark)] + line + bar[column(mark) + 1 :]
        text = f"{set_cell_size(label, label_width)}  {numbers:>{number_width}}  {bar}".rstrip()
        yield set_cell_size(text, min(cell_len(text), width))
    if rows:
        yield click.wrap_text(f"{line} {mark_text}", width)
