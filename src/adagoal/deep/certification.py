"""Certification of a policy: cells of the goal space that fresh rollouts certify, refute or leave open.

A goal g is drawn from the goal space, the environment is reset, and the policy plays for g without noise. Let p(C) be
the probability that g is reached within L steps, given that it lies in the cell C. With success q and slack s,

    C is certified:  p(C) >= q - s          C is refuted:  p(C) < q.

Both hold for all cells at once with probability 1 - delta, at any time and for any adaptive choice of cells:

* The cells are those of a tree that is fixed before the first rollout (:class:`CellTree`). The M levels on which cells
  are tried get delta / M each, and the 2^k cells of level k share that equally: alpha(C) = delta / (M 2^k). So every
  cell that could ever be tried has its share.
* Every rollout is drawn from some cell, and counts for this cell and for the cells below it that hold its goal. Given
  the past and that its goal lies in C, it succeeds with probability p(C), because it was drawn from C or from a cell
  that contains C. So the bets on C are fair, even if an early success was the reason to try C.
* A cell is certified if betting rejects p(C) <= q - s at level alpha(C), and refuted if it rejects p(C) >= q
  (:mod:`adagoal.core.confidence_bounds`). For any p(C) at most one of the two can be wrong, so each has all of
  alpha(C).

A cell is halved when it is refuted (a half of it may still be certified), or after twice the rollouts that certify a
cell without a failure. Cells that cannot be halved are played on. If s > 0, one of the two tests has a drift for every
p(C), so every cell is decided after finitely many rollouts.
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
from adagoal.deep.env_inspection import GoalSampler
from adagoal.settings.training import ClaimSettings

# Rollouts that a worker plays together. A cell gets whole blocks and a block seeds its own starts, so the certificate
# does not depend on the number of workers.
ROLLOUTS_PER_BLOCK = 16
# Blocks of a round, at least: a few open cells get several each, which keeps all workers busy.
MIN_BLOCKS_PER_ROUND = 8
# Goals that decide where cells are halved: 512 in each of 64 cells.
SPLIT_SAMPLE_SIZE = 2**15
ReachFunction = Callable[[Floats, int], Bools]
"""``reach(goals [n, G], round) -> [n]``: play for each goal from a fresh start; was it reached in L steps?"""


class Claim(ClaimSettings):
    """What a certification claims: q is ``success`` and s is ``slack`` in the text above."""

    @property
    def first_level(self) -> int:
        """The first level on which cells are tried."""
        # 8 cells, for a map with some detail; levels above it need no share of delta
        return min(3, self.halvings)

    def cell_alpha(self, level: int) -> float:
        """Share of delta of a cell on this level."""
        return self.delta / (self.halvings - self.first_level + 1) / 2**level

    def rollouts_before_split(self, level: int) -> int:
        """Rollouts after which an undecided cell on this level is halved."""
        without_failure = 1
        while not rejects_at_most(without_failure, without_failure, self.success - self.slack, self.cell_alpha(level)):
            without_failure += 1
        return 2 * without_failure


class Verdict(StrEnum):
    """Verdict on a cell."""

    CERTIFIED = "certified"
    REFUTED = "refuted"
    OPEN = "open"


@dataclass(frozen=True)
class GoalCell:
    """A box of the goal space, and the evidence of its rollouts."""

    verdict: Verdict
    low: Floats  # corners, [G]; goals beyond the outermost cells belong to the nearest one
    high: Floats
    share: float  # share of the goals that lie in it, estimated from a sample
    rollouts: int
    reached: int
    at_least: float  # lower bound on p(C); those of all cells hold at once with probability 1 - delta
    at_most: float  # upper bound on p(C), likewise

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return vars(self) | {"low": self.low.tolist(), "high": self.high.tolist()}


@dataclass(frozen=True)
class Certification:
    """Verdicts on cells that together cover the goal space."""

    status: Status
    """``certified``: every cell is; ``decided``: some are refuted, none is open; else ``budget`` or ``interrupted``."""
    claim: Claim
    cells: Sequence[GoalCell]
    rollouts: int  # played in all
    about: Mapping[str, Any] = field(default_factory=dict)  # environment, policy, goals and seed

    def cell(self, goal: ArrayLike) -> GoalCell:
        """The cell that holds a goal ``[G]``."""
        vector, size = np.asarray(goal, np.float64), len(self.cells[0].low)
        if vector.shape != (size,) or not np.isfinite(vector).all():
            raise InputError(f"must be {size} finite numbers, got {goal!r}", "goal")
        return self.cells[int(self.locate(vector[None])[0])]

    def locate(self, goals: Floats) -> Longs:
        """Indices ``[n]`` of the cells that hold the goals ``[n, G]``."""
        low, high = (np.stack([getattr(cell, end) for cell in self.cells]) for end in ("low", "high"))
        inside = goals.clip(low.min(0), high.max(0))[:, None]
        # Cells are open below, as goals <= cut go into the first half; the outermost are closed. The outer corners are
        # those of a sample, so goals beyond them are clipped into the nearest cell.
        holds = ((low < inside) | (low == low.min(0))) & (inside <= high)
        return np.asarray(holds.all(2).argmax(1))

    def share(self, verdict: str) -> float:
        """Share of the goals in cells with this verdict."""
        return math.fsum(cell.share for cell in self.cells if cell.verdict == verdict)

    def count(self, verdict: str) -> int:
        """Number of cells with this verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)

    @property
    def statement(self) -> str:
        """The guarantee in words."""
        claim = self.claim
        return (
            f"With probability {1.0 - claim.delta:g} all of this holds: a goal drawn from a certified cell is reached "
            f"within {claim.radius} steps with probability {claim.success - claim.slack:g} or more, and one drawn from "
            f"a refuted cell with less than {claim.success:g}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "status": self.status,
            "claim": vars(self.claim),
            "rollouts": self.rollouts,
            "shares": {str(verdict): self.share(verdict) for verdict in Verdict},
            "about": dict(self.about),
            "statement": self.statement,
            "cells": [cell.to_dict() for cell in self.cells],
        }


def certify_cells(
    claim: Claim,
    sample: GoalSampler,
    reach: ReachFunction,
    seed: int,
    proceed: Callable[[int, int], bool] = lambda open_cells, rollouts: True,
) -> Certification:
    """Play until every cell is decided, the rollouts are spent, or ``proceed(open cells, rollouts)`` is False."""
    # A stream of its own: goals that shaped the cells must not be played, or the bets on the cells would not be fair.
    tree = CellTree(sample(random_stream(seed, StreamPurpose.CELLS), SPLIT_SAMPLE_SIZE), claim.halvings)
    counts = _RolloutCounts(claim, tree)
    decided: list[int] = []
    open_cells = tree.cells_on_level(claim.first_level)
    round_, played, status = 0, 0, Status.CERTIFIED
    while open_cells:
        # before the round, so a certification never plays more than its budget
        n_rollouts = [counts.next_rollout_count(cell, len(open_cells)) for cell in open_cells]
        if claim.rollouts is not None and played + sum(n_rollouts) > claim.rollouts:
            status = Status.BUDGET
            break
        if not proceed(len(open_cells), played):
            status = Status.INTERRUPTED
            break
        rng = random_stream(seed, StreamPurpose.CERTIFIED_GOALS, round_)
        draws = zip(open_cells, n_rollouts, strict=True)
        goals = np.concatenate([tree.draw_goals_in_cell(cell, n, sample, rng) for cell, n in draws])
        counts.add_rollouts(np.repeat(open_cells, n_rollouts), goals, reach(goals, round_))
        newly_decided, open_cells = counts.decide_cells(open_cells)
        decided += newly_decided
        round_, played = round_ + 1, played + len(goals)
    leaves = [counts.summarise_cell(leaf) for leaf in sorted(decided + open_cells)]
    if status is Status.CERTIFIED and any(leaf.verdict is Verdict.REFUTED for leaf in leaves):
        status = Status.DECIDED
    return Certification(status, claim, leaves, played)


class _RolloutCounts:
    """Rollouts and successes of every cell of the tree."""

    def __init__(self, claim: Claim, tree: CellTree) -> None:
        self.claim, self.tree = claim, tree
        self.rollouts, self.successes = (np.zeros(len(tree.share), np.int64) for _ in range(2))
        self._rollouts_before_split = [claim.rollouts_before_split(level) for level in range(claim.halvings + 1)]

    def add_rollouts(self, drawn_from: Any, goals: Floats, reached: Bools) -> None:
        """Count rollouts for the cells ``[n]`` that they were drawn from, and for those below them."""
        # Not for the cells above: there the goals would be drawn more often from some halves than from others.
        levels = np.array([self.tree.level_of_cell(cell) for cell in drawn_from])
        previous = np.zeros(len(goals), np.int64)
        for level in range(self.claim.halvings + 1):
            cells = self.tree.find_cells(goals, level)
            # find_cells repeats a cell that cannot be halved, which must count once
            new = (levels <= level) & (cells != previous)
            np.add.at(self.rollouts, cells[new], 1)
            np.add.at(self.successes, cells[new & reached], 1)
            previous = cells

    def cell_verdict(self, cell: int) -> Verdict:
        """Verdict of the rollouts."""
        # A p(C) between q - s and q may be both certified and refuted; both are true then, and the first one counts.
        claim, alpha = self.claim, self.claim.cell_alpha(self.tree.level_of_cell(cell))
        n, successes = int(self.rollouts[cell]), int(self.successes[cell])
        if rejects_at_most(successes, n, claim.success - claim.slack, alpha):
            return Verdict.CERTIFIED
        # one failure refutes p(C) = 1, without a bet
        if claim.success == 1.0:
            return Verdict.REFUTED if successes < n else Verdict.OPEN
        return Verdict.REFUTED if rejects_at_most(n - successes, n, 1.0 - claim.success, alpha) else Verdict.OPEN

    def decide_cells(self, open_cells: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the cells that are decided now, and those that stay open; halve the cells that are due."""
        decided: list[int] = []
        still_open: list[int] = []
        # Halves are judged at once: they have inherited rollouts, which may decide them without another round.
        left = list(open_cells)
        while left:
            cell = left.pop()
            verdict = self.cell_verdict(cell)
            is_split_due = self.rollouts[cell] >= self._rollouts_before_split[self.tree.level_of_cell(cell)]
            if verdict is Verdict.CERTIFIED:
                decided.append(cell)
            elif self.tree.can_be_split(cell) and (verdict is Verdict.REFUTED or is_split_due):
                left += [2 * cell, 2 * cell + 1]
            else:
                (decided if verdict is Verdict.REFUTED else still_open).append(cell)
        return decided, sorted(still_open)

    def next_rollout_count(self, cell: int, n_open: int) -> int:
        """Rollouts of a cell in the next round: whole blocks, about an eighth of those that it has had."""
        # growing with the cell, so a cell that takes thousands of rollouts is looked at a few dozen times only
        return ROLLOUTS_PER_BLOCK * max(
            math.ceil(MIN_BLOCKS_PER_ROUND / n_open),
            int(self.rollouts[cell]) // (ROLLOUTS_PER_BLOCK * MIN_BLOCKS_PER_ROUND),
        )

    def summarise_cell(self, cell: int) -> GoalCell:
        tree, alpha = self.tree, self.claim.cell_alpha(self.tree.level_of_cell(cell))
        n, successes = int(self.rollouts[cell]), int(self.successes[cell])
        bounds = lower_confidence_bound(successes, n, alpha), 1.0 - lower_confidence_bound(n - successes, n, alpha)
        box = tree.low[cell], tree.high[cell], float(tree.share[cell])
        return GoalCell(self.cell_verdict(cell), *box, n, successes, *bounds)


class CellTree:
    """The goal space in cells: a tree of halvings that a sample ``[n, G]`` of goals fixes before the first rollout.

    The root is the whole space. A cell is halved across its widest side, at the median of the sample, so the cells of a
    level hold about the same share of the goals. The root has index 1, and cell i is halved into 2i and 2i + 1. A cell
    whose goals are all equal cannot be halved.
    """

    def __init__(self, sample: Floats, halvings: int) -> None:
        size = 2 ** (halvings + 1)
        self.low, self.high = (np.zeros((size, sample.shape[1])) for _ in range(2))
        """Corners ``[cells, G]``; the outer ones are those of the sample."""
        self.share = np.zeros(size)
        """Share of the sample in every cell ``[cells]``; 0 for indices without a cell."""
        self._split_axis = np.full(size, -1)  # -1: the cell cannot be halved
        self._split_value = np.zeros(size)
        self.low[1], self.high[1] = sample.min(0), sample.max(0)
        members: dict[int, Floats] = {1: sample}
        for cell in range(1, size):
            goals = members.pop(cell, None)
            if goals is None:
                continue
            self.share[cell] = len(goals) / len(sample)
            if 2 * cell < size and np.ptp(goals, 0).max() > 0.0:
                below = self._split_cell(cell, goals)
                members[2 * cell], members[2 * cell + 1] = goals[below], goals[~below]

    def _split_cell(self, cell: int, goals: Floats) -> Bools:
        """Halve a cell; returns which of its goals lie in the first half."""
        axis = int(np.ptp(goals, 0).argmax())
        # Between two different values, as near to the median as possible: many goals may share a coordinate, and a cut
        # at the median itself could leave one half empty.
        values, times = np.unique(goals[:, axis], return_counts=True)
        cut = float(values[int(np.abs(np.cumsum(times)[:-1] - len(goals) / 2).argmin())])
        self._split_axis[cell], self._split_value[cell] = axis, cut
        for half in (2 * cell, 2 * cell + 1):
            self.low[half], self.high[half] = self.low[cell], self.high[cell]
        self.high[2 * cell, axis] = self.low[2 * cell + 1, axis] = cut
        return np.asarray(goals[:, axis] <= cut)

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

    def find_cells(self, goals: Floats, level: int) -> Longs:
        """The cells ``[n]`` of a level that hold the goals ``[n, G]``; or the one above, if that is not halved."""
        cells = np.full(len(goals), 1)
        for _ in range(level):
            axes = self._split_axis[cells]
            beyond = goals[np.arange(len(goals)), axes] > self._split_value[cells]
            cells = np.where(axes < 0, cells, 2 * cells + beyond)
        return cells

    def draw_goals_in_cell(self, cell: int, count: int, sample: GoalSampler, rng: np.random.Generator) -> Floats:
        """Goals ``[count, G]`` of a cell by rejection: draw from the goal space, drop what lies in other cells."""
        drawn = np.zeros((0, self.low.shape[1]))
        while len(drawn) < count:
            missing = count - len(drawn)
            # half as many again as needed, so one draw is usually enough; bounded for the memory
            goals = sample(rng, min(1_000_000, int(1.5 * missing / self.share[cell]) + 16))
            drawn = np.concatenate([drawn, goals[self.find_cells(goals, self.level_of_cell(cell)) == cell]])
        return drawn[:count]
