"""The estimates of AdaGoal-UCRL.VTR, the paper's algorithm for linear mixtures (label ``app_LFA``).

For every goal two ridge regressions over all transitions, one with the targets V_g, one with the errors U_g:

    Sigma_g = lambda I + sum phi_V phi_V^T,   theta_g = Sigma_g^-1 sum phi_V V(s'),   lambda = 1/(B + 1)^2
    beta_g  = (H/2) sqrt( 2 ln(3 G/delta) + ln(det Sigma_g / lambda^d) ) + 1         (for eq. ``eq_conf_radius_LM``)
    D(g) = V_{g,1}(s0),   E(g) = U_{g,1}(s0) + 8/9 epsilon                           (eq. ``eq_Dt_LFA``, ``eq_Et_LFA``)

The recursions stand in planning/mixture_sweeps.py. Where the text is wrong or silent: the losses are squared; the
radius has its G; the goal's own coordinate is always zero, so that everything lives in R^d; the reset is known and
never regressed; Q is clipped to [1[s != g], H - h + 1]. Two choices are ours, and touch rates only, since the events
hold for all functions fixed before the transition and all times: rows are made with the functions of stage 2 of the
plan in force, whatever the stage, and a plan lasts until the data has grown by a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.certified.goal_table import one_column_per_goal
from adagoal.core.environment import ExplorationPlan
from adagoal.core.errors import InputError
from adagoal.core.file_formats import (
    COUNT_SCHEMA,
    ArraySchema,
    ArraySpec,
    check_arrays,
    check_json_value,
    object_schema,
)
from adagoal.core.goal_space import GoalSpace
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.linear.mixture_counts import MixtureCounts
from adagoal.planning.mixture_sweeps import plan_mixture_horizon
from adagoal.planning.model_arrays import RidgeEstimates, TargetGoals, features_from_mixture
from adagoal.tabular.ucbvi import planning_horizon

VTR_EPSILON_SHARE = 8 / 9
GROWTH = 1.1
"""Plan again once the number of transitions has grown by this factor."""
NEVER = 2**62
MAX_CHECKPOINT_SUM = 1e30
"""Sums in a checkpoint, at most: larger ones would make their quotients infinite."""
MAX_VTR_TABLE_BYTES = 2**31
"""Largest policy table [H, S, G]."""


class VTR:
    """AdaGoal-UCRL.VTR on shared counts; see the module's text."""

    name = "vtr"
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "Sigma": ArraySpec("float64", (2, "G", "d", "d"), low=-MAX_CHECKPOINT_SUM, high=MAX_CHECKPOINT_SUM),
        "b": ArraySpec("float64", (2, "G", "d"), low=-MAX_CHECKPOINT_SUM, high=MAX_CHECKPOINT_SUM),
        "V": ArraySpec("float64", (2, "S", "G"), low=0),
        "U": ArraySpec("float64", (2, "S", "G"), low=0),
        "D": ArraySpec("float64", ("G",), low=0),
        "table": ArraySpec("int16", ("H", "S", "G"), low=0, high="A"),
    }
    FACTS_SCHEMA = object_schema(plans=COUNT_SCHEMA, planned=COUNT_SCHEMA)

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
        self._features = features_from_mixture(mixture)
        self.mixture, self.counts, self.L, self.epsilon, self.delta = mixture, counts, L, epsilon, delta
        enough = planning_horizon(L, epsilon, "literal")
        self.H = enough if H is None else H
        self.guarantee = self.H >= enough
        self.episodes_per_plan = 1
        S, d = mixture.n_states, mixture.d
        self.space = space or GoalSpace.from_states(S, S)
        self.goals, self.column = one_column_per_goal(self.space)
        self.goal_state, G = self.goals, len(self.goals)
        if 2 * self.H * S * G > MAX_VTR_TABLE_BYTES:
            raise InputError(
                f"vtr with H = {self.H} stages, {S} states and {G} goals needs a policy table of "
                f"{2 * self.H * S * G / 2**30:.0f} GiB; give fewer goals",
                name="method",
            )
        ridge = 1.0 / (mixture.B + 1.0) ** 2
        self.Sigma = np.tile(ridge * np.eye(d), (2, G, 1, 1))
        """[2, G, d, d] of the value-targeted and the error-targeted regression"""
        self.b = np.zeros((2, G, d))
        self.V, self.U = np.zeros((2, 2, S, G))
        """[2, S, G] V_h and U_h of the last plan, for h = 1 and 2"""
        self.D: Floats = np.zeros(G)
        """[G] optimistic distances (eq. ``eq_Dt_LFA``)"""
        self.table = np.zeros((self.H, S, G), np.int16)
        """[H, S, G] pi: the policy of U, of the episodes and of the result"""
        self.mixture_counts = MixtureCounts(mixture, counts, note, simplex=False)
        self.plans = 0
        self._planned_transitions = 0
        self._plan_all_goals()

    @property
    def E(self) -> Floats:
        """[G] error estimates (eq. ``eq_Et_LFA``)."""
        missing: Floats = self.U[0, self.mixture.start] + VTR_EPSILON_SHARE * self.epsilon
        return missing

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """(D, D + E) for a goal with D <= L and E <= epsilon, as the proof of its policy has it; else (D, infinity)."""
        D, E = float(self.D[self.column[goal]]), float(self.E[self.column[goal]])
        return D, D + E if D <= self.L and E <= self.epsilon else math.inf

    def goal_policy(self, goal: int) -> Actions:
        """[H, S]: H stages, then the reset, and again."""
        return np.ascontiguousarray(self.table[:, :, self.column[goal]])

    def refresh_columns(self, wanted: Bools) -> bool:
        """Plan all goals once the data has grown by :data:`GROWTH`; False where it has not."""
        n = int(self.counts.n.sum())
        if n < max(self._planned_transitions + self.H, GROWTH * self._planned_transitions):
            return False
        new = self.mixture_counts.take_new_counts()
        for kind, functions in enumerate((self.V[1], self.U[1])):
            for g, f in enumerate(functions.T):
                _add_regression_rows(self.mixture, new, f, self.Sigma[kind, g], self.b[kind, g])
        self._planned_transitions = n
        self._plan_all_goals()
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """The policies of Q (eq. ``eq_LFA_pi``), H stages each."""
        due = max(float(self.H), (GROWTH - 1.0) * self._planned_transitions) - (
            int(self.counts.n.sum()) - self._planned_transitions
        )
        self.episodes_per_plan = max(1, math.ceil(due / self.H))
        never = np.full(len(self.counts.n), NEVER)
        return ExplorationPlan(self.table, self.goal_state, self.H, never, self.space.goals_of_states)

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The regressions and the last plan, which may be older than the counts."""
        arrays = {name: getattr(self, name) for name in self.ARRAY_SCHEMA}
        return arrays | {"total": self.mixture_counts.total}, {
            "plans": self.plans,
            "planned": self._planned_transitions,
        }

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        m = self.mixture
        check_json_value(self.FACTS_SCHEMA, facts)
        sizes = {"H": self.H, "S": m.n_states, "A": m.n_actions, "G": len(self.goals), "d": m.d}
        check_arrays(self.ARRAY_SCHEMA, arrays, sizes)
        np.linalg.cholesky(arrays["Sigma"])  # which raises where it is not positive definite
        for name in self.ARRAY_SCHEMA:
            setattr(self, name, np.array(arrays[name]))
        self.mixture_counts.restore_total(arrays)
        self.plans, self._planned_transitions = facts["plans"], facts["planned"]

    def _plan_all_goals(self) -> None:
        m, G = self.mixture, len(self.goals)
        value, error = (
            solve_ridge_regressions(Sigma, b, m.B, self.H, G, self.delta)
            for Sigma, b in zip(self.Sigma, self.b, strict=True)
        )
        targets = TargetGoals(G, self.space.columns_of_states(self.goals))
        self.table, self.V, self.U = plan_mixture_horizon(self._features, value, error, targets, self.H)
        self.D = self.V[0, m.start].copy()
        self.plans += 1


def solve_ridge_regressions(Sigma: Floats, b: Floats, B: float, H: int, G: int, delta: float) -> RidgeEstimates:
    """The estimates and radii of G regressions with Sigma [G, d, d] and b [G, d]."""
    d = b.shape[1]
    log_det = np.linalg.slogdet(Sigma)[1] + 2.0 * d * math.log(B + 1.0)
    beta = H / 2.0 * np.sqrt(2.0 * math.log(3.0 * G / delta) + log_det) + 1.0
    inverse = np.linalg.inv(np.linalg.cholesky(Sigma))
    theta = np.linalg.solve(Sigma, b[:, :, None])[:, :, 0].astype(float)
    return RidgeEstimates(theta, np.ascontiguousarray(beta[:, None, None] * inverse.transpose(0, 2, 1)))


def _add_regression_rows(m: LinearMixture, new: Longs, f: Floats, Sigma: Floats, b: Floats) -> None:
    """One row phi_f(x) with the target f(s') for every transition of ``new`` [nnz], in place."""
    n = m.sum_over_successors(new)
    pairs = np.flatnonzero(n)
    if len(pairs):
        phi = m.phi(f, pairs)
        Sigma += phi.T @ (phi * n[pairs, None])
        b += phi.T @ np.add.reduceat(new * f[m.successors], m.indptr[:-1])[pairs]
