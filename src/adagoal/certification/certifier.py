"""The loop of a certification: rollouts certify or refute cells (boxes of goals or starts); open ones are halved.

A value x, a goal or a start, is drawn from its space, and the policy plays an episode for it without noise. Let p(C) be
the probability of a success (:mod:`adagoal.certification.episodes`), given that x lies in the cell C. With success q
and slack s,

    C is certified:  p(C) >= q - s          C is refuted:  p(C) < q.

A comparison of two policies has other verdicts (:class:`~adagoal.certification.certificate.ComparisonClaim`), and
everything else in common.

Both hold for all cells at once with probability 1 - delta, at any time and for any adaptive choice of cells:

* The cells are those of a tree that is fixed before the first rollout (:class:`CellTree`). The M levels on which cells
  are tried get delta / M each, and the 2^k cells of level k share that equally: alpha(C) = delta / (M 2^k). So every
  cell that could ever be tried has its share.
* Every rollout is drawn from some cell, and counts for this cell and for the cells below it that hold its value. Given
  the past and that its value lies in C, it succeeds with probability p(C), because it was drawn from C or from a cell
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
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.certification.certificate import CellVerdict, Certification, Claim, Verdict
from adagoal.certification.value_spaces import CellTree, ValueSampler
from adagoal.core.array_types import Floats
from adagoal.core.errors import InputError, Status
from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value, object_schema
from adagoal.core.random_streams import StreamPurpose, random_stream

# Rollouts that a worker plays together. A cell gets whole blocks and a block seeds its own starts, so the certificate
# does not depend on the number of workers.
ROLLOUTS_PER_BLOCK = 16
# Blocks of a round, at least: a few open cells get several each, which keeps all workers busy.
MIN_BLOCKS_PER_ROUND = 8
# Values that decide where cells are halved: 512 in each of 64 cells.
SPLIT_SAMPLE_SIZE = 2**15
Outcomes = NDArray[Any]
"""Successes ``[n]``. In a comparison 1: only the first policy succeeds, -1: only the second, 0: a draw."""
PlayFunction = Callable[[Floats, int], Outcomes]
"""``play(values [n, V], round) -> [n]``: play an episode for each value."""

_INTEGERS = {"type": "array", "items": COUNT_SCHEMA, "maxItems": 2**14}
PROGRESS_SCHEMA = object_schema(
    cells_digest={"type": "string"},
    round=COUNT_SCHEMA,
    played=COUNT_SCHEMA,
    open_cells=_INTEGERS,
    decided=_INTEGERS,
    rollouts=_INTEGERS,
    successes=_INTEGERS,
    failures=_INTEGERS,
)


class Certifier:
    """A certification that can be interrupted, saved and resumed.

    Parameters
    ----------
    claim: what to certify.
    sample: draws goals or starts.
    seed: of the cells and of all values that are played.
    tree: the cells, if a sample does not fix them.
    """

    def __init__(self, claim: Claim, sample: ValueSampler, seed: int, tree: CellTree | None = None) -> None:
        self.claim, self._sample, self._seed = claim, sample, seed
        # A stream of its own: values that shaped the cells must not be played, or the bets would not be fair.
        rng = random_stream(seed, StreamPurpose.CELLS)
        self.tree = tree or CellTree(sample(rng, SPLIT_SAMPLE_SIZE), claim.halvings)
        # rollouts, successes and failures of every cell of the tree
        self.rollouts, self.successes, self.failures = (np.zeros(len(self.tree.share), np.int64) for _ in range(3))
        self._rollouts_before_split = [claim.rollouts_before_split(level) for level in range(claim.halvings + 1)]
        self.open_cells = self.tree.cells_on_level(claim.first_level)
        self._decided: list[int] = []
        self._round = self.played = 0

    def run(
        self, play: PlayFunction, proceed: Callable[[int, int], bool] = lambda open_cells, rollouts: True
    ) -> Certification:
        """Play until every cell is decided, the rollouts are spent, or ``proceed(open cells, rollouts)`` is False."""
        budget = math.inf if self.claim.rollouts is None else self.claim.rollouts
        while self.open_cells:
            # before the round, so a certification never plays more than its budget
            n_rollouts = [self._next_rollout_count(cell) for cell in self.open_cells]
            if not self.played and sum(n_rollouts) > budget:
                raise InputError(
                    f"must be at least {sum(n_rollouts)}, those of the first round, got {budget}", "rollouts"
                )
            if self.played + sum(n_rollouts) > budget:
                return self.result(Status.BUDGET)
            if not proceed(len(self.open_cells), self.played):
                return self.result(Status.INTERRUPTED)
            rng = random_stream(self._seed, StreamPurpose.CERTIFIED_GOALS, self._round)
            draws = zip(self.open_cells, n_rollouts, strict=True)
            values = np.concatenate([self.tree.draw_values_in_cell(cell, n, self._sample, rng) for cell, n in draws])
            self._add_rollouts(np.repeat(self.open_cells, n_rollouts), values, play(values, self._round))
            self._decide_cells()
            self._round, self.played = self._round + 1, self.played + len(values)
        return self.result(Status.CERTIFIED)

    def result(self, status: Status = Status.INTERRUPTED) -> Certification:
        """Return the certificate so far."""
        leaves = [self._summarise_cell(leaf) for leaf in sorted(self._decided + self.open_cells)]
        if status is Status.CERTIFIED and any(leaf.verdict in (Verdict.REFUTED, Verdict.WORSE) for leaf in leaves):
            status = Status.DECIDED
        progress = None if status.finished else self._snapshot()
        return Certification(status, self.claim, leaves, self.played, progress=progress)

    def _snapshot(self) -> dict[str, Any]:
        return {
            "cells_digest": self.tree.digest(),
            "round": self._round,
            "played": self.played,
            "open_cells": list(self.open_cells),
            "decided": list(self._decided),
            "rollouts": self.rollouts.tolist(),
            "successes": self.successes.tolist(),
            "failures": self.failures.tolist(),
        }

    def resume(self, progress: Mapping[str, Any]) -> None:
        """Continue from the ``progress`` of a certificate; raise a ``ValueError`` if it does not fit these cells."""
        check_json_value(PROGRESS_SCHEMA, progress)
        names = ("rollouts", "successes", "failures")
        rollouts, successes, failures = (np.array(progress[name], np.int64) for name in names)
        leaves = [*progress["open_cells"], *progress["decided"]]
        share = [self.tree.share[cell] if cell < len(self.tree.share) else 0.0 for cell in leaves]
        if (
            progress["cells_digest"] != self.tree.digest()
            or not rollouts.shape == successes.shape == failures.shape == self.tree.share.shape
            or (successes + failures > rollouts).any()
            # every value lies in exactly one of the cells that are decided or open
            or not (all(share) and math.isclose(math.fsum(share), 1.0))
        ):
            raise ValueError("the saved progress belongs to other cells")
        self.rollouts, self.successes, self.failures = rollouts, successes, failures
        self.open_cells, self._decided = list(progress["open_cells"]), list(progress["decided"])
        self._round, self.played = progress["round"], progress["played"]

    def _add_rollouts(self, drawn_from: Any, values: Floats, outcomes: Outcomes) -> None:
        """Count rollouts for the cells ``[n]`` that they were drawn from, and for those below them."""
        # Not for the cells above: there the values would be drawn more often from some halves than from others.
        levels = np.array([self.tree.level_of_cell(cell) for cell in drawn_from])
        is_failure = ~outcomes if outcomes.dtype == bool else outcomes < 0
        previous = np.zeros(len(values), np.int64)
        for level in range(self.claim.halvings + 1):
            cells = self.tree.find_cells(values, level)
            # find_cells repeats a cell that cannot be halved, which must count once
            new = (levels <= level) & (cells != previous)
            np.add.at(self.rollouts, cells[new], 1)
            np.add.at(self.successes, cells[new & (outcomes > 0)], 1)
            np.add.at(self.failures, cells[new & is_failure], 1)
            previous = cells

    def _evidence(self, cell: int) -> tuple[int, int, int, float]:
        """Return the successes, failures and rollouts of a cell, and its share of delta."""
        alpha = self.claim.cell_alpha(self.tree.level_of_cell(cell))
        return int(self.successes[cell]), int(self.failures[cell]), int(self.rollouts[cell]), alpha

    def cell_verdict(self, cell: int) -> Verdict:
        """Verdict of the rollouts."""
        return self.claim.judge(*self._evidence(cell))

    def _decide_cells(self) -> None:
        """Judge the open cells: note those that are decided, and halve those that are due."""
        # Halves are judged at once: they have inherited rollouts, which may decide them without another round.
        unjudged, self.open_cells = self.open_cells, []
        while unjudged:
            cell = unjudged.pop()
            verdict = self.cell_verdict(cell)
            # a half of a refuted cell may still be certified
            is_split_due = self.rollouts[cell] >= self._rollouts_before_split[self.tree.level_of_cell(cell)]
            is_split_due = verdict is Verdict.REFUTED or (verdict is Verdict.OPEN and is_split_due)
            if is_split_due and self.tree.can_be_split(cell):
                unjudged += [2 * cell, 2 * cell + 1]
            else:
                (self.open_cells if verdict is Verdict.OPEN else self._decided).append(cell)
        self.open_cells.sort()

    def _next_rollout_count(self, cell: int) -> int:
        """Rollouts of a cell in the next round: whole blocks, about an eighth of those that it has had."""
        # growing with the cell, so a cell that takes thousands of rollouts is looked at a few dozen times only
        return ROLLOUTS_PER_BLOCK * max(
            math.ceil(MIN_BLOCKS_PER_ROUND / len(self.open_cells)),
            int(self.rollouts[cell]) // (ROLLOUTS_PER_BLOCK * MIN_BLOCKS_PER_ROUND),
        )

    def _summarise_cell(self, cell: int) -> CellVerdict:
        successes, failures, rollouts, alpha = self._evidence(cell)
        low, high, share = self.tree.low[cell], self.tree.high[cell], float(self.tree.share[cell])
        bounds = self.claim.bounds(successes, failures, rollouts, alpha)
        return CellVerdict(self.cell_verdict(cell), low, high, share, rollouts, successes, failures, *bounds)
