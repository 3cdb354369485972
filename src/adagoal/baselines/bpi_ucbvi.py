"""BPI-UCBVI (Menard et al. 2021, "Fast active learning for pure exploration in reinforcement learning"), for one goal.

Best-policy identification over H stages, in costs: reach the goal g, every step costs one. It uses the recursion of
:mod:`adagoal.tabular.ucbvi`, whose ancestor it is, for the goal space {g} with

    weight = beta* / n,   flat = 14 H^2 beta / n,   flat_u = 36 H^2 beta / n,   correction = 1/H,
    beta*  = c (log(3 S A H / delta) + log(8 e (n + 1))),    beta = c (log(3 S A H / delta) + S log(8 e (n + 1))),

plays the optimistic policy of each episode, and stops when the error U_1(s0, pi) <= epsilon: then pi loses at most
epsilon against the best policy over H stages. The algorithm claims nothing about later steps, so this is no certificate
for the expected time to g. The policy is returned as H stages, the reset, and again.

*Checked:* the constants 3, 14, 6 and 36, the correction and the form of both thresholds, against their use in the
AdaGoal paper (labels ``eq_Qt`` to ``eq_Et``), which takes them from here; beta, with its 3 S A H, against the code that
the authors published for the reward-free algorithm of the same paper (github.com/omardrwch/rl_fast_active_learning,
``algorithms/adaptive_rf.py``). Only the abstract of the paper itself could be opened. *Recalled:* that beta* is beta
without the factor S. *Ours:* transitions are pooled over the stages, because our environments do not change with time
(the paper counts each stage by itself, which costs a factor H), and plans are kept for a while.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.baselines.self_directed import parse_constants
from adagoal.core.errors import InputError
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Bools, Floats, Longs
from adagoal.tabular.ucbvi import BonusEstimates, bonus_terms, planning_horizon


class BPI(BonusEstimates):
    """BPI-UCBVI for one goal."""

    name = "bpi-ucbvi"
    guarantee = False
    episodes_per_plan = 1_000_000

    def __init__(
        self,
        counts: TransitionCounts,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace,
        constants: str = "paper",
        H: int | None = None,
    ) -> None:
        if len(space.goal_numbers) != 1:
            raise InputError("bpi-ucbvi takes exactly one goal; give one", name="method")
        stages = planning_horizon(L, epsilon, "literal") if H is None else H
        super().__init__(counts, L, epsilon, space, stages)
        self.delta, self.c = delta, parse_constants(constants)
        self._plan()

    @property
    def E(self) -> Floats:
        """The error U [1]."""
        # No share of epsilon for the steps after H, which AdaGoal-UCBVI adds: BPI claims nothing about them.
        return self.U

    def refresh_columns(self, wanted: Bools) -> bool:
        """Plan on the latest counts, once some count has grown by a tenth."""
        if (self.counts.n < self._replan_thresholds()).all():
            return False
        self._plan()
        return True

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """The optimistic value over H stages, with the paper's constants, and no upper bound."""
        # A scaled c gives up the confidence delta, and with it the lower bound.
        return float(self.D[0]) if self.c >= 1 else 0.0, math.inf

    def _replan_thresholds(self) -> Longs:
        """A tenth more than the counts of the plan [X]."""
        return np.maximum(self.planned_counts + 1, (1.1 * self.planned_counts).astype(np.int64))

    def _plan(self) -> None:
        n = self.counts.n
        union, growth = math.log(3 * len(n) * self.H / self.delta), np.log(8 * math.e * (n.astype(float) + 1.0))
        beta_star, beta = self.c * (union + growth), self.c * (union + self.counts.n_states * growth)
        self.plan_with_bonus(bonus_terms(n, beta_star, beta, self.H))
