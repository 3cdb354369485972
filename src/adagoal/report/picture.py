"""Figures as pictures: the files beside a page."""

from __future__ import annotations

import io
import warnings

from matplotlib.figure import Figure

DPI = 130


def png(drawn: Figure) -> bytes:
    """A figure as a picture."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # names of states may be in any script
        drawn.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
