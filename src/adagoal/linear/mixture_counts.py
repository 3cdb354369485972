"""The transitions of a run by place of the features, and what has come since the last look.

Value-targeted regression pairs every transition with a function that was fixed before it. Between two plans that
function does not change, so that the difference of two count tables says all there is to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from adagoal.core.file_formats import ArraySpec, check_arrays
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Floats, Longs
from adagoal.linear.likelihood_learner import maximise_likelihood


class MixtureCounts:
    """Counts [nnz] at the places of a mixture; complaints about its fit (see :func:`find_misfit`) go to ``note``."""

    def __init__(
        self, mixture: LinearMixture, counts: TransitionCounts, note: Callable[[str], None], simplex: bool
    ) -> None:
        self.mixture, self.counts, self.note, self.simplex = mixture, counts, note, simplex
        self.total = np.zeros(len(mixture.successors), np.int64)

    def restore_total(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take ``total`` out of a checkpoint; the counts are restored already."""
        c, m, now = self.counts, self.mixture, np.zeros_like(self.total)
        check_arrays({"total": ArraySpec("int64", (len(now),), low=0)}, arrays)
        tally_by_feature(c.successor, c.count, c.support, m.indptr, m.successors, now)
        if (arrays["total"] > now).any():
            raise ValueError("more transitions were taken in than there are")
        self.total = np.array(arrays["total"])

    def take_new_counts(self) -> Longs:
        """[nnz] the transitions since the last call."""
        c, m = self.counts, self.mixture
        total = np.zeros_like(self.total)
        lost = int(tally_by_feature(c.successor, c.count, c.support, m.indptr, m.successors, total))
        new, self.total = total - self.total, total
        for line in find_misfit(m, total, lost, self.simplex):
            self.note(line)
        if (c.terminal & ~m.terminal).any():
            self.note(WRONG_ENDS_TEXT)
        return new


@numba.njit(cache=True, nogil=True)
def tally_by_feature(successor, count, support, indptr, successors, total):  # type: ignore[no-untyped-def]
    """Counts by place of the features (``total`` [nnz]); returns how many transitions have no place there."""
    lost = 0
    for x in range(len(support)):
        for k in range(support[x]):
            place = -1
            for j in range(indptr[x], indptr[x + 1]):
                if successors[j] == successor[x, k]:
                    place = j
                    break
            if place < 0:
                lost += count[x, k]
            else:
                total[place] = count[x, k]
    return lost


# Does the mixture fit? A certificate rests on the true kernel being a mixture of the given ones.
#
# After every plan the counts O are held against what is expected, E, at the theta under which they are likeliest, by
# the G-statistic 2 sum O ln(O/E): of the worst pair (its p-value times the number of pairs), and of all pairs together
# that have enough counts; and both once more with pairs pooled that have the same feature vectors. The smallest
# p-value, times four, is compared with LEVEL: with a hundred looks a true mixture is accused with a probability of
# about 0.001 at most (as far as the chi-square law holds). The check warns; it proves nothing.


MISFIT_LEVEL = 1e-5
"""Of one look."""
OUTSIDE_TEXT = "misspecified: transitions were observed that no kernel of the mixture allows; the certificates are void"
WRONG_ENDS_TEXT = "misspecified: episodes ended in states that are no ends in the kernels; the certificates are void"
MISFIT_TEXT = (
    f"misspecified: the counts do not fit any mixture of the kernels (G-test, p < {MISFIT_LEVEL:g}); "
    f"the certificates are void"
)
MIN_EXPECTED_COUNT = 20.0
"""Groups with an outcome that is expected less often are left out of the test of all together."""
PSEUDO_COUNT = 1e-2
MAX_FIT_NEWTON_STEPS = 100


def find_misfit(mixture: LinearMixture, total: Longs, lost: int, simplex: bool) -> list[str]:
    """What speaks against the mixture, from the counts ``total`` [nnz] and the number of transitions outside it.

    ``simplex``: theta is believed to lie in the simplex, else in the ball of radius B.
    """
    found = [OUTSIDE_TEXT] if lost else []
    seen = total.astype(float)
    expected = expected_counts(mixture, total, simplex)
    cell, pair = mixture.entry_classes, mixture.pair_of_entry
    family = mixture.pair_families[pair[np.unique(cell, return_index=True)[1]]]
    O, E = (np.bincount(cell, values).astype(float) for values in (seen, expected))
    if 2 * min(misfit_p_value(seen, expected, pair), misfit_p_value(O, E, family)) < MISFIT_LEVEL:
        found.append(MISFIT_TEXT)
    return found


def expected_counts(mixture: LinearMixture, total: Longs, simplex: bool) -> Floats:
    """[nnz] how often every place would be seen in as many tries, at the likeliest theta."""
    kind, vectors = mixture.distinct_features
    c = np.bincount(kind, total, minlength=len(vectors)).astype(float)
    start = np.full(mixture.d, 1.0 / mixture.d)
    likeliest = maximise_likelihood(vectors[c > 0], c[c > 0], start) if simplex else likeliest_theta(mixture, c)
    share: Floats = np.maximum(mixture.features @ likeliest, 0.0)
    return share * mixture.sum_over_successors(total)[mixture.pair_of_entry]


def misfit_p_value(seen: Floats, expected: Floats, group: Longs) -> float:
    """Of the worst group, and of all together; seen and expected [items] with the group [items] of each. Times two."""
    E, possible = np.maximum(expected, 1e-9), (expected > 0) | (seen > 0)
    deviance = 2.0 * (seen * np.log(np.maximum(seen, 1e-9) / E) - (seen - expected))
    G, free = (np.bincount(group, values).astype(float) for values in (deviance, possible))
    free -= 1.0
    testable = free > 0
    worst = float(np.min(chi_square_tail(free[testable], G[testable]), initial=1.0)) * max(int(testable.sum()), 1)
    least = np.full(len(G), np.inf)
    np.minimum.at(least, group[possible], expected[possible])
    enough = testable & (least >= MIN_EXPECTED_COUNT)
    return 2.0 * min(worst, float(chi_square_tail(max(float(free[enough].sum()), 1.0), G[enough].sum())))


def chi_square_tail(free: Floats | float, value: Floats | float) -> Floats:
    """The probability that a chi-square variable with so many degrees of freedom exceeds the value; 1 below zero."""
    return np.asarray(chdtrc(free, np.maximum(value, 0.0)), float)


def likeliest_theta(mixture: LinearMixture, counts: Floats) -> Floats:
    """About the maximiser of sum_k c_k ln <phi_k, theta> over theta0 + N z; ``counts`` [K] of the different vectors.

    Newton's method. Every vector counts BARRIER more, against negative probabilities where nothing was seen; below a
    tiny p the logarithm is continued by a parabola; z has a small ridge.
    """
    theta0, N = mixture.theta_parametrisation
    _, phi = mixture.distinct_features
    c = counts + PSEUDO_COUNT
    ridge, tiny = 1e-3 / mixture.B**2, 0.5 * PSEUDO_COUNT / float(c.sum())
    rows, p0 = phi @ N, phi @ theta0

    def parts(z: Floats) -> tuple[float, Floats, Floats]:
        """The aim, and the first and minus the second derivative of its terms in p_k"""
        p = p0 + rows @ z
        up, low = np.maximum(p, tiny), np.minimum(p - tiny, 0.0) / tiny
        aim = float(c @ (np.log(up) + low - low**2 / 2)) - ridge * float(z @ z) / 2
        return aim, c * np.where(p > tiny, 1.0 / up, (1.0 - low) / tiny), c / up**2

    z = np.zeros(N.shape[1])
    for _ in range(MAX_FIT_NEWTON_STEPS):
        aim, slope, curvature = parts(z)
        gradient = rows.T @ slope - ridge * z
        step = np.linalg.solve((rows.T * curvature) @ rows + ridge * np.eye(len(z)), gradient)
        rise = float(gradient @ step)
        if rise < 1e-9:
            break
        size = 1.0
        while size > 1e-9 and parts(z + size * step)[0] < aim + 0.1 * size * rise:
            size /= 2.0
        z = z + size * step
    theta: Floats = theta0 + N @ z
    return theta
