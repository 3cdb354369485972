"""GOSPRL (Tarbouriech et al. 2021, "A provably efficient sample collection strategy for reinforcement learning").

*Sample collection.* Given a requirement b(s, a): go, by the optimistic unit-cost shortest path, to the set of all
states that lack samples of some action (the meta-goal), take such an action, and repeat; plan again when a count has
doubled or a requirement is met (:meth:`adagoal.baselines.self_directed.SelfDirectedMethod.collect_samples`).

*Diameter.* For the guess W = 1, 2, 4, ... collect samples until every pair has a total width of

    eta(x) = 2 sum over s' of beta(s'|x) <= 1/(2 W),  by  b(x) = 256 W^2 Theta(x) l(n) + 48 W m(x) l(n),

with Theta(x) = (sum sqrt(p_hat (1 - p_hat)))^2, m(x) the number of successors observed, and l and beta of
:mod:`adagoal.baselines.self_directed`. Let v be the largest optimistic value over all states and goals. Then
v <= D. For the optimistic model p_tilde, |p_tilde - p| <= eta in L1, so its values satisfy V >= 1 - eta v + p V along
its own policies, hence D <= v / (1 - eta v) =: D_hat. Stop when D_hat <= W: then eta v <= 1/2, and
D <= D_hat <= 2 v <= 2 D.

*Goal-free, cost-free exploration.* With D_hat known collect

    b(x) = c ( D_hat^3 Theta(x) / eps^2 + D_hat^2 S / eps ) log(D_hat S A / (eps delta))

and plan for every goal on p_hat. The answer for the radius L has the goals with a value of at most L + eps/2 from s0,
since values are within eps/2 of the truth: this solves multi-goal exploration in every communicating MDP.

*Checked against the source:* the problem and the rate B D + D^(3/2) S^2 A of the collection (abstract); the rate
D^4 Gamma S A / eps^2 of the goal-free use and D^3 S^2 A of the diameter (quoted by the AdaGoal paper, label
``cor_UB_comm``). The text of the algorithms could not be opened. *Recalled:* the meta-goal, the doubling of W, and b
of the goal-free use up to its numerical constant (1 here). *Derived:* 256, 48 and the rule D_hat <= W.

All of it needs a communicating MDP whose number of states is known: if a state cannot be reached, the collection never
ends. The diameter is that of the MDP with its reset, at most D_0 + 1.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines import self_directed as paths
from adagoal.core.array_types import Actions, Floats
from adagoal.core.goal_space import membership_mask

VALUE_CAP = 1e6  # plans cut values here
VALUE_PRECISION = 1e-3  # relative error of the values behind the answer and the diameter


class Gosprl(paths.SelfDirectedMethod):
    """Goal-free, cost-free exploration."""

    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **paths.SelfDirectedMethod.FACTS_SCHEMA,
        "W": {"type": "number", "minimum": 1, "maximum": 2**62},
        "diameter": {"type": ["number", "null"], "exclusiveMinimum": 0},
    }

    name = "gosprl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._all_states = np.ones(self.counts.n_states, bool)
        self.W = 1.0
        self.diameter: float | None = None  # D_hat, once it is known
        self._goal_values, self._goal_policies = np.full(len(self.column), np.inf), np.zeros((0, 0), np.int16)
        self._answered_at = -1

    def advance(self) -> paths.PlannedRollout | None:
        """Collect samples for the diameter, then for the goals."""
        rollout = self.collect_samples(self.required_counts(), self._all_states, VALUE_CAP)
        if rollout is None:
            if self.diameter is None:
                self._estimate_diameter()
            else:
                self.stopped = True
        return rollout

    def required_counts(self) -> Floats:
        """b [X] of the current phase."""
        c = self.counts
        theta = paths.deviation_spread(c, self._all_states)
        if self.diameter is None:
            # 256 and 48 make each half of eta, 2 * 2 sqrt(Theta l / n) and 2 * 6 m l / n, at most 1/(4W).
            log = paths.confidence_log(c, self.c, self.delta)
            return np.maximum(256 * self.W**2 * theta * log + 48 * self.W * c.support * log, 1.0)
        log_all = self.c * math.log(self.diameter * len(c.n) / (self.epsilon * self.delta))
        D = self.diameter
        return (D**3 * theta / self.epsilon**2 + D**2 * c.n_states / self.epsilon) * log_all

    def _estimate_diameter(self) -> None:
        """Accept the guess W, with the diameter that it gives, or double it."""
        c = self.counts
        usable = np.repeat(~c.terminal, c.n_actions)
        eta = 2.0 * float(paths.bernstein_widths(c, self.c, self.delta).sum(1)[usable].max())
        rows = paths.optimistic_rows(c, self.c, self.delta)
        v = 0.0
        for goal in range(c.n_states):
            target = np.arange(c.n_states)[None] == goal
            V, _ = paths.solve_restricted_paths(c, rows, self._all_states, target, VALUE_PRECISION, VALUE_CAP)
            self.plans += 1
            # The iteration approaches V from below, and v must not be too small.
            v = max(v, float(V.max()) * (1.0 + VALUE_PRECISION))
            # W is refuted already: the other goals can only raise v.
            if v > self.W:
                break
        if eta * v < 1.0 and v / (1.0 - eta * v) <= self.W:
            self.diameter = v / (1.0 - eta * v)
        else:
            self.W *= 2.0

    def _plan_answer(self) -> None:
        """Plan for every goal on p_hat, unless the last plan is up to date."""
        c, n = self.counts, int(self.counts.n.sum())
        if n == self._answered_at:
            return
        rows, cap, at = paths.empirical_rows(c), 4.0 * (self.L + 2.0), self.space.goals_of_states
        goals = np.unique(at[c.seen])
        goals = goals[goals >= 0]
        targets = np.array([membership_mask(at, g) for g in goals]).reshape(len(goals), c.n_states)
        V, policy = paths.solve_restricted_paths(
            c, rows, self._all_states, targets, VALUE_PRECISION, cap, untried=False
        )
        N = len(self.column)
        self._goal_values, self._goal_policies = np.full(N, np.inf), np.zeros((N, c.n_states), np.int16)
        self._goal_values[goals], self._goal_policies[goals] = V[:, c.start], policy
        self._answered_at = n

    @property
    def D(self) -> Floats:
        """Empirical values from s0 less epsilon/2 [N]: at most L for the goals of the answer."""
        self._plan_answer()
        return np.maximum(self._goal_values - self.epsilon / 2.0, 0.0)

    def goal_policy(self, goal: int) -> Actions:
        """Return the best policy [1, S] for p_hat."""
        self._plan_answer()
        return np.ascontiguousarray(self._goal_policies[None, goal])

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        if facts["diameter"] is not None and facts["diameter"] > facts["W"]:
            raise ValueError("the diameter is larger than its guess")
