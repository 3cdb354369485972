"""Estimates under a reset that is only believed to lead to the start (docs/theory-more.md, lemma 10).

Bounds are computed as if the reset were exact. In truth it leads elsewhere with an unknown probability q. While it
never has, in n resets, with probability 1 - delta_r at all times (one window of lemma 3b):

    q <= 1 - exp(-ln(1/delta_r) / n)

and with C = L + 1 + eps, which bounds the value of a recorded policy everywhere,

    lower' = lower / (1 + q lower)
    upper' = upper / (1 - q (C - upper))                        (infinite if that exceeds C)
    E'     = E + q upper (C - lower + upper) / (1 - q C),  at most C - lower'
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from adagoal.core.exploration_run import SupportsRadiusCurriculum
from adagoal.core.types import Floats

# Share of delta of the event of lemma 10; the four events of lemmas 1 to 3 get the rest.
RESET_DELTA_SHARE = 0.05


class ExactResetEstimates(SupportsRadiusCurriculum, Protocol):
    """Estimates that take the reset for exact."""

    cap: float
    """C: bound on the value of every recorded policy, from every state"""

    @property
    def upper(self) -> Floats:
        """[columns] upper bounds on the values of the recorded policies; infinite if there is no policy"""
        ...


class UncertainReset:
    """Estimates for an environment whose reset is not certain: those for an exact reset, widened by lemma 10."""

    def __init__(self, exact: ExactResetEstimates, delta: float) -> None:
        """``delta`` is the probability of this event; ``exact`` has been given the rest."""
        self.exact = exact
        self._log_inverse_delta = math.log(1.0 / delta)

    @property
    def q(self) -> float:
        """Upper bound on the probability that the reset leads elsewhere."""
        # expm1, because 1 - exp cancels after many resets
        resets = self.exact.counts.n_resets
        return -math.expm1(-self._log_inverse_delta / resets) if resets else 1.0

    @property
    def D(self) -> Floats:
        """[columns] lower bounds; column 0 stays infinite if no goal shares it any more."""
        D, shared = self.exact.D, self.exact.goal_state < 0
        # In this form an infinite D gives 1/q, where D/(1 + qD) would be NaN, and D = 0 gives 0.
        with np.errstate(divide="ignore"):
            return np.where(shared & np.isinf(D), np.inf, 1.0 / (1.0 / D + self.q))

    @property
    def upper(self) -> Floats:
        """[columns] upper bounds on the values of the recorded policies; infinite beyond C, where the lemma fails."""
        C, U = self.exact.cap, self.exact.upper
        with np.errstate(divide="ignore", invalid="ignore"):
            wider = np.where(U > 0.0, U / (1.0 - self.q * (C - U)), 0.0)
        # The quotient is negative if q (C - U) > 1. Then lemma 10 gives no bound.
        return np.where((wider >= U) & (wider <= C), wider, np.inf)

    @property
    def E(self) -> Floats:
        """[columns] error estimates; C - D' without a recorded policy."""
        C, D, U = self.exact.cap, self.exact.D, self.exact.upper
        known = np.isfinite(self.upper)
        E: Floats = np.maximum(C - self.D, 0.0)
        if self.q * C < 1.0:
            wider = self.exact.E[known] + self.q * U[known] * (C - D[known] + U[known]) / (1.0 - self.q * C)
            E[known] = np.minimum(E[known], wider)
        # The goal contains the start, so it is reached before any reset.
        E[U == 0.0] = 0.0
        return E

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """Return (lower, upper): at least lower expected steps for any policy, at most upper for the recorded one."""
        j = self.exact.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the exact estimates."""
        return getattr(self.exact, name)
