"""Certified bounds for linear mixtures: the planner that ``vtr-pooled`` and ``likelihood`` share.

A *learner* turns transitions into a :class:`~adagoal.planning.model_arrays.ThetaRegion` that holds theta* at all times
with probability 1 - delta. All else is as in the tabular case (docs/theory.md has the proofs):

    D_g      from  V <- max(V, T_low V),   T_low V = min{ C, 1 + V(s0), min_a 1 + Low_sa(V) }
    upper_g  from  Y <- min(Y, T_up Y),    T_up Y  = min{ 1 + Y(s0), min_a 1 + Up_sa(Y) }
    Low, Up  =  <theta, phi_f>  -+  radius ||phi_f||,   E_g = min(upper_g, C) - D_g,   C = L + 1 + epsilon

V starts at the number of hops in the graph of all possible transitions, which is known before the first step. Planning
is lazy: bounds that are out of date are still bounds, so only goals that the rule wants to play are brought up to date.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

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
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.linear.mixture_counts import MixtureCounts
from adagoal.planning.mixture_sweeps import improve_mixture_bounds
from adagoal.planning.model_arrays import MixtureBlock, TargetGoals, ThetaRegion, features_from_mixture

REPLAN_GROWTH = 1.1
"""Plan again once the number of transitions has grown by this factor."""
MIN_REPLAN_TRANSITIONS = 100
"""Transitions before the second plan."""
MAX_MIXTURE_SWEEPS = 10
"""Sweeps per plan, at most; the next plan goes on from where this one stopped."""
MIXTURE_BLOCK_GOALS = 8
"""Goals planned together."""
NEVER = 2**62


class RegionLearner(Protocol):
    """What is known about theta."""

    name: str
    simplex: bool
    """theta is believed to lie in the simplex."""

    def absorb_transitions(self, new: Longs, total: Longs, f: Floats) -> None:
        """Take in the transitions ``new`` [nnz] since the last call (``total``: all). f [S] was fixed before them."""
        ...

    def confidence_region(self) -> ThetaRegion:
        """Where theta* lies now."""
        ...

    def squared_radius(self) -> float:
        """The square of the region's radius in the norm of what was observed."""
        ...

    def learner_state(self) -> dict[str, NDArray[Any]]:
        """Arrays for a checkpoint."""
        ...

    def restore_learner(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The inverse of :meth:`learner_state`."""
        ...


class MixtureBounds:
    """Estimates (see :class:`adagoal.core.exploration_run.PlanningEstimates`) from a learner; see the module's text."""

    guarantee = True

    def __init__(
        self,
        mixture: LinearMixture,
        counts: TransitionCounts,
        learner: RegionLearner,
        L: float,
        epsilon: float,
        space: GoalSpace | None,
        note: Callable[[str], None],
    ) -> None:
        self.mixture, self.counts, self.learner, self.L, self.epsilon = mixture, counts, learner, L, epsilon
        self.name = learner.name
        self.cap = L + 1.0 + epsilon
        S, A = mixture.n_states, mixture.n_actions
        self.space = space or GoalSpace.from_states(S, S)
        self.goals, self.column = one_column_per_goal(self.space)
        self.goal_state, G = self.goals, len(self.goals)
        self.V = np.zeros((G, S))
        """[G, S] lower bounds"""
        self.Y = np.full((G, S), np.inf)
        """[G, S] upper bounds"""
        self.optimistic = np.full((S, G), A, np.int16)
        """[S, G] greedy for V: what exploration plays"""
        self.best = np.full((G, S), A, np.int16)
        """[G, S] the policy of Y: what is returned"""
        self.D = np.zeros(G)
        self.stale = np.ones(G, bool)
        self.plans = 0
        self.episodes_per_plan = 1
        self._reachable_from_start = np.isfinite(
            csgraph.dijkstra(_transition_graph(mixture), indices=[mixture.start], unweighted=True)
        )[0]
        self._features = features_from_mixture(mixture)
        self.set_radius(L, 1)
        self.mixture_counts = MixtureCounts(mixture, counts, note, learner.simplex)
        self._theta_region = learner.confidence_region()
        self._target = self.V[0].copy()
        """[S] the function that the next transitions are regressed on"""
        self._planned_transitions = -1
        """Transitions known to the learner."""
        self._n_updates = 0
        self._last_column = 0

    # --- what the loop sees -----------------------------------------------------------------------------------

    @property
    def upper(self) -> Floats:
        """[G] bounds on the value of the policies in ``best``; infinite where none is proven (lemma M4)."""
        top = self.Y[:, self.mixture.start]
        return np.where(top <= self.L + self.epsilon, top, np.inf)

    @property
    def E(self) -> Floats:
        """[G] error estimates."""
        missing: Floats = np.maximum(np.minimum(self.upper, self.cap) - self.D, 0.0)
        return missing

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """[lower, upper]: the best policy takes at least lower, the returned one at most upper expected steps."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def goal_policy(self, goal: int) -> Actions:
        """[1, S] the policy that the certificate speaks of."""
        return self.best[None, self.column[goal]].copy()

    def refresh_columns(self, wanted: Bools) -> bool:
        """Bring a block of goals up to date, ``wanted`` [G] first; False if none of those was stale.

        New transitions are taken in, and make all goals stale, once the data has grown by :data:`REPLAN_GROWTH`.
        """
        n = int(self.counts.n.sum())
        if self._planned_transitions < 0 or n >= max(
            self._planned_transitions + MIN_REPLAN_TRANSITIONS, REPLAN_GROWTH * self._planned_transitions
        ):
            self._update_learner()
            self._planned_transitions = n
            self.stale[:] = True
        todo = np.flatnonzero(self.stale & wanted)
        if not len(todo):
            return False
        block = todo[np.argsort(-self.E[todo], kind="stable")][:MIXTURE_BLOCK_GOALS]
        self._sweep_block(block)
        self.stale[block] = False
        self._last_column = int(block[np.argmax(self.E[block])])
        self.plans += 1
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """The optimistic policies, for about as long as the next plan waits."""
        due = max(MIN_REPLAN_TRANSITIONS, (REPLAN_GROWTH - 1.0) * self._planned_transitions) - (
            int(self.counts.n.sum()) - self._planned_transitions
        )
        self.episodes_per_plan = max(1, math.ceil(due / (1.0 + float(self.D[self._last_column]))))
        limit = math.ceil(4 * self.cap)  # more would help nobody: where a goal is that far, a reset is as good
        threshold = np.full(len(self.counts.n), NEVER)
        return ExplorationPlan(self.optimistic[None], self.goal_state, limit, threshold, self.space.goals_of_states)

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """For the report: theta [d, 3] with its estimate, and the interval that holds it; and the whole region.

        theta* = theta + theta_region u with ||u|| <= 1; theta_radius is the squared radius inside theta_region.
        """
        region = self.learner.confidence_region()
        width = np.linalg.norm(region.root, axis=1)
        low, high = region.theta - width, region.theta + width
        if self.learner.simplex:
            low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
        theta = np.stack([region.theta, low, high], axis=1)
        return {"theta": theta, "theta_region": region.root, "theta_radius": np.array([self.learner.squared_radius()])}

    def set_radius(self, L: float, stage: int) -> None:
        """Begin, or go on with a larger radius as stage 2, 3, ... of a curriculum (label ``cor_UB_increasingL``).

        Lower bounds and proven policies carry over. The region of theta does not depend on the radius: no stage takes
        a share of delta.
        """
        unproven, start = ~np.isfinite(self.upper), self.mixture.start
        self.L, self.cap = L, L + 1.0 + self.epsilon
        members = [np.flatnonzero(self.space.states_of_goal(g)) for g in self.goals]
        hops = least_hop_counts(self.mixture, members, self.cap)
        self._reachable_directly = hops < self.cap
        """[G, S] where the goal may be reached, without a reset, in less than the cap; elsewhere the reset is best"""
        self.V = np.maximum(self.V, np.minimum(hops, 1.0 + hops[:, [start]]))
        self.Y[unproven], self.best[unproven] = self.cap, self.mixture.n_actions
        for g, states in enumerate(members):
            self.Y[g, states] = 0.0
        found = np.array([self._reachable_from_start[states].any() for states in members])
        self.D = np.where(found, self.V[:, start], np.inf)
        self.stale[:] = True

    # --- planning ---------------------------------------------------------------------------------------------

    def _update_learner(self) -> None:
        """Hand the transitions since the last time to the learner, with the function that was fixed before them."""
        new = self.mixture_counts.take_new_counts()
        self.learner.absorb_transitions(new, self.mixture_counts.total, self._target)
        self._theta_region = self.learner.confidence_region()
        self._n_updates += 1
        self._target = self._next_regression_target()

    def _sweep_block(self, block: Longs) -> None:
        """Both bounds of the goals of the block."""
        targets = TargetGoals(len(block), self.space.columns_of_states(self.goals[block]))
        reach = MixtureBlock(
            targets,
            self._reachable_directly[block],
            self._reachable_from_start,
            self.cap,
            MAX_MIXTURE_SWEEPS,
            tolerance=5e-3 * self.epsilon,
        )
        bounds = self.V[block], self.Y[block], np.ascontiguousarray(self.optimistic.T[block]), self.best[block]
        V, Y, optimistic, best = improve_mixture_bounds(self._features, self._theta_region, reach, *bounds)
        self.V[block], self.Y[block], self.best[block] = V, Y, best
        self.optimistic = self.optimistic.copy()  # the old one may be in the hands of a plan
        self.optimistic[:, block] = optimistic.T
        self.D[block] = np.maximum(self.D[block], V[:, self.mixture.start])

    def _next_regression_target(self) -> Floats:
        """[S] the function of the next rows: V of the goal last played and, every other time, its gap min(Y, C) - V."""
        V = self.V[self._last_column]
        gap = self.Y[self._last_column] - V
        target: Floats = gap if self._n_updates % 2 and np.ptp(gap[self._reachable_from_start]) > 0 else V.copy()
        return target

    # --- saving -----------------------------------------------------------------------------------------------

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "V": ArraySpec("float64", ("G", "S"), low=0),
        "Y": ArraySpec("float64", ("G", "S"), low=0),
        "optimistic": ArraySpec("int16", ("S", "G"), low=0, high="A"),
        "best": ArraySpec("int16", ("G", "S"), low=0, high="A"),
        "D": ArraySpec("float64", ("G",), low=0, finite=False),
        "stale": ArraySpec("bool", ("G",)),
        "_target": ArraySpec("float64", ("S",)),
    }
    FACTS_SCHEMA = object_schema(
        plans=COUNT_SCHEMA, planned={"type": "integer", "minimum": -1}, wanted=COUNT_SCHEMA, absorbed=COUNT_SCHEMA
    )

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The bounds, the counts that they know, and what the learner keeps."""
        arrays = {name: getattr(self, name) for name in self.ARRAY_SCHEMA} | {"total": self.mixture_counts.total}
        learnt = {f"learner.{name}": array for name, array in self.learner.learner_state().items()}
        facts = {
            "plans": self.plans,
            "planned": self._planned_transitions,
            "wanted": self._last_column,
            "absorbed": self._n_updates,
        }
        return arrays | learnt, facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`learner_state`."""
        m, G = self.mixture, len(self.goals)
        check_json_value(self.FACTS_SCHEMA, facts)
        check_arrays(self.ARRAY_SCHEMA, arrays, {"S": m.n_states, "A": m.n_actions, "G": G})
        if facts["wanted"] >= G:
            raise ValueError(f"there is no goal {facts['wanted']}")
        for name in self.ARRAY_SCHEMA:
            setattr(self, name, np.array(arrays[name]))
        self.mixture_counts.restore_total(arrays)
        prefix = "learner."
        self.learner.restore_learner(
            {k.removeprefix(prefix): np.array(v) for k, v in arrays.items() if k.startswith(prefix)}
        )
        self._theta_region = self.learner.confidence_region()
        self.plans, self._planned_transitions = facts["plans"], facts["planned"]
        self._last_column, self._n_updates = facts["wanted"], facts["absorbed"]


def least_hop_counts(mixture: LinearMixture, goals: Sequence[Longs], cap: float) -> Floats:
    """[G, S] min(cap, least number of steps from s to g) in the graph of all possible transitions, without resets.

    ``goals`` are the states of each goal.
    """
    backwards = _transition_graph(mixture).T.tocsr()
    hops = np.full((len(goals), mixture.n_states), cap)
    for g, states in enumerate(goals):
        steps = csgraph.dijkstra(backwards, indices=states, unweighted=True, limit=cap)
        hops[g] = np.minimum(steps.min(axis=0, initial=cap), cap)
    return hops


def _transition_graph(mixture: LinearMixture) -> sparse.csr_matrix:
    """[S, S] an edge wherever some action may lead."""
    S, origin = mixture.n_states, mixture.pair_of_entry // mixture.n_actions
    usable = ~mixture.terminal[origin]
    return sparse.csr_matrix((np.ones(usable.sum()), (origin[usable], mixture.successors[usable])), shape=(S, S))
