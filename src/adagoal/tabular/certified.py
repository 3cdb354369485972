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
to date, a block at a time, and only when that pays (schedule.py). On the way the agent itself raises the lower bound of
the goal that it plays (core/backup.py). Goals never seen so far, or only far beyond the radius, share column 0.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.backup import Local
from adagoal.core.counts import Counts
from adagoal.core.goalspace import GoalSpace
from adagoal.core.schema import COUNT, check_json, record
from adagoal.core.threads import side_by_side
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.core.world import NEVER, Plan
from adagoal.planning.backend import NUMBA, Backend
from adagoal.planning.model import Block, Empirical
from adagoal.tabular import hops, standing
from adagoal.tabular.blocks import improve
from adagoal.tabular.columns import HEIGHT, Columns
from adagoal.tabular.confidence import Confidence
from adagoal.tabular.detours import detours
from adagoal.tabular.resolvent import suboptimality
from adagoal.tabular.schedule import CLOSED, DUALS, EXACT, GAPS, STEP, Schedule
from adagoal.tabular.surprise import MOST
from adagoal.tabular.wander import wander

THREADED, LARGE = 1e6, 1e7
"""Operations of a plan from which on it is made in several threads; of a block, from which on a plan has several."""
TOGETHER = 8
"""Blocks of such a plan, at most."""
MANY, SHARED = 2048, 0.1
"""Goals from which on a run with such plans waits for them more than for steps, and what an operation costs then."""
FEW = 16
"""Goals of a free plan, and of one with exact duals, at most."""
SWEEPS, EXACT_SWEEPS = 4, 2
"""Sweeps per plan, at most, with closed forms and with exact duals; the next plan goes on where this one stopped."""
POLISH = 1.05
"""Exact duals once the step count has grown by this factor since the goal's last time."""
LEAST = 1.01
"""The same in a world with action gaps, which say where to try next, and near the end of any run: errors fall like one
over the root of the counts, so that the factor shrinks to what is missing."""
NEED, LATER = 0.9, 1.25
"""The same for goals with less than this share of the largest error, and the factor: nobody plays for them yet. It is
finite for the sake of runs that end early: their bounds of these goals are behind the counts, but not by far."""
REACH = 2.0
"""In a large world, of more than DENSE states, duals are solved for goals whose error is at most so many epsilons."""
SELDOM, OFTEN = 10, 3
"""One rollout of so many probes action gaps where intervals are the smaller bound on the error; where gaps are, all but
one of so many do."""
NEARLY = 1.5
"""Gaps up to this multiple of the interval count as the smaller bound: probing makes them so."""
HOPS = 1.02
"""Hops are counted again once the step count has grown by this factor."""
SPARE = 0.5
"""Hops are counted until the error is this share of epsilon: a reset that is only believed adds to it (reset.py)."""
WORTH = 0.9
"""A policy along the fewest hops is made where it leaves this share of the error, or closes the goal."""
DETOUR = 0.1
"""What a neighbour must improve a bound by, in epsilons, to be worth its row."""
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
            states=state_bound,
            pairs=pairs or state_bound * counts.n_actions,
            goals=self.space.bound,
            delta=delta,
            branching=branching or state_bound,
        )
        self._states, self._rollouts = state_bound, 0
        self._hopped_at = 0.0
        self._taken = -1  # steps, resets included, at the last look
        self._news = True  # whether the radii may be older than that
        self._never = np.zeros(0, np.int64)
        """[X] the tries of a pair that end a rollout"""
        self.plans = 0
        self.schedule = Schedule()
        self._catch_up()

    # --- what the loop sees -----------------------------------------------------------------------------------

    @property
    def E(self) -> Floats:
        """[columns] error estimates."""
        found: Floats = standing.errors(self.D, self.upper, self.gap, self.L, self.cap)
        return found

    def policy(self, goal: int) -> Actions:
        """[1, S] the policy that the certificate speaks of; the optimistic one as long as there is none."""
        return self.proven(goal, self.returned)

    def refresh(self, wanted: Bools) -> bool:
        """Bring a block of goals up to date, ``wanted`` [columns] first; False if none is stale or it does not pay."""
        self._catch_up()
        if not self.schedule.pays(CLOSED):
            return False
        self._take_in()
        E = self.E
        candidates, first = standing.candidates(self.stale, wanted, self.D, E, self.L, self.epsilon)
        if not len(candidates):
            return False
        full = self._backend.block
        enough = self.schedule.rich and len(candidates) >= full and self._planner(full) is self._backend
        most = full * self._together() if enough else min(FEW, full)
        if len(candidates) > most:
            candidates = standing.foremost(candidates, first, E, most)
        self._plan_blocks([candidates[i : i + full] for i in range(0, len(candidates), full)])
        return True

    def plan(self) -> Plan:
        """What to explore with: the lower bounds, and in some rollouts actions that probe the action gaps."""
        counts = self.counts
        self._rollouts = turn = self._rollouts + 1
        worst = standing.worst(self.D, self.E, self.L)
        p, r = self.confidence.ball
        leading = self.gap[worst] <= NEARLY * (min(self.upper[worst], self.cap) - self.D[worst])
        local = Local(
            V=self.V.T,
            probe=self.probing.T,
            probing=(turn % OFTEN > 0 if leading else turn % SELDOM == 0) and len(self.order) <= DENSE,
            q=self.confidence.q,
            log=self.confidence.low_log,
            complete=self.confidence.complete,
            p=p,
            r=r,
            cap=self.cap,
            start=counts.start,
            n_actions=counts.n_actions,
        )
        limit = math.ceil(min(4 * self.cap * (self.L + 1) / self.epsilon, NEVER))
        if len(self._never) != len(counts.n):
            self._never = np.full(len(counts.n), NEVER)
        return Plan(local, self.goal_state, limit, self._never, self.at(), self.schedule.patience())

    def conclude(self, wanted: Bools) -> None:
        """Bring columns up to date that wait for their turn, for an answer before the end; nearest to it first.

        Each kind of planning gets a full purse (schedule.py), so that this is a matter of seconds in any world.
        """
        self._catch_up()
        self.schedule, self._hopped_at = Schedule(), 0.0
        self._take_in()
        self.polished[:] = 0.0
        waiting = np.flatnonzero(wanted & (self.D <= self.L)[: len(wanted)])
        waiting = waiting[np.argsort(self.E[waiting], kind="stable")]
        for i in range(0, len(waiting), FEW):
            if self.schedule.rich:
                self._plan_blocks([np.sort(waiting[i : i + FEW])])

    def set_radius(self, L: float, stage: int) -> None:
        """Go on with a larger radius as stage 1, 2, ... of a curriculum (label ``cor_UB_increasingL``).

        Counts and bounds carry over. The fixed function of lemma 1 depends on the cap, so that each stage has its
        own share delta / (stage (stage + 1)) of that event; the other events do not depend on the radius.
        """
        unfinished = self.Y[self.counts.start] > self._height - 1.0
        self.L, self.cap = L, L + 1.0 + self.epsilon
        self.confidence.set_stage(stage)
        self._start_again(unfinished)
        self.polished[:] = 0.0
        self.stale[:] = True
        self._edges = self._taken = -1

    def _start_again(self, unfinished: Bools) -> None:
        """With the upper bounds of these columns [columns], whose policies may not be proper."""
        self.Y[:, unfinished], self.best[:, unfinished] = HEIGHT * self.cap, self.counts.n_actions
        self.pin(np.flatnonzero(unfinished))

    # --- planning ---------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Take in what the last rollout brought: room for what is new, and the lower bounds that it has raised."""
        taken = int(self.counts.visits.sum())
        if taken == self._taken and self.counts.n_states == len(self.V):
            return
        self._taken, self._news = taken, True
        self.add_rows()
        self.add_columns()
        self.confidence.make_room()
        self.order = np.flatnonzero(self.counts.seen)
        """The states to sweep"""
        np.maximum(self.D, self.V[self.counts.start], out=self.D)
        self.schedule.earn(float(taken))

    def _take_in(self) -> None:
        """The radii of the counts as they are, and what follows for all goals at once."""
        if self._news and self.confidence.update(self._threads, large=len(self.order) > DENSE):
            self.stale[:] = True
            self._count_hops()
        self._news = False

    @property
    def _height(self) -> float:
        """The cap of the upper bounds. It may fall: a policy is proper once Y(s0) is one below the lowest so far."""
        return self.cap if len(self.order) > DENSE else HEIGHT * self.cap

    @property
    def _several(self) -> bool:
        """Whether the world is so large that a plan has several blocks, each a job for one thread and more."""
        large = self._backend is NUMBA and len(self.order) > DENSE
        return large and self._looks(self._backend.block, exact=False) > LARGE

    def _together(self) -> int:
        """Blocks of one plan: as many as the next rollout pays for. That does not depend on the number of cores."""
        if not self._several:
            return 1
        earned = STEP * self.schedule.patience()
        return int(np.clip(earned / self._work(self._backend.block, exact=False), 1, TOGETHER))

    def _plan_blocks(self, blocks: list[Longs]) -> None:
        """Sweep the columns of the blocks with closed forms, and polish those whose time has come."""
        work = sum(self._work(len(block), exact=False) for block in blocks)
        self.schedule.pay(work, exact=False)
        self._sweep(blocks, False, work)
        block = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
        self.stale[block] = False
        steps = float(self.counts.n.sum())
        due = self._due(block, steps)
        self._polish([due[i : i + FEW] for i in range(0, len(due), FEW)][: len(blocks)], steps)

    def _due(self, block: Longs, steps: float) -> Longs:
        """The columns of the block whose time for exact duals has come."""
        large = len(self.order) > DENSE
        within = REACH * self.epsilon if large else np.inf
        growth = LEAST, POLISH if large else LEAST, LATER
        rows = self.D, self.E, self.polished
        found: Longs = standing.due(block, steps, *rows, self.L, self.epsilon, within, NEED, growth)
        return found

    def _polish(self, blocks: list[Longs], steps: float) -> None:
        """Exact duals for these columns, as far as they are paid for, and action gaps in a small world."""
        bought, total = [], 0.0
        for block in blocks:
            if not self.schedule.pays(DUALS):
                break
            self.polished[block] = steps
            if self.counts.support.max() != 1:  # else the closed forms are exact, and hops are the better gaps
                work = self._work(len(block), exact=True)
                self.schedule.pay(work, exact=True)
                total += work
                bought.append(block)
        if bought:
            self._sweep(bought, True, total)
        if len(self.order) > DENSE:
            return
        for block in bought:
            self._probe_gaps(block[self.Y[self.counts.start, block] <= self._height - 1.0])

    def _planner(self, goals: int) -> Backend:
        """Where so many goals are planned for: a few of them, or few states, are left to the processor."""
        return self._backend if goals * len(self.order) >= self._backend.least else NUMBA

    def _work(self, goals: int, exact: bool) -> float:
        """What a plan for so many goals costs, in operations."""
        return self._looks(goals, exact) * (SHARED if len(self.D) > MANY and self._several and not exact else 1.0)

    def _looks(self, goals: int, exact: bool) -> float:
        """Operations of a plan for so many goals, in what they take on the processor."""
        price, sweeps = (EXACT, EXACT_SWEEPS) if exact else (self._planner(goals).price, SWEEPS)
        return 2.0 * price * sweeps * goals * self._edges

    def _pieces(self, blocks: list[Longs], exact: bool) -> list[Longs]:
        """What is swept in one thread: the blocks, or with exact duals in a large world one goal after the other."""
        if not (exact and self._several):
            return blocks
        return [block[i : i + 1] for block in blocks for i in range(len(block))]

    def _sweep(self, blocks: list[Longs], exact: bool, work: float) -> None:
        """Both bounds of the columns of the blocks. They share nothing, and are swept side by side where that pays."""
        model, start, order, jobs = self.confidence.model(), self.counts.start, self.order, []
        sweeps = EXACT_SWEEPS if exact else SWEEPS
        if self.space.own and len(order) > DENSE:  # a small world is swept until nothing moves
            least, bounds = DETOUR * self.epsilon, (self.V.T, self.Y.T, self.best.T)
            for block in blocks:
                detours(block, self.goal_state, self.column, order, model, self.cap, least, *bounds)
        for block in self._pieces(blocks, exact):
            column = self.block_columns(block)
            backend = self._planner(len(block))
            below = Block(order, column, self.cap, exact, sweeps, tolerance=1e-3 * self.epsilon)
            above = below._replace(cap=self._height)
            jobs.append(partial(improve, backend.lower, model, below, block, self.V.T, self.optimistic.T))
            jobs.append(partial(improve, backend.upper, model, above, block, self.Y.T, self.best.T))
        side_by_side(jobs, self._threads if work > THREADED else None)
        limits = self.L, self.cap, self._height <= self.cap
        for block in blocks:
            standing.take_down(block, order, start, *limits, self.V.T, self.Y.T, *self._kept)
            self.plans += 1

    @property
    def _kept(self) -> tuple[NDArray[Any], ...]:
        """The bounds of the recorded policies, the policies of Y and the recorded ones, as :mod:`standing` has them."""
        return self.D, self.upper, self.gap, self.best.T, self.returned.T

    def _count_hops(self) -> None:
        """Both bounds of all goals where every pair has led to one place (lemma 12)."""
        c, steps = self.counts, float(self.counts.n.sum())
        if steps < HOPS * self._hopped_at or not self.schedule.pays(GAPS):
            return
        self._hopped_at = steps
        known = hops.read(c, self.confidence.visits, self.confidence.quiet.log)
        if known is None:
            return
        E = self.E
        open_ = np.flatnonzero((self.goal_state >= 0) & (self.D <= self.L) & (E > SPARE * self.epsilon))
        self.schedule.hops(len(open_), len(known.before))
        column = np.append(self.column, -1)[self.space.at[: c.n_states]]
        self.D[open_] = np.minimum(hops.lower(known, column, open_, self.D[open_]), self.cap)
        upper, most = (a[open_] for a in hops.upper(known, column, len(self.D)))
        new = standing.errors(self.D[open_], upper, np.full(len(open_), np.inf), self.L, np.inf)
        better = (upper <= self.cap - 1.0) & (new < E[open_]) & ((new <= self.epsilon) | (new < WORTH * E[open_]))
        chosen = open_[better]
        hops.policies(known, column, chosen, most[better], self.returned.T)
        self.upper[chosen], self.gap[chosen] = upper[better], np.inf

    def _probe_gaps(self, block: Longs) -> None:
        """Bound the value and the sub-optimality of policies of Y, and find out where to try next.

        Only for goals with Y(s0) <= height - 1, as far as they are paid for. A policy is recorded if its value is at
        most C everywhere.
        """
        jobs, work = [], 0.0
        for j in block:
            if self.schedule.pays(GAPS):
                work += self.schedule.gaps(len(self.order))
                jobs.append(partial(self._probe, int(j), self.confidence.model()))
        side_by_side(jobs, self._threads if work > THREADED * len(jobs) else None)

    def _probe(self, j: int, model: Empirical) -> None:
        """The same for one goal; nothing of another one is read or written."""
        V, Y, policy = (np.ascontiguousarray(a[:, j]) for a in (self.V, self.Y, self.best))
        actions = np.full(len(V), -1, np.int16)
        goal, all_seen = self.space.inside(self.goal_state[j]), len(self.order) == self._states
        gap, value, most, chain = suboptimality(self.order, goal, model, V, Y, policy, all_seen, actions)
        if np.isfinite(gap):
            wander(self.order, chain, model, actions)
        self.probing[:, j] = actions
        if most <= self.cap:
            standing.offer(j, value, gap, self.L, *self._kept)

    def extras(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    # --- saving -----------------------------------------------------------------------------------------------

    FACTS = record(
        rollouts=COUNT,
        hopped_at={"type": "number", "minimum": 0},
        plans=COUNT,
        windows={"type": "integer", "minimum": 1, "maximum": MOST},
        transitions={"type": "integer", "minimum": -1},
        schedule=Schedule.FACTS,
    )

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that the counts do not determine."""
        facts: dict[str, Any] = {"rollouts": self._rollouts, "hopped_at": self._hopped_at}
        facts |= {"plans": self.plans, "windows": self.confidence.quiet.number, "schedule": self.schedule.state()}
        facts["transitions"] = self.confidence.transitions
        return self.column_state() | self.confidence.state(), facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`, on restored counts; the next plan takes them in as it would have."""
        check_json(self.FACTS, facts)
        self.restore_columns(arrays)
        self.confidence.restore(arrays, facts["windows"], facts["transitions"])
        self.schedule.restore(facts["schedule"])
        self._rollouts, self._hopped_at = facts["rollouts"], facts["hopped_at"]
        self.plans, self._taken = facts["plans"], -1
