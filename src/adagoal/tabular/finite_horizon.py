"""Estimates with policies of H stages: what AdaGoal-UCBVI, BPI-UCBVI and AdaGoal-UCRL.VTR share."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.errors import InputError
from adagoal.core.exploration_run import EstimatesPerGoal
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Floats, Longs
from adagoal.planning.horizon_recursion import plan_finite_horizon
from adagoal.planning.model_arrays import BonusTerms, TargetGoals, TransitionKernel

MAX_POLICY_TABLE_BYTES = 2**32  # larger tables [H, S, G] are refused, before memory runs out


class FiniteHorizonEstimates(EstimatesPerGoal):
    """One table of policies of H stages, for the episodes and for the result, and optimistic distances D."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "table": ArraySpec("int16", ("H", "S", "G"), low=0, high="A"),
        "D": ArraySpec("float64", ("G",), low=0),
    }

    def __init__(self, counts: TransitionCounts, L: float, epsilon: float, space: GoalSpace | None, H: int) -> None:
        super().__init__(counts, L, epsilon, space)
        S, G = counts.n_states, len(self.goals)
        if 2 * H * S * G > MAX_POLICY_TABLE_BYTES:
            text = f"{H} stages, {S} states and {G} goals need a policy table of {2 * H * S * G / 2**30:.0f} GiB"
            raise InputError(f"{text}; give fewer goals, or a smaller horizon (which voids a guarantee)", "method")
        self.H = H
        self.table: Actions = np.zeros((H, S, G), np.int16)
        self.D: Floats = np.zeros(G)

    @property
    def E(self) -> Floats:
        """Errors [G]."""
        raise NotImplementedError

    def exploration_plan(self) -> ExplorationPlan:
        """Return the policies of the table."""
        thresholds, at = self._replan_thresholds(), self.space.goals_of_states
        return ExplorationPlan(self.table, self.goal_state, self.H, thresholds, at)

    def _replan_thresholds(self) -> Longs:
        """Counts [X] that end a rollout before its episodes are over: none."""
        return np.full(len(self.counts.n), NO_LIMIT)

    def goal_policy(self, goal: int) -> Actions:
        """Return the policy [H, S]: H stages, then the reset, and again."""
        return np.ascontiguousarray(self.table[:, :, self.column[goal]])

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """(D, D + E) for a goal with D <= L and E <= epsilon, as the proof of its policy has it; else (D, infinity)."""
        D, E = float(self.D[self.column[goal]]), float(self.E[self.column[goal]])
        return D, D + E if D <= self.L and E <= self.epsilon else math.inf

    def _axis_sizes(self) -> dict[str, int]:
        return {**super()._axis_sizes(), "H": self.H}


class BonusEstimates(FiniteHorizonEstimates):
    """Estimates from one snapshot of the counts, with bonuses (:mod:`adagoal.planning.horizon_recursion`)."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **FiniteHorizonEstimates.ARRAY_SCHEMA,
        "U": ArraySpec("float64", ("G",), low=0),
        "planned_counts": ArraySpec("int64", ("S*A",), low=-1),
    }

    def __init__(self, counts: TransitionCounts, L: float, epsilon: float, space: GoalSpace | None, H: int) -> None:
        super().__init__(counts, L, epsilon, space, H)
        self.U: Floats = np.zeros(len(self.goals))  # [G]: U_1(s0)
        self.planned_counts: Longs = np.full(len(counts.n), -1)  # [X]: the snapshot

    def plan_with_bonus(self, bonus: BonusTerms) -> None:
        """Plan all goals on the latest counts."""
        c = self.counts
        p_hat = c.count / np.maximum(c.n, 1)[:, None]
        kernel = TransitionKernel(c.successor, p_hat, c.support, c.terminal, c.start)
        targets = TargetGoals(len(self.goals), self.space.columns_of_states(self.goals))
        self.table, self.D, self.U = plan_finite_horizon(kernel, bonus, targets, self.H)
        self.planned_counts = c.n.copy()
        self.plans += 1

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        if (arrays["planned_counts"] > self.counts.n).any():
            raise ValueError("the plan knows more transitions than there are")


def bonus_terms(n: Floats | Longs, beta_star: Floats, beta: Floats, H: int) -> BonusTerms:
    """Bonuses of pairs with counts n [X] and thresholds beta* [X], beta [X] (eq. ``eq_Qt`` to ``eq_Et``)."""
    tried, n_or_1 = n > 0, np.maximum(n, 1)
    weight, rate = np.where(tried, beta_star / n_or_1, 0.0), np.where(tried, beta / n_or_1, np.inf)
    return BonusTerms(weight, 14.0 * H**2 * rate, 36.0 * H**2 * rate, np.zeros_like(rate), correction=1.0 / H)
