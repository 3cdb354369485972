"""What few attempts of a heavy-tailed number of steps say about its mean: a confidence interval by betting.

Let T >= 0 be the steps of one attempt, cut off at some number M where it was given up, and mu its mean. Neither a
normal approximation nor a variance is of use: three attempts may all be short where the fourth takes a hundred times
as long. Two gamblers bet against a hypothesis instead (:mod:`adagoal.core.betting`): whoever starts with 1 and plays a
fair or losing game holds 1/alpha or more in the end with probability at most alpha; a hypothesis under which that
happened is rejected.

*mu <= m.* The wealth prod_i (1 + b (T_i/m - 1)), 0 <= b <= 1, never has an expectation above 1, because E T <= m;
cutting T off only lowers it. The least m that is not rejected is the lower end. (With b = 1 one attempt with
T >= m/alpha rejects m, which is Markov's inequality: an attempt that was given up counts for as much as it should.)

*mu >= m.* Rare long attempts that were never seen may carry any mean, unless something bounds them. For a certified
policy something does: from wherever it stands it needs at most R further steps in expectation. So
Z = min(T, R) + R [T > R] has E Z >= mu and lies in [0, 2R], and the wealth prod_i (1 - b (Z_i - m)/(2R - m)) is fair or
losing where E Z >= m. The largest m that is not rejected is the upper end; without such an R there is none.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.core.betting import find_boundary, log_wealth
from adagoal.core.types import Floats


def mean_steps_interval(steps: Floats, patience: float, rest: float, alpha: float) -> tuple[float, float]:
    """An interval that holds the mean with probability 1 - alpha, for any number of attempts.

    ``steps`` [n] is infinite where an attempt was given up after ``patience``; ``rest`` bounds the expected
    further steps from anywhere, and may be infinite.
    """
    goal = math.log(2.0 / alpha)
    steps, times = np.unique(steps, return_counts=True)
    T = np.minimum(steps, patience)
    most = float(np.average(T, weights=times))
    low = find_boundary(lambda m: log_wealth(T / m - 1.0, times) >= goal, most) if most > 0.0 else 0.0
    if not math.isfinite(rest):
        return low, math.inf
    bound = 2.0 * rest
    Z = np.where(steps > rest, bound, np.minimum(steps, rest))

    def large(m: float) -> bool:
        return log_wealth((m - Z) / (bound - m), times) < goal

    high = find_boundary(large, bound * (1.0 - 1e-9))
    return low, high if high < bound * (1.0 - 1e-6) else math.inf
