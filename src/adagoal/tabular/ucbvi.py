"""Estimates of AdaGoal-UCBVI, the paper's tabular algorithm (``app_TAB``, ``subsect_choices``), and of BPI-UCBVI.

A goal g is planned for a finite horizon H on the counts n and the empirical kernel p_hat, with A actions beside the
reset, which is known and never estimated. One pass from stage H to stage 1 computes for every goal, with p = p_hat and
left = H - h + 1,

    Q~(s, a) = clip(1 - 3 sqrt(w Var_p V~) - b - c p(V_ - V~) + p V~,  1, left)       (eq. ``eq_Qt``)
    Q_(s, a) = clip(1 + 3 sqrt(w Var_p V~) + b + c p(V_ - V~) + p V_,  1, left)
    U(s, a)  = clip(    6 sqrt(w Var_p V~) + b' + (1 + 3c) p U(., pi),  0, left)

and V~(s) = min_a Q~(s, a) with its argmin pi(s), V_(s) = min_a Q_(s, a). All three are 0 on g, at every stage. The
reset, action A, has 1 + V~(s0), 1 + V_(s0) and U(s0, pi) of the next stage. It is the only action of a terminal state.
Ties go to the lowest action. The bonuses b = flat + left * slope and b' = flat_u + 2 left * slope of a pair cover every
variant of the paper:

    literal     w = beta* / n,  flat = 14 H^2 beta / n,  flat_u = 36 H^2 beta / n,  slope = 0,  c = 1/H
    simplified  w = 0,          flat = sqrt(1/n),        flat_u = 2 sqrt(1/n),      slope = 1/n,  c = 0

An infinite flat (n = 0) sends Q~ to its lower clip, Q_ and U to their upper one. With c = 0, V_ and the variance are
not computed. The thresholds (lemma ``lem:proba_master_event``) are

    beta*(n) = log(3 S A G H / delta) +   log(8 e (n + 1))     one value function for each (s, a, g, h)
    beta(n)  = log(3 S A / delta)     + S log(8 e (n + 1))     one kernel for each (s, a)

    D(g) = V~_1(s0)                                            (eq. ``eq_Dt``)
    E(g) = U_1(s0, pi) + share * epsilon                       (eq. ``eq_Et``)

D, E, the goals and the returned policies all come from one snapshot of the counts and one argmin table.

Three bonuses. With B = max(L + 2, L + 1 + epsilon), and U <= (1 - share) epsilon at the stop:

    literal     share 8/9,  H = ceil(5 B log2(10 B / epsilon))            the constants as printed
    rebalanced  share 1/10, H = 20 (B + 1) + 2 B ceil(log2(41 B / epsilon))   the same bonus, a better split
    simplified  share 0, the printed H unless given; b = sqrt(1/n) + (H - h + 1)/n    the experiments; no guarantee

Estimates with policies of H stages share :class:`FiniteHorizonEstimates` (also AdaGoal-UCRL.VTR) and
:class:`BonusEstimates` (also BPI-UCBVI).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Actions, Bools, Floats, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.errors import InputError
from adagoal.core.exploration_run import EstimatesPerGoal
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.planning.model_arrays import BonusTerms, TargetGoals, TransitionKernel

EPSILON_SHARES = {"literal": 8 / 9, "rebalanced": 1 / 10, "simplified": 0.0}  # E = U + share * epsilon, by bonus


def planning_horizon(L: float, epsilon: float, bonus: str) -> int:
    """H, as printed (Algorithm ``algo``) or for the rebalanced split."""
    # Why both splits keep the guarantee (lemma ``lem:link_FH_SSP``). Let pi be the policy of a goal with D <= L at the
    # stop, q the probability that H steps of it miss g, V_H its value cut off at H. The resetting policy has the value
    # V_H + q/(1-q) (1 + V_H), V_H <= D + U, and (H - K) q <= V_H - V*_K <= U + (V* - V*_K) for every K < H, while
    # V* - V*_K <= x/(1-x) B with x = 2^-floor(K/2B). Literal, K = ceil(4 B log2(10 B / epsilon)): this bias is at most
    # epsilon/9, so q <= 0.075 epsilon / B, and the value is at most D + U + epsilon/10. Rebalanced, H - K = 20 (B + 1):
    # the bias is at most epsilon/40, q <= 0.925 epsilon / (20 (B + 1)), and the value is at most D + U + epsilon/20.
    # Both are at most D + E, so C1 and C2 hold for every epsilon > 0, not only up to 1. A larger H is as good.
    B = max(L + 2.0, L + 1.0 + epsilon)
    if bonus == "rebalanced":
        return math.ceil(20 * (B + 1)) + math.ceil(2 * B * math.ceil(math.log2(41 * B / epsilon)))
    return math.ceil(5 * B * math.log2(10 * B / epsilon))


def bonus_terms(n: Floats | Longs, beta_star: Floats, beta: Floats, H: int) -> BonusTerms:
    """Bonuses of pairs with counts n [X] and thresholds beta* [X], beta [X] (eq. ``eq_Qt`` to ``eq_Et``)."""
    # An infinite flat bonus sends an untried pair to the clips of the recursion. Its weight is zero: the variance of an
    # untried pair is zero, and infinity times zero would be NaN.
    tried, n_or_1 = n > 0, np.maximum(n, 1)
    weight, rate = np.where(tried, beta_star / n_or_1, 0.0), np.where(tried, beta / n_or_1, np.inf)
    return BonusTerms(weight, 14.0 * H**2 * rate, 36.0 * H**2 * rate, np.zeros_like(rate), correction=1.0 / H)


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


class FiniteHorizonEstimates(EstimatesPerGoal):
    """One table of policies of H stages, for the episodes and for the result, and optimistic distances D."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "table": ArraySpec("int16", ("H", "S", "G"), low=0, high="A"),
        "D": ArraySpec("float64", ("G",), low=0),
    }

    def __init__(self, counts: TransitionCounts, L: float, epsilon: float, space: GoalSpace | None, H: int) -> None:
        super().__init__(counts, L, epsilon, space)
        S, G = counts.n_states, len(self.goals)
        # Above 4 GiB the table is refused, before memory runs out: the paper's H is in the hundreds even for small L.
        if 2 * H * S * G > 2**32:
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
        given = self._replan_thresholds(), self.space.goals_of_states
        return ExplorationPlan(self.table, self.goal_state, self.H, *given, max_episodes=self._max_episodes())

    def _max_episodes(self) -> int:
        """Return the number of episodes that end a rollout: none."""
        return NO_LIMIT

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
    """Estimates from one snapshot of the counts, with bonuses."""

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
        self._plan_all_goals()

    @property
    def E(self) -> Floats:
        """Errors [G] (eq. ``eq_Et``)."""
        return self.U + EPSILON_SHARES[self.bonus] * self.epsilon

    def refresh_columns(self, wanted: Bools) -> bool:
        """Plan all goals, if there are new counts and, with ``lazy``, one of them has doubled."""
        if self.lazy and (self.counts.n < self._replan_thresholds()).all():
            return False
        # The loop calls again after every plan, so the same counts must end its goal selection.
        if np.array_equal(self.counts.n, self.planned_counts):
            return False
        self._plan_all_goals()
        return True

    def _max_episodes(self) -> int:
        """One, but with ``lazy`` only the thresholds end a rollout."""
        return NO_LIMIT if self.lazy else 1

    def _replan_thresholds(self) -> Longs:
        """With ``lazy``, twice the counts of the plan [X]."""
        if self.lazy:
            return np.where(self.planned_counts > 0, 2 * self.planned_counts, 1)
        return super()._replan_thresholds()

    def _plan_all_goals(self) -> None:
        n = self.counts.n.astype(float)
        self.plan_with_bonus(ucbvi_bonuses(n, self.counts.n_states, len(self.goals), self.H, self.delta, self.bonus))


class BPI(BonusEstimates):
    """BPI-UCBVI (Menard et al. 2021, "Fast active learning for pure exploration in reinforcement learning").

    Best-policy identification over H stages, in costs: reach the goal g, every step costs one. It uses the recursion of
    this module, whose ancestor it is, for the goal space {g} with

        weight = beta* / n,   flat = 14 H^2 beta / n,   flat_u = 36 H^2 beta / n,   correction = 1/H,
        beta*  = c (log(3 S A H / delta) + log(8 e (n + 1))),    beta = c (log(3 S A H / delta) + S log(8 e (n + 1))),

    plays the optimistic policy of each episode, and stops when the error U_1(s0, pi) <= epsilon: then pi loses at most
    epsilon against the best policy over H stages. The algorithm claims nothing about later steps, so this is no
    certificate for the expected time to g. The policy is returned as H stages, the reset, and again.

    *Checked:* the constants 3, 14, 6 and 36, the correction and the form of both thresholds, against their use in the
    AdaGoal paper (labels ``eq_Qt`` to ``eq_Et``), which takes them from here; beta, with its 3 S A H, against the code
    that the authors published for the reward-free algorithm of the same paper
    (github.com/omardrwch/rl_fast_active_learning, ``algorithms/adaptive_rf.py``). Only the abstract of the paper itself
    could be opened. *Recalled:* that beta* is beta without the factor S. *Ours:* transitions are pooled over the
    stages, because our environments do not change with time (the paper counts each stage by itself, which costs a
    factor H), and plans are kept for a while.
    """

    name = "bpi-ucbvi"
    guarantee = False

    def __init__(
        self,
        counts: TransitionCounts,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace,
        c: float = 1.0,
        H: int | None = None,
    ) -> None:
        if len(space.goal_numbers) != 1:
            raise InputError("bpi-ucbvi takes exactly one goal; give one", name="method")
        stages = planning_horizon(L, epsilon, "literal") if H is None else H
        super().__init__(counts, L, epsilon, space, stages)
        self.delta, self.c = delta, c
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


@compiled(error_model="numpy")
def plan_finite_horizon(kernel, bonus, targets, horizon):  # type: ignore[no-untyped-def]
    """Return the policies pi [H, S, G], V~_1(s0) [G] and U_1(s0, pi) [G].

    Values are [S, goals of a block] with goals innermost: every inner loop is a vector operation, and a block stays in
    the cache for all H stages.
    """
    start, n_states = kernel.start, kernel.terminal.shape[0]
    n_actions = kernel.support.shape[0] // n_states
    policy = np.empty((horizon, n_states, targets.size), np.int16)
    distance, error = np.empty(targets.size), np.empty(targets.size)
    # Goals planned together: three values of two stages for all states must fit the cache.
    block_size = 64
    for first in range(0, targets.size, block_size):
        width = min(block_size, targets.size - first)
        values = np.zeros((2, 3, n_states, width))  # V~, V_ and U(., pi), of this stage and of the next
        mean, chosen = np.zeros((4, width)), np.zeros(width)
        for h in range(horizon - 1, -1, -1):
            left = float(horizon - h)
            # Only two stages are in memory, and they take turns.
            after, now = values[(h + 1) % 2], values[h % 2]
            for s in range(n_states):
                best, worst, gap = now[0, s], now[1, s], now[2, s]
                best[:], worst[:], gap[:] = 1.0 + after[0, start], 1.0 + after[1, start], after[2, start]
                chosen[:] = n_actions
                for a in range(-1 if kernel.terminal[s] else n_actions - 1, -1, -1):
                    x = s * n_actions + a
                    _stage_moments(x, kernel, after, bonus.correction > 0, mean)
                    _take_better_action(x, a, bonus, left, mean, best, worst, gap, chosen)
                # Goals are few per state, so they are zeroed afterwards: the loops above have no test for them.
                for k in range(targets.column.shape[1]):
                    j = targets.column[s, k] - first
                    if 0 <= j < width:
                        best[j] = worst[j] = gap[j] = 0.0
                for j in range(width):
                    policy[h, s, first + j] = chosen[j]
        distance[first : first + width] = values[0, 0, start]
        error[first : first + width] = values[0, 2, start]
    return policy, distance, error


@compiled_helper
def _stage_moments(x, kernel, values, pessimistic, out):  # type: ignore[no-untyped-def]
    """Write into out [4, G] the means of V~, V_ and U under p, and the variance of V~."""
    # two passes, because the one-pass variance cancels
    out[:] = 0.0
    for k in range(kernel.support[x]):
        s, q = kernel.successor[x, k], kernel.p[x, k]
        for j in range(out.shape[1]):
            out[0, j] += q * values[0, s, j]
            out[2, j] += q * values[2, s, j]
    if not pessimistic:
        return
    for k in range(kernel.support[x]):
        s, q = kernel.successor[x, k], kernel.p[x, k]
        for j in range(out.shape[1]):
            out[1, j] += q * values[1, s, j]
            out[3, j] += q * (values[0, s, j] - out[0, j]) ** 2


@compiled_helper(error_model="numpy")
def _take_better_action(x, action, bonus, left, mean, best, worst, gap, chosen):  # type: ignore[no-untyped-def]
    """Take the action of the pair x for goals whose Q~ is at most the best so far; mean [4, G], the others [G]."""
    # Actions come in descending order and ties replace, so the lowest action wins. Selections instead of branches
    # keep the loop vectorised.
    weight, correction = bonus.weight[x], bonus.correction
    flat, flat_u = bonus.flat[x] + left * bonus.slope[x], bonus.flat_u[x] + 2.0 * left * bonus.slope[x]
    for j in range(best.shape[0]):
        root = np.sqrt(weight * mean[3, j])
        b = 3.0 * root + flat + correction * (mean[1, j] - mean[0, j])
        q = _clip_value(1.0 - b + mean[0, j], 1.0, left)
        r = _clip_value(1.0 + b + mean[1, j], 1.0, left)
        u = _clip_value(6.0 * root + flat_u + (1.0 + 3.0 * correction) * mean[2, j], 0.0, left)
        worst[j] = r if r < worst[j] else worst[j]
        gap[j] = u if q <= best[j] else gap[j]
        chosen[j] = action if q <= best[j] else chosen[j]
        best[j] = q if q <= best[j] else best[j]


@compiled_helper
def _clip_value(x, low, high):  # type: ignore[no-untyped-def]
    # selections instead of branches, as above
    y = x if x < high else high
    return y if y > low else low
