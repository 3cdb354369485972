"""The estimates of AdaGoal-UCRL.VTR, the paper's algorithm for linear mixtures (label ``app_LFA``).

Every goal has two ridge regressions over all transitions, one with the targets V_g, one with the errors U_g:

    Sigma_g = lambda I + sum phi_V phi_V^T,   theta_g = Sigma_g^-1 sum phi_V V(s'),   lambda = 1/(B + 1)^2
    beta_g  = (H/2) sqrt( 2 ln(3 G/delta) + ln(det Sigma_g / lambda^d) ) + 1         (for eq. ``eq_conf_radius_LM``)
    D(g) = V_{g,1}(s0),   E(g) = U_{g,1}(s0) + 8/9 epsilon                           (eq. ``eq_Dt_LFA``, ``eq_Et_LFA``)

The recursions are in planning/mixture_sweeps.py. Where the text is wrong or silent: the losses are squared; the radius
has its G; the goal's own coordinate is always zero, so everything lives in R^d; the reset is known and never regressed;
Q is clipped to [1[s != g], H - h + 1]. *Ours:* rows use the functions of stage 2, and a plan lasts until the data has
grown by a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.goal_space import GoalSpace
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.linear.mixture_estimates import MixtureEstimates
from adagoal.planning.mixture_sweeps import plan_mixture_horizon
from adagoal.planning.model_arrays import RidgeEstimates, TargetGoals
from adagoal.tabular.ucbvi import EPSILON_SHARES, FiniteHorizonEstimates, planning_horizon


class VTR(MixtureEstimates, FiniteHorizonEstimates):
    """AdaGoal-UCRL.VTR."""

    name = "vtr"
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **FiniteHorizonEstimates.ARRAY_SCHEMA,
        **MixtureEstimates.ARRAY_SCHEMA,
        # The limits keep the quotients of forged sums finite.
        "Sigma": ArraySpec("float64", (2, "G", "d", "d"), low=-1e30, high=1e30),
        "b": ArraySpec("float64", (2, "G", "d"), low=-1e30, high=1e30),
        "V": ArraySpec("float64", (2, "S", "G"), low=0),
        "U": ArraySpec("float64", (2, "S", "G"), low=0),
    }

    def __init__(
        self,
        mixture: LinearMixture,
        counts: TransitionCounts,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace | None,
        note: Callable[[str], None],
        H: int | None = None,
    ) -> None:
        enough = planning_horizon(L, epsilon, "literal")
        super().__init__(counts, L, epsilon, space, enough if H is None else H)
        self.init_mixture(mixture, note, simplex=False, min_new_transitions=self.H)
        self.delta, self.guarantee = delta, self.H >= enough
        G, d = len(self.goals), mixture.d
        # The first axis of Sigma and b: the value-targeted and the error-targeted regression.
        self.Sigma = np.tile(np.eye(d) / (mixture.B + 1.0) ** 2, (2, G, 1, 1))
        self.b = np.zeros((2, G, d))
        self.V, self.U = np.zeros((2, 2, mixture.n_states, G))  # [2, S, G]: V_h and U_h of the last plan, h = 1 and 2
        # The first plan needs no data: it is the prior of the regressions.
        self.planned_transitions = 0
        self._plan_all_goals()

    @property
    def E(self) -> Floats:
        """Errors [G] (eq. ``eq_Et_LFA``)."""
        errors: Floats = self.U[0, self.mixture.start] + EPSILON_SHARES["literal"] * self.epsilon
        return errors

    def refresh_columns(self, wanted: Bools) -> bool:
        """Add regression rows and plan all goals, once the data has grown enough."""
        if not self.is_plan_due():
            return False
        # Rows use the functions of stage 2 of the last plan, whatever the stage of the transition. This changes rates
        # only: the events hold for all functions that were fixed before the transition, and for all times.
        new = self.take_new_transitions()
        for kind, functions in enumerate((self.V[1], self.U[1])):
            for g, f in enumerate(functions.T):
                _add_regression_rows(self.mixture, new, f, self.Sigma[kind, g], self.b[kind, g])
        self._plan_all_goals()
        return True

    def _max_episodes(self) -> int:
        """Return about as many episodes as the next plan needs."""
        return max(1, math.ceil(self.transitions_until_plan() / self.H))

    def _axis_sizes(self) -> dict[str, int]:
        return {**super()._axis_sizes(), "d": self.mixture.d}

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        # Raises a LinAlgError, which is a ValueError, if a forged matrix is not positive definite.
        np.linalg.cholesky(arrays["Sigma"])

    def _plan_all_goals(self) -> None:
        G = len(self.goals)
        value, error = (
            solve_ridge_regressions(Sigma, b, self.mixture.B, self.H, G, self.delta)
            for Sigma, b in zip(self.Sigma, self.b, strict=True)
        )
        targets = TargetGoals(G, self.space.columns_of_states(self.goals))
        self.table, self.V, self.U = plan_mixture_horizon(self.features, value, error, targets, self.H)
        self.D = self.V[0, self.mixture.start].copy()
        self.plans += 1


def solve_ridge_regressions(Sigma: Floats, b: Floats, B: float, H: int, G: int, delta: float) -> RidgeEstimates:
    """Estimates and radii of G regressions with Sigma [G, d, d] and b [G, d]."""
    d = b.shape[1]
    log_det = np.linalg.slogdet(Sigma)[1] + 2.0 * d * math.log(B + 1.0)
    beta = H / 2.0 * np.sqrt(2.0 * math.log(3.0 * G / delta) + log_det) + 1.0
    inverse = np.linalg.inv(np.linalg.cholesky(Sigma))
    theta = np.linalg.solve(Sigma, b[:, :, None])[:, :, 0].astype(float)
    return RidgeEstimates(theta, np.ascontiguousarray(beta[:, None, None] * inverse.transpose(0, 2, 1)))


def _add_regression_rows(m: LinearMixture, new: Longs, f: Floats, Sigma: Floats, b: Floats) -> None:
    """Add a row phi_f(x) with the target f(s') for every transition of ``new`` [nnz], in place."""
    n = m.sum_over_successors(new)
    pairs = np.flatnonzero(n)
    if len(pairs):
        phi = m.phi(f, pairs)
        Sigma += phi.T @ (phi * n[pairs, None])
        b += phi.T @ np.add.reduceat(new * f[m.successors], m.indptr[:-1])[pairs]
