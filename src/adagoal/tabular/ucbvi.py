"""The estimates of AdaGoal-UCBVI, the paper's tabular algorithm (labels ``app_TAB``, ``subsect_choices``).

A goal g is planned for a finite horizon H on the counts n and the empirical kernel p_hat, with A actions beside the
reset, which is known and never estimated. The recursions for Q~ (eq. ``eq_Qt``), Q_ and U are in
planning/horizon_recursion.py. Their thresholds (lemma ``lem:proba_master_event``) are

    beta*(n) = log(3 S A G H / delta) +   log(8 e (n + 1))     one value function for each (s, a, g, h)
    beta(n)  = log(3 S A / delta)     + S log(8 e (n + 1))     one kernel for each (s, a)

    D(g) = V~_1(s0)                                            (eq. ``eq_Dt``)
    E(g) = U_1(s0, pi) + share * epsilon                       (eq. ``eq_Et``)

D, E, the goals and the returned policies all come from one snapshot of the counts and one argmin table.

Three bonuses. With B = max(L + 2, L + 1 + epsilon), and U <= (1 - share) epsilon at the stop:

    literal     share 8/9,  H = ceil(5 B log2(10 B / epsilon))            the constants as printed
    rebalanced  share 1/10, H = 20 (B + 1) + 2 B ceil(log2(41 B / epsilon))   the same bonus, a better split
    simplified  share 0, the printed H unless given; b = sqrt(1/n) + (H - h + 1)/n    the experiments; no guarantee

*Why the splits keep the guarantee* (lemma ``lem:link_FH_SSP``). Let pi be the policy of a goal with D <= L at the stop,
q the probability that H steps of it miss g, V_H its value cut off at H. The resetting policy has the value
V_H + q/(1-q) (1 + V_H), V_H <= D + U, and (H - K) q <= V_H - V*_K <= U + (V* - V*_K) for every K < H, while
V* - V*_K <= x/(1-x) B with x = 2^-floor(K/2B). Literal, K = ceil(4 B log2(10 B / epsilon)): this bias is at most
epsilon/9, so q <= 0.075 epsilon / B, and the value is at most D + U + epsilon/10. Rebalanced, H - K = 20 (B + 1): the
bias is at most epsilon/40, q <= 0.925 epsilon / (20 (B + 1)), and the value is at most D + U + epsilon/20. In both
cases it is at most D + E, so C1 and C2 hold for every epsilon > 0, not only up to 1. A larger H is as good.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Bools, Floats, Longs
from adagoal.planning.model_arrays import BonusTerms
from adagoal.tabular.finite_horizon import BonusEstimates, bonus_terms

EPSILON_SHARES = {"literal": 8 / 9, "rebalanced": 1 / 10, "simplified": 0.0}  # E = U + share * epsilon, by bonus


def planning_horizon(L: float, epsilon: float, bonus: str) -> int:
    """H, as printed (Algorithm ``algo``) or for the rebalanced split."""
    B = max(L + 2.0, L + 1.0 + epsilon)
    if bonus == "rebalanced":
        return math.ceil(20 * (B + 1)) + math.ceil(2 * B * math.ceil(math.log2(41 * B / epsilon)))
    return math.ceil(5 * B * math.log2(10 * B / epsilon))


def ucbvi_bonuses(n: Floats, n_states: int, n_goals: int, H: int, delta: float, bonus: str) -> BonusTerms:
    """Bonuses of pairs with the counts n [X]."""
    if bonus == "simplified":
        tried, n_or_1 = n > 0, np.maximum(n, 1.0)
        root = np.where(tried, np.sqrt(1.0 / n_or_1), np.inf)
        return BonusTerms(np.zeros_like(root), root, 2.0 * root, np.where(tried, 1.0 / n_or_1, 0.0), correction=0.0)
    pairs, growth = len(n), np.log(8 * math.e * (n + 1.0))
    beta = math.log(3 * pairs / delta) + n_states * growth
    beta_star = math.log(3 * pairs * n_goals * H / delta) + growth
    return bonus_terms(n, beta_star, beta, H)


class UCBVI(BonusEstimates):
    """AdaGoal-UCBVI; with ``lazy`` it plans when a count has doubled, not before every episode."""

    name = "ucbvi"

    def __init__(
        self,
        counts: TransitionCounts,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace | None = None,
        bonus: str = "literal",
        H: int | None = None,
        lazy: bool = False,
    ) -> None:
        enough = planning_horizon(L, epsilon, bonus)
        super().__init__(counts, L, epsilon, space, enough if H is None else H)
        self.delta, self.bonus, self.lazy = delta, bonus, lazy
        self.guarantee = bonus != "simplified" and self.H >= enough
        self.episodes_per_plan = 1_000_000 if lazy else 1
        self._plan_all_goals()

    @property
    def E(self) -> Floats:
        """Errors [G] (eq. ``eq_Et``)."""
        return self.U + EPSILON_SHARES[self.bonus] * self.epsilon

    def refresh_columns(self, wanted: Bools) -> bool:
        """Plan all goals, if there are new counts and, with ``lazy``, one of them has doubled."""
        if self.lazy and (self.counts.n < self._replan_thresholds()).all():
            return False
        if np.array_equal(self.counts.n, self.planned_counts):
            return False
        self._plan_all_goals()
        return True

    def _replan_thresholds(self) -> Longs:
        """With ``lazy``, twice the counts of the plan [X]."""
        if self.lazy:
            return np.where(self.planned_counts > 0, 2 * self.planned_counts, 1)
        return super()._replan_thresholds()

    def _plan_all_goals(self) -> None:
        n = self.counts.n.astype(float)
        self.plan_with_bonus(ucbvi_bonuses(n, self.counts.n_states, len(self.goals), self.H, self.delta, self.bonus))
