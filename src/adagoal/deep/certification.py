"""Which goals does a policy reach? Cells of the goal space, each certified, refuted or open, by fresh rollouts.

A goal g is drawn from the goal space, the environment is reset, and the policy plays for g without noise. Let p(C) be
the probability that g is reached within L steps, given that it lies in the cell C. With success q and slack s,

    C is certified:  p(C) >= q - s          C is refuted:  p(C) < q.

Both hold for all cells at once with probability 1 - delta, whenever one looks and however the cells were chosen:

* The cells are those of a tree that is fixed before the first rollout (:mod:`adagoal.deep.certification`). The M levels
  on
  which cells are tried have delta / M each, and the 2^k cells of level k share that equally: alpha(C) =
  delta / (M 2^k). All cells that could ever be made are paid for, whether they are made or not.
* Every rollout is drawn from some cell, and counts for this cell and for those below it that hold its goal. Given
  everything before it and that its goal lies in C, it succeeds with probability p(C): it was drawn from C or from a
  cell that contains C. So the bets on C are fair, also where it was an early success that made us look at C.
* A cell is certified where betting refutes p(C) <= q - s at the level alpha(C), and refuted where it refutes p(C) >= q
  (:mod:`adagoal.core.confidence_bounds`). For any p(C) at most one of the two can be wrong, so each has all of
  alpha(C).

A cell is halved when it is refuted (a half of it may still be certified) or when it has had twice the rollouts
after which a cell without a failure is certified. Cells that cannot be halved any more are played on. If s > 0 one of
the two tests has a drift, whatever p(C) is, so that every cell is decided after finitely many rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.confidence_bounds import lower_confidence_bound, rejects_at_most
from adagoal.core.errors import InputError, Status
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.types import Bools, Floats, Longs
from adagoal.deep.goal_samplers import GoalSampler
from adagoal.settings.training import ClaimSettings

FIRST_SPLIT_LEVEL = 3
"""Halvings before the first rollout: the map has 2^3 = 8 cells or more."""
ROLLOUTS_PER_BLOCK = 16
"""Rollouts that a cell gets at a time, at least."""
MIN_BLOCKS_PER_ROUND = 8
"""Blocks of a round, at least: few open cells get several each, so that all workers have something to do."""
SPLIT_SAMPLE_SIZE = 2**15
"""Goals that decide where cells are halved."""

ReachFunction = Callable[[Floats, int], Bools]
"""``reach(goals [n, G], round) -> [n]``: play for each goal, from a start of its own; was it reached in L steps?"""


class Claim(ClaimSettings):
    """What a certification claims: q is ``success`` and s is ``slack`` in the text above."""

    @property
    def first_level(self) -> int:
        """The first level of the tree on which cells are tried."""
        return min(FIRST_SPLIT_LEVEL, self.halvings)

    def cell_alpha(self, level: int) -> float:
        """The share of delta of a cell of this level."""
        return self.delta / (self.halvings - self.first_level + 1) / 2**level

    def rollouts_before_split(self, level: int) -> int:
        """Rollouts after which an undecided cell of this level is halved."""
        without_failure = 1
        while not rejects_at_most(without_failure, without_failure, self.success - self.slack, self.cell_alpha(level)):
            without_failure += 1
        return 2 * without_failure


class Verdict(StrEnum):
    """What is known of a cell."""

    CERTIFIED = "certified"
    REFUTED = "refuted"
    OPEN = "open"


@dataclass(frozen=True)
class GoalCell:
    """A box of the goal space, and what its rollouts say."""

    verdict: Verdict
    low: Floats
    """Corners ``[G]``; goals beyond the outermost ones belong to the cell beside them."""
    high: Floats
    share: float
    """Share of the goals that lie in it, as a sample of them has it."""
    rollouts: int
    reached: int
    at_least: float
    """Lower bound on p(C). The lower bounds of all cells hold at once with probability 1 - delta."""
    at_most: float
    """Upper bound on p(C), likewise."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return vars(self) | {"low": self.low.tolist(), "high": self.high.tolist()}


@dataclass(frozen=True)
class Certification:
    """The map of a policy's goals: cells that together are the whole goal space."""

    status: Status
    """``certified``: every cell is; ``decided``: some are refuted, none is open; else ``budget`` or ``interrupted``."""
    claim: Claim
    cells: Sequence[GoalCell]
    rollouts: int
    """Played in all."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What was certified: environment, policy, goals, seed."""

    def cell(self, goal: ArrayLike) -> GoalCell:
        """The cell that holds a goal ``[G]``."""
        vector, size = np.asarray(goal, np.float64), len(self.cells[0].low)
        if vector.shape != (size,) or not np.isfinite(vector).all():
            raise InputError(f"must be {size} finite numbers, got {goal!r}", "goal")
        return self.cells[int(self.locate(vector[None])[0])]

    def locate(self, goals: Floats) -> Longs:
        """Positions ``[n]`` in :attr:`cells` of the cells that hold the goals ``[n, G]``."""
        low, high = (np.stack([getattr(cell, end) for cell in self.cells]) for end in ("low", "high"))
        inside = goals.clip(low.min(0), high.max(0))[:, None]
        holds = ((low < inside) | (low == low.min(0))) & (inside <= high)
        return np.asarray(holds.all(2).argmax(1))

    def share(self, verdict: str) -> float:
        """Share of the goals in cells with this verdict."""
        return math.fsum(cell.share for cell in self.cells if cell.verdict == verdict)

    def count(self, verdict: str) -> int:
        """How many cells have this verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)

    @property
    def statement(self) -> str:
        """What is claimed, in words."""
        claim = self.claim
        return (
            f"With probability {1.0 - claim.delta:g} all of this holds: a goal drawn from a certified cell is reached "
            f"within {claim.radius} steps with probability {claim.success - claim.slack:g} or more, and one drawn from "
            f"a refuted cell with less than {claim.success:g}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        shares = {str(verdict): self.share(verdict) for verdict in Verdict}
        facts = {"status": self.status, "claim": vars(self.claim), "rollouts": self.rollouts, "shares": shares}
        return facts | {
            "about": dict(self.about),
            "statement": self.statement,
            "cells": [cell.to_dict() for cell in self.cells],
        }


def certify_cells(
    claim: Claim,
    space: GoalSampler,
    reach: ReachFunction,
    seed: int,
    going: Callable[[int, int], bool] = lambda open, n: True,
) -> Certification:
    """Play until every cell is decided, the rollouts are spent, or ``going(open cells, rollouts)`` says False."""
    cells = CellTree(space(random_stream(seed, StreamPurpose.CELLS), SPLIT_SAMPLE_SIZE), claim.halvings)
    tally = _RolloutCounts(claim, cells)
    decided: list[int] = []
    waiting = _cells_of_level(cells, claim.first_level)
    round_, played, status = 0, 0, Status.CERTIFIED
    while waiting:
        each = [tally.next_rollout_count(cell, len(waiting)) for cell in waiting]
        if claim.rollouts is not None and played + sum(each) > claim.rollouts:
            status = Status.BUDGET
            break
        if not going(len(waiting), played):
            status = Status.INTERRUPTED
            break
        rng = random_stream(seed, StreamPurpose.CERTIFIED_GOALS, round_)
        goals = np.concatenate(
            [cells.draw_goals_in_cell(cell, n, space, rng) for cell, n in zip(waiting, each, strict=True)]
        )
        tally.add_rollouts(np.repeat(waiting, each), goals, reach(goals, round_))
        now, waiting = _settle_cells(tally, waiting)
        decided += now
        round_, played = round_ + 1, played + len(goals)
    leaves = [tally.summarise_cell(leaf) for leaf in sorted(decided + waiting)]
    if status is Status.CERTIFIED and any(leaf.verdict is Verdict.REFUTED for leaf in leaves):
        status = Status.DECIDED
    return Certification(status, claim, leaves, played)


class _RolloutCounts:
    """Rollouts and successes of every cell that could be made."""

    def __init__(self, claim: Claim, cells: CellTree) -> None:
        self.claim, self.cells = claim, cells
        self.rollouts, self.successes = (np.zeros(len(cells.share), np.int64) for _ in range(2))
        self._rollouts_before_split = [claim.rollouts_before_split(level) for level in range(claim.halvings + 1)]

    def add_rollouts(self, drawn_from: Any, goals: Floats, reached: Bools) -> None:
        """Count rollouts for the cells ``[n]`` they were drawn from and for those below them."""
        levels = np.array([self.cells.level_of_cell(cell) for cell in drawn_from])
        above = np.zeros(len(goals), np.int64)
        for level in range(self.claim.halvings + 1):
            here = self.cells.find_cells(goals, level)
            new = (levels <= level) & (here != above)  # a cell that cannot be halved is on its own level only
            np.add.at(self.rollouts, here[new], 1)
            np.add.at(self.successes, here[new & reached], 1)
            above = here

    def cell_verdict(self, cell: int) -> Verdict:
        """What the rollouts say; a probability between q - s and q may be certified and refuted, and is certified."""
        claim, alpha = self.claim, self.claim.cell_alpha(self.cells.level_of_cell(cell))
        n, successes = int(self.rollouts[cell]), int(self.successes[cell])
        if rejects_at_most(successes, n, claim.success - claim.slack, alpha):
            return Verdict.CERTIFIED
        if claim.success == 1.0:
            return Verdict.REFUTED if successes < n else Verdict.OPEN
        return Verdict.REFUTED if rejects_at_most(n - successes, n, 1.0 - claim.success, alpha) else Verdict.OPEN

    def is_split_due(self, cell: int) -> bool:
        """Whether the cell has had its rollouts, and its halves may say more than it does."""
        return bool(self.rollouts[cell] >= self._rollouts_before_split[self.cells.level_of_cell(cell)])

    def next_rollout_count(self, cell: int, waiting: int) -> int:
        """How many rollouts a cell gets at a time: whole blocks, about an eighth of those that it has had."""
        return ROLLOUTS_PER_BLOCK * max(
            math.ceil(MIN_BLOCKS_PER_ROUND / waiting),
            int(self.rollouts[cell]) // (ROLLOUTS_PER_BLOCK * MIN_BLOCKS_PER_ROUND),
        )

    def summarise_cell(self, number: int) -> GoalCell:
        """A cell as a result."""
        cells, alpha = self.cells, self.claim.cell_alpha(self.cells.level_of_cell(number))
        n, successes = int(self.rollouts[number]), int(self.successes[number])
        bounds = lower_confidence_bound(successes, n, alpha), 1.0 - lower_confidence_bound(n - successes, n, alpha)
        low, high, share = cells.low[number], cells.high[number], float(cells.share[number])
        return GoalCell(self.cell_verdict(number), low, high, share, n, successes, *bounds)


def _cells_of_level(cells: CellTree, level: int) -> list[int]:
    """The cells of a level, and those above it that cannot be halved."""
    found = [1]
    for _ in range(level):
        found = [half for cell in found for half in ((2 * cell, 2 * cell + 1) if cells.can_be_split(cell) else (cell,))]
    return found


def _settle_cells(tally: _RolloutCounts, waiting: Sequence[int]) -> tuple[list[int], list[int]]:
    """Of the open cells and the halves that are due: those that are decided now, and those that still are open."""
    decided: list[int] = []
    open_cells: list[int] = []
    left = list(waiting)
    while left:
        cell = left.pop()
        verdict = tally.cell_verdict(cell)
        if verdict is Verdict.CERTIFIED:
            decided.append(cell)
        elif tally.cells.can_be_split(cell) and (verdict is Verdict.REFUTED or tally.is_split_due(cell)):
            left += [2 * cell, 2 * cell + 1]
        else:
            (decided if verdict is Verdict.REFUTED else open_cells).append(cell)
    return decided, sorted(open_cells)


# The goal space in cells: a tree of halvings that is fixed before the first rollout.
#
# The root is the whole space. A cell is halved across its widest side, at the median of a sample of goals that is drawn
# for this alone, so that the cells of a level hold about the same share of the goals. Every cell has a number: the root
# is 1, and cell i is halved into 2i and 2i + 1. A cell whose goals are all the same cannot be halved.


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
