"""An interval for every single transition probability (docs/theory.md, lemmas 2 and 3; lemma 1 is not used).

For a pair x whose o observed successors are the set O, the events of the certified method say that

    KL(p_hat || p(. | O)) <= r      (lemma 2)      and      p(not O) <= q      (lemma 3).

The image of a Kullback-Leibler ball under one coordinate is the ball of the two-point distributions (y, 1 - y):
grouping the other successors never increases the divergence, and keeping their proportions attains it. So

    p(s' | O) in [lo, hi],    lo, hi the solutions y of  p_hat ln(p_hat/y) + (1 - p_hat) ln((1 - p_hat)/(1 - y)) = r,

and p(s') = (1 - p(not O)) p(s' | O) lies in [(1 - q) lo, hi]. Where o = 1 there is nothing to estimate: lo = hi = 1.
These intervals hold for all pairs and successors at once, at any time, on the very events on which the certificates
rest. No further union bound is paid.
"""

from __future__ import annotations

import numpy as np

from adagoal.core.types import Floats
from adagoal.planning.model import EmpiricalModel

BISECTION_STEPS = 60
"""Of the bracket of an end; the outer side is returned, so that rounding widens an interval."""


def conditional_intervals(model: EmpiricalModel) -> tuple[Floats, Floats]:
    """(lo, hi), each [X, K]: bounds on p(s' | O), the probability given that the successor is one of those observed.

    Zero in places that are not in use.
    """
    used = np.arange(model.p.shape[1]) < model.support[:, None]
    radius = np.broadcast_to(model.r[:, None], used.shape)
    single = (model.support == 1)[:, None] & used
    low, high = _interval_end(model.p_split, radius, 0.0), _interval_end(model.p_split, radius, 1.0)
    low[single] = high[single] = 1.0
    low[~used] = high[~used] = 0.0
    return low, high


def _interval_end(p: Floats, radius: Floats, outer: float) -> Floats:
    """The end of {y : kl(p, y) <= radius} on the side of ``outer`` (0 or 1), by bisection between p and ``outer``."""
    inside, outside = p.copy(), np.full(p.shape, outer)
    for _ in range(BISECTION_STEPS):
        middle = (inside + outside) / 2
        within = _binary_divergence(p, middle) <= radius
        inside, outside = np.where(within, middle, inside), np.where(within, outside, middle)
    return outside


def _binary_divergence(p: Floats, y: Floats) -> Floats:
    """kl(p, y) of the two-point distributions."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(p > 0, p * np.log(p / y), 0.0)
        second = np.where(p < 1, (1 - p) * np.log((1 - p) / (1 - y)), 0.0)
    result: Floats = first + second
    return result
