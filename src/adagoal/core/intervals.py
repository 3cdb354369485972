"""Exact intervals for the probability of success behind k successes in n independent trials.

Clopper and Pearson's interval holds the probabilities under which neither as many nor as few successes are rarer than
(1 - confidence) / 2. Its ends are quantiles of beta distributions, the inverse of the regularised incomplete beta
function I (``betaincinv``):  I_low(k, n - k + 1) = (1 - confidence) / 2  and  I_high(k + 1, n - k) = (1 + confidence)
/ 2. Each end alone is a bound with the confidence (1 + confidence) / 2.
"""

from __future__ import annotations

from scipy.special import betaincinv


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """The interval (low, high) of the probability of success, two-sided."""
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1.0 - tail))
    return low, high
