"""Does the mixture fit? A certificate rests on the true kernel being a mixture of the given ones.

The counts are held against the kernel at the theta that fits them best (minimum chi-square), on two levels: place by
place, and with all pairs pooled that have the same feature vectors. On each level two tests are made: of all places
together (chi-square, where enough is expected) and of the most surprising place alone (Poisson tail, times the number
of places). The check warns; it proves nothing. Its level is low enough to be looked at after every plan.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, poisson

from adagoal.linear.mixture import LinearMixture

OUTSIDE = "misspecified: transitions were observed that no kernel of the mixture allows; the certificates are void"
MISFIT = "misspecified: the counts do not fit any mixture of the kernels (G-test, p < 1e-6); the certificates are void"
LEVEL = 1e-6
EXPECTED = 20.0
"""Places with fewer expected transitions are left out of the chi-square test."""
ROUNDS = 5
"""Rounds of re-weighting in :func:`best_theta`."""

Floats = NDArray[np.float64]


def misfit(mixture: LinearMixture, total: NDArray[np.int64], lost: int) -> list[str]:
    """What speaks against the mixture, from the counts ``total`` [nnz] and the number of transitions outside it."""
    found = [OUTSIDE] if lost else []
    tried = (mixture.tries(total) > 0)[mixture.pair_of]
    if not tried.any():
        return found
    seen, cells = total[tried].astype(float), mixture.cells[tried]
    expected = np.maximum(mixture.features[tried] @ best_theta(mixture, total), 0.0)
    expected *= mixture.tries(total)[mixture.pair_of][tried]
    pooled = p_value(_sums(cells, seen), _sums(cells, expected))
    if min(p_value(seen, expected), pooled) < LEVEL:
        found.append(MISFIT)
    return found


def best_theta(mixture: LinearMixture, total: NDArray[np.int64]) -> Floats:
    """theta of least sum (seen - expected)^2 / expected, by re-weighted least squares on the pooled places."""
    cells = mixture.cells
    n = mixture.tries(total)[mixture.pair_of].astype(float)
    seen = _sums(cells, total.astype(float))
    rows = np.stack([_sums(cells, n * phi) for phi in mixture.features.T], axis=1)
    expected = np.maximum(seen, 1.0)
    theta: Floats = np.zeros(mixture.d)
    for _ in range(ROUNDS):
        weighted = rows / expected[:, None]
        theta = np.asarray(np.linalg.lstsq(weighted.T @ rows, weighted.T @ seen, rcond=1e-10)[0], float)
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
