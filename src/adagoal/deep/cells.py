"""The goal space in cells: a tree of halvings that is fixed before the first rollout.

The root is the whole space. A cell is halved across its widest side, at the median of a sample of goals that is drawn
for this alone, so that the cells of a level hold about the same share of the goals. Every cell has a number: the root
is 1, and cell i is halved into 2i and 2i + 1. A cell whose goals are all the same cannot be halved.
"""

from __future__ import annotations

import numpy as np

from adagoal.core.types import Bools, Floats, Longs
from adagoal.deep.goalspace import GoalSampler

ROOT_CELL = 1
UNSPLIT_AXIS = -1
"""The side of a cell that cannot be halved."""
MAX_GOALS_PER_DRAW = 1_000_000
"""Goals drawn at once, at most."""


class CellTree:
    """All cells that ``halvings`` halvings of a goal space can make; ``sample`` ``[n, G]`` are goals of it."""

    def __init__(self, sample: Floats, halvings: int) -> None:
        self.halvings = halvings
        count = 2 ** (halvings + 1)
        self.low, self.high = (np.zeros((count, sample.shape[1])) for _ in range(2))
        """Corners of every cell ``[cells, G]``; the outer ones are those of the sample."""
        self.share = np.zeros(count)
        """Share of the goals in every cell ``[cells]``, as the sample has it; 0 where there is no cell."""
        self._split_axis = np.full(count, UNSPLIT_AXIS)
        self._split_value = np.zeros(count)
        self.low[ROOT_CELL], self.high[ROOT_CELL] = sample.min(0), sample.max(0)
        members: dict[int, Floats] = {ROOT_CELL: sample}
        for cell in range(ROOT_CELL, count):
            goals = members.pop(cell, None)
            if goals is None:
                continue
            self.share[cell] = len(goals) / len(sample)
            if 2 * cell < count and np.ptp(goals, 0).max() > 0.0:
                below = self._split_cell(cell, goals)
                members[2 * cell], members[2 * cell + 1] = goals[below], goals[~below]

    def _split_cell(self, cell: int, goals: Floats) -> Bools:
        """Where the halves of a cell meet; which of its goals are in the first."""
        side = int(np.ptp(goals, 0).argmax())
        values, times = np.unique(goals[:, side], return_counts=True)
        last = int(np.abs(np.cumsum(times)[:-1] - len(goals) / 2).argmin())  # of the first half
        cut = float(values[last])
        self._split_axis[cell], self._split_value[cell] = side, cut
        for half in (2 * cell, 2 * cell + 1):
            self.low[half], self.high[half] = self.low[cell], self.high[cell]
        self.high[2 * cell, side] = self.low[2 * cell + 1, side] = cut
        return np.asarray(goals[:, side] <= cut)

    def level_of_cell(self, cell: int) -> int:
        """How many halvings made the cell."""
        return int(cell).bit_length() - 1

    def can_be_split(self, cell: int) -> bool:
        """Whether the cell has halves."""
        return bool(self._split_axis[cell] != UNSPLIT_AXIS)

    def find_cells(self, goals: Floats, level: int) -> Longs:
        """The cells ``[n]`` of a level that hold the goals ``[n, G]``; where it has none, the smallest above it."""
        cells = np.full(len(goals), ROOT_CELL)
        for _ in range(level):
            sides = self._split_axis[cells]
            beyond = goals[np.arange(len(goals)), sides] > self._split_value[cells]
            cells = np.where(sides == UNSPLIT_AXIS, cells, 2 * cells + beyond)
        return cells

    def draw_goals_in_cell(self, cell: int, count: int, space: GoalSampler, rng: np.random.Generator) -> Floats:
        """Goals ``[count, G]`` of a cell, as the space draws them: those that fall elsewhere are dropped."""
        found = np.zeros((0, self.low.shape[1]))
        while len(found) < count:
            missing = count - len(found)
            goals = space(rng, min(MAX_GOALS_PER_DRAW, int(1.5 * missing / self.share[cell]) + 16))
            found = np.concatenate([found, goals[self.find_cells(goals, self.level_of_cell(cell)) == cell]])
        return found[:count]
