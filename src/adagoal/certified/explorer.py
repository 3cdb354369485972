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
the goal that it plays (core/local_backup.py). Goals never seen so far, or only far beyond the radius, share column 0.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.certified import deterministic, goal_kernels
from adagoal.certified.confidence import ConfidenceSets
from adagoal.certified.exploration_policy import plan_probing_actions
from adagoal.certified.gaps import bound_suboptimality
from adagoal.certified.goal_kernels import sweep_block
from adagoal.certified.goal_table import UPPER_START_FACTOR, GoalTable
from adagoal.certified.planning_budget import (
    ACTION_GAP_KIND,
    CLOSED_FORM_KIND,
    EXACT_DUAL_COST,
    EXACT_DUAL_KIND,
    TOKENS_PER_STEP,
    PlanningBudget,
)
from adagoal.certified.triangle import improve_by_neighbours
from adagoal.certified.unseen_mass import MAX_WINDOWS
from adagoal.core.compiled_code import run_jobs_in_threads
from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.local_backup import LocalLowerBounds
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.planning import certified_sweeps
from adagoal.planning.model_arrays import BLOCK_GOALS, EmpiricalModel, GoalBlock

MIN_THREADED_WORK, LARGE_BLOCK_WORK = 1e6, 1e7
"""Operations of a plan from which on it is made in several threads; of a block, from which on a plan has several."""
MAX_BLOCKS_PER_PLAN = 8
"""Blocks of such a plan, at most."""
MANY_GOALS, MANY_GOALS_COST_FACTOR = 2048, 0.1
"""Goals from which on a run with such plans waits for them more than for steps, and what an operation costs then."""
MAX_CLOSED_FORM_SWEEPS, MAX_EXACT_DUAL_SWEEPS = 4, 2
"""Sweeps per plan, at most, with closed forms and with exact duals; the next plan goes on where this one stopped."""
MAX_DUAL_STEP_GROWTH = 1.05
"""Exact duals once the step count has grown by this factor since the goal's last time."""
MIN_DUAL_STEP_GROWTH = 1.01
"""The same in a world with action gaps, which say where to try next, and near the end of any run: errors fall like one
over the root of the counts, so that the factor shrinks to what is missing."""
URGENT_ERROR_SHARE, DEFERRED_DUAL_STEP_GROWTH = 0.9, 1.25
"""The same for goals with less than this share of the largest error, and the factor: nobody plays for them yet. It is
finite for the sake of runs that end early: their bounds of these goals are behind the counts, but not by far."""
MAX_DUAL_ERROR_EPSILONS = 2.0
"""In a large world, of more than DENSE states, duals are solved for goals whose error is at most so many epsilons."""
RARE_PROBE_PERIOD, FREQUENT_PROBE_PERIOD = 10, 3
"""One rollout of so many probes action gaps where intervals are the smaller bound on the error; where gaps are, all but
one of so many do."""
GAP_PREFERENCE_FACTOR = 1.5
"""Gaps up to this multiple of the interval count as the smaller bound: probing makes them so."""
HOP_STEP_GROWTH = 1.02
"""Hops are counted again once the step count has grown by this factor."""
HOP_ERROR_SHARE = 0.5
"""Hops are counted until the error is this share of epsilon: a reset that is only believed adds to it (reset.py)."""
HOP_POLICY_ERROR_SHARE = 0.9
"""A policy along the fewest hops is made where it leaves this share of the error, or closes the goal."""
MIN_TRIANGLE_GAIN_EPSILONS = 0.1
"""What a neighbour must improve a bound by, in epsilons, to be worth its row."""
MAX_DENSE_STATES = 400
"""Action gaps need a dense [S, S] inverse: up to this many seen states."""


class CertifiedExplorer(GoalTable):
    """Certified estimates on shared counts; see the module's text."""

    name = "certified"
    guarantee = True
    episodes_per_plan = 1_000_000

    def __init__(
        self,
        counts: TransitionCounts,
        state_bound: int,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace | None = None,
        branching: int | None = None,
        pairs: int | None = None,
    ) -> None:
        super().__init__(counts, L + 1.0 + epsilon, space or GoalSpace.from_states(counts.n_states, state_bound))
        self.L, self.epsilon = L, epsilon
        self.confidence = ConfidenceSets(
            counts,
            states=state_bound,
            pairs=pairs or state_bound * counts.n_actions,
            goals=self.space.goal_bound,
            delta=delta,
            branching=branching or state_bound,
        )
        self._state_bound, self._n_rollouts = state_bound, 0
        self._hops_counted_at = 0.0
        self._n_steps_counted = -1  # steps, resets included, at the last look
        self._radii_outdated = True  # whether the radii may be older than that
        self._no_thresholds = np.zeros(0, np.int64)
        """[X] the tries of a pair that end a rollout"""
        self.plans = 0
        self.budget = PlanningBudget()
        self._sync_with_counts()

    # --- what the loop sees -----------------------------------------------------------------------------------

    @property
    def E(self) -> Floats:
        """[columns] error estimates."""
        found: Floats = goal_kernels.goal_errors(self.D, self.upper, self.gap, self.L, self.cap)
        return found

    def goal_policy(self, goal: int) -> Actions:
        """[1, S] the policy that the certificate speaks of; the optimistic one as long as there is none."""
        return self.proven_policy(goal, self.returned)

    def refresh_columns(self, wanted: Bools) -> bool:
        """Bring a block of goals up to date, ``wanted`` [columns] first; False if none is stale or it does not pay."""
        self._sync_with_counts()
        if not self.budget.can_afford(CLOSED_FORM_KIND):
            return False
        self._update_radii()
        E = self.E
        candidates, first = goal_kernels.stale_candidates(self.stale, wanted, self.D, E, self.L, self.epsilon)
        if not len(candidates):
            return False
        enough = self.budget.has_tokens and len(candidates) >= BLOCK_GOALS
        most = BLOCK_GOALS * self._blocks_per_plan() if enough else BLOCK_GOALS
        if len(candidates) > most:
            candidates = goal_kernels.select_foremost(candidates, first, E, most)
        self._plan_blocks([candidates[i : i + BLOCK_GOALS] for i in range(0, len(candidates), BLOCK_GOALS)])
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """What to explore with: the lower bounds, and in some rollouts actions that probe the action gaps."""
        counts = self.counts
        self._n_rollouts = turn = self._n_rollouts + 1
        worst = goal_kernels.worst_column(self.D, self.E, self.L)
        p, r = self.confidence.kl_ball
        leading = self.gap[worst] <= GAP_PREFERENCE_FACTOR * (min(self.upper[worst], self.cap) - self.D[worst])
        local = LocalLowerBounds(
            V=self.V.T,
            probe=self.probing.T,
            probing=(turn % FREQUENT_PROBE_PERIOD > 0 if leading else turn % RARE_PROBE_PERIOD == 0)
            and len(self.seen_states) <= MAX_DENSE_STATES,
            q=self.confidence.q,
            log=self.confidence.lower_radius_log,
            complete=self.confidence.complete,
            p=p,
            r=r,
            cap=self.cap,
            start=counts.start,
            n_actions=counts.n_actions,
        )
        limit = math.ceil(min(4 * self.cap * (self.L + 1) / self.epsilon, NO_LIMIT))
        if len(self._no_thresholds) != len(counts.n):
            self._no_thresholds = np.full(len(counts.n), NO_LIMIT)
        return ExplorationPlan(
            local, self.goal_state, limit, self._no_thresholds, self.goals_of_states(), self.budget.replan_interval()
        )

    def finalize(self, wanted: Bools) -> None:
        """Bring columns up to date that wait for their turn, for an answer before the end; nearest to it first.

        Each kind of planning gets a full purse (schedule.py), so that this is a matter of seconds in any world.
        """
        self._sync_with_counts()
        self.budget, self._hops_counted_at = PlanningBudget(), 0.0
        self._update_radii()
        self.polished[:] = 0.0
        waiting = np.flatnonzero(wanted & (self.D <= self.L)[: len(wanted)])
        waiting = waiting[np.argsort(self.E[waiting], kind="stable")]
        for i in range(0, len(waiting), BLOCK_GOALS):
            if self.budget.has_tokens:
                self._plan_blocks([np.sort(waiting[i : i + BLOCK_GOALS])])

    def set_radius(self, L: float, stage: int) -> None:
        """Go on with a larger radius as stage 1, 2, ... of a curriculum (label ``cor_UB_increasingL``).

        Counts and bounds carry over. The fixed function of lemma 1 depends on the cap, so that each stage has its
        own share delta / (stage (stage + 1)) of that event; the other events do not depend on the radius.
        """
        unfinished = self.Y[self.counts.start] > self._upper_bound_cap - 1.0
        self.L, self.cap = L, L + 1.0 + self.epsilon
        self.confidence.set_curriculum_stage(stage)
        self._reset_upper_bounds(unfinished)
        self.polished[:] = 0.0
        self.stale[:] = True
        self._n_known_transitions = self._n_steps_counted = -1

    def _reset_upper_bounds(self, unfinished: Bools) -> None:
        """With the upper bounds of these columns [columns], whose policies may not be proper."""
        self.Y[:, unfinished], self.best[:, unfinished] = UPPER_START_FACTOR * self.cap, self.counts.n_actions
        self.zero_at_goals(np.flatnonzero(unfinished))

    # --- planning ---------------------------------------------------------------------------------------------

    def _sync_with_counts(self) -> None:
        """Take in what the last rollout brought: room for what is new, and the lower bounds that it has raised."""
        taken = int(self.counts.visits.sum())
        if taken == self._n_steps_counted and self.counts.n_states == len(self.V):
            return
        self._n_steps_counted, self._radii_outdated = taken, True
        self.add_rows()
        self.add_columns()
        self.confidence.grow_arrays()
        self.seen_states = np.flatnonzero(self.counts.seen)
        """The states to sweep"""
        np.maximum(self.D, self.V[self.counts.start], out=self.D)
        self.budget.refill_tokens(float(taken))

    def _update_radii(self) -> None:
        """The radii of the counts as they are, and what follows for all goals at once."""
        if self._radii_outdated and self.confidence.update_radii(
            self._thread_pool, large=len(self.seen_states) > MAX_DENSE_STATES
        ):
            self.stale[:] = True
            self._apply_hop_bounds()
        self._radii_outdated = False

    @property
    def _upper_bound_cap(self) -> float:
        """The cap of the upper bounds. It may fall: a policy is proper once Y(s0) is one below the lowest so far."""
        return self.cap if len(self.seen_states) > MAX_DENSE_STATES else UPPER_START_FACTOR * self.cap

    @property
    def _plans_several_blocks(self) -> bool:
        """Whether the world is so large that a plan has several blocks, each a job for one thread and more."""
        large = len(self.seen_states) > MAX_DENSE_STATES
        return large and self._plan_operations(BLOCK_GOALS, exact=False) > LARGE_BLOCK_WORK

    def _blocks_per_plan(self) -> int:
        """Blocks of one plan: as many as the next rollout pays for. That does not depend on the number of cores."""
        if not self._plans_several_blocks:
            return 1
        earned = TOKENS_PER_STEP * self.budget.replan_interval()
        return int(np.clip(earned / self._plan_cost(BLOCK_GOALS, exact=False), 1, MAX_BLOCKS_PER_PLAN))

    def _plan_blocks(self, blocks: list[Longs]) -> None:
        """Sweep the columns of the blocks with closed forms, and polish those whose time has come."""
        work = sum(self._plan_cost(len(block), exact=False) for block in blocks)
        self.budget.spend_on_sweeps(work, exact=False)
        self._sweep_blocks(blocks, False, work)
        block = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
        self.stale[block] = False
        steps = float(self.counts.n.sum())
        due = self._columns_due_for_duals(block, steps)
        self._solve_exact_duals(
            [due[i : i + BLOCK_GOALS] for i in range(0, len(due), BLOCK_GOALS)][: len(blocks)], steps
        )

    def _columns_due_for_duals(self, block: Longs, steps: float) -> Longs:
        """The columns of the block whose time for exact duals has come."""
        large = len(self.seen_states) > MAX_DENSE_STATES
        within = MAX_DUAL_ERROR_EPSILONS * self.epsilon if large else np.inf
        growth = (
            MIN_DUAL_STEP_GROWTH,
            MAX_DUAL_STEP_GROWTH if large else MIN_DUAL_STEP_GROWTH,
            DEFERRED_DUAL_STEP_GROWTH,
        )
        rows = self.D, self.E, self.polished
        found: Longs = goal_kernels.columns_due_for_duals(
            block, steps, *rows, self.L, self.epsilon, within, URGENT_ERROR_SHARE, growth
        )
        return found

    def _solve_exact_duals(self, blocks: list[Longs], steps: float) -> None:
        """Exact duals for these columns, as far as they are paid for, and action gaps in a small world."""
        bought, total = [], 0.0
        for block in blocks:
            if not self.budget.can_afford(EXACT_DUAL_KIND):
                break
            self.polished[block] = steps
            if self.counts.support.max() != 1:  # else the closed forms are exact, and hops are the better gaps
                work = self._plan_cost(len(block), exact=True)
                self.budget.spend_on_sweeps(work, exact=True)
                total += work
                bought.append(block)
        if bought:
            self._sweep_blocks(bought, True, total)
        if len(self.seen_states) > MAX_DENSE_STATES:
            return
        for block in bought:
            self._bound_action_gaps(block[self.Y[self.counts.start, block] <= self._upper_bound_cap - 1.0])

    def _plan_cost(self, goals: int, exact: bool) -> float:
        """What a plan for so many goals costs, in operations."""
        return self._plan_operations(goals, exact) * (
            MANY_GOALS_COST_FACTOR if len(self.D) > MANY_GOALS and self._plans_several_blocks and not exact else 1.0
        )

    def _plan_operations(self, goals: int, exact: bool) -> float:
        """Operations of a plan for so many goals, in what they take on the processor."""
        price, sweeps = (EXACT_DUAL_COST, MAX_EXACT_DUAL_SWEEPS) if exact else (1.0, MAX_CLOSED_FORM_SWEEPS)
        return 2.0 * price * sweeps * goals * self._n_known_transitions

    def _split_into_jobs(self, blocks: list[Longs], exact: bool) -> list[Longs]:
        """What is swept in one thread: the blocks, or with exact duals in a large world one goal after the other."""
        if not (exact and self._plans_several_blocks):
            return blocks
        return [block[i : i + 1] for block in blocks for i in range(len(block))]

    def _sweep_blocks(self, blocks: list[Longs], exact: bool, work: float) -> None:
        """Both bounds of the columns of the blocks. They share nothing, and are swept side by side where that pays."""
        model, start, order, jobs = self.confidence.empirical_model(), self.counts.start, self.seen_states, []
        sweeps = MAX_EXACT_DUAL_SWEEPS if exact else MAX_CLOSED_FORM_SWEEPS
        if self.space.goals_are_states and len(order) > MAX_DENSE_STATES:  # a small world is swept until nothing moves
            least, bounds = MIN_TRIANGLE_GAIN_EPSILONS * self.epsilon, (self.V.T, self.Y.T, self.best.T)
            for block in blocks:
                improve_by_neighbours(block, self.goal_state, self.column, order, model, self.cap, least, *bounds)
        for block in self._split_into_jobs(blocks, exact):
            column = self.block_columns(block)
            below = GoalBlock(order, column, self.cap, exact, sweeps, tolerance=1e-3 * self.epsilon)
            above = below._replace(cap=self._upper_bound_cap)
            jobs.append(
                partial(
                    sweep_block, certified_sweeps.improve_lower_bounds, model, below, block, self.V.T, self.optimistic.T
                )
            )
            jobs.append(
                partial(sweep_block, certified_sweeps.improve_upper_bounds, model, above, block, self.Y.T, self.best.T)
            )
        run_jobs_in_threads(jobs, self._thread_pool if work > MIN_THREADED_WORK else None)
        limits = self.L, self.cap, self._upper_bound_cap <= self.cap
        for block in blocks:
            goal_kernels.record_sweep_results(
                block, order, start, *limits, self.V.T, self.Y.T, *self._recorded_policies
            )
            self.plans += 1

    @property
    def _recorded_policies(self) -> tuple[NDArray[Any], ...]:
        """The bounds of the recorded policies, the policies of Y and the recorded ones, as :mod:`standing` has them."""
        return self.D, self.upper, self.gap, self.best.T, self.returned.T

    def _apply_hop_bounds(self) -> None:
        """Both bounds of all goals where every pair has led to one place (lemma 12)."""
        c, steps = self.counts, float(self.counts.n.sum())
        if steps < HOP_STEP_GROWTH * self._hops_counted_at or not self.budget.can_afford(ACTION_GAP_KIND):
            return
        self._hops_counted_at = steps
        known = deterministic.read_deterministic_map(
            c, self.confidence.window_visits, self.confidence.window.log_inverse_delta
        )
        if known is None:
            return
        E = self.E
        open_ = np.flatnonzero((self.goal_state >= 0) & (self.D <= self.L) & (E > HOP_ERROR_SHARE * self.epsilon))
        self.budget.spend_on_hops(len(open_), len(known.before))
        column = np.append(self.column, -1)[self.space.goals_of_states[: c.n_states]]
        self.D[open_] = np.minimum(deterministic.hop_lower_bounds(known, column, open_, self.D[open_]), self.cap)
        upper, most = (a[open_] for a in deterministic.hop_upper_bounds(known, column, len(self.D)))
        new = goal_kernels.goal_errors(self.D[open_], upper, np.full(len(open_), np.inf), self.L, np.inf)
        better = (
            (upper <= self.cap - 1.0)
            & (new < E[open_])
            & ((new <= self.epsilon) | (new < HOP_POLICY_ERROR_SHARE * E[open_]))
        )
        chosen = open_[better]
        deterministic.write_hop_policies(known, column, chosen, most[better], self.returned.T)
        self.upper[chosen], self.gap[chosen] = upper[better], np.inf

    def _bound_action_gaps(self, block: Longs) -> None:
        """Bound the value and the sub-optimality of policies of Y, and find out where to try next.

        Only for goals with Y(s0) <= height - 1, as far as they are paid for. A policy is recorded if its value is at
        most C everywhere.
        """
        jobs, work = [], 0.0
        for j in block:
            if self.budget.can_afford(ACTION_GAP_KIND):
                work += self.budget.spend_on_gaps(len(self.seen_states))
                jobs.append(partial(self._bound_gap_of_goal, int(j), self.confidence.empirical_model()))
        run_jobs_in_threads(jobs, self._thread_pool if work > MIN_THREADED_WORK * len(jobs) else None)

    def _bound_gap_of_goal(self, j: int, model: EmpiricalModel) -> None:
        """The same for one goal; nothing of another one is read or written."""
        V, Y, policy = (np.ascontiguousarray(a[:, j]) for a in (self.V, self.Y, self.best))
        actions = np.full(len(V), -1, np.int16)
        goal, all_seen = self.space.states_of_goal(self.goal_state[j]), len(self.seen_states) == self._state_bound
        gap, value, most, chain = bound_suboptimality(self.seen_states, goal, model, V, Y, policy, all_seen, actions)
        if np.isfinite(gap):
            plan_probing_actions(self.seen_states, chain, model, actions)
        self.probing[:, j] = actions
        if most <= self.cap:
            goal_kernels.record_if_better(j, value, gap, self.L, *self._recorded_policies)

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    # --- saving -----------------------------------------------------------------------------------------------

    FACTS_SCHEMA = object_schema(
        rollouts=COUNT_SCHEMA,
        hopped_at={"type": "number", "minimum": 0},
        plans=COUNT_SCHEMA,
        windows={"type": "integer", "minimum": 1, "maximum": MAX_WINDOWS},
        transitions={"type": "integer", "minimum": -1},
        schedule=PlanningBudget.FACTS_SCHEMA,
    )

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that the counts do not determine."""
        facts: dict[str, Any] = {"rollouts": self._n_rollouts, "hopped_at": self._hops_counted_at}
        facts |= {
            "plans": self.plans,
            "windows": self.confidence.window.window_number,
            "schedule": self.budget.budget_state(),
        }
        facts["transitions"] = self.confidence.transitions
        return self.table_state() | self.confidence.radii_state(), facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`, on restored counts; the next plan takes them in as it would have."""
        check_json_value(self.FACTS_SCHEMA, facts)
        self.restore_table(arrays)
        self.confidence.restore_radii(arrays, facts["windows"], facts["transitions"])
        self.budget.restore_budget(facts["schedule"])
        self._n_rollouts, self._hops_counted_at = facts["rollouts"], facts["hopped_at"]
        self.plans, self._n_steps_counted = facts["plans"], -1
