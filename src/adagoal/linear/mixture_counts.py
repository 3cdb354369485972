"""Count the transitions of a linear mixture, decide when to plan again, fit theta, and test whether the mixture fits.

*New transitions.* Value-targeted regression pairs every transition with a function that was fixed before it. Between
two plans that function does not change, so the difference of two count tables is all the data that a plan needs.

*Fit.* A certificate rests on the true kernel being a mixture of the given ones. After every plan, a G-test compares the
counts O with those expected, E, at the theta of largest likelihood: 2 sum O ln(O/E). It tests the worst pair (its
p-value times the number of pairs) and all pairs with enough counts together; and both once more with pairs pooled that
have the same feature vectors. The smallest p-value, times four, is compared with MISFIT_LEVEL. With a hundred plans a
true mixture is rejected with a probability of at most about 0.001, as far as the chi-square law holds. The test can
detect a misfit but cannot rule one out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import chdtrc

from adagoal.core.exploration_run import SavedEstimates
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Floats, Longs
from adagoal.linear.region_learners import maximise_likelihood
from adagoal.planning.model_arrays import features_from_mixture

MISFIT_LEVEL = 1e-5  # significance level of the test after one plan
REPLAN_GROWTH = 1.1  # a plan is due once the number of transitions has grown by this factor
PSEUDO_COUNT = 1e-2  # added to every count in likeliest_theta, against negative probabilities of unseen successors


class MixtureEstimates(SavedEstimates):
    """Mixin of estimates for linear mixtures: new transitions, and when to plan again."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {"total": ArraySpec("int64", ("nnz",), low=0)}
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **SavedEstimates.FACTS_SCHEMA,
        "planned_transitions": {"type": "integer", "minimum": -1, "maximum": 2**62},
    }
    counts: TransitionCounts

    def init_mixture(
        self, mixture: LinearMixture, note: Callable[[str], None], simplex: bool, min_new_transitions: int
    ) -> None:
        """Initialise the mixin; ``note`` receives failed tests, ``simplex`` says where theta is assumed to lie."""
        self.mixture, self.features = mixture, features_from_mixture(mixture)
        self._note, self._simplex, self._min_new_transitions = note, simplex, min_new_transitions
        self.total = np.zeros(len(mixture.successors), np.int64)  # [nnz]: transitions up to the last plan
        self.planned_transitions = -1  # their number; -1 before the first plan

    def transitions_until_plan(self) -> float:
        """Number of transitions until the next plan is due."""
        planned = self.planned_transitions
        needed = max(float(self._min_new_transitions), (REPLAN_GROWTH - 1.0) * planned)
        return needed - (int(self.counts.n.sum()) - planned)

    def is_plan_due(self) -> bool:
        """Return whether the transitions have grown enough since the last plan."""
        planned, n = self.planned_transitions, int(self.counts.n.sum())
        return planned < 0 or n >= max(planned + self._min_new_transitions, REPLAN_GROWTH * planned)

    def take_new_transitions(self) -> Longs:
        """Return the transitions since the last call [nnz], and test the fit."""
        c, m = self.counts, self.mixture
        total, outside = self._tally_transitions()
        new, self.total, self.planned_transitions = total - self.total, total, int(c.n.sum())
        for line in find_misfit(m, total, outside, self._simplex):
            self._note(line)
        # No count shows this misfit: in a terminal state only the reset is played, which is not regressed.
        if (c.terminal & ~m.terminal).any():
            text = "misspecified: episodes ended in states that are no ends in the kernels"
            self._note(f"{text}; the certificates are void")
        return new

    def _tally_transitions(self) -> tuple[Longs, int]:
        """Return the transitions by entry of the features [nnz], and the number of those that have no entry."""
        c, m = self.counts, self.mixture
        inside = np.arange(c.successor.shape[1]) < c.support[:, None]
        indptr = np.concatenate([[0], np.cumsum(c.support)])
        count = sparse.csr_array((c.count[inside], c.successor[inside], indptr), shape=(len(c.n), m.n_states))
        total = np.asarray(count[m.pair_of_entry, m.successors], np.int64).ravel()
        return total, int(c.n.sum() - total.sum())

    def _axis_sizes(self) -> dict[str, int]:
        return {**super()._axis_sizes(), "nnz": len(self.total)}

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        if (arrays["total"] > self._tally_transitions()[0]).any():
            raise ValueError("more transitions were taken in than there are")


def find_misfit(mixture: LinearMixture, total: Longs, outside: int, simplex: bool) -> list[str]:
    """Return the failed tests, one line each, for the counts ``total`` [nnz] and the transitions outside the support.

    ``simplex``: theta is assumed to lie in the simplex, else in the ball of radius B.
    """
    lines, void = [], "the certificates are void"
    if outside:
        lines.append(f"misspecified: transitions were observed that no kernel of the mixture allows; {void}")
    # Pairs with the same feature vectors are also tested together: many of them with few counts each can show a misfit
    # that none of them shows alone.
    seen = total.astype(float)
    expected = expected_counts(mixture, total, simplex)
    classes, pair = mixture.entry_classes, mixture.pair_of_entry
    family = mixture.pair_families[pair[np.unique(classes, return_index=True)[1]]]
    O, E = (np.bincount(classes, values).astype(float) for values in (seen, expected))
    if 2 * min(misfit_p_value(seen, expected, pair), misfit_p_value(O, E, family)) < MISFIT_LEVEL:
        test = f"(G-test, p < {MISFIT_LEVEL:g})"
        lines.append(f"misspecified: the counts do not fit any mixture of the kernels {test}; {void}")
    return lines


def expected_counts(mixture: LinearMixture, total: Longs, simplex: bool) -> Floats:
    """Expected counts of the entries [nnz] at the theta of largest likelihood, given the counts of the pairs."""
    index, vectors = mixture.distinct_features
    c = np.bincount(index, total, minlength=len(vectors)).astype(float)
    start = np.full(mixture.d, 1.0 / mixture.d)
    likeliest = maximise_likelihood(vectors[c > 0], c[c > 0], start) if simplex else likeliest_theta(mixture, c)
    share: Floats = np.maximum(mixture.features @ likeliest, 0.0)
    return share * mixture.sum_over_successors(total)[mixture.pair_of_entry]


def misfit_p_value(seen: Floats, expected: Floats, group: Longs) -> float:
    """Twice the smaller p-value of two tests: the worst group, and all groups together.

    seen, expected and group have one entry per outcome.
    """
    # max(., 1e-9) skips outcomes that did not occur: 0 * log(0) would be NaN.
    E, possible = np.maximum(expected, 1e-9), (expected > 0) | (seen > 0)
    deviance = 2.0 * (seen * np.log(np.maximum(seen, 1e-9) / E) - (seen - expected))
    G, freedom = (np.bincount(group, values).astype(float) for values in (deviance, possible))
    # The expected counts of a group have the sum of the observed ones, which costs one degree of freedom.
    freedom -= 1.0
    testable = freedom > 0
    worst = float(np.min(chi_square_tail(freedom[testable], G[testable]), initial=1.0)) * max(int(testable.sum()), 1)
    # The chi-square law of a sum over many groups needs large expected counts in each of them.
    rarest = np.full(len(G), np.inf)
    np.minimum.at(rarest, group[possible], expected[possible])
    enough = testable & (rarest >= 20.0)
    return 2.0 * min(worst, float(chi_square_tail(max(float(freedom[enough].sum()), 1.0), G[enough].sum())))


def chi_square_tail(freedom: Floats | float, value: Floats | float) -> Floats:
    """Probability that a chi-square variable with these degrees of freedom exceeds the value; 1 below zero."""
    return np.asarray(chdtrc(freedom, np.maximum(value, 0.0)), float)


def likeliest_theta(mixture: LinearMixture, counts: Floats) -> Floats:
    """Approximate maximiser of sum_k c_k ln <phi_k, theta> over theta0 + N z, with counts [K] of the distinct vectors.

    Every count is PSEUDO_COUNT larger.
    """
    theta0, N = mixture.theta_parametrisation
    _, phi = mixture.distinct_features
    c = counts + PSEUDO_COUNT
    # Without a simplex a step may lead to negative probabilities, so below ``tiny`` a parabola continues the logarithm.
    # The ridge keeps the system regular in directions that the vectors do not determine.
    ridge, tiny = 1e-3 / mixture.B**2, 0.5 * PSEUDO_COUNT / float(c.sum())
    rows, p0 = phi @ N, phi @ theta0

    def loss(z: Floats) -> tuple[float, Floats]:
        """Minus the objective, and its gradient."""
        p = p0 + rows @ z
        up, low = np.maximum(p, tiny), np.minimum(p - tiny, 0.0) / tiny
        value = float(c @ (np.log(up) + low - low**2 / 2)) - ridge * float(z @ z) / 2
        return -value, ridge * z - rows.T @ (c * np.where(p > tiny, 1.0 / up, (1.0 - low) / tiny))

    def hessian(z: Floats) -> Floats:
        curvature: Floats = (rows.T * (c / np.maximum(p0 + rows @ z, tiny) ** 2)) @ rows
        return curvature + ridge * np.eye(len(z))

    z = np.zeros(N.shape[1])
    if len(z):
        z = minimize(loss, z, method="trust-exact", jac=True, hess=hessian, tol=1e-8 * float(c.sum())).x
    theta: Floats = theta0 + N @ z
    return theta
