"""Values of states drawn on a grid with walls."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize, to_rgb
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from adagoal.core.layout import GridLayout
from adagoal.core.types import Bools, Floats
from adagoal.runs.view import StateMetadata

WALL_COLOUR, OUTSIDE_COLOUR, UNSEEN_COLOUR, MARK_COLOUR = "#3d434b", "#d3d7dc", "#ffffff", "#d1742f"
MAX_COLUMNS_WITH_NUMBERS = 16
"""Columns up to which numbers are written into the cells."""
MAX_HATCHED_CELLS = 2500
"""Cells up to which each one gets its own hatching and outline."""


def map_size_inches(layout: GridLayout, panels: int) -> tuple[float, float]:
    """Width and height in inches of ``panels`` maps side by side."""
    rows, columns = layout.shape
    width = 9.0 / panels if panels > 1 else 4.5
    height = min(max(width * rows / columns, 0.8), 6.0)
    return panels * min(width, height * columns / rows + 0.4), height


def draw_grid_map(
    ax: Axes,
    view: StateMetadata,
    values: Floats,
    norm: Normalize,
    cmap: Colormap,
    *,
    shown: Bools,
    seen: Bools,
    marked: Bools | None = None,
    total: bool = False,
    numbers: str = "",
) -> AxesImage:
    """Draw ``values`` [S]; states that share a cell are added up (``total``) or the smallest counts.

    A cell none of whose states is ``shown`` is grey, one without a value is hatched; ``marked`` cells are outlined.
    """
    layout = view.layout
    assert layout is not None
    cells, shape = layout.cells, layout.shape
    placed = cells[:, 0] >= 0
    grid = np.full(shape, np.nan)
    for state in np.flatnonzero(placed & shown & ~np.isnan(values)):
        cell = tuple(cells[state])
        if np.isnan(grid[cell]):
            grid[cell] = values[state]
        else:
            grid[cell] = grid[cell] + values[state] if total else min(grid[cell], values[state])
    background = np.full((*shape, 3), to_rgb(UNSEEN_COLOUR))
    background[tuple(cells[placed & seen & ~shown].T)] = to_rgb(OUTSIDE_COLOUR)
    background[layout.walls] = to_rgb(WALL_COLOUR)
    ax.imshow(background, interpolation="nearest")
    image = ax.imshow(np.ma.masked_invalid(grid), cmap=cmap, norm=norm, interpolation="nearest")
    grey = np.zeros(shape, bool)
    grey[tuple(cells[placed & seen & ~shown].T)] = True
    if layout.walls.size <= MAX_HATCHED_CELLS:
        for r, c in np.argwhere(np.isnan(grid) & ~layout.walls & ~grey).tolist():
            ax.add_patch(Rectangle((c - 0.5, r - 0.5), 1, 1, fill=False, hatch="///", edgecolor="#c3c9d0", linewidth=0))
        for r, c in cells[placed & marked].tolist() if marked is not None else []:
            ax.add_patch(Rectangle((c - 0.42, r - 0.42), 0.84, 0.84, fill=False, edgecolor=MARK_COLOUR, linewidth=1.6))
    home = None if view.start is None or not placed[view.start] else tuple(cells[view.start].tolist())
    if home is not None:
        ax.plot(home[1], home[0], marker="*", color="white", markeredgecolor="black", markersize=9, markeredgewidth=0.8)
    if numbers and shape[1] <= MAX_COLUMNS_WITH_NUMBERS:
        for r, c in np.argwhere(~np.isnan(grid)).tolist():
            if (r, c) != home:
                ink = _readable_text_colour(cmap, norm(grid[r, c]))
                ax.text(c, r, format(grid[r, c], numbers), ha="center", va="center", fontsize=7, color=ink)
    if shape[1] <= 3 * MAX_COLUMNS_WITH_NUMBERS:
        ax.hlines(np.arange(0.5, shape[0] - 1), -0.5, shape[1] - 0.5, colors="white", linewidth=0.5)
        ax.vlines(np.arange(0.5, shape[1] - 1), -0.5, shape[0] - 0.5, colors="white", linewidth=0.5)
    ax.set_axis_off()
    return image


def _readable_text_colour(cmap: Colormap, share: float) -> str:
    """Black or white, whichever is readable on the colour."""
    red, green, blue, _ = cmap(share)
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
