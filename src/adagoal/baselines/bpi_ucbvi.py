"""BPI-UCBVI (Menard et al. 2021, "Fast active learning for pure exploration in reinforcement learning"), for one goal.

Best-policy identification over H stages, in costs: reach the goal g, one step costs one. With the recursion of
:mod:`adagoal.planning.horizon_recursion` for the goal space {g}, of which it is the ancestor,

    weight = beta* / n,   flat = 14 H^2 beta / n,   flat_u = 36 H^2 beta / n,   correction = 1/H,
    beta*  = c (log(3 S A H / delta) + log(8 e (n + 1))),    beta = c (log(3 S A H / delta) + S log(8 e (n + 1))),

play the optimistic policy of each episode, and stop when the error U_1(s0, pi) <= epsilon: then pi loses at most
epsilon against the best policy over H stages. Nothing is said about what follows after H steps, so that this is no
certificate for the expected time to g. The policy is returned as H stages, the reset, and again.

*Checked:* the constants 3, 14, 6 and 36, the correction and the form of both thresholds, against their use in the
AdaGoal paper (labels ``eq_Qt`` to ``eq_Et``), which takes them from here; beta, with its 3 S A H, against the code that
the authors published for the reward-free algorithm of the same paper (github.com/omardrwch/rl_fast_active_learning,
``algorithms/adaptive_rf.py``). Of the paper itself only the abstract could be opened. *Recalled:* that beta* is beta
without the factor S. *Ours:* transitions are pooled over the stages, as our worlds do not change with time (the paper
counts each stage by itself, which costs a factor H), and plans are kept until a count has grown by a tenth.

``constants``: as in :mod:`adagoal.baselines.self_directed`, "scaled=c" multiplies the thresholds by c.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.baselines.self_directed import parse_constants
from adagoal.core.environment import ExplorationPlan
from adagoal.core.errors import InputError
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Bools, Floats, Longs
from adagoal.planning.model_arrays import BonusTerms
from adagoal.tabular.finite_horizon import FiniteHorizonEstimates
from adagoal.tabular.ucbvi import planning_horizon

PAIR_REPLAN_GROWTH = 1.1
"""Plan again once some pair has been tried this many times as often."""


class BPI(FiniteHorizonEstimates):
    """Estimates of one goal; see the module's text."""

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
            raise InputError("bpi-ucbvi is for one goal", name="method")
        super().__init__(counts, space, planning_horizon(L, epsilon, "literal") if H is None else H)
        self.L, self.epsilon, self.delta, self.c = L, epsilon, delta, parse_constants(constants)
        self._plan_all_goals()

    @property
    def E(self) -> Floats:
        """[1] the error U."""
        return self.U

    def beta_thresholds(self) -> tuple[Floats, Floats]:
        """[X] beta* and beta."""
        n = self.counts.n.astype(float)
        union, growth = math.log(3 * len(n) * self.H / self.delta), np.log(8 * math.e * (n + 1.0))
        return self.c * (union + growth), self.c * (union + self.counts.n_states * growth)

    def refresh_columns(self, wanted: Bools) -> bool:
        """Plan on the latest counts, once some count has grown enough."""
        if (self.counts.n < self._replan_thresholds()).all():
            return False
        self._plan_all_goals()
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """The optimistic policy."""
        return ExplorationPlan(
            self.table, self.goal_state, self.H, self._replan_thresholds(), self.space.goals_of_states
        )

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """The optimistic value over H stages, with the paper's constants; nothing above."""
        return float(self.D[0]) if self.c >= 1 else 0.0, math.inf

    def _replan_thresholds(self) -> Longs:
        """[X] the counts that ask for a new plan."""
        return np.maximum(self.planned_counts + 1, (PAIR_REPLAN_GROWTH * self.planned_counts).astype(np.int64))

    def _plan_all_goals(self) -> None:
        tried, n = self.counts.n > 0, np.maximum(self.counts.n, 1)
        star, beta = self.beta_thresholds()
        weight, rate = np.where(tried, star / n, 0.0), np.where(tried, beta / n, np.inf)
        flat, flat_u = 14.0 * self.H**2 * rate, 36.0 * self.H**2 * rate
        self.plan_with_bonus(BonusTerms(weight, flat, flat_u, np.zeros_like(rate), correction=1.0 / self.H))
