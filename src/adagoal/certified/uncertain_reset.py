"""Widen the bounds if the reset may not lead to the start: ``UncertainReset`` (docs/theory-more.md, lemma 10).

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

from adagoal.core.array_types import Floats
from adagoal.core.compiled_code import compiled
from adagoal.core.exploration_run import SupportsRadiusCurriculum

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
        return wrong_reset_bound(self._log_inverse_delta, self.exact.counts.n_resets)

    @property
    def D(self) -> Floats:
        """[columns] lower bounds; column 0 stays infinite if no goal shares it any more."""
        return self._widened_rows()[0]

    @property
    def upper(self) -> Floats:
        """[columns] upper bounds on the values of the recorded policies; infinite beyond C, where the lemma fails."""
        return self._widened_rows()[1]

    @property
    def E(self) -> Floats:
        """[columns] error estimates; C - D' without a recorded policy."""
        return self._widened_rows()[2]

    def _widened_rows(self) -> tuple[Floats, Floats, Floats]:
        exact = self.exact
        lower, upper, errors = widen_bounds(exact.D, exact.upper, exact.E, exact.goal_state < 0, exact.cap, self.q)
        return lower, upper, errors

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """Return (lower, upper): at least lower expected steps for any policy, at most upper for the recorded one."""
        j, (lower, upper, _) = self.exact.column[goal], self._widened_rows()
        return float(lower[j]), float(upper[j])

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the exact estimates."""
        return getattr(self.exact, name)


def wrong_reset_bound(log_inverse_delta: float, resets: int) -> float:
    """Upper bound on the probability q that a reset leads elsewhere, if none of ``resets`` did."""
    # expm1, because 1 - exp cancels after many resets
    return -math.expm1(-log_inverse_delta / resets) if resets else 1.0


# NumPy's division: D = 0 gives 1/0 = inf, and then a lower bound of 0. Compiled, because every rollout asks many times.
@compiled(error_model="numpy")
def widen_bounds(D, upper, E, shared, C, q):  # type: ignore[no-untyped-def]
    """Return [3, columns] the lower bounds, upper bounds and errors of lemma 10; ``shared``: column 0."""
    rows = np.empty((3, len(D)))
    for j in range(len(D)):
        # In this form an infinite D gives 1/q, where D/(1 + qD) would be NaN.
        rows[0, j] = np.inf if shared[j] and np.isinf(D[j]) else 1.0 / (1.0 / D[j] + q)
        wider = upper[j] / (1.0 - q * (C - upper[j])) if upper[j] > 0.0 else 0.0
        # The quotient is negative if q (C - upper) > 1. Then lemma 10 gives no bound.
        rows[1, j] = wider if upper[j] <= wider <= C else np.inf
        rows[2, j] = max(C - rows[0, j], 0.0)
        if q * C < 1.0 and np.isfinite(rows[1, j]):
            error = E[j] + q * upper[j] * (C - D[j] + upper[j]) / (1.0 - q * C)
            rows[2, j] = min(rows[2, j], error)
        # The goal contains the start, so it is reached before any reset.
        if upper[j] == 0.0:
            rows[2, j] = 0.0
    return rows
