"""Learn theta of a linear mixture by ridge regression or likelihood, with confidence regions (docs/theory-linear.md).

*``vtr-pooled``* is one value-targeted ridge regression for all goals. The rows are x_t = phi_{f_t}(s_t, a_t), the
targets f_t(s_{t+1}), for functions f_t fixed before the transition: one row per transition, whatever the goal. So the
radius has no union over goals, no G and no H (lemma M1):

    Sigma = lambda I + sum z_t z_t^T / sigma_t^2,   lambda = 1 / B'^2,   B'^2 = B^2 - ||theta0||^2 >= ||z*||^2
    beta  = sqrt( 2 ln(1/delta) + ln(det Sigma / lambda^k) ) + 1

*``likelihood``* is for kernels that are distributions and theta in the simplex. With F(theta) = -sum c_k ln <phi_k,
theta>, where k runs over the different feature vectors phi(s' | s, a) and c_k counts their transitions, theta* stays in

    { theta : F(theta) - min F <= rho },    rho = ln(1/delta) + (d-1)/2 ln(t+1) + ln 2

for all t with probability 1 - delta (Dirichlet(1/2) universal portfolio, Ville's inequality; lemma M3a).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from adagoal.core.array_types import Floats, Longs
from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySpec, check_arrays
from adagoal.core.linear_mixture import LinearMixture
from adagoal.planning.model_arrays import ThetaRegion

# Weight b of the barrier b sum_i ln theta_i in the maximisation. The duality gap is then at most d b, and the maximiser
# lies inside the simplex, where the next maximisation starts.
LOG_BARRIER = 1e-3


class PooledLearner:
    """The regression for all goals."""

    name = "vtr-pooled"
    simplex = False  # whether theta is assumed to lie in the simplex

    def __init__(self, mixture: LinearMixture, delta: float) -> None:
        self.mixture, self.delta = mixture, delta
        # Probabilities sum to one, so theta = theta0 + N z and only z [k] is estimated.
        self.theta0, self.N = mixture.theta_parametrisation
        k = self.N.shape[1]
        # B may equal ||theta0||, and rounding may make the difference negative: the ridge must stay positive.
        self.ridge = 1.0 / max(mixture.B**2 - float(self.theta0 @ self.theta0), 1e-12)
        self.Sigma = self.ridge * np.eye(k)
        self.b = np.zeros(k)

    def absorb_transitions(self, new: Longs, total: Longs, f: Floats) -> None:
        """Add one row per transition of ``new`` [nnz], with the function f [S] that was fixed before them.

        ``total`` [nnz] are all transitions so far.
        """
        m = self.mixture
        pairs = np.flatnonzero(m.sum_over_successors(new))
        if not len(pairs):
            return
        # The noise of a row is sub-Gaussian with half the range of f over the possible successors of the pair. Values
        # change by a step or two between neighbours, so this is far less than C/2, which would be valid too.
        values = f[m.successors]
        n = m.sum_over_successors(new)[pairs].astype(float)
        sums = np.add.reduceat(new * values, m.indptr[:-1])[pairs]
        least = np.minimum.reduceat(values, m.indptr[:-1])[pairs]
        sigma = (np.maximum.reduceat(values, m.indptr[:-1])[pairs] - least) / 2.0
        # A row with a constant f says nothing about theta, and the division would be by zero.
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
        # Without a free direction theta is known: the region is a point.
        if len(self.b) == 0:
            return ThetaRegion(self.theta0, np.zeros((len(self.theta0), 1)), self.simplex)
        factor = cho_factor(self.Sigma, lower=True)
        half = math.sqrt(self.squared_radius()) * solve_triangular(np.tril(factor[0]), self.N.T, lower=True)
        return ThetaRegion(self.theta0 + self.N @ cho_solve(factor, self.b), np.ascontiguousarray(half.T), self.simplex)

    def squared_radius(self) -> float:
        """beta^2: the square of the region's radius in the norm of the observed data."""
        growth = float(np.linalg.slogdet(self.Sigma / self.ridge)[1])
        return (math.sqrt(2.0 * math.log(1.0 / self.delta) + growth) + 1.0) ** 2

    def learner_state(self) -> dict[str, NDArray[Any]]:
        """Return arrays for a checkpoint."""
        return {"Sigma": self.Sigma, "b": self.b}

    def restore_learner(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore a saved :meth:`learner_state`."""
        schema = {"Sigma": ArraySpec("float64", ("k", "k")), "b": ArraySpec("float64", ("k",))}
        check_arrays(schema, arrays, {"k": len(self.b)})
        # Raises a LinAlgError, which is a ValueError, if a forged matrix is not positive definite.
        np.linalg.cholesky(arrays["Sigma"])
        self.Sigma, self.b = arrays["Sigma"], arrays["b"]


class LikelihoodLearner:
    """The likelihood set, with the interface of :class:`PooledLearner`."""

    name = "likelihood"
    simplex = True

    def __init__(self, mixture: LinearMixture, delta: float) -> None:
        if not mixture.has_probability_kernels:
            text = "likelihood needs kernels that are probability distributions; try vtr-pooled"
            raise InputError(text, name="method")
        self.delta, d = delta, mixture.d
        self._vector_of_entry, self._feature_vectors = mixture.distinct_features
        # A constant vector has the same likelihood for every theta of the simplex, so it must not count in t.
        self._informative = np.ptp(self._feature_vectors, axis=1) > 0
        self._c = np.zeros(len(self._feature_vectors))
        self.theta = np.full(d, 1.0 / d)
        _, self._N = mixture.theta_parametrisation

    def absorb_transitions(self, new: Longs, total: Longs, f: Floats) -> None:
        """Count the feature vectors of all transitions; the likelihood needs neither ``new`` nor f."""
        self._c = np.bincount(self._vector_of_entry, total, minlength=len(self._feature_vectors)) * self._informative
        used = self._c > 0
        self.theta = maximise_likelihood(self._feature_vectors[used], self._c[used], self.theta)

    def confidence_region(self) -> ThetaRegion:
        """Return an ellipsoid that encloses the likelihood set."""
        used, radius = self._c > 0, self.squared_radius() / 2.0
        H, rho = enclose_likelihood_set(self._feature_vectors[used], self._c[used], self.theta, self._N, radius)
        L = np.linalg.cholesky(H) if len(H) else np.zeros((0, 0))
        half = np.linalg.solve(L, self._N.T)
        return ThetaRegion(self.theta, np.ascontiguousarray(math.sqrt(2.0 * rho) * half.T), self.simplex)

    def squared_radius(self) -> float:
        """2 rho."""
        d, t = len(self.theta), float(self._c.sum())
        return 2.0 * (math.log(1.0 / self.delta) + (d - 1) / 2 * math.log(t + 1.0) + math.log(2.0))

    def learner_state(self) -> dict[str, NDArray[Any]]:
        """Return arrays for a checkpoint."""
        # With the maximiser: the next maximisation starts from this one, and a resumed run continues bit for bit.
        return {"c": self._c, "theta": self.theta}

    def restore_learner(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore a saved :meth:`learner_state`."""
        c, theta = self._c.shape, self.theta.shape
        check_arrays({"c": ArraySpec("float64", c, low=0), "theta": ArraySpec("float64", theta, low=0)}, arrays)
        # The maximisation starts here, and its barrier is infinite on the boundary.
        if arrays["theta"].min() <= 0 or abs(arrays["theta"].sum() - 1.0) > 1e-6:
            raise ValueError("the weights do not lie inside the simplex")
        self._c, self.theta = arrays["c"], arrays["theta"]


def maximise_likelihood(phi: Floats, c: Floats, theta: Floats) -> Floats:
    """Maximise sum_k c_k ln <phi_k, theta> + LOG_BARRIER sum_i ln theta_i over the simplex, starting inside it.

    Newton's method on the affine hull with halved steps; it returns a point of the simplex even if it stops early.
    """
    d = len(theta)

    def loss(at: Floats) -> float:
        return -float(c @ np.log(phi @ at)) - LOG_BARRIER * float(np.log(at).sum())

    value = loss(theta)
    for _ in range(60):
        p = phi @ theta
        gradient = -(phi.T @ (c / p)) - LOG_BARRIER / theta
        # The last row and column keep the sum of the weights: a step has to sum to zero.
        system = np.ones((d + 1, d + 1))
        system[:d, :d] = (phi.T * (c / p**2)) @ phi + np.diag(LOG_BARRIER / theta**2)
        system[d, d] = 0.0
        step = np.linalg.solve(system, np.append(-gradient, 0.0))[:d]
        decrease = -float(gradient @ step)
        if decrease < 1e-9:
            break
        # Stay inside the simplex: go at most 95% of the way to its boundary.
        size = min(1.0, 0.95 / max(float((-step / theta).max()), 1e-300))
        while size > 1e-12:
            trial = theta + size * step
            reached = loss(trial)
            if reached <= value - 0.1 * size * decrease:
                theta, value = trial / trial.sum(), reached
                break
            size /= 2.0
        else:
            break
    return theta


def enclose_likelihood_set(phi: Floats, c: Floats, theta: Floats, N: Floats, rho: float) -> tuple[Floats, float]:
    """(H [k, k], rho'): the likelihood set lies in { theta + N z : z^T H z <= 2 rho' }.

    phi: vectors [K, d] with their counts c [K] > 0; ``theta`` is any point inside the simplex.
    """
    # With y_k = <phi_k, theta'> / <phi_k, theta> - 1 and the duality gap at theta, every theta' of the set satisfies
    #     sum_k c_k (y_k - ln(1 + y_k)) <= rho + gap,      y - ln(1+y) >= y^2 / (2 + 4/3 max(y, 0))      (lemma M3b).
    # So if y_k <= R_k on the set, H = sum_k c_k phi_k phi_k^T / (<phi_k, theta>^2 (1 + 2/3 R_k)) encloses it. The gap
    # pays for a maximiser that is not exact.
    p = phi @ theta
    gap = max(float((phi.T @ (c / p)).max()) - float(c.sum()), 0.0) if len(c) else 0.0
    # A share of the radius pays for a ball that contains the simplex, so H is never singular.
    ball_share, far = 1e-2, float(((np.eye(len(theta)) - theta) ** 2).sum(axis=1).max())
    ball = 2.0 * ball_share * rho / max(far, 1e-300) * np.eye(N.shape[1])
    total = rho * (1.0 + ball_share) + gap
    rows = (phi @ N) / p[:, None]
    # R comes from the simplex at first, then from the ellipsoid itself. Every round is valid, so any number will do.
    R = phi.max(axis=1, initial=0.0) / p - 1.0
    H = ball
    for _ in range(8):
        H = ball + (rows.T * (c / (1.0 + 2.0 / 3.0 * R))) @ rows
        spread = np.einsum("ki,ik->k", rows, np.linalg.solve(H, rows.T)) if len(H) else 0.0 * R
        R = np.minimum(R, np.sqrt(2.0 * total * spread))
    return H, total
