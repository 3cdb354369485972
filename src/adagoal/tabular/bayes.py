"""Bayesian estimates: the tabular twin of a value ensemble. No guarantee, wherever they are shown.

M kernels are drawn from the posterior of a Dirichlet prior with parameters 1/S, and goal values are computed in each:

    p_m(. | x) ~ Dirichlet(c(x, .) + 1/S)
    V_m = min{ C, 1 + V_m(s0), min_a 1 + p_m V_m }  off g,  V_m(g) = 0,  C = L + 1 + epsilon
    D = 10% quantile over m of V_m(s0),   E = 90% quantile - 10% quantile

The cap loses nothing: D <= L and E <= epsilon put the 90% quantile below it. A goal never seen has E = C - D instead:
the prior, in which every untried pair leads to some random state, is too sure of itself there.

*Sparse draws.* A row has one entry for each observed successor and one for all S - o others together, whose mass has
the exact law Beta((S - o)/S, n + o/S). That mass goes to one state, drawn uniformly among the others: each of them has
its exact mean, and a Dirichlet with parameters as small as 1/S puts most of its mass on one state anyway. A row is
drawn again once its count has doubled; rows drawn for a smaller count are a little too wide, never too narrow.

*Policies.* One more member, the last, is the empirical mean c/n, in which an untried pair leads to a virtual state
whose value is the cap, 2C for this member: its greedy policies are returned. Exploration plays the greedy policies of
the others in turn (posterior sampling), one per plan.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.certified.goal_table import one_column_per_goal
from adagoal.core.environment import ExplorationPlan
from adagoal.core.file_formats import (
    COUNT_SCHEMA,
    ArraySchema,
    ArraySpec,
    check_arrays,
    check_json_value,
    object_schema,
)
from adagoal.core.goal_space import GoalSpace
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Bools, Floats, Ints, Longs
from adagoal.planning.model_arrays import BLOCK_GOALS, EnsembleModel, TargetGoals
from adagoal.planning.shortest_paths import improve_ensemble_values

N_MEMBERS = 24
LOW_QUANTILE, HIGH_QUANTILE = 0.1, 0.9
"""The quantiles of D and of D + E."""
MAX_ENSEMBLE_SWEEPS = 200
"""Sweeps per plan, at most; the next plan goes on from where this one stopped."""
SWEEP_TOLERANCE_EPSILONS = 1e-2
"""Change of a sweep, in units of epsilon, at which values count as solved."""


class BayesianEstimates:
    """Posterior samples on shared counts; see the module's text."""

    name = "bayes"
    guarantee = False
    episodes_per_plan = 1_000_000
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
    """What a checkpoint holds; T = S + 1."""
    FACTS_SCHEMA = object_schema(plans=COUNT_SCHEMA)

    def __init__(
        self,
        counts: TransitionCounts,
        L: float,
        epsilon: float,
        space: GoalSpace | None = None,
        seed: int = 0,
    ) -> None:
        self.counts, self.L, self.epsilon, self.cap = counts, L, epsilon, L + 1.0 + epsilon
        self._seed = seed
        S, X, W = counts.n_states, len(counts.n), counts.successor.shape[1]
        self.space = space or GoalSpace.from_states(S, S)
        self.goals, self.column = one_column_per_goal(self.space)
        self.goal_state = self.goals
        G = len(self.goals)
        self.p: Floats = np.zeros((N_MEMBERS + 1, X, W + 1))
        """[M + 1, X, W + 1] the mass of the observed successors, in their order, and in the last place of the others"""
        self.atom: Ints = np.full((N_MEMBERS + 1, X), S, np.int32)
        """[M + 1, X] where the mass of the others goes"""
        self.V: Floats = np.zeros((N_MEMBERS + 1, S + 1, G))
        self._member_caps = np.append(np.full(N_MEMBERS, self.cap), 2 * self.cap)
        self.V[:, S] = self._member_caps[:, None]
        self.greedy: Actions = np.full((N_MEMBERS + 1, S, G), counts.n_actions, np.int16)
        self.D, self.upper, self.stale = np.zeros(G), np.full(G, self.cap), np.ones(G, bool)
        self._drawn = np.full(X, -1)
        """[X] the count for which a row was drawn"""
        self._places = np.zeros(X, np.int32)
        """[X] the number of observed successors then"""
        self.plans = 0

    @property
    def E(self) -> Floats:
        """[G] the width of the posterior between the two quantiles."""
        return self.upper - self.D

    def refresh_columns(self, wanted: Bools) -> bool:
        """Draw the rows whose counts have doubled; then solve a block of goals, ``wanted`` [G] first."""
        rows = np.flatnonzero(self.counts.n >= self._replan_thresholds())
        if len(rows):
            self._draw_posterior_rows(rows)
            self.stale[:] = True
        if not (self.stale & wanted).any():
            return False
        self._solve_goal_block(wanted)
        while self.stale.any() and not ((self.D <= self.L) & (self.E > self.epsilon)).any():
            self._solve_goal_block(wanted)  # no run stops on what it believed earlier
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """The greedy policies of one member."""
        policy = self.greedy[[self.plans % N_MEMBERS]]
        limit = math.ceil(min(4 * self.cap * (self.L + 1) / self.epsilon, 2**62))
        return ExplorationPlan(policy, self.goal_state, limit, self._replan_thresholds(), self.space.goals_of_states)

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """The two quantiles; the upper one is infinite where it has met the cap."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j]) if self.upper[j] < self.L + self.epsilon else math.inf

    def goal_policy(self, goal: int) -> Actions:
        """[1, S] greedy in the posterior mean."""
        return np.ascontiguousarray(self.greedy[N_MEMBERS][None, :, self.column[goal]])

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that the counts do not determine; draws depend on the seed and the number of the plan."""
        return {name: getattr(self, name) for name in self.ARRAY_SCHEMA}, {"plans": self.plans}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        c = self.counts
        check_json_value(self.FACTS_SCHEMA, facts)
        sizes = {"M": N_MEMBERS + 1, "S": c.n_states, "T": c.n_states + 1, "A": c.n_actions, "G": len(self.goals)}
        width = check_arrays(self.ARRAY_SCHEMA, arrays, sizes)["W"] - 1
        if (
            not 1 <= width <= c.successor.shape[1]
            or (arrays["_places"] > np.minimum(c.support, width)).any()
            or (arrays["_drawn"] > c.n).any()
        ):
            raise ValueError("the draws do not fit the counts")
        for name in self.ARRAY_SCHEMA:
            setattr(self, name, np.array(arrays[name]))
        self.plans = facts["plans"]

    def _solve_goal_block(self, wanted: Bools) -> None:
        """Values of a block of stale goals in all members: wanted ones first, then by their error."""
        todo = np.flatnonzero(self.stale)
        block = np.sort(todo[np.lexsort((-self.E[todo], ~wanted[todo]))][:BLOCK_GOALS])
        counts, goals = self.counts, self.goals[block]
        V, greedy = np.take(self.V, block, axis=2), np.take(self.greedy, block, axis=2)  # goals stay innermost
        members = EnsembleModel(
            counts.successor, self._places, self.p, self.atom, counts.terminal, counts.start, self._member_caps
        )
        targets = TargetGoals(len(block), self.space.columns_of_states(goals))
        V, greedy = improve_ensemble_values(
            members, targets, SWEEP_TOLERANCE_EPSILONS * self.epsilon, MAX_ENSEMBLE_SWEEPS, V, greedy
        )
        self.V[:, :, block], self.greedy[:, :, block] = V, greedy
        self.D[block], upper = np.quantile(V[:N_MEMBERS, counts.start], (LOW_QUANTILE, HIGH_QUANTILE), axis=0)
        found = np.isin(goals, self.space.goals_of_states[counts.seen])
        self.upper[block] = np.where(found, upper, self.cap)
        self.stale[block] = False
        self.plans += 1

    def _replan_thresholds(self) -> Longs:
        """[X] the counts that ask for a new plan."""
        return np.where(self._drawn < 0, 0, np.maximum(2 * self._drawn, 1))

    def _draw_posterior_rows(self, rows: Longs) -> None:
        """New posterior draws of the given rows, for all members."""
        counts, S = self.counts, self.counts.n_states
        rng = random_stream(self._seed, StreamPurpose.POSTERIOR, self.plans)
        width = counts.successor.shape[1]
        if self.p.shape[2] != width + 1:
            self.p = np.concatenate(
                [self.p[..., :-1], np.zeros((*self.p.shape[:2], width + 1 - self.p.shape[2])), self.p[..., -1:]], axis=2
            )
        support = counts.support[rows]
        observed = np.arange(width) < support[:, None]
        alpha = np.concatenate(
            [np.where(observed, counts.count[rows] + 1.0 / S, 0.0), (S - support[:, None]) / S], axis=1
        )
        mass = rng.standard_gamma(np.broadcast_to(alpha, (N_MEMBERS, *alpha.shape)))
        mass[..., -1] += (mass.sum(axis=-1) == 0) * 1.0  # parameters of 1/S underflow at times
        self.p[:N_MEMBERS, rows] = mass / mass.sum(axis=-1, keepdims=True)
        self.p[N_MEMBERS, rows, :-1] = counts.count[rows] / np.maximum(counts.n[rows], 1)[:, None]
        self.p[N_MEMBERS, rows, -1] = counts.n[rows] == 0
        self._drawn[rows], self._places[rows] = counts.n[rows], support
        free = np.ones((len(rows), S), bool)
        free[np.nonzero(observed)[0], counts.successor[rows][observed]] = False
        order = np.argsort(~free, axis=1, kind="stable")  # the free states first
        pick = (rng.random((N_MEMBERS, len(rows))) * np.maximum(S - support, 1)).astype(np.int64)
        self.atom[:N_MEMBERS, rows] = order[np.arange(len(rows)), pick]
