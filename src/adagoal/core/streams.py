"""Standard output belongs to results: what other packages print meanwhile is led elsewhere.

Environments print from Python and from C (banners, notices, progress), in the middle of whatever is being written.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def stdout_to_stderr(into: TextIO | None = None) -> Iterator[None]:
    """Lead everything that is written to standard output into another file: standard error by default.

    An environment may change the current folder too; at the end it is again what it was.
    """
    other = sys.stderr if into is None else into
    kept = _redirect_descriptor(other)
    try:
        with contextlib.redirect_stdout(other), contextlib.chdir("."):
            yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            other.flush()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def _redirect_descriptor(other: TextIO) -> int | None:
    """Let file descriptor 1 write into the other file; a copy of what it was, None where one of them is closed."""
    try:
        sys.stdout.flush()
        number = other.fileno()
        kept = os.dup(1)
        os.dup2(number, 1)
    except (OSError, ValueError, AttributeError):
        return None
    return kept
