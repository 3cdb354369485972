"""Bayesian estimates of goal distances by posterior draws, the tabular form of a value ensemble; without a guarantee.

M kernels are drawn from the posterior of a Dirichlet prior with parameters 1/S, and goal values are computed in each:

    p_m(. | x) ~ Dirichlet(c(x, .) + 1/S)
    V_m = min{ C, 1 + V_m(s0), min_a 1 + p_m V_m }  off g,  V_m(g) = 0,  C = L + 1 + epsilon
    D = 10% quantile over m of V_m(s0),   E = 90% quantile - 10% quantile

The cap loses nothing: if D <= L and E <= epsilon, the 90% quantile is below it. An unseen goal has E = C - D instead.

*Policies.* One more member, the last, is the empirical mean c/n, in which an untried pair leads to a virtual state
whose value is the cap, 2C for this member: its greedy policies are returned. Exploration plays the greedy policies of
the others in turn (posterior sampling), one per plan.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Actions, Bools, Floats, Ints, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.exploration_run import EstimatesPerGoal
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.goal_space import GoalSpace
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.transition_data import TransitionCounts
from adagoal.planning.model_arrays import BLOCK_GOALS, EnsembleModel, TargetGoals, goal_holds_state


class BayesianEstimates(EstimatesPerGoal):
    """Values of all goals in ``n_members`` posterior draws of the model, and in the empirical mean."""

    name = "bayes"
    guarantee = False
    n_members = 24  # posterior draws; more give smoother quantiles at a proportional cost
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "p": ArraySpec("float64", ("M", "S*A", "W"), low=0, high=1.0 + 1e-9),
        "atom": ArraySpec("int32", ("M", "S*A"), low=0, high="S"),
        "V": ArraySpec("float64", ("M", "T", "G"), low=0),
        "greedy": ArraySpec("int16", ("M", "S", "G"), low=0, high="A"),
        "D": ArraySpec("float64", ("G",), low=0),
        "upper": ArraySpec("float64", ("G",), low=0),
        "stale": ArraySpec("bool", ("G",)),
        "_drawn": ArraySpec("int64", ("S*A",), low=-1),
        "_places": ArraySpec("int32", ("S*A",), low=0),
    }

    def __init__(
        self, counts: TransitionCounts, L: float, epsilon: float, space: GoalSpace | None = None, seed: int = 0
    ) -> None:
        super().__init__(counts, L, epsilon, space)
        self.cap, self._seed = L + 1.0 + epsilon, seed
        S, X, W, G = counts.n_states, len(counts.n), counts.successor.shape[1], len(self.goals)
        members = self.n_members + 1
        self._member_caps = np.append(np.full(self.n_members, self.cap), 2 * self.cap)
        self.p: Floats = np.zeros((members, X, W + 1))  # mass of the observed successors; last entry: of the others
        self.atom: Ints = np.full((members, X), S, np.int32)  # the state that gets the mass of the others
        self.V: Floats = np.zeros((members, S + 1, G))  # row S is the virtual state
        self.V[:, S] = self._member_caps[:, None]
        self.greedy: Actions = np.full((members, S, G), counts.n_actions, np.int16)
        self.D, self.upper, self.stale = np.zeros(G), np.full(G, self.cap), np.ones(G, bool)
        self._drawn = np.full(X, -1)  # [X]: the count for which a row was drawn
        self._places = np.zeros(X, np.int32)  # [X]: the number of observed successors then

    @property
    def E(self) -> Floats:
        """Difference of the two quantiles [G]."""
        return self.upper - self.D

    def refresh_columns(self, wanted: Bools) -> bool:
        """Draw rows whose counts have doubled, then solve a block of goals, ``wanted`` [G] first; False if solved."""
        rows = np.flatnonzero(self.counts.n >= self._replan_thresholds())
        if len(rows):
            self._draw_posterior_rows(rows)
            self.stale[:] = True
        if not (self.stale & wanted).any():
            return False
        self._solve_goal_block(wanted)
        # The loop stops when no goal is open. These values are no bounds, so it must not stop on outdated ones.
        while self.stale.any() and not ((self.D <= self.L) & (self.E > self.epsilon)).any():
            self._solve_goal_block(wanted)
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """Return the greedy policies of one member."""
        policy = self.greedy[[self.plans % self.n_members]]
        limit = math.ceil(min(4 * self.cap * (self.L + 1) / self.epsilon, NO_LIMIT))
        return ExplorationPlan(policy, self.goal_state, limit, self._replan_thresholds(), self.space.goals_of_states)

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """The two quantiles; the upper one is infinite if it is near the cap."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j]) if self.upper[j] < self.L + self.epsilon else math.inf

    def goal_policy(self, goal: int) -> Actions:
        """Return the policy [1, S] that is greedy in the empirical mean."""
        return np.ascontiguousarray(self.greedy[self.n_members][None, :, self.column[goal]])

    def _axis_sizes(self) -> dict[str, int]:
        """Sizes of the axes; M includes the empirical mean, T the virtual state."""
        return {**super()._axis_sizes(), "M": self.n_members + 1, "T": self.counts.n_states + 1}

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        c, width = self.counts, sizes["W"] - 1
        too_many = (arrays["_places"] > np.minimum(c.support, width)).any() or (arrays["_drawn"] > c.n).any()
        if not 1 <= width <= c.successor.shape[1] or too_many:
            raise ValueError("the draws do not fit the counts")
        # With a larger bound its goal would stay open, and the run would not end.
        if (arrays["upper"] > self.cap).any():
            raise ValueError(f"upper is larger than {self.cap:g}")

    def _solve_goal_block(self, wanted: Bools) -> None:
        """Solve a block of stale goals in all members: wanted goals first, then those with the largest error."""
        todo = np.flatnonzero(self.stale)
        block = np.sort(todo[np.lexsort((-self.E[todo], ~wanted[todo]))][:BLOCK_GOALS])
        counts, goals = self.counts, self.goals[block]
        # np.take keeps goals innermost in memory, unlike V[:, :, block], and the sweeps run over goals.
        V, greedy = np.take(self.V, block, axis=2), np.take(self.greedy, block, axis=2)
        members = EnsembleModel(
            counts.successor, self._places, self.p, self.atom, counts.terminal, counts.start, self._member_caps
        )
        targets = TargetGoals(len(block), self.space.columns_of_states(goals))
        # At most 200 sweeps: the next plan of the goal continues from these values.
        V, greedy = improve_ensemble_values(members, targets, 1e-2 * self.epsilon, 200, V, greedy)
        self.V[:, :, block], self.greedy[:, :, block] = V, greedy
        self.D[block], upper = np.quantile(V[: self.n_members, counts.start], (0.1, 0.9), axis=0)
        # The prior, in which every untried pair leads to some random state, is overconfident about unseen goals.
        seen = np.isin(goals, self.space.goals_of_states[counts.seen])
        self.upper[block] = np.where(seen, upper, self.cap)
        self.stale[block] = False
        self.plans += 1

    def _replan_thresholds(self) -> Longs:
        """Counts [X] at which rows are drawn again."""
        # A row drawn for a smaller count is a little too wide, never too narrow.
        return np.where(self._drawn < 0, 0, np.maximum(2 * self._drawn, 1))

    def _draw_posterior_rows(self, rows: Longs) -> None:
        """Draw the given rows for all members."""
        # A row has one entry for each observed successor and one for all S - o others together, whose mass has the
        # exact law Beta((S - o)/S, n + o/S). That mass goes to one state, drawn uniformly among the others: each of
        # them has its exact mean, and a Dirichlet with parameters 1/S puts most of its mass on one state anyway.
        counts, S = self.counts, self.counts.n_states
        # A stream per plan has no state of its own, so a resumed run draws the same rows.
        rng = random_stream(self._seed, StreamPurpose.POSTERIOR, self.plans)
        width = counts.successor.shape[1]
        if new := width + 1 - self.p.shape[2]:
            # New successors come before the mass of the others, which stays in the last entry.
            self.p = np.insert(self.p, [self.p.shape[2] - 1] * new, 0.0, axis=2)
        support = counts.support[rows]
        observed = np.arange(width) < support[:, None]
        alpha = np.hstack([np.where(observed, counts.count[rows] + 1.0 / S, 0.0), (S - support[:, None]) / S])
        mass = rng.standard_gamma(np.broadcast_to(alpha, (self.n_members, *alpha.shape)))
        # Gamma draws with a parameter of 1/S may underflow; a row of zeros would become NaN.
        mass[..., -1] += (mass.sum(axis=-1) == 0) * 1.0
        self.p[: self.n_members, rows] = mass / mass.sum(axis=-1, keepdims=True)
        self.p[self.n_members, rows, :-1] = counts.count[rows] / np.maximum(counts.n[rows], 1)[:, None]
        self.p[self.n_members, rows, -1] = counts.n[rows] == 0
        self._drawn[rows], self._places[rows] = counts.n[rows], support
        free = np.ones((len(rows), S), bool)
        free[np.nonzero(observed)[0], counts.successor[rows][observed]] = False
        # The free states come first. Without a free state the mass of the others is zero, and any pick will do.
        order = np.argsort(~free, axis=1, kind="stable")
        pick = (rng.random((self.n_members, len(rows))) * np.maximum(S - support, 1)).astype(np.int64)
        self.atom[: self.n_members, rows] = order[np.arange(len(rows)), pick]


@compiled
def improve_ensemble_values(model, targets, tolerance, sweeps, V, greedy):  # type: ignore[no-untyped-def]
    """Improve V [M, S + 1, G] and its greedy policies [M, S, G] in each of M kernels, by sweeps in alternating order.

        V_m = min{ C_m, 1 + V_m(s0), min_a 1 + p_m V_m }  off g,   V_m = 0  on g

    The last state is virtual and keeps its value. A member is swept until it changes by less than the tolerance.
    """
    # Members converge at their own pace, and those that are done are left out.
    change = np.full(V.shape[0], np.inf)
    for i in range(sweeps):
        for m in range(V.shape[0]):
            if change[m] >= tolerance:
                change[m] = _sweep_member(model, m, targets, i % 2 == 1, V[m], greedy[m])
        if change.max() < tolerance:
            break
    return V, greedy


@compiled_helper
def _sweep_member(model, m, targets, backwards, V, greedy):  # type: ignore[no-untyped-def]
    """Sweep V [S + 1, G] of member m once, in place. Return the largest change."""
    successor, p, atom = model.successor, model.p[m], model.atom[m]
    n_states, n_goals = model.terminal.shape[0], targets.size
    n_actions = model.support.shape[0] // n_states
    best, chosen, mean = np.zeros((3, n_goals))
    change = 0.0
    for i in range(n_states):
        s = n_states - 1 - i if backwards else i
        best[:] = V[model.start]
        chosen[:] = n_actions
        # Actions come in descending order and ties replace, so the lowest action wins without a branch.
        for a in range(-1 if model.terminal[s] else n_actions - 1, -1, -1):
            x = s * n_actions + a
            mean[:] = p[x, p.shape[1] - 1] * V[atom[x]]
            for k in range(model.support[x]):
                q, t = p[x, k], successor[x, k]
                for j in range(n_goals):
                    mean[j] += q * V[t, j]
            for j in range(n_goals):
                chosen[j] = a if mean[j] <= best[j] else chosen[j]
                best[j] = mean[j] if mean[j] <= best[j] else best[j]
        for j in range(n_goals):
            value = 0.0 if goal_holds_state(targets.column, s, j) else min(1.0 + best[j], model.caps[m])
            change = max(change, abs(value - V[s, j]))
            V[s, j], greedy[s, j] = value, chosen[j]
    return change
