"""The answer of a certification: the claim, cells with their verdicts, and the statement in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.confidence_bounds import rejects_at_most
from adagoal.core.errors import InputError, Status
from adagoal.core.types import Floats, Longs
from adagoal.settings.training import ClaimSettings


class Claim(ClaimSettings):
    """What a certification claims: q is ``success`` and s is ``slack`` in the text above."""

    @property
    def first_level(self) -> int:
        """The first level on which cells are tried."""
        # 8 cells, for a map with some detail; levels above it need no share of delta
        return min(3, self.halvings)

    def cell_alpha(self, level: int) -> float:
        """Share of delta of a cell on this level."""
        return float(self.delta / (self.halvings - self.first_level + 1) / 2**level)

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
class CellVerdict:
    """A box of goals or starts, and the evidence of its rollouts."""

    verdict: Verdict
    low: Floats  # corners, [V]; values beyond the outermost cells belong to the nearest one
    high: Floats
    share: float  # share of the values that lie in it, estimated from a sample
    rollouts: int
    successes: int
    at_least: float  # lower bound on p(C); those of all cells hold at once with probability 1 - delta
    at_most: float  # upper bound on p(C), likewise

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
        if isinstance(value, Mapping):
            if self.names is None or set(value) != set(self.names):
                raise InputError(f"must have the entries {self.names}, got {list(value)}", self.subject)
            value = [value[name] for name in self.names]
        return np.asarray(value, np.float64)


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
        return math.fsum(cell.share for cell in self.cells if cell.verdict == verdict)

    def count(self, verdict: str) -> int:
        """Number of cells with this verdict."""
        return sum(cell.verdict == verdict for cell in self.cells)

    @property
    def variables(self) -> list[str]:
        """Names of the V coordinates."""
        names = self.question.names
        return list(names or (f"{self.question.subject} coordinate {i}" for i in range(len(self.cells[0].low))))

    @property
    def statement(self) -> str:
        """The guarantee in words."""
        claim, question = self.claim, self.question
        event = question.event.format(steps=claim.radius)
        return (
            f"With probability {1.0 - claim.delta:g} all of this holds: a {question.subject} drawn from a certified "
            f"cell {event} with probability {claim.success - claim.slack:g} or more, and one drawn from a refuted cell "
            f"with less than {claim.success:g}."
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
            "subject": self.question.subject,
            "variables": self.variables,
            "cells": [cell.to_dict() for cell in self.cells],
        } | ({} if self.progress is None else {"progress": dict(self.progress)})
