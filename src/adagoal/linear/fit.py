"""Does the mixture fit? A certificate rests on the true kernel being a mixture of the given ones.

The counts are held against the kernel at the theta that fits them best, on two levels: place by
place, and with all pairs pooled that have the same feature vectors. On each level two tests are made: of all places
together (chi-square, where enough is expected) and of the most surprising place alone (Poisson tail, times the number
of places). The check warns; it proves nothing. Its level is low enough to be looked at after every plan.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, poisson

from adagoal.linear.likelihood import maximise
from adagoal.linear.mixture import LinearMixture

OUTSIDE = "misspecified: transitions were observed that no kernel of the mixture allows; the certificates are void"
MISFIT = "misspecified: the counts do not fit any mixture of the kernels (G-test, p < 1e-6); the certificates are void"
LEVEL = 1e-6
EXPECTED = 20.0
"""Places with fewer expected transitions are left out of the chi-square test."""
ROUNDS = 5
"""Rounds of re-weighting in :func:`best_theta`."""

Floats = NDArray[np.float64]


def misfit(mixture: LinearMixture, total: NDArray[np.int64], lost: int, simplex: bool) -> list[str]:
    """What speaks against the mixture, from the counts ``total`` [nnz] and the number of transitions outside it.

    ``simplex``: theta is believed to lie in the simplex, else in the ball of radius B.
    """
    found = [OUTSIDE] if lost else []
    tries = mixture.tries(total)[mixture.pair_of].astype(float)
    tried = tries > 0
    if not tried.any():
        return found
    theta = (likeliest if simplex else best_theta)(mixture, total)
    seen, cells = total[tried].astype(float), mixture.cells[tried]
    expected = np.maximum(mixture.features[tried] @ theta, 0.0) * tries[tried]
    if min(p_value(seen, expected), p_value(_sums(cells, seen), _sums(cells, expected))) < LEVEL:
        found.append(MISFIT)
    return found


def likeliest(mixture: LinearMixture, total: NDArray[np.int64]) -> Floats:
    """theta of the simplex under which the transitions are most likely."""
    kind, vectors = mixture.kinds
    c = np.bincount(kind, total, minlength=len(vectors)).astype(float)
    return maximise(vectors[c > 0], c[c > 0], np.full(mixture.d, 1.0 / mixture.d))


def best_theta(mixture: LinearMixture, total: NDArray[np.int64]) -> Floats:
    """theta with ||theta|| <= B of least sum (seen - expected)^2 / expected, by re-weighting, on the pooled places."""
    cells = mixture.cells
    tries = mixture.tries(total)[mixture.pair_of].astype(float)
    seen = _sums(cells, total.astype(float))
    rows = np.stack([_sums(cells, tries * phi) for phi in mixture.features.T], axis=1)
    theta0, N = mixture.known_part
    most = math.sqrt(max(mixture.B**2 - float(theta0 @ theta0), 0.0))
    expected = np.maximum(seen, 1.0)
    theta = theta0
    for _ in range(ROUNDS):
        X = rows @ N / np.sqrt(expected)[:, None]
        values, vectors = np.linalg.eigh(X.T @ X)
        b = vectors.T @ (X.T @ ((seen - rows @ theta0) / np.sqrt(expected)))
        low, high = (1e-9 * max(float(values.max(initial=0.0)), 1.0), 1e18)
        if np.linalg.norm(b / (values + low)) > most:
            for _ in range(100):  # bisection for the multiplier of the norm
                middle = math.sqrt(low * high)
                low, high = (middle, high) if np.linalg.norm(b / (values + middle)) > most else (low, middle)
        theta = theta0 + N @ (vectors @ (b / (values + low)))
        expected = np.maximum(rows @ theta, 1.0)
    return theta


def p_value(seen: Floats, expected: Floats) -> float:
    """Of the more surprising of the two tests."""
    enough = expected >= EXPECTED
    distance = float(((seen - expected)[enough] ** 2 / expected[enough]).sum())
    together = float(chi2.sf(distance, max(int(enough.sum()), 1)))
    possible = (expected > 0) | (seen > 0)
    E, O = np.maximum(expected[possible], 1e-12), seen[possible]
    tails = np.minimum(poisson.sf(O - 1, E), poisson.cdf(O, E))
    return min(together, 2.0 * len(O) * float(tails.min(initial=1.0)))


def _sums(cells: NDArray[np.int64], values: Floats) -> Floats:
    return np.bincount(cells, values).astype(float)
