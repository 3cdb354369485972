"""The last part of a command: what it draws after the run has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click


@contextlib.contextmanager
def skip_drawing_on_interrupt(name: str, again: str) -> Iterator[None]:
    """Around what is imported and written for a page or a figure: Ctrl-C ends only that.

    The run is over and saved by then, so the exit code stays that of the run. ``again`` is the command that writes the
    file ``name``.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"interrupted: {name} was not written; {again} writes it", err=True)
