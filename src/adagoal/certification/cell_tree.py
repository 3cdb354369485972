"""The tree of cells: how a space of goals or starts is halved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from adagoal.core.types import Bools, Floats, Longs

ValueSampler = Callable[[np.random.Generator, int], Floats]
"""``sample(rng, n) -> [n, V]``: draw goals or starts."""


class CellTree:
    """A space in cells: a tree of halvings that a sample ``[n, V]`` of its values fixes before the first rollout.

    The root is the whole space. A cell is halved across its widest side, measured in ``units`` [V], at the median of
    the sample, so the cells of a level hold about the same share of the values. The root has index 1, and cell i is
    halved into 2i and 2i + 1. A cell whose values are all equal cannot be halved. ``lowest`` [V] is the lowest corner
    of the space, if it is not that of the sample.
    """

    def __init__(
        self, sample: Floats, halvings: int, units: Floats | float = 1.0, lowest: Floats | None = None
    ) -> None:
        size = 2 ** (halvings + 1)
        self._units = units
        self.low, self.high = (np.zeros((size, sample.shape[1])) for _ in range(2))
        """Corners ``[cells, V]``; the outer ones are those of the sample."""
        self.share = np.zeros(size)
        """Share of the sample in every cell ``[cells]``; 0 for indices without a cell."""
        self._split_axis = np.full(size, -1)  # -1: the cell cannot be halved
        self._split_value = np.zeros(size)
        self.low[1], self.high[1] = sample.min(0) if lowest is None else lowest, sample.max(0)
        members: dict[int, Floats] = {1: sample}
        for cell in range(1, size):
            values = members.pop(cell, None)
            if values is None:
                continue
            self.share[cell] = len(values) / len(sample)
            if 2 * cell < size and np.ptp(values, 0).max() > 0.0:
                below = self._split_cell(cell, values)
                members[2 * cell], members[2 * cell + 1] = values[below], values[~below]

    def _split_cell(self, cell: int, values: Floats) -> Bools:
        """Halve a cell; returns which of its values lie in the first half."""
        axis = int((np.ptp(values, 0) / self._units).argmax())
        # Between two different values, as near to the median as possible: many values may share a coordinate, and a cut
        # at the median itself could leave one half empty.
        distinct, times = np.unique(values[:, axis], return_counts=True)
        cut = float(distinct[int(np.abs(np.cumsum(times)[:-1] - len(values) / 2).argmin())])
        self._split_axis[cell], self._split_value[cell] = axis, cut
        for half in (2 * cell, 2 * cell + 1):
            self.low[half], self.high[half] = self.low[cell], self.high[cell]
        self.high[2 * cell, axis] = self.low[2 * cell + 1, axis] = cut
        return np.asarray(values[:, axis] <= cut)

    def digest(self) -> str:
        """SHA-256 of all cells; a resumed certification needs the same ones."""
        return hashlib.sha256(self.low.tobytes() + self.high.tobytes()).hexdigest()

    def level_of_cell(self, cell: int) -> int:
        """Number of halvings that made the cell."""
        return int(cell).bit_length() - 1

    def can_be_split(self, cell: int) -> bool:
        """Whether the cell has halves."""
        return bool(self._split_axis[cell] >= 0)

    def cells_on_level(self, level: int) -> list[int]:
        """The cells of a level, and those above it that cannot be halved."""
        cells = [1]
        for _ in range(level):
            cells = [c for cell in cells for c in ((2 * cell, 2 * cell + 1) if self.can_be_split(cell) else (cell,))]
        return cells

    def find_cells(self, values: Floats, level: int) -> Longs:
        """The cells ``[n]`` of a level that hold the values ``[n, V]``; or the one above, if that is not halved."""
        cells = np.full(len(values), 1)
        for _ in range(level):
            axes = self._split_axis[cells]
            beyond = values[np.arange(len(values)), axes] > self._split_value[cells]
            cells = np.where(axes < 0, cells, 2 * cells + beyond)
        return cells

    def draw_values_in_cell(self, cell: int, count: int, sample: ValueSampler, rng: np.random.Generator) -> Floats:
        """Values ``[count, V]`` of a cell by rejection: draw from the space, drop what lies in other cells."""
        drawn = np.zeros((0, self.low.shape[1]))
        while len(drawn) < count:
            missing = count - len(drawn)
            # half as many again as needed, so one draw is usually enough; bounded for the memory
            values = sample(rng, min(1_000_000, int(1.5 * missing / self.share[cell]) + 16))
            drawn = np.concatenate([drawn, values[self.find_cells(values, self.level_of_cell(cell)) == cell]])
        return drawn[:count]
