"""Plans of H stages for all goals, from one snapshot of the counts: what AdaGoal-UCBVI and BPI-UCBVI share."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.certified.goal_table import one_column_per_goal
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
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Longs
from adagoal.planning.horizon_recursion import plan_finite_horizon
from adagoal.planning.model_arrays import BonusTerms, TargetGoals, TransitionKernel

MAX_POLICY_TABLE_BYTES = 2**32
"""Largest policy table [H, S, G]."""


class FiniteHorizonEstimates:
    """The last plan, with its policies [H, S], optimistic distances D and errors U."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "table": ArraySpec("int16", ("H", "S", "G"), low=0, high="A"),
        "D": ArraySpec("float64", ("G",), low=0),
        "U": ArraySpec("float64", ("G",), low=0),
        "planned": ArraySpec("int64", ("S*A",), low=-1),
    }
    FACTS_SCHEMA = object_schema(plans=COUNT_SCHEMA)

    def __init__(self, counts: TransitionCounts, space: GoalSpace, H: int) -> None:
        S, G = counts.n_states, len(space.goal_numbers)
        if 2 * H * S * G > MAX_POLICY_TABLE_BYTES:
            text = f"{H} stages, {S} states and {G} goals need a policy table of {2 * H * S * G / 2**30:.0f} GiB"
            raise InputError(f"{text}; give fewer goals, or a smaller horizon (which voids a guarantee)", "method")
        self.counts, self.space, self.H = counts, space, H
        self.goals, self.column = one_column_per_goal(space)
        self.goal_state = self.goals
        self.table: Actions = np.zeros((H, counts.n_states, len(self.goals)), np.int16)
        """[H, S, G] pi: the policy of U, of the episodes and of the result"""
        self.D, self.U = np.zeros((2, len(self.goals)))
        self.planned_counts: Longs = np.full(len(counts.n), -1)
        """[X] the counts of the plan"""
        self.plans = 0

    def plan_with_bonus(self, bonus: BonusTerms) -> None:
        """Plan on the latest counts."""
        c = self.counts
        p_hat = c.count / np.maximum(c.n, 1)[:, None]
        kernel = TransitionKernel(c.successor, p_hat, c.support, c.terminal, c.start)
        targets = TargetGoals(len(self.goals), self.space.columns_of_states(self.goals))
        self.table, self.D, self.U = plan_finite_horizon(kernel, bonus, targets, self.H)
        self.planned_counts = c.n.copy()
        self.plans += 1

    def goal_policy(self, goal: int) -> Actions:
        """[H, S]: H stages, then the reset, and again."""
        return np.ascontiguousarray(self.table[:, :, self.column[goal]])

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The last plan: it may be older than the counts."""
        return {"table": self.table, "D": self.D, "U": self.U, "planned": self.planned_counts}, {"plans": self.plans}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        c = self.counts
        check_json_value(self.FACTS_SCHEMA, facts)
        check_arrays(self.ARRAY_SCHEMA, arrays, {"H": self.H, "S": c.n_states, "A": c.n_actions, "G": len(self.goals)})
        if (arrays["planned"] > c.n).any():
            raise ValueError("the plan knows more transitions than there are")
        self.table, self.D, self.U = (np.array(arrays[name]) for name in ("table", "D", "U"))
        self.planned_counts, self.plans = np.array(arrays["planned"]), facts["plans"]
