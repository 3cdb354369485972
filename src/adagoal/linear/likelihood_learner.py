"""``likelihood``: one confidence set for theta from the likelihood of all transitions, certified.

For kernels that are distributions and theta in the simplex. With F(theta) = -sum c_k ln <phi_k, theta>, where k runs
over the different feature vectors phi(s' | s, a) and c_k counts their transitions, theta* stays in

    { theta : F(theta) - min F <= rho },    rho = ln(1/delta) + (d-1)/2 ln(t+1) + ln 2

for all t with probability 1 - delta (Dirichlet(1/2) universal portfolio, Ville's inequality). Transitions whose
vector is constant say nothing about theta and are not counted in t.

The set is enclosed in an ellipsoid around *any* theta_hat of the simplex, so the maximiser need not be exact. With
y_k = <phi_k, theta> / <phi_k, theta_hat> - 1 and gap = max_i sum_k c_k phi_ki / <phi_k, theta_hat> - t (the duality
gap),

    sum_k c_k (y_k - ln(1 + y_k)) <= rho + gap,      y - ln(1+y) >= y^2 / (2 + 4/3 max(y, 0)).

So if y_k <= R_k on the set, ||theta - theta_hat||_H^2 <= 2 (rho + gap) with H = sum_k c_k phi_k phi_k^T / (<phi_k,
theta_hat>^2 (1 + 2/3 R_k)). R_k comes from the simplex at first, then from the ellipsoid itself; every round is valid.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySpec, check_arrays
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.types import Floats, Longs
from adagoal.planning.model_arrays import ThetaRegion

LOG_BARRIER = 1e-3
"""Weight b of the barrier b sum_i ln theta_i in the maximisation. The duality gap is then at most d b, and the
maximiser lies inside the simplex, where the next maximisation starts."""


class LikelihoodLearner:
    """The likelihood set: a :class:`~adagoal.linear.mixture_bounds.RegionLearner`."""

    name = "likelihood"
    simplex = True

    def __init__(self, mixture: LinearMixture, delta: float) -> None:
        if not mixture.has_probability_kernels:
            text = "likelihood needs kernels that are probability distributions; try vtr-pooled"
            raise InputError(text, name="method")
        self.delta, d = delta, mixture.d
        self._vector_of_entry, self._feature_vectors = mixture.distinct_features
        self._informative = np.ptp(self._feature_vectors, axis=1) > 0
        self._c = np.zeros(len(self._feature_vectors))
        self.theta = np.full(d, 1.0 / d)
        _, self._N = mixture.theta_parametrisation

    def absorb_transitions(self, new: Longs, total: Longs, f: Floats) -> None:
        """Count the feature vectors of all transitions; the likelihood does not need f."""
        self._c = np.bincount(self._vector_of_entry, total, minlength=len(self._feature_vectors)) * self._informative
        used = self._c > 0
        self.theta = maximise_likelihood(self._feature_vectors[used], self._c[used], self.theta)

    def confidence_region(self) -> ThetaRegion:
        """Return an ellipsoid that encloses the likelihood set."""
        used = self._c > 0
        H, rho = enclose_likelihood_set(
            self._feature_vectors[used], self._c[used], self.theta, self._N, self.squared_radius() / 2.0
        )
        L = np.linalg.cholesky(H) if len(H) else np.zeros((0, 0))
        half = np.linalg.solve(L, self._N.T)
        return ThetaRegion(self.theta, np.ascontiguousarray(math.sqrt(2.0 * rho) * half.T), self.simplex)

    def squared_radius(self) -> float:
        """2 rho."""
        d, t = len(self.theta), float(self._c.sum())
        return 2.0 * (math.log(1.0 / self.delta) + (d - 1) / 2 * math.log(t + 1.0) + math.log(2.0))

    def learner_state(self) -> dict[str, NDArray[Any]]:
        """Return the counts of the vectors, and the maximiser, from which the next maximisation starts."""
        return {"c": self._c, "theta": self.theta}

    def restore_learner(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore a saved :meth:`learner_state`."""
        wanted = {
            "c": ArraySpec("float64", self._c.shape, low=0),
            "theta": ArraySpec("float64", self.theta.shape, low=0),
        }
        check_arrays(wanted, arrays)
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
    p = phi @ theta
    gap = max(float((phi.T @ (c / p)).max()) - float(c.sum()), 0.0) if len(c) else 0.0
    # A share of the radius is spent on a ball that contains the simplex, so H is never singular.
    ball_share, far = 1e-2, float(((np.eye(len(theta)) - theta) ** 2).sum(axis=1).max())
    ball = 2.0 * ball_share * rho / max(far, 1e-300) * np.eye(N.shape[1])
    total = rho * (1.0 + ball_share) + gap
    rows = (phi @ N) / p[:, None]
    R = phi.max(axis=1, initial=0.0) / p - 1.0
    H = ball
    for _ in range(8):  # every round is valid, so any number will do
        H = ball + (rows.T * (c / (1.0 + 2.0 / 3.0 * R))) @ rows
        spread = np.einsum("ki,ik->k", rows, np.linalg.solve(H, rows.T)) if len(H) else 0.0 * R
        R = np.minimum(R, np.sqrt(2.0 * total * spread))
    return H, total
