"""Tests and bounds for probabilities of success: e-values, valid at any time, and Clopper-Pearson intervals.

An e-value is the wealth of a gambler who bets against a hypothesis. Let X_1, X_2, ... >= 0 be observations whose means,
given the past, are at most m. The wealth

    W_n = prod_{i <= n} (1 + b (X_i / m - 1)),    0 <= b <= 1,

starts at 1, is never negative, and its expectation never rises. By Ville's inequality it ever reaches 1/alpha with
probability at most alpha. So a test may look after every observation and stop at any time. The average of the wealth
over several bets b has the same property.

For successes among trials X is 0 or 1. Successes refute a probability of success <= q, with m = q; failures refute one
>= q, with m = 1 - q.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.array_types import Floats, Longs


def log_wealth(returns: Floats, times: Longs) -> float:
    """Return the logarithm of the wealth, averaged over the bets.

    ``returns`` [k] >= -1 are the values of X/m - 1, and ``times`` [k] says how often each occurred.
    """
    # The bets b, as shares of the wealth. Small bets win on many observations: the least suits about a million.
    bets = np.concatenate([[1.0, 0.9], 0.7 * 0.7 ** np.arange(20)])
    # The bet 1 loses everything on a return of -1, and its logarithm is then -inf.
    with np.errstate(divide="ignore"):
        logs = np.log1p(bets[:, None] * returns[None, :]) @ times
    # The largest is factored out, because the wealth itself would overflow or vanish.
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).mean())) if math.isfinite(top) else -math.inf


def rejects_mean(values: Floats, times: Longs, m: float, alpha: float) -> bool:
    """Return whether a mean <= ``m`` is refuted, falsely at any time with probability <= alpha.

    ``values`` [k] >= 0 are those of X, and ``times`` [k] says how often each occurred.
    """
    # Skip values that did not occur: 0 * log(0) would be NaN.
    seen = times > 0
    if not values[seen].any():
        return False
    return log_wealth(values[seen] / m - 1.0, times[seen]) >= math.log(1.0 / alpha)


def rejects_at_most(successes: int, trials: int, q: float, alpha: float) -> bool:
    """Return whether a probability of success <= ``q`` is refuted; falsely, at any time, with probability <= alpha."""
    return rejects_mean(np.array([1.0, 0.0]), np.array([successes, trials - successes]), q, alpha)


def lower_confidence_bound(successes: int, trials: int, alpha: float) -> float:
    """Return a lower bound on the probability of success; false, at any time, with probability <= alpha."""
    return find_boundary(lambda q: rejects_at_most(successes, trials, q, alpha), 1.0)


def find_boundary(true_below: Callable[[float], bool], most: float) -> float:
    """Return where a statement about m in (0, most], true for small m, becomes false; ``most`` if it never does."""
    if true_below(most):
        return most
    low = 0.0
    # More halvings than a float has bits. The end where the statement is true is the safe one.
    for _ in range(60):
        middle = (low + most) / 2.0
        low, most = (middle, most) if true_below(middle) else (low, middle)
    return low


def clopper_pearson_bounds(successes: ArrayLike, trials: ArrayLike, tail: ArrayLike) -> tuple[Floats, Floats]:
    """Return the ends (low, high) of Clopper-Pearson intervals, for arrays that broadcast.

    The ends are quantiles of beta distributions, inverses of the regularised incomplete beta function I:
    I_low(k, n - k + 1) = tail and 1 - I_high(k + 1, n - k) = tail. Each end alone fails with probability <= ``tail``.
    """
    from scipy.special import betainccinv, betaincinv  # takes a tenth of a second, and ``play`` does not need it

    k, n, t = np.broadcast_arrays(successes, trials, tail)
    # np.where computes both branches, and a parameter 0 of the beta function would be NaN.
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), n - k + 1, t))
    high = np.where(k == n, 1.0, betainccinv(k + 1, np.maximum(n - k, 1), t))
    return low, high


def clopper_pearson_interval(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return the two-sided interval (low, high) for the probability of success."""
    low, high = clopper_pearson_bounds(successes, trials, (1.0 - confidence) / 2.0)
    return float(low), float(high)
