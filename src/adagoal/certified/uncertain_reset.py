"""What it costs that the reset is only believed to lead to the start (docs/theory-more.md, section "The reset").

Bounds are computed for the world in which the reset is exact. In the real one it leads elsewhere with an unknown
probability q. As long as it never has, in n resets, with probability 1 - delta_r at all times (one window of lemma 3b):

    q <= 1 - exp(-ln(1/delta_r) / n)

and with C = L + 1 + eps, which bounds the value of a recorded policy everywhere,

    lower' = lower / (1 + q lower)
    upper' = upper / (1 - q (C - upper))                        (infinite where that is beyond C)
    E'     = E + q upper (C - lower + upper) / (1 - q C),  at most C - lower'
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from adagoal.core.exploration_run import SupportsRadiusCurriculum
from adagoal.core.types import Floats

RESET_DELTA_SHARE = 0.05
"""Of delta, for the event that the reset leads elsewhere less often than is believed."""


class ExactResetEstimates(SupportsRadiusCurriculum, Protocol):
    """Estimates of a world with an exact reset."""

    cap: float
    """C: the value of every recorded policy is at most this, from everywhere"""

    @property
    def upper(self) -> Floats:
        """[columns] bounds on the values of the recorded policies; infinite where there is none"""
        ...


class UncertainReset:
    """Estimates for a world that cannot vouch for its start: those for an exact reset, made wider."""

    def __init__(self, exact: ExactResetEstimates, delta: float) -> None:
        """``delta`` is the share of this event; ``exact`` has the rest."""
        self.exact = exact
        self._log_inverse_delta = math.log(1.0 / delta)

    @property
    def q(self) -> float:
        """A bound on the probability with which the reset leads elsewhere."""
        resets = self.exact.counts.n_resets
        return -math.expm1(-self._log_inverse_delta / resets) if resets else 1.0

    @property
    def D(self) -> Floats:
        """[columns] lower bounds; column 0 stays infinite where no goal is left for it."""
        D, nobody = self.exact.D, self.exact.goal_state < 0
        with np.errstate(divide="ignore"):
            return np.where(nobody & np.isinf(D), np.inf, 1.0 / (1.0 / D + self.q))

    @property
    def upper(self) -> Floats:
        """[columns] bounds on the values of the recorded policies; infinite beyond C, where they say nothing."""
        C, U = self.exact.cap, self.exact.upper
        with np.errstate(divide="ignore", invalid="ignore"):
            wider = np.where(U > 0.0, U / (1.0 - self.q * (C - U)), 0.0)
        return np.where((wider >= U) & (wider <= C), wider, np.inf)

    @property
    def E(self) -> Floats:
        """[columns] error estimates; C - D' where nothing is known of a policy."""
        C, D, U = self.exact.cap, self.exact.D, self.exact.upper
        known = np.isfinite(self.upper)
        E: Floats = np.maximum(C - self.D, 0.0)
        if self.q * C < 1.0:
            wider = self.exact.E[known] + self.q * U[known] * (C - D[known] + U[known]) / (1.0 - self.q * C)
            E[known] = np.minimum(E[known], wider)
        E[U == 0.0] = 0.0
        return E

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """[lower, upper]: the best policy takes at least lower, the returned one at most upper expected steps."""
        j = self.exact.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def __getattr__(self, name: str) -> Any:
        """Everything else is as it is for an exact reset."""
        return getattr(self.exact, name)
