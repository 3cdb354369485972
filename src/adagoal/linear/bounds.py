"""Certified bounds for linear mixtures: the planner that ``vtr-pooled`` and ``likelihood`` share.

A *learner* turns transitions into a :class:`~adagoal.linear.kernels.Region` that holds theta* at all times with
probability 1 - delta. All else is as in the tabular case (docs/linear.md has the proofs):

    D_g      from  V <- max(V, T_low V),   T_low V = min{ C, 1 + V(s0), min_a 1 + Low_sa(V) }
    upper_g  from  Y <- min(Y, T_up Y),    T_up Y  = min{ 1 + Y(s0), min_a 1 + Up_sa(Y) }
    Low, Up  =  <theta, phi_f>  -+  radius ||phi_f||,   E_g = min(upper_g, C) - D_g,   C = L + 1 + epsilon

V starts at the number of hops in the graph of all possible transitions, which is known before the first step.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from adagoal.envs.world import Plan
from adagoal.linear import kernels
from adagoal.linear.ledger import Ledger
from adagoal.linear.mixture import LinearMixture
from adagoal.tabular.counts import Counts

GROWTH = 1.1
"""Plan again once the number of transitions has grown by this factor."""
FIRST = 100
"""Transitions before the second plan."""
SWEEPS = 40
"""Sweeps per plan, at most; the next plan goes on from where this one stopped."""
NEVER = 2**62

Floats = NDArray[np.float64]


class Learner(Protocol):
    """What is known about theta."""

    name: str
    simplex: bool
    """theta is believed to lie in the simplex."""

    def absorb(self, new: NDArray[np.int64], total: NDArray[np.int64], f: Floats) -> None:
        """Take in the transitions ``new`` [nnz] since the last call (``total``: all). f [S] was fixed before them."""
        ...

    def region(self) -> kernels.Region:
        """Where theta* lies now."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Arrays for a checkpoint."""
        ...

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The inverse of :meth:`state`."""
        ...


class MixtureBounds:
    """Estimates (see :class:`adagoal.loop.Estimates`) from a learner; see the module's text."""

    guarantee = True

    def __init__(
        self,
        mixture: LinearMixture,
        counts: Counts,
        learner: Learner,
        L: float,
        epsilon: float,
        goals: NDArray[np.int64] | None,
        notes: list[str],
    ) -> None:
        self.mixture, self.counts, self.learner, self.L, self.epsilon = mixture, counts, learner, L, epsilon
        self.name = learner.name
        self.cap = L + 1.0 + epsilon
        S, A = mixture.n_states, mixture.n_actions
        self.goals: NDArray[np.int64] = np.arange(S) if goals is None else goals
        self.goal_state = self.goals
        G = len(self.goals)
        self.column = np.full(S, -1)
        """[S] the column of every goal; -1 for a state that is none"""
        self.column[self.goals] = np.arange(G)
        self.V = hops(mixture, self.goals, self.cap)
        """[S, G]"""
        self.Y = np.full((S, G), self.cap)
        self.Y[self.goals, np.arange(G)] = 0.0
        self.optimistic = np.full((S, G), A, np.int16)
        """[S, G] greedy for V: what exploration plays"""
        self.best = np.full((S, G), A, np.int16)
        """[S, G] the policy of Y: what is returned"""
        self.D = self.V[mixture.start].copy()
        self.plans = 0
        self.episodes_per_plan = 1
        reachable = np.isfinite(csgraph.dijkstra(_graph(mixture), indices=[mixture.start], unweighted=True))[0]
        self._order = np.flatnonzero(reachable & (self.V.min(axis=1) < self.cap))
        """States that matter: elsewhere V = C is known and Y = C costs nothing."""
        self._features = kernels.Features(
            *(mixture.indptr, mixture.successors, mixture.features, mixture.terminal, mixture.start),
            simplex=learner.simplex,
        )
        self.ledger = Ledger(mixture, counts, notes, learner.simplex)
        self._target = np.zeros(S)
        self._planned = -1
        """Transitions known to the last plan."""
        self._wanted = 0

    # --- what the loop sees -----------------------------------------------------------------------------------

    @property
    def upper(self) -> Floats:
        """[G] bounds on the value of the policies in ``best``; infinite where none is proven (lemma 6)."""
        top = self.Y[self.mixture.start]
        return np.where(top <= self.cap - 1.0, top, np.inf)

    @property
    def E(self) -> Floats:
        """[G] error estimates."""
        missing: Floats = np.minimum(self.upper, self.cap) - self.D
        return missing

    def bounds(self, goal: int) -> tuple[float, float]:
        """[lower, upper]: the best policy takes at least lower, the returned one at most upper expected steps."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def policy(self, goal: int) -> NDArray[np.int16]:
        """[1, S] the policy that the certificate speaks of."""
        return np.ascontiguousarray(self.best[None, :, self.column[goal]])

    def refresh(self, wanted: NDArray[np.bool_]) -> bool:
        """Plan all open goals once the data has grown by :data:`GROWTH`; False where it has not."""
        n = int(self.counts.n.sum())
        if self._planned >= 0 and n < max(self._planned + FIRST, GROWTH * self._planned):
            return False
        self._absorb()
        self._sweep()
        candidates = np.flatnonzero(wanted)
        self._wanted = int(candidates[np.argmax(self.E[candidates])]) if len(candidates) else 0
        self._target = self._next_target()
        self._planned = n
        self.plans += 1
        return True

    def plan(self) -> Plan:
        """The optimistic policies, for about as long as the next plan waits."""
        due = max(FIRST, (GROWTH - 1.0) * self._planned) - (int(self.counts.n.sum()) - self._planned)
        self.episodes_per_plan = max(1, math.ceil(due / (1.0 + float(self.D[self._wanted]))))
        limit = math.ceil(4 * self.cap)  # more would help nobody: where a goal is that far, a reset is as good
        threshold = np.full(len(self.counts.n), NEVER)
        return Plan(self.optimistic[None], self.goal_state, limit, threshold)

    # --- planning ---------------------------------------------------------------------------------------------

    def _absorb(self) -> None:
        """Hand the transitions since the last plan to the learner, with the function that was fixed before them."""
        new = self.ledger.news()
        self.learner.absorb(new, self.ledger.total, self._target)

    def _sweep(self) -> None:
        region, start = self.learner.region(), self.mixture.start
        block = np.flatnonzero((self.D <= self.L) & (self.E > self.epsilon))
        tables = (np.ascontiguousarray(a[:, block]) for a in (self.V, self.Y, self.optimistic, self.best))
        V, Y, optimistic, best = tables
        goal_column = np.full(self.mixture.n_states, -1)
        goal_column[self.goals[block]] = np.arange(len(block))
        near = self._order[np.argsort(V[self._order].min(axis=1), kind="stable")]
        orders = (near, near[::-1].copy())
        tolerance = 1e-3 * self.epsilon
        common = goal_column, self._features, region, self.cap
        for i in range(SWEEPS):
            if kernels.lower_sweep(orders[i % 2], *common, V, optimistic) < tolerance:
                break
        for i in range(SWEEPS):
            if kernels.upper_sweep(orders[i % 2], *common, Y, best) < tolerance:
                break
        self.V[:, block], self.Y[:, block] = V, Y
        self.optimistic = self.optimistic.copy()  # the old one may be in the hands of a plan
        self.optimistic[:, block], self.best[:, block] = optimistic, best
        self.D[block] = V[start]

    def _next_target(self) -> Floats:
        """[S] the function of the next rows: V of the wanted goal and, every other time, its gap min(Y, C) - V."""
        V = self.V[:, self._wanted]
        gap = self.Y[:, self._wanted] - V
        return (gap if self.plans % 2 and np.ptp(gap[self._order]) > 0 else V).copy()

    # --- saving -----------------------------------------------------------------------------------------------

    ARRAYS = ("V", "Y", "optimistic", "best", "D", "_target")

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The bounds, the counts that they know, and what the learner keeps."""
        arrays = {name: getattr(self, name) for name in self.ARRAYS} | {"total": self.ledger.total}
        learnt = {f"learner.{name}": array for name, array in self.learner.state().items()}
        return arrays | learnt, {"plans": self.plans, "planned": self._planned, "wanted": self._wanted}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        for name in self.ARRAYS:
            setattr(self, name, np.array(arrays[name]))
        self.ledger.total = np.array(arrays["total"])
        prefix = "learner."
        self.learner.restore({k.removeprefix(prefix): np.array(v) for k, v in arrays.items() if k.startswith(prefix)})
        self.plans, self._planned, self._wanted = facts["plans"], facts["planned"], facts["wanted"]


def hops(mixture: LinearMixture, goals: NDArray[np.int64], cap: float) -> Floats:
    """[S, G] min(cap, least number of steps from s to g) in the graph of all possible transitions, the reset included.

    A lower bound on V* for every theta. The reset costs one step and leads to the start.
    """
    steps = csgraph.dijkstra(_graph(mixture).T.tocsr(), indices=goals, unweighted=True, limit=cap)
    steps = np.minimum(steps, 1.0 + steps[:, [mixture.start]])
    steps[np.arange(len(goals)), goals] = 0.0
    return np.ascontiguousarray(np.minimum(steps, cap).T)


def _graph(mixture: LinearMixture) -> sparse.csr_matrix:
    """[S, S] an edge wherever some action may lead."""
    S, origin = mixture.n_states, mixture.pair_of // mixture.n_actions
    usable = ~mixture.terminal[origin]
    return sparse.csr_matrix((np.ones(usable.sum()), (origin[usable], mixture.successors[usable])), shape=(S, S))
