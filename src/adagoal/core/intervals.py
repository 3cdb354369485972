"""Exact intervals for the probability of success behind k successes in n independent trials.

Clopper and Pearson's interval holds the probabilities under which neither as many nor as few successes are rarer than
a given tail. Its ends are quantiles of beta distributions, the inverse of the regularised incomplete beta function I:
I_low(k, n - k + 1) = tail (``betaincinv``) and 1 - I_high(k + 1, n - k) = tail (``betainccinv``). Each end alone is a
bound that fails with a probability of at most the tail.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from adagoal.core.types import Floats


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
