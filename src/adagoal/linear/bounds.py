"""Certified bounds for linear mixtures: the planner that ``vtr-pooled`` and ``likelihood`` share.

A *learner* turns transitions into a :class:`~adagoal.planning.model.Region` that holds theta* at all times with
probability 1 - delta. All else is as in the tabular case (docs/theory.md has the proofs):

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

from adagoal.core.counts import Counts
from adagoal.core.goalspace import GoalSpace
from adagoal.core.mixture import LinearMixture
from adagoal.core.schema import COUNT, Array, Schema, check_arrays, check_json, record
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.core.world import Plan
from adagoal.linear.ledger import Ledger
from adagoal.planning.backend import NUMBA, Backend
from adagoal.planning.model import Reach, Region, Targets, features_of
from adagoal.tabular.columns import one_each

GROWTH = 1.1
"""Plan again once the number of transitions has grown by this factor."""
FIRST = 100
"""Transitions before the second plan."""
SWEEPS = 10
"""Sweeps per plan, at most; the next plan goes on from where this one stopped."""
BLOCK = 8
"""Goals planned together."""
NEVER = 2**62


class Learner(Protocol):
    """What is known about theta."""

    name: str
    simplex: bool
    """theta is believed to lie in the simplex."""

    def absorb(self, new: Longs, total: Longs, f: Floats) -> None:
        """Take in the transitions ``new`` [nnz] since the last call (``total``: all). f [S] was fixed before them."""
        ...

    def region(self) -> Region:
        """Where theta* lies now."""
        ...

    def radius(self) -> float:
        """The square of the region's radius in the norm of what was observed."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Arrays for a checkpoint."""
        ...

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The inverse of :meth:`state`."""
        ...


class MixtureBounds:
    """Estimates (see :class:`adagoal.core.run.Estimates`) from a learner; see the module's text."""

    guarantee = True

    def __init__(
        self,
        mixture: LinearMixture,
        counts: Counts,
        learner: Learner,
        L: float,
        epsilon: float,
        space: GoalSpace | None,
        note: Callable[[str], None],
        backend: Backend = NUMBA,
    ) -> None:
        self.mixture, self.counts, self.learner, self.L, self.epsilon = mixture, counts, learner, L, epsilon
        self._backend = backend
        self.name = learner.name
        self.cap = L + 1.0 + epsilon
        S, A = mixture.n_states, mixture.n_actions
        self.space = space or GoalSpace.states(S, S)
        self.goals, self.column = one_each(self.space)
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
        self._reachable = np.isfinite(csgraph.dijkstra(_graph(mixture), indices=[mixture.start], unweighted=True))[0]
        self._features = features_of(mixture)
        self.set_radius(L, 1)
        self.ledger = Ledger(mixture, counts, note, learner.simplex)
        self._region = learner.region()
        self._target = self.V[0].copy()
        """[S] the function that the next transitions are regressed on"""
        self._planned = -1
        """Transitions known to the learner."""
        self._absorbed = 0
        self._wanted = 0

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

    def bounds(self, goal: int) -> tuple[float, float]:
        """[lower, upper]: the best policy takes at least lower, the returned one at most upper expected steps."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def policy(self, goal: int) -> Actions:
        """[1, S] the policy that the certificate speaks of."""
        return self.best[None, self.column[goal]].copy()

    def refresh(self, wanted: Bools) -> bool:
        """Bring a block of goals up to date, ``wanted`` [G] first; False if none of those was stale.

        New transitions are taken in, and make all goals stale, once the data has grown by :data:`GROWTH`.
        """
        n = int(self.counts.n.sum())
        if self._planned < 0 or n >= max(self._planned + FIRST, GROWTH * self._planned):
            self._absorb()
            self._planned = n
            self.stale[:] = True
        todo = np.flatnonzero(self.stale & wanted)
        if not len(todo):
            return False
        block = todo[np.argsort(-self.E[todo], kind="stable")][:BLOCK]
        self._sweep(block)
        self.stale[block] = False
        self._wanted = int(block[np.argmax(self.E[block])])
        self.plans += 1
        return True

    def plan(self) -> Plan:
        """The optimistic policies, for about as long as the next plan waits."""
        due = max(FIRST, (GROWTH - 1.0) * self._planned) - (int(self.counts.n.sum()) - self._planned)
        self.episodes_per_plan = max(1, math.ceil(due / (1.0 + float(self.D[self._wanted]))))
        limit = math.ceil(4 * self.cap)  # more would help nobody: where a goal is that far, a reset is as good
        threshold = np.full(len(self.counts.n), NEVER)
        return Plan(self.optimistic[None], self.goal_state, limit, threshold, self.space.at)

    def extras(self) -> dict[str, NDArray[Any]]:
        """For the report: theta [d, 3] with its estimate, and the interval that holds it; and the whole region.

        theta* = theta + theta_region u with ||u|| <= 1; theta_radius is the squared radius inside theta_region.
        """
        region = self.learner.region()
        width = np.linalg.norm(region.root, axis=1)
        low, high = region.theta - width, region.theta + width
        if self.learner.simplex:
            low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
        theta = np.stack([region.theta, low, high], axis=1)
        return {"theta": theta, "theta_region": region.root, "theta_radius": np.array([self.learner.radius()])}

    def set_radius(self, L: float, stage: int) -> None:
        """Begin, or go on with a larger radius as stage 2, 3, ... of a curriculum (label ``cor_UB_increasingL``).

        Lower bounds and proven policies carry over. The region of theta does not depend on the radius: no stage takes
        a share of delta.
        """
        unproven, start = ~np.isfinite(self.upper), self.mixture.start
        self.L, self.cap = L, L + 1.0 + self.epsilon
        members = [np.flatnonzero(self.space.inside(g)) for g in self.goals]
        hops = least_hops(self.mixture, members, self.cap)
        self._direct = hops < self.cap
        """[G, S] where the goal may be reached, without a reset, in less than the cap; elsewhere the reset is best"""
        self.V = np.maximum(self.V, np.minimum(hops, 1.0 + hops[:, [start]]))
        self.Y[unproven], self.best[unproven] = self.cap, self.mixture.n_actions
        for g, states in enumerate(members):
            self.Y[g, states] = 0.0
        found = np.array([self._reachable[states].any() for states in members])
        self.D = np.where(found, self.V[:, start], np.inf)
        self.stale[:] = True

    # --- planning ---------------------------------------------------------------------------------------------

    def _absorb(self) -> None:
        """Hand the transitions since the last time to the learner, with the function that was fixed before them."""
        new = self.ledger.news()
        self.learner.absorb(new, self.ledger.total, self._target)
        self._region = self.learner.region()
        self._absorbed += 1
        self._target = self._next_target()

    def _sweep(self, block: Longs) -> None:
        """Both bounds of the goals of the block."""
        targets = Targets(len(block), self.space.columns(self.goals[block]))
        reach = Reach(targets, self._direct[block], self._reachable, self.cap, SWEEPS, tolerance=5e-3 * self.epsilon)
        bounds = self.V[block], self.Y[block], np.ascontiguousarray(self.optimistic.T[block]), self.best[block]
        V, Y, optimistic, best = self._backend.mixture_bounds(self._features, self._region, reach, *bounds)
        self.V[block], self.Y[block], self.best[block] = V, Y, best
        self.optimistic = self.optimistic.copy()  # the old one may be in the hands of a plan
        self.optimistic[:, block] = optimistic.T
        self.D[block] = np.maximum(self.D[block], V[:, self.mixture.start])

    def _next_target(self) -> Floats:
        """[S] the function of the next rows: V of the goal last played and, every other time, its gap min(Y, C) - V."""
        V = self.V[self._wanted]
        gap = self.Y[self._wanted] - V
        target: Floats = gap if self._absorbed % 2 and np.ptp(gap[self._reachable]) > 0 else V.copy()
        return target

    # --- saving -----------------------------------------------------------------------------------------------

    SCHEMA: ClassVar[Schema] = {
        "V": Array("float64", ("G", "S"), low=0),
        "Y": Array("float64", ("G", "S"), low=0),
        "optimistic": Array("int16", ("S", "G"), low=0, high="A"),
        "best": Array("int16", ("G", "S"), low=0, high="A"),
        "D": Array("float64", ("G",), low=0, finite=False),
        "stale": Array("bool", ("G",)),
        "_target": Array("float64", ("S",)),
    }
    FACTS = record(plans=COUNT, planned={"type": "integer", "minimum": -1}, wanted=COUNT, absorbed=COUNT)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The bounds, the counts that they know, and what the learner keeps."""
        arrays = {name: getattr(self, name) for name in self.SCHEMA} | {"total": self.ledger.total}
        learnt = {f"learner.{name}": array for name, array in self.learner.state().items()}
        facts = {"plans": self.plans, "planned": self._planned, "wanted": self._wanted, "absorbed": self._absorbed}
        return arrays | learnt, facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        m, G = self.mixture, len(self.goals)
        check_json(self.FACTS, facts)
        check_arrays(self.SCHEMA, arrays, {"S": m.n_states, "A": m.n_actions, "G": G})
        if facts["wanted"] >= G:
            raise ValueError(f"there is no goal {facts['wanted']}")
        for name in self.SCHEMA:
            setattr(self, name, np.array(arrays[name]))
        self.ledger.restore(arrays)
        prefix = "learner."
        self.learner.restore({k.removeprefix(prefix): np.array(v) for k, v in arrays.items() if k.startswith(prefix)})
        self._region = self.learner.region()
        self.plans, self._planned = facts["plans"], facts["planned"]
        self._wanted, self._absorbed = facts["wanted"], facts["absorbed"]


def least_hops(mixture: LinearMixture, goals: Sequence[Longs], cap: float) -> Floats:
    """[G, S] min(cap, least number of steps from s to g) in the graph of all possible transitions, without resets.

    ``goals`` are the states of each goal.
    """
    backwards = _graph(mixture).T.tocsr()
    hops = np.full((len(goals), mixture.n_states), cap)
    for g, states in enumerate(goals):
        steps = csgraph.dijkstra(backwards, indices=states, unweighted=True, limit=cap)
        hops[g] = np.minimum(steps.min(axis=0, initial=cap), cap)
    return hops


def _graph(mixture: LinearMixture) -> sparse.csr_matrix:
    """[S, S] an edge wherever some action may lead."""
    S, origin = mixture.n_states, mixture.pair_of // mixture.n_actions
    usable = ~mixture.terminal[origin]
    return sparse.csr_matrix((np.ones(usable.sum()), (origin[usable], mixture.successors[usable])), shape=(S, S))
