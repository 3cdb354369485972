"""The answer of a certification: the claim, cells with their verdicts, and the statement in words."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.array_types import Floats, Longs
from adagoal.core.confidence_bounds import find_boundary, lower_confidence_bound, rejects_at_most, rejects_mean
from adagoal.core.errors import InputError, Status
from adagoal.core.run_settings import ClaimSettings


class Verdict(StrEnum):
    """Verdict on a cell; the last three are those of a comparison."""

    CERTIFIED = "certified"
    REFUTED = "refuted"
    OPEN = "open"
    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"


class Claim(ClaimSettings):
    """What a certification claims: q is ``success`` and s is ``slack`` in :mod:`adagoal.certification.certifier`."""

    verdicts: tuple[Verdict, ...] = (Verdict.CERTIFIED, Verdict.REFUTED, Verdict.OPEN)
    measure, least = "probability of success", 0.0  # what the bounds are about, and its least possible value

    @property
    def marks(self) -> Sequence[float]:
        """Values of the measure that the verdicts depend on."""
        return self.success, self.success - self.slack

    def rate(self, cell: CellVerdict) -> float:
        """The measure in the rollouts of a cell."""
        return cell.successes / max(cell.rollouts, 1)

    @property
    def first_level(self) -> int:
        """The first level on which cells are tried."""
        # 8 cells, for a map with some detail; levels above it need no share of delta
        return min(3, self.halvings)

    def cell_alpha(self, level: int) -> float:
        """Share of delta of a cell on this level."""
        return float(self.delta / (self.halvings - self.first_level + 1) / 2**level)

    def rollouts_before_split(self, level: int) -> int:
        """Rollouts after which an undecided cell on this level is halved: twice those that decide the easiest cell."""
        alpha = self.cell_alpha(level)
        # Bounded, because no number of rollouts certifies success 1 with slack 0.
        counts = range(1, 2**21)
        is_decided = lambda n: self.judge(*self._easiest_counts(n), alpha) is not Verdict.OPEN  # noqa: E731
        return 2 * (bisect.bisect_left(counts, True, key=is_decided) + 1)

    def _easiest_counts(self, n: int) -> tuple[int, int, int]:
        """Successes, failures and rollouts of a cell without a failure."""
        return n, 0, n

    def judge(self, successes: int, failures: int, rollouts: int, alpha: float) -> Verdict:
        """Return the verdict on a cell."""
        # A p(C) between q - s and q may be both certified and refuted; both are true then, and the first one counts.
        if rejects_at_most(successes, rollouts, self.success - self.slack, alpha):
            return Verdict.CERTIFIED
        # one failure refutes p(C) = 1, without a bet
        is_refuted = (
            failures > 0 if self.success == 1.0 else rejects_at_most(failures, rollouts, 1.0 - self.success, alpha)
        )
        return Verdict.REFUTED if is_refuted else Verdict.OPEN

    def bounds(self, successes: int, failures: int, rollouts: int, alpha: float) -> tuple[float, float]:
        """Return a lower and an upper bound on p(C), each wrong with probability at most ``alpha``."""
        low, high = (lower_confidence_bound(count, rollouts, alpha) for count in (successes, failures))
        return low, 1.0 - high

    def statement(self, subject: str, event: str, policies: Sequence[str]) -> str:
        """The guarantee in words."""
        return (
            f"With probability {1.0 - self.delta:g} all of this holds: a {subject} drawn from a certified cell {event} "
            f"with probability {self.success - self.slack:g} or more, and one drawn from a refuted cell with less than "
            f"{self.success:g}."
        )


class ComparisonClaim(Claim):
    """What a comparison of two policies A and B claims about d(C), the probability of success of A less that of B.

    Both play the same values with the same seeds. A rollout is a success if only A succeeds, and a failure if only B
    does. Then Y = 1, 0 and, in a draw, 1/2 has the mean (1 + d(C))/2. Betting on Y gives a lower and an upper bound on
    d(C) with half of alpha(C) each, and every verdict follows from these two bounds.
    """

    verdicts = (Verdict.BETTER, Verdict.EQUAL, Verdict.WORSE, Verdict.OPEN)
    measure, least = "difference of the probabilities of success", -1.0

    @property
    def marks(self) -> Sequence[float]:
        return self.slack, 0.0, -self.slack

    def rate(self, cell: CellVerdict) -> float:
        return (cell.successes - cell.failures) / max(cell.rollouts, 1)

    def _easiest_counts(self, n: int) -> tuple[int, int, int]:
        # a cell of draws; without slack a cell of successes, as draws decide nothing
        return (0, 0, n) if self.slack > 0.0 else (n, 0, n)

    def judge(self, successes: int, failures: int, rollouts: int, alpha: float) -> Verdict:
        alpha, draws = alpha / 2.0, rollouts - successes - failures
        if _rejects_difference(successes, draws, failures, 0.0, alpha):
            return Verdict.BETTER
        if _rejects_difference(failures, draws, successes, 0.0, alpha):
            return Verdict.WORSE
        ends = ((successes, failures), (failures, successes))
        is_equal = self.slack > 0.0 and all(_rejects_difference(a, draws, b, -self.slack, alpha) for a, b in ends)
        return Verdict.EQUAL if is_equal else Verdict.OPEN

    def bounds(self, successes: int, failures: int, rollouts: int, alpha: float) -> tuple[float, float]:
        def least_difference(wins: int, losses: int) -> float:
            # Plus 1, because find_boundary searches in (0, 2]
            is_rejected = partial(_rejects_difference, wins, rollouts - wins - losses, losses, alpha=alpha / 2.0)
            return find_boundary(lambda d: is_rejected(d - 1.0), 2.0) - 1.0

        return least_difference(successes, failures), -least_difference(failures, successes)

    def statement(self, subject: str, event: str, policies: Sequence[str]) -> str:
        A, B = policies
        return (
            f"With probability {1.0 - self.delta:g} all of this holds: a {subject} drawn from a better cell {event} "
            f"with a larger probability under {A} than under {B}, one drawn from a worse cell with a smaller one, and "
            f"in an equal cell the two probabilities differ by at most {self.slack:g}."
        )


def _rejects_difference(wins: int, draws: int, losses: int, d: float, alpha: float) -> bool:
    """Return whether a difference of probabilities <= ``d`` is refuted."""
    return rejects_mean(np.array([1.0, 0.5, 0.0]), np.array([wins, draws, losses]), (1.0 + d) / 2.0, alpha)


@dataclass(frozen=True)
class CellVerdict:
    """A box of goals or starts, and the evidence of its rollouts."""

    verdict: Verdict
    low: Floats  # corners, [V]; values beyond the outermost cells belong to the nearest one
    high: Floats
    share: float  # share of the values that lie in it, estimated from a sample
    rollouts: int
    successes: int  # in a comparison: rollouts in which only the first policy succeeded
    failures: int  # in a comparison: rollouts in which only the second policy succeeded
    # Bounds on p(C), or on d(C) in a comparison. With probability 1 - delta all lower bounds hold at once; so do all
    # upper bounds. Those of a comparison hold together.
    at_least: float
    at_most: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return vars(self) | {"low": self.low.tolist(), "high": self.high.tolist()}


@dataclass(frozen=True)
class Question:
    """What is varied, and what counts as a success, in words."""

    subject: str = "goal"  # or "start"
    event: str = "is reached within {steps} steps"
    names: tuple[str, ...] | None = None  # of the coordinates

    def to_vector(self, value: ArrayLike | Mapping[str, float]) -> Floats:
        """Return a goal or start as an array ``[V]``."""
        if isinstance(value, Mapping) and self.names is not None:
            if set(value) != set(self.names):
                raise InputError(f"must have the entries {self.names}, got {list(value)}", self.subject)
            value = [value[name] for name in self.names]
        try:
            return np.asarray(value, np.float64)
        except (TypeError, ValueError):
            return np.full(1, np.nan)  # the caller refuses numbers that are not finite


@dataclass(frozen=True)
class Certification:
    """Verdicts on cells that together cover a space of goals or starts."""

    status: Status
    """``certified``: every cell is; ``decided``: some are refuted, none is open; else ``budget`` or ``interrupted``."""
    claim: Claim
    cells: Sequence[CellVerdict]
    rollouts: int  # played in all
    about: Mapping[str, Any] = field(default_factory=dict)  # environment, policy, goals or starts, and seed
    question: Question = field(default_factory=lambda: Question())
    progress: Mapping[str, Any] | None = None  # what a resumed certification needs; None if every cell is decided

    def cell(self, value: ArrayLike | Mapping[str, float]) -> CellVerdict:
        """The cell that holds a goal or start ``[V]``; a dictionary if the coordinates have names."""
        vector, size = self.question.to_vector(value), len(self.cells[0].low)
        if vector.shape != (size,) or not np.isfinite(vector).all():
            raise InputError(f"must be {size} finite numbers, got {value!r}", self.question.subject)
        low, high = np.min([cell.low for cell in self.cells], 0), np.max([cell.high for cell in self.cells], 0)
        # with a margin, because the outer corners may be those of a sample
        margin = 0.01 * (high - low) + 1e-6
        if (vector < low - margin).any() or (vector > high + margin).any():
            text = f"{value!r} lies outside of all cells, from {low.tolist()} to {high.tolist()}"
            raise InputError(text, self.question.subject)
        return self.cells[int(self.locate(vector[None])[0])]

    def locate(self, values: Floats) -> Longs:
        """Indices ``[n]`` of the cells that hold the values ``[n, V]``."""
        low, high = (np.stack([getattr(cell, end) for cell in self.cells]) for end in ("low", "high"))
        inside = values.clip(low.min(0), high.max(0))[:, None]
        # Cells are open below, as values <= cut go into the first half; the outermost are closed. The outer corners are
        # those of a sample, so values beyond them are clipped into the nearest cell.
        holds = ((low < inside) | (low == low.min(0))) & (inside <= high)
        return np.asarray(holds.all(2).argmax(1))

    def share(self, verdict: str) -> float:
        """Share of the goals or starts in cells with this verdict."""
        if verdict not in self.claim.verdicts:
            raise InputError(f"must be one of {', '.join(self.claim.verdicts)}, got {verdict!r}", "verdict")
        return math.fsum(cell.share for cell in self.cells if cell.verdict == verdict)

    def count(self, verdict: str) -> int:
        """Number of cells with this verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)

    @property
    def outcome(self) -> str:
        """The status in words."""
        is_comparison = isinstance(self.claim, ComparisonClaim)
        if self.status is Status.CERTIFIED:
            return f"every cell is {'better or equal' if is_comparison else 'certified'}"
        if self.status is Status.DECIDED:
            return f"every cell is decided and some are {'worse' if is_comparison else 'refuted'}"
        return str(self.status)

    @property
    def variables(self) -> list[str]:
        """Names of the V coordinates."""
        names = self.question.names
        return list(names or (f"{self.question.subject} coordinate {i}" for i in range(len(self.cells[0].low))))

    @property
    def statement(self) -> str:
        """The guarantee in words."""
        policies = [self.about.get(key, "policy") for key in ("policy_name", "versus_name")]
        return self.claim.statement(
            self.question.subject, self.question.event.format(steps=self.claim.radius), policies
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "status": self.status,
            "claim": vars(self.claim),
            "rollouts": self.rollouts,
            "shares": {str(verdict): self.share(verdict) for verdict in self.claim.verdicts},
            "about": dict(self.about),
            "statement": self.statement,
            "subject": self.question.subject,
            "variables": self.variables,
            "cells": [cell.to_dict() for cell in self.cells],
        } | ({} if self.progress is None else {"progress": dict(self.progress)})
