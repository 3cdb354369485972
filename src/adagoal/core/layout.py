"""Where states lie, for drawing maps."""

from __future__ import annotations

from dataclasses import dataclass

from adagoal.core.types import Bools, Longs


@dataclass(frozen=True)
class GridLayout:
    """How states lie in a plane, for drawing maps: a grid of cells, some of which are walls."""

    shape: tuple[int, int]
    """Rows and columns."""
    cells: Longs
    """[S, 2]: row and column of every state; (-1, -1) where a state has no place on the map."""
    walls: Bools
    """[rows, columns]: True where no state lies."""
