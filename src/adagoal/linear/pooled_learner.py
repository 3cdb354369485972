"""``vtr-pooled``: one value-targeted ridge regression for all goals, certified.

The rows are x_t = phi_{f_t}(s_t, a_t), the targets f_t(s_{t+1}), for functions f_t fixed before the transition: one
row per transition, whatever the goal. Three known facts sharpen the regression of the paper:

* Probabilities sum to one: theta = theta0 + N z (``LinearMixture.theta_parametrisation``), and only z is estimated. So
  f may be shifted by constants at no cost.
* The noise of a row is sub-Gaussian with sigma_t = half the range of f_t over the *possible* successors of the pair,
  not C/2: rows and targets are divided by sigma_t.
* One regression serves all goals: the radius has no union over goals, no G and no H.

    Sigma = lambda I + sum z_t z_t^T / sigma_t^2,   lambda = 1 / B'^2,   B'^2 = B^2 - ||theta0||^2 >= ||z*||^2
    beta  = sqrt( 2 ln(1/delta) + ln(det Sigma / lambda^k) ) + 1
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from adagoal.core.file_formats import ArraySpec, check_arrays
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.types import Floats, Longs
from adagoal.planning.model_arrays import ThetaRegion


class PooledLearner:
    """The regression for all goals: a :class:`~adagoal.linear.mixture_bounds.RegionLearner`."""

    name = "vtr-pooled"
    simplex = False

    def __init__(self, mixture: LinearMixture, delta: float) -> None:
        self.mixture, self.delta = mixture, delta
        self.theta0, self.N = mixture.theta_parametrisation
        k = self.N.shape[1]
        self.ridge = 1.0 / max(mixture.B**2 - float(self.theta0 @ self.theta0), 1e-12)
        self.Sigma = self.ridge * np.eye(k)
        self.b = np.zeros(k)

    def absorb_transitions(self, new: Longs, total: Longs, f: Floats) -> None:
        """Add one row per transition of ``new`` [nnz], with the function f [S] that was fixed before them."""
        m = self.mixture
        pairs = np.flatnonzero(m.sum_over_successors(new))
        if not len(pairs):
            return
        values = f[m.successors]
        n = m.sum_over_successors(new)[pairs].astype(float)
        sums = np.add.reduceat(new * values, m.indptr[:-1])[pairs]
        least = np.minimum.reduceat(values, m.indptr[:-1])[pairs]
        sigma = (np.maximum.reduceat(values, m.indptr[:-1])[pairs] - least) / 2.0
        useful = sigma > 0
        pairs = pairs[useful]
        n, sums, least, sigma = (a[useful] for a in (n, sums, least, sigma))
        # Shifting f by a constant moves row and target alike: subtract its minimum on the support.
        phi = m.phi(f, pairs) - least[:, None] * m.row_sums[pairs]
        z = phi @ self.N / sigma[:, None]
        self.Sigma += z.T @ (z * n[:, None])
        self.b += z.T @ ((sums - n * least - n * (phi @ self.theta0)) / sigma)

    def confidence_region(self) -> ThetaRegion:
        """Return the ellipsoid ||z - z_hat||_Sigma <= beta as a set of theta."""
        k = len(self.b)
        if k == 0:
            return ThetaRegion(self.theta0, np.zeros((len(self.theta0), 1)), self.simplex)
        factor = cho_factor(self.Sigma, lower=True)
        half = math.sqrt(self.squared_radius()) * solve_triangular(np.tril(factor[0]), self.N.T, lower=True)
        return ThetaRegion(self.theta0 + self.N @ cho_solve(factor, self.b), np.ascontiguousarray(half.T), self.simplex)

    def squared_radius(self) -> float:
        """beta^2."""
        growth = float(np.linalg.slogdet(self.Sigma / self.ridge)[1])
        return (math.sqrt(2.0 * math.log(1.0 / self.delta) + growth) + 1.0) ** 2

    def learner_state(self) -> dict[str, NDArray[Any]]:
        """Return the sufficient statistics."""
        return {"Sigma": self.Sigma, "b": self.b}

    def restore_learner(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore a saved :meth:`learner_state`."""
        check_arrays(
            {"Sigma": ArraySpec("float64", ("k", "k")), "b": ArraySpec("float64", ("k",))}, arrays, {"k": len(self.b)}
        )
        np.linalg.cholesky(arrays["Sigma"])  # raises if it is not positive definite
        self.Sigma, self.b = arrays["Sigma"], arrays["b"]
