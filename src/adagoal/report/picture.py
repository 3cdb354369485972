"""Figures as pictures: the files beside a page."""

from __future__ import annotations

import io
import warnings

from matplotlib.figure import Figure

FIGURE_DPI = 130


def figure_to_png(drawn: Figure) -> bytes:
    """A figure as a picture."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # names of states may be in any script
        drawn.savefig(buffer, format="png", dpi=FIGURE_DPI)
    return buffer.getvalue()
