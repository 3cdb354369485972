"""Evidence by betting: a gambler who bets against a hypothesis and gets rich refutes it, whenever he stops.

Let X_1, X_2, ... >= 0 be observations whose means, given the past, are at most m. The wealth

    W_n = prod_{i <= n} (1 + b (X_i / m - 1)),    0 <= b <= 1,

starts at 1, is never negative, and its expectation never rises. Such a wealth ever reaches 1/alpha with probability
alpha at most (Ville's inequality), so that one may look after every observation and stop when one likes. It is averaged
over several bets b, which is the wealth of somebody who splits the first coin among them, and has the same property.

For successes among trials X is 0 or 1. A probability of success <= q is refuted by the successes, with m = q, and one
>= q by the failures, with m = 1 - q.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from adagoal.core.types import Floats, Longs

BET_SHARES = np.concatenate([[1.0, 0.9], 0.7 * 0.7 ** np.arange(20)])
"""Shares of the wealth that are bet; the least is good for about a million observations."""
HALVINGS = 60


def log_wealth(returns: Floats, times: Longs) -> float:
    """The logarithm of the wealth, averaged over the bets.

    ``returns`` [k] >= -1 are those of a coin that is bet (X/m - 1), and came so many ``times`` [k].
    """
    with np.errstate(divide="ignore"):
        logs = np.log1p(BET_SHARES[:, None] * returns[None, :]) @ times
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).mean())) if math.isfinite(top) else -math.inf


def rejects_at_most(successes: int, trials: int, q: float, alpha: float) -> bool:
    """Whether a probability of success <= ``q`` is refuted; falsely, at any time, with probability alpha at most."""
    times = np.array([successes, trials - successes])
    seen = times > 0  # a loss of everything that never came is none
    if not seen[0]:
        return False
    return log_wealth(np.array([1.0 / q - 1.0, -1.0])[seen], times[seen]) >= math.log(1.0 / alpha)


def lower_confidence_bound(successes: int, trials: int, alpha: float) -> float:
    """A lower bound on the probability of success; false, at any time, with probability alpha at most."""
    return find_boundary(lambda q: rejects_at_most(successes, trials, q, alpha), 1.0)


def find_boundary(true_below: Callable[[float], bool], most: float) -> float:
    """Where a statement about m in (0, most] that is true for small m becomes false; ``most`` where it never does."""
    if true_below(most):
        return most
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + most) / 2.0
        low, most = (middle, most) if true_below(middle) else (low, middle)
    return low


# Exact intervals for the probability of success behind k successes in n independent trials.
#
# Clopper and Pearson's interval holds the probabilities under which neither as many nor as few successes are rarer than
# a given tail. Its ends are quantiles of beta distributions, the inverse of the regularised incomplete beta function I:
# I_low(k, n - k + 1) = tail (``betaincinv``) and 1 - I_high(k + 1, n - k) = tail (``betainccinv``). Each end alone is a
# bound that fails with a probability of at most the tail.


def clopper_pearson_bounds(successes: ArrayLike, trials: ArrayLike, tail: ArrayLike) -> tuple[Floats, Floats]:
    """The ends (low, high) of the intervals, of arrays that broadcast; ``tail`` is that of one end."""
    k, n, t = np.broadcast_arrays(successes, trials, tail)
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), n - k + 1, t))
    high = np.where(k == n, 1.0, betainccinv(k + 1, np.maximum(n - k, 1), t))
    return low, high


def clopper_pearson_interval(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """The two-sided interval (low, high) of the probability of success."""
    low, high = clopper_pearson_bounds(successes, trials, (1.0 - confidence) / 2.0)
    return float(low), float(high)
