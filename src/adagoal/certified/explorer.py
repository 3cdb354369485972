"""The certified explorer: for every goal a lower bound, a policy, and two bounds on how good it is (docs/theory.md).

    D_g      lower bound on V*(s0 -> g), from  V <- max(V, T_low V)                       (lemma 5)
    upper_g  upper bound on the value of a recorded policy pi_g, from  Y <- min(Y, T_up Y) (lemma 6)
    gap_g    upper bound on the sub-optimality of pi_g, from its action gaps               (lemmas 7 to 9)

The error estimate is what is missing for the definition ``def_MGE``:

    E_g = max{ min(upper_g - D_g, gap_g),  upper_g - L }

So E_g <= eps says exactly that V^{pi_g} <= V* + eps and V^{pi_g} <= L + eps. The loop stops when E <= eps for all goals
with D <= L. The returned set then holds everything reachable within L and nothing beyond L + eps, and each policy is
eps-optimal, with probability 1 - delta.

The explorer asks :mod:`~adagoal.certified.heuristics` what to do next, calls a lemma, and writes the result into its
:class:`~adagoal.certified.goal_table.GoalTable`. Planning is lazy: old bounds are still bounds, so only goals that the
rule wants to play are brought up to date, a block at a time. On the way the agent raises the lower bound of the goal
that it plays (:mod:`adagoal.core.operators`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.certified.deterministic import improve_by_hops
from adagoal.certified.goal_table import GoalTable
from adagoal.certified.heuristics import Heuristics, Schedule, split_blocks
from adagoal.certified.probing import improve_by_gaps
from adagoal.certified.sweeps import improve_by_neighbours, sweep_block
from adagoal.core.array_types import Actions, Bools, Longs
from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts


class CertifiedExplorer(GoalTable):
    """Certified estimates on shared counts.

    ``state_bound`` and ``pairs`` are the numbers of states and pairs, or bounds on them; ``state_bound`` is None if no
    such number is declared. ``branching`` bounds the successors of a pair. ``confidence`` is the class of the bounds.
    """

    name = "certified"
    guarantee = True
    FACTS_SCHEMA = object_schema(plans=COUNT_SCHEMA, **ConfidenceSets.FACT_SCHEMAS, schedule=Schedule.FACTS_SCHEMA)

    def __init__(
        self,
        counts: TransitionCounts,
        state_bound: int | None,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace | None = None,
        branching: int | None = None,
        pairs: int | None = None,
        confidence: Callable[..., ConfidenceSets] = ConfidenceSets,
        heuristics: Heuristics | None = None,
    ) -> None:
        self.heuristics = heuristics or Heuristics()
        space = space or GoalSpace.from_states(counts.n_states, math.inf if state_bound is None else state_bound)
        super().__init__(counts, L, epsilon, space, self.heuristics.small_strategy.upper_cap_factor)
        pairs = pairs or (state_bound and state_bound * counts.n_actions)
        self.confidence = confidence(
            counts, states=state_bound, pairs=pairs, goals=space.union_bound, delta=delta, branching=branching
        )
        self.schedule = Schedule(self.heuristics)
        self._state_bound = state_bound
        self._n_steps_counted = -1  # steps, resets included, at the last look at the counts
        self._radii_outdated = True
        self._sync_with_counts()

    def goal_policy(self, goal: int) -> Actions:
        """Return [1, S] the policy of the certificate; the optimistic one if none is recorded."""
        return self.proven_policy(goal, self.returned)

    def refresh_columns(self, wanted: Bools) -> bool:
        """Bring goals up to date, ``wanted`` [columns] first; return False if none is stale or it does not pay."""
        self._sync_with_counts()
        if not self.schedule.can_sweep:
            return False
        self._update_radii()
        columns = self.schedule.columns_to_plan(self, wanted)
        if len(columns):
            self._plan_columns(columns)
        return len(columns) > 0

    def exploration_plan(self) -> ExplorationPlan:
        """Return what to play: greedy for the lower bounds, and in some rollouts actions that probe action gaps."""
        probing = self.schedule.begin_rollout(self)
        local = self.confidence.local_lower_bounds(self.V.T, self.probing.T, probing, self.cap)
        limits = self.max_episode_steps, np.full(len(self.counts.n), NO_LIMIT)
        return ExplorationPlan(
            local,
            self.goal_state,
            *limits,
            self.goals_of_states(),
            self.schedule.replan_interval(),
            counts_steps_since_reset=not self.space.members_complete,
        )

    def finalize(self, wanted: Bools) -> None:
        """Bring waiting goals up to date for an answer before the end, smallest error first.

        Every token bucket is filled once more, so this takes seconds in any environment.
        """
        self._sync_with_counts()
        self.schedule.refill_completely()
        # Hops and duals would wait for more steps otherwise.
        self.schedule.hops_counted_at = 0.0
        self._update_radii()
        self.polished[:] = 0.0
        waiting = np.flatnonzero(wanted & (self.D <= self.L)[: len(wanted)])
        for block in split_blocks(waiting[np.argsort(self.E[waiting], kind="stable")]):
            if self.schedule.sweeps.has_tokens:
                self._plan_columns(np.sort(block))

    def set_radius(self, L: float, stage: int) -> None:
        """Continue with a larger radius as stage 1, 2, ... of a curriculum (label ``cor_UB_increasingL``).

        Counts and bounds carry over. Only the event of lemma 1 depends on the radius, so each stage pays for its own.
        """
        # Lemma 6 says nothing about policies whose upper bounds are not below the old height.
        self.widen_radius(L, self.Y[self.counts.start] > self._upper_cap - 1.0)
        self.confidence.set_curriculum_stage(stage)
        self._n_steps_counted = -1

    def _sync_with_counts(self) -> None:
        """Take in the last rollout: new states and goals, raised lower bounds, and tokens for its steps."""
        taken = int(self.counts.visits.sum())
        if taken == self._n_steps_counted and self.counts.n_states == len(self.V):
            return
        self._n_steps_counted, self._radii_outdated = taken, True
        self.grow()
        self.confidence.grow_arrays()
        self.schedule.update(float(taken), len(self.seen_states), len(self.D), self._n_known_transitions)

    def _update_radii(self) -> None:
        """Compute the radii of the counts and the hop bounds of all goals; mark all goals as stale."""
        balls = self.schedule.strategy.known_successor_balls
        if self._radii_outdated and self.confidence.update_radii(self.schedule.threads, balls):
            self.stale[:] = True
            if self.schedule.begin_hops(self.counts):
                improve_by_hops(self, self.confidence.empirical_model(), self.schedule.buy_hops)
        self._radii_outdated = False

    @property
    def _upper_cap(self) -> float:
        """C' of lemma 6."""
        # It falls when many states were seen: a policy is proper once Y(s0) is one below the lowest C' so far.
        return self.schedule.strategy.upper_cap_factor * self.cap

    def _plan_columns(self, columns: Longs) -> None:
        """Sweep these columns with closed forms, then solve the exact duals that are due and affordable.

        With few states bounds of the action gaps follow.
        """
        self._sweep_columns(columns, False, self.schedule.buy_sweeps(len(columns)))
        self.stale[columns] = False
        bought, work = self.schedule.buy_duals(self, columns)
        if not len(bought):
            return
        self._sweep_columns(bought, True, work)
        if self.schedule.strategy.action_gaps:
            # Lemma 6 says that these policies are proper.
            self._bound_action_gaps(bought[self.Y[self.counts.start, bought] <= self._upper_cap - 1.0])

    def _sweep_columns(self, columns: Longs, exact: bool, work: float) -> None:
        """Improve both bounds of these columns (lemmas 5, 6 and 13), a block at a time."""
        h, sets, model, jobs = self.heuristics, self.confidence, self.confidence.empirical_model(), []
        # Not in threads: this reads other columns, too.
        if self.space.goals_are_states and self.schedule.strategy.triangle:
            given = self.goal_state, self.column, self.seen_states, model, self.cap, h.min_triangle_gain * self.epsilon
            improve_by_neighbours(columns, *given, self.V.T, self.Y.T, self.best.T)
        until = h.max_dual_sweeps if exact else h.max_closed_form_sweeps, h.sweep_tolerance
        for block in self.schedule.split_jobs(columns, exact):
            below = self.goal_block(block, exact, *until)
            above = below._replace(cap=self._upper_cap)
            jobs.append(partial(sweep_block, sets.improve_lower, model, below, block, self.V.T, self.optimistic.T))
            jobs.append(partial(sweep_block, sets.improve_upper, model, above, block, self.Y.T, self.best.T))
        self.schedule.run_jobs(jobs, work)
        self.record_sweeps(columns, self._upper_cap)
        self.plans += len(split_blocks(columns))

    def _bound_action_gaps(self, block: Longs) -> None:
        """Bound the value and sub-optimality of the policies of Y (lemmas 7 to 9), as far as there are tokens."""
        columns, work = self.schedule.buy_gaps(block)
        model, all_seen = self.confidence.empirical_model(), len(self.seen_states) == self._state_bound
        given = model, all_seen, self.heuristics.probe_horizon, self.heuristics.max_probe_sweeps
        self.schedule.run_jobs([partial(improve_by_gaps, self, j, *given) for j in columns], work)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return everything that cannot be computed from the counts."""
        arrays, facts = self.confidence.state()
        return self.table_state() | arrays, {"plans": self.plans, **facts, "schedule": self.schedule.state()}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Invert :meth:`state`, on restored counts; the next plan takes in the counts as it would have."""
        check_json_value(self.FACTS_SCHEMA, facts)
        self.restore_table(arrays)
        self.confidence.restore(arrays, facts)
        self.schedule.restore(facts["schedule"])
        self.plans, self._n_steps_counted = facts["plans"], -1
