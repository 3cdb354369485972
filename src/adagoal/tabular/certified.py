"""The certified estimates: bounds that keep the guarantee of the paper and are reached in practice.

For every goal g three things are kept (docs/theory.md has the proofs):

    D_g      a lower bound on V*(s0 -> g), from the iteration  V <- max(V, T_low V)
    upper_g  an upper bound on the value of a recorded policy pi_g, from  Y <- min(Y, T_up Y)
    gap_g    an upper bound on the sub-optimality of that policy, from its action gaps (resolvent.py)

and the error estimate of the loop is what is missing for the definition ``def_MGE``:

    E_g = max{ min(upper_g - D_g, gap_g),  upper_g - L }

so that E_g <= eps says exactly: V^{pi_g} <= V* + eps, and V^{pi_g} <= L + eps. With the loop's stopping rule
(max of E over {D <= L} at most eps) the returned set holds everything reachable within L and nothing beyond
L + eps, each policy is eps-optimal, and all of it with probability 1 - delta, for any eps > 0.

Planning is lazy: bounds that are out of date are still bounds, so only goals that the rule wants to play are brought up
to date, a block at a time. All goals never seen so far look the same and share column 0.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import Counts
from adagoal.core.goalspace import GoalSpace
from adagoal.core.schema import COUNT, Array, Schema, check_arrays, check_json, record
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.core.world import Plan
from adagoal.planning.backend import NUMBA, Backend
from adagoal.planning.model import Block
from adagoal.tabular.columns import Columns
from adagoal.tabular.confidence import Confidence
from adagoal.tabular.resolvent import suboptimality
from adagoal.tabular.surprise import OUTSIDE, WINDOWS

THREADED = 100_000
"""Successors times goals of a block from which on its two bounds are swept side by side."""
SWEEPS = 20
"""Sweeps per plan, at most; the next plan goes on from where this one stopped."""
GROWTH = 1.1
"""Plan again once some pair has been tried this many times as often; twice as often up to :data:`YOUNG` tries."""
YOUNG = 64
POLISH = 1.05
"""Exact duals and action gaps once the step count has grown by this factor since the goal's last time."""
LEAST = 1.01
"""Errors fall like one over the root of the counts: near the end both factors shrink to what is missing, to this."""
PROBE = 0.1
"""Share of the steps spent on probing action gaps."""
DENSE = 400
"""Action gaps need a dense [S, S] inverse: up to this many seen states."""


class Certified(Columns):
    """Certified estimates on shared counts; see the module's text."""

    name = "certified"
    guarantee = True
    episodes_per_plan = 1_000_000

    def __init__(
        self,
        counts: Counts,
        state_bound: int,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace | None = None,
        branching: int | None = None,
        pairs: int | None = None,
        backend: Backend = NUMBA,
    ) -> None:
        super().__init__(counts, L + 1.0 + epsilon, space or GoalSpace.states(counts.n_states, state_bound))
        self.L, self.epsilon, self._backend = L, epsilon, backend
        self.confidence = Confidence(
            counts,
            pairs=pairs or state_bound * counts.n_actions,
            goals=self.space.bound,
            delta=delta,
            branching=branching or state_bound,
        )
        self._probed, self._planned_at, self._probing_now = 0.0, 0.0, False
        self.plans = 0
        self._threads = ThreadPoolExecutor(1)
        self._catch_up()

    # --- what the loop sees -----------------------------------------------------------------------------------

    @property
    def E(self) -> Floats:
        """[columns] error estimates."""
        upper = np.minimum(self.upper, self.cap)
        missing: Floats = np.maximum(np.minimum(upper - self.D, self.gap), upper - self.L)
        missing[missing < 0.0] = 0.0
        return missing

    def bounds(self, goal: int) -> tuple[float, float]:
        """[lower, upper]: the best policy takes at least lower, the returned one at most upper expected steps."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def policy(self, goal: int) -> Actions:
        """[1, S] the policy that the certificate speaks of; the optimistic one as long as there is none."""
        j = self.column[goal]
        table = self.returned if np.isfinite(self.upper[j]) else self.optimistic
        return self.offered(table, int(j))

    def refresh(self, wanted: Bools) -> bool:
        """Bring one block of goals up to date, ``wanted`` [columns] first; False if none of those was stale."""
        self._catch_up()
        if len(wanted) < len(self.D):
            wanted = np.pad(wanted, (0, len(self.D) - len(wanted)))
        E, most = self.E, self._backend.block
        todo = np.flatnonzero(self.stale & wanted)
        if not len(todo):
            return False
        block = todo[np.argsort(-E[todo], kind="stable")][:most]
        if len(block) < most:
            others = np.flatnonzero(self.stale & ~wanted & (self.D <= self.L) & (E > self.epsilon))
            block = np.append(block, others[np.argsort(-E[others], kind="stable")][: most - len(block)])
        self._plan_block(np.sort(block))
        return True

    def plan(self) -> Plan:
        """The policies to explore with: optimistic, and for a share of the steps those that probe the action gaps."""
        n = self.counts.n
        steps = float(n.sum())
        self._probed += (steps - self._planned_at) * self._probing_now
        self._planned_at = steps
        self._probing_now = self._probed < PROBE * steps
        policy = self.optimistic
        if self._probing_now and len(self.order) <= DENSE:
            policy = np.where(self.probing >= 0, self.probing, policy)
        limit = min(math.ceil(4 * self.cap * (self.L + 1) / self.epsilon), 2**62)
        growth = min(GROWTH, self._missing()[self.D <= self.L].max(initial=LEAST))
        threshold = np.maximum(n + 1, np.where(n < YOUNG, 2 * n, (n * growth).astype(np.int64)))
        return Plan(policy[None], self.goal_state, limit, threshold, self.space.at)

    def set_radius(self, L: float, stage: int) -> None:
        """Go on with a larger radius as stage 1, 2, ... of a curriculum (label ``cor_UB_increasingL``).

        Counts and bounds carry over. The fixed function of lemma 1 depends on the cap, so that each stage has its
        own share delta / (stage (stage + 1)) of that event; the other events do not depend on the radius.
        """
        unfinished = ~np.isfinite(self.upper)
        self.L, self.cap = L, L + 1.0 + self.epsilon
        self.confidence.set_stage(stage)
        self.Y[:, unfinished], self.best[:, unfinished] = self.cap, self.counts.n_actions
        self.pin(np.flatnonzero(unfinished))
        self.polished[:] = 0.0
        self.stale[:] = True

    # --- planning ---------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Take in new counts: room for what is new, fresh radii, everything stale."""
        self.add_rows()
        self.add_columns()
        self.order = np.flatnonzero(self.counts.seen)
        """The states to sweep"""
        if self.confidence.update():
            self.stale[:] = True

    def _missing(self) -> Floats:
        """[columns] the factor by which the counts behind a goal must still grow, roughly."""
        return np.maximum((self.E / self.epsilon) ** 2, LEAST)

    def _plan_block(self, block: Longs) -> None:
        """Sweep the columns of the block with closed forms, and polish those whose time has come."""
        self._sweep(block, exact=False)
        steps = float(self.counts.n.sum())
        looking = (self.D[block] <= self.L) & (self.E[block] > self.epsilon)
        due = block[looking & (steps >= np.minimum(POLISH, self._missing()[block]) * self.polished[block])]
        if len(due):
            self.polished[due] = steps
            self._sweep(due, exact=True)
            if len(self.order) <= DENSE:
                for j in due[self.Y[self.counts.start, due] <= self.cap - 1.0]:
                    self._probe_gaps(int(j))
        self.stale[block] = False

    def _sweep(self, block: Longs, exact: bool) -> None:
        """Both bounds of the columns of the block."""
        model, start = self.confidence.model(), self.counts.start
        column = self.block_columns(block)
        tables: list[NDArray[Any]] = [self.V, self.optimistic, self.Y, self.best]
        rows = np.ix_(self.order, block)
        parts = [np.zeros((len(table), len(block)), table.dtype) for table in tables]
        for part, table in zip(parts, tables, strict=True):
            part[self.order] = table[rows]
        setting = Block(self.order, column, self.cap, exact, SWEEPS, tolerance=1e-3 * self.epsilon)
        if exact or model.p.size * len(block) > THREADED:
            second = self._threads.submit(self._backend.upper, model, setting, *parts[2:])
            parts = [*self._backend.lower(model, setting, *parts[:2]), *second.result()]
        else:
            first = self._backend.lower(model, setting, *parts[:2])
            parts = [*first, *self._backend.upper(model, setting, *parts[2:])]
        for part, table in zip(parts, tables, strict=True):
            table[rows] = part[self.order]
        self.D[block] = np.maximum(self.D[block], self.V[start, block])
        for j in block[self.Y[start, block] <= self.cap - 1.0]:
            self._offer(int(j), float(self.Y[start, j]), np.inf)
        self.plans += 1

    def _offer(self, j: int, upper: float, gap: float) -> None:
        """Return the policy of Y instead of the recorded one, if that leaves less to be done."""
        old = max(min(self.upper[j] - self.D[j], self.gap[j]), self.upper[j] - self.L)
        if max(min(upper - self.D[j], gap), upper - self.L) < old:
            self.upper[j], self.gap[j], self.returned[:, j] = upper, gap, self.best[:, j]

    def _probe_gaps(self, j: int) -> None:
        """Bound the sub-optimality of the policy of Y, for a goal with Y(s0) <= C - 1."""
        V, Y, policy = (np.ascontiguousarray(a[:, j]) for a in (self.V, self.Y, self.best))
        probe = np.full(len(V), -1, np.int16)
        goal = self.space.inside(self.goal_state[j])
        gap, value = suboptimality(self.order, goal, self.confidence.model(), V, Y, policy, probe)
        self.probing[:, j] = probe
        self._offer(j, min(float(Y[self.counts.start]), value), gap)

    def extras(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    # --- saving -----------------------------------------------------------------------------------------------

    QUIET: ClassVar[Schema] = {"quiet_windows": Array("int64", ("W", "P"), low=0, high=OUTSIDE)}
    FACTS = record(
        probed={"type": "number", "minimum": 0},
        planned_at={"type": "number", "minimum": 0},
        probing_now={"type": "boolean"},
        plans=COUNT,
        windows={"type": "integer", "minimum": 0, "maximum": WINDOWS},
    )

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that the counts do not determine."""
        facts: dict[str, Any] = {
            "probed": self._probed,
            "planned_at": self._planned_at,
            "probing_now": self._probing_now,
        }
        facts |= {"plans": self.plans, "windows": self.confidence.quiet.started}
        return self.column_state() | {"quiet_windows": self.confidence.quiet.starts}, facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`, on restored counts; the next plan takes them in as it would have."""
        check_json(self.FACTS, facts)
        sizes = check_arrays(self.QUIET, arrays)
        if sizes["W"] > facts["windows"] or sizes["P"] > len(self.counts.n):
            raise ValueError("the windows do not fit the counts")
        self.restore_columns(arrays)
        self.confidence.quiet.started, self.confidence.quiet.starts = (
            facts["windows"],
            np.array(arrays["quiet_windows"]),
        )
        self.confidence.forget()
        self._probed, self._planned_at = facts["probed"], facts["planned_at"]
        self._probing_now, self.plans = facts["probing_now"], facts["plans"]
