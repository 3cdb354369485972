"""Schedule of planning with token buckets, and every tuning number of planning and probing (``Heuristics``).

No certificate depends on this file. Bounds are valid whenever they are computed, for any goals and in any order, so
every number of :class:`Heuristics` may be changed without touching a proof.

Plans are paid in operations, and no clock is read: a run is the same on every machine. One operation is one successor
of one pair, read for one goal by a sweep with closed forms. It takes about a nanosecond. There are three kinds of
plans, each with a token bucket:

    sweeps   both bounds of a block of goals, with the closed forms of lemma 4
    duals    the same with exact duals
    gaps     the action gaps of one goal (lemmas 7 to 9), or hops to all open goals (lemma 12)

Every step of the agent adds the same number of tokens to each bucket. A plan may start while its bucket is not
negative; the cost is deducted afterwards. In a small environment the initial tokens last, and the run plans as often as
new counts are worth a look. In a large one they last for seconds; then the run plans as fast as it steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from adagoal.certified.goal_table import GoalTable
from adagoal.core.array_types import Bools, Longs
from adagoal.core.compiled_code import compiled, run_jobs_in_threads
from adagoal.core.file_formats import COUNT_SCHEMA, object_schema
from adagoal.core.transition_data import TransitionCounts
from adagoal.planning.model_arrays import BLOCK_GOALS


@dataclass(frozen=True)
class SizeStrategy:
    """What depends on the number of states seen so far; the defaults are those of a small environment."""

    # Lower bounds use the ball of lemma 2 for pairs whose successors are all known. That ball may be wider, but it
    # loses nothing for values far away, which pays only in large environments.
    known_successor_balls: bool = False
    # Upper bounds are cut at this multiple of C, at least 1. Above 1, a policy whose value they cannot bound by C yet
    # may still get a better bound from its action gaps.
    upper_cap_factor: float = 1.25
    action_gaps: bool = True  # compute and probe action gaps, which need a dense inverse [S, S]
    triangle: bool = False  # copy bounds of neighbours (lemma 13); small environments are swept until nothing changes
    several_blocks: bool = False  # one plan may have several blocks of goals, one per thread


@dataclass(frozen=True)
class Heuristics:
    """Every tuning number of planning and probing."""

    small_strategy: SizeStrategy = SizeStrategy()
    large_strategy: SizeStrategy = SizeStrategy(
        known_successor_balls=True,
        upper_cap_factor=1.0,
        action_gaps=False,
        triangle=True,
        several_blocks=True,
    )
    max_small_states: int = 400  # states seen in a small environment: a dense inverse takes S^3 operations

    # Token buckets. The unit is one operation, about a nanosecond.
    tokens_per_step: float = 100.0  # for each bucket: about half of what a step itself costs
    sweep_capacity: float = 1e9  # initial and largest number of tokens for sweeps: about a second
    dual_capacity: float = 2e8
    gap_capacity: float = 1e9
    cost_per_plan: float = 1e5  # of a plan of any size: blocks are copied and functions are called
    dual_cost: float = 20.0  # of one exact dual, in closed forms
    gap_cost_cubic: float = 0.1  # of the action gaps of one goal, per S^3: eliminations, which skip zeros
    gap_cost_quadratic: float = 40.0  # per S^2: moments of all columns of the inverse
    hop_cost: float = 10.0  # per goal and pair: every pair is searched a few times

    min_replan_steps: int = 16  # fewest steps of a rollout: fewer new counts are not worth a look
    # A rollout takes one step per this many steps before it. The agent backs up bounds on the way, so longer rollouts
    # lose steps only to goals that no longer need them. One small plan per rollout is free: there are this many while
    # the steps grow by a factor e.
    replan_step_divisor: int = 256

    max_closed_form_sweeps: int = 4  # per plan; the next plan continues where this one stopped
    max_dual_sweeps: int = 2
    sweep_tolerance: float = 1e-3  # sweeps stop when no bound moves by this many epsilons
    min_threaded_work: float = 1e6  # operations of a plan from which threads pay
    min_split_work: float = 1e7  # operations of one block from which a plan in a large environment has several
    max_blocks_per_plan: int = 8
    # Above many_goals planning dominates the run time, if plans have several blocks. So closed forms are charged only
    # a part of their cost then.
    many_goals: int = 2048
    many_goals_cost_factor: float = 0.1

    # Exact duals of a goal wait until the step count has grown by this factor. Not long, because the
    # action gaps that follow in a small environment say where to try next.
    dual_step_growth: float = 1.01
    # Goals with less than this share of the largest error are not played yet, so their duals may wait longer. The
    # growth is finite, so runs that end early have useful bounds for these goals too.
    urgent_error_share: float = 0.9
    deferred_dual_step_growth: float = 1.25

    rare_probe_period: int = 10  # one rollout of this many probes action gaps if upper - D is the smaller bound
    frequent_probe_period: int = 3  # all rollouts but one of this many probe them if the gap is the smaller bound
    probe_horizon: float = 4.0  # the probing policy looks ahead this many times the longest way to the goal
    max_probe_sweeps: int = 30  # to find the probing policy; a nearly best policy probes as well

    hop_step_growth: float = 1.02  # hops (lemma 12) are counted again when the step count has grown by this factor
    hop_error_share: float = 0.5  # and until the error is this share of epsilon: an uncertain reset adds to it
    min_triangle_gain: float = 0.1  # epsilons by which a neighbour must improve the start to be copied (lemma 13)


def split_blocks(columns: Longs, size: int = BLOCK_GOALS) -> list[Longs]:
    """Return the columns in blocks of at most this size."""
    return [columns[i : i + size] for i in range(0, len(columns), size)]


class TokenBucket:
    """Operations that may be spent on one kind of plan."""

    def __init__(self, capacity: float) -> None:
        self.capacity = self.tokens = capacity

    @property
    def has_tokens(self) -> bool:
        """Whether a plan may start: the bucket is not negative."""
        return self.tokens >= 0.0


class Schedule:
    """The token buckets of one run, and the sizes on which the cost of a plan depends."""

    FACTS_SCHEMA = object_schema(
        tokens={"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "number"}},
        credited_steps={"type": "number", "minimum": 0},
        free_plan_step={"type": "number", "minimum": 0},
        hops_counted_at={"type": "number", "minimum": 0},
        rollouts=COUNT_SCHEMA,
    )

    def __init__(self, heuristics: Heuristics) -> None:
        self.heuristics = heuristics
        self.threads = ThreadPoolExecutor(min(16, os.cpu_count() or 1))
        self.n_states = self.n_columns = self.n_transitions = 0
        self.hops_counted_at = 0.0  # step count
        self._n_rollouts = 0
        self.refill_completely()

    def refill_completely(self) -> None:
        """Fill all buckets, as at the start of a run."""
        h = self.heuristics
        self.sweeps, self.duals, self.gaps = map(TokenBucket, (h.sweep_capacity, h.dual_capacity, h.gap_capacity))
        self._credited_steps = 0.0  # steps whose tokens were added
        self._free_plan_step = 0.0  # step count from which the next small plan is free

    def update(self, steps: float, n_states: int, n_columns: int, n_transitions: int) -> None:
        """Add the tokens of new steps (resets included); take in the numbers of seen states, columns, transitions."""
        self.n_states, self.n_columns, self.n_transitions = n_states, n_columns, n_transitions
        earned = self.heuristics.tokens_per_step * (steps - self._credited_steps)
        for bucket in (self.sweeps, self.duals, self.gaps):
            bucket.tokens = min(bucket.tokens + earned, bucket.capacity)
        self._credited_steps = steps

    @property
    def strategy(self) -> SizeStrategy:
        """The strategy for an environment of this size."""
        h = self.heuristics
        return h.large_strategy if self.n_states > h.max_small_states else h.small_strategy

    @property
    def can_sweep(self) -> bool:
        """Whether a plan with closed forms may start: there are tokens, or a free plan is due."""
        # Steps towards goals whose bounds are out of date are wasted, so the goals to be played next get a free plan.
        return self.sweeps.has_tokens or self._credited_steps >= self._free_plan_step

    def replan_interval(self) -> int:
        """Return the number of steps until the next look."""
        h = self.heuristics
        return max(h.min_replan_steps, int(self._credited_steps) // h.replan_step_divisor)

    def columns_to_plan(self, table: GoalTable, wanted: Bools) -> Longs:
        """Return the columns of the next plan, ``wanted`` [columns] first; empty if no wanted column is stale."""
        h, most, E = self.heuristics, BLOCK_GOALS, table.E
        columns, first = stale_candidates(table.stale, wanted, table.D, E, table.L, table.epsilon)
        # One block, or as many as the next rollout pays for. The number of cores must not matter: a run is the same on
        # every machine.
        if self.sweeps.has_tokens and len(columns) >= BLOCK_GOALS and self.splits_plans:
            earned = h.tokens_per_step * self.replan_interval()
            most *= int(np.clip(earned / self.sweep_cost(BLOCK_GOALS), 1, h.max_blocks_per_plan))
        # The wanted ones, then those of largest error. The plan itself keeps the order of the columns.
        chosen: Longs = columns
        if len(columns) > most:
            chosen = columns[np.sort(np.lexsort((-E[columns], ~first))[:most])]
        return chosen

    @property
    def splits_plans(self) -> bool:
        """Whether plans have several blocks, each a job for at least one thread."""
        h = self.heuristics
        work = self._operations(BLOCK_GOALS, h.max_closed_form_sweeps)
        return self.strategy.several_blocks and work > h.min_split_work

    def sweep_cost(self, goals: int) -> float:
        """Return the cost of a plan with closed forms for this many goals."""
        h = self.heuristics
        dominates = self.n_columns > h.many_goals and self.splits_plans
        return self._operations(goals, h.max_closed_form_sweeps) * (h.many_goals_cost_factor if dominates else 1.0)

    def buy_duals(self, table: GoalTable, columns: Longs) -> tuple[Longs, float]:
        """Pay for exact duals of those columns whose last ones are old enough, as far as there are tokens.

        Return these columns and the operations.
        """
        h, steps, error = self.heuristics, float(table.counts.n.sum()), (table.D, table.E)
        rule = table.L, table.epsilon, h.urgent_error_share, (h.dual_step_growth, h.deferred_dual_step_growth)
        due = columns_due_for_duals(columns, steps, *error, table.polished, *rule)
        # In a deterministic environment closed forms are exact, and hops are the better gaps.
        if len(due) and table.counts.support.max() == 1:
            table.polished[due] = steps
            return due[:0], 0.0
        n, work = 0, 0.0
        for block in split_blocks(due):
            if not self.duals.has_tokens:
                break
            cost = self._operations(len(block), h.max_dual_sweeps, h.dual_cost)
            self.duals.tokens -= h.cost_per_plan + cost
            n, work = n + len(block), work + cost
        table.polished[due[:n]] = steps
        return due[:n], work

    def split_jobs(self, columns: Longs, exact: bool) -> list[Longs]:
        """Return the columns in blocks, each a job for one thread."""
        # One job per goal: a block of duals would keep one thread busy for long while the others have nothing to do.
        return split_blocks(columns, 1 if exact and self.splits_plans else BLOCK_GOALS)

    def run_jobs(self, jobs: Sequence[Callable[[], None]], work: float) -> None:
        """Run jobs, in threads if there is enough work."""
        run_jobs_in_threads(jobs, self.threads if work > self.heuristics.min_threaded_work else None)

    def begin_rollout(self, table: GoalTable) -> bool:
        """Return whether the next rollout probes action gaps, by what bounds the largest error within the radius."""
        self._n_rollouts += 1
        if not self.strategy.action_gaps:
            return False
        h, rollout = self.heuristics, self._n_rollouts
        worst = int(np.argmax(np.where(table.D <= table.L, table.E, -1.0)))
        gap_is_smaller = table.gap[worst] <= min(table.upper[worst], table.cap) - table.D[worst]
        return rollout % h.frequent_probe_period > 0 if gap_is_smaller else rollout % h.rare_probe_period == 0

    def begin_hops(self, counts: TransitionCounts) -> bool:
        """Return whether to count hops again."""
        steps, start = float(counts.n.sum()), counts.start * counts.n_actions
        if steps < self.heuristics.hop_step_growth * self.hops_counted_at or not self.gaps.has_tokens:
            return False
        self.hops_counted_at = steps
        # Lemma 12 needs a start from which every action leads to one state.
        return bool(counts.support[start : start + counts.n_actions].max() <= 1)

    def buy_hops(self, table: GoalTable, pairs: int) -> Longs:
        """Pay for hops over this many pairs to all open goals that need them; return their columns."""
        h = self.heuristics
        # Column 0 has no goal of its own, so no path leads there.
        open_goals = (table.goal_state >= 0) & (table.D <= table.L)
        columns = np.flatnonzero(open_goals & (table.E > h.hop_error_share * table.epsilon))
        self.gaps.tokens -= h.cost_per_plan + h.hop_cost * len(columns) * pairs
        return columns

    def _operations(self, goals: int, sweeps: int, cost: float = 1.0) -> float:
        return 2.0 * cost * sweeps * goals * self.n_transitions  # two bounds

    def buy_sweeps(self, goals: int) -> float:
        """Pay for a plan with closed forms for this many goals, or take the free plan; return the operations."""
        work = self.sweep_cost(goals)
        if self.sweeps.has_tokens:
            self.sweeps.tokens -= self.heuristics.cost_per_plan + work
        else:
            self._free_plan_step = self._credited_steps + self.replan_interval()
        return work

    def buy_gaps(self, columns: Longs) -> tuple[list[int], float]:
        """Pay for the action gaps of these columns as far as there are tokens; return them and the cost of one."""
        h, bought = self.heuristics, []
        work = h.cost_per_plan + h.gap_cost_cubic * self.n_states**3 + h.gap_cost_quadratic * self.n_states**2
        for j in columns.tolist():
            if not self.gaps.has_tokens:
                break
            self.gaps.tokens -= work
            bought.append(j)
        return bought, work

    def state(self) -> dict[str, Any]:
        """Return the facts of a checkpoint."""
        return {
            "tokens": [float(bucket.tokens) for bucket in (self.sweeps, self.duals, self.gaps)],
            "credited_steps": self._credited_steps,
            "free_plan_step": self._free_plan_step,
            "hops_counted_at": self.hops_counted_at,
            "rollouts": self._n_rollouts,
        }

    def restore(self, facts: dict[str, Any]) -> None:
        """Invert :meth:`state`."""
        self.sweeps.tokens, self.duals.tokens, self.gaps.tokens = map(float, facts["tokens"])
        self._credited_steps, self._free_plan_step = float(facts["credited_steps"]), float(facts["free_plan_step"])
        self.hops_counted_at, self._n_rollouts = facts["hops_counted_at"], facts["rollouts"]


# Which goals next. Compiled loops, because a small run asks thousands of times, and one NumPy call takes as long as a
# loop over a thousand columns. D, E, stale and polished are rows [columns].


@compiled
def stale_candidates(stale, wanted, D, E, L, epsilon):  # type: ignore[no-untyped-def]
    """Return the stale columns that are open or ``wanted`` [columns], and which of them are wanted; none if none is."""
    columns, first, any_wanted = np.empty(len(D), np.int64), np.empty(len(D), np.bool_), False
    n = 0
    for j in range(len(D)):
        mine = stale[j] and j < len(wanted) and wanted[j]
        if mine or (stale[j] and D[j] <= L and E[j] > epsilon):
            columns[n], first[n] = j, mine
            any_wanted |= mine
            n += 1
    n = n if any_wanted else 0
    return columns[:n], first[:n]


@compiled
def columns_due_for_duals(block, steps, D, E, polished, L, epsilon, urgent, growth):  # type: ignore[no-untyped-def]
    """Return the open columns of ``block`` whose last exact duals are old enough.

    They are if the steps have grown by the first number of ``growth``; by the second if the error is less than the
    share ``urgent`` of the largest.
    """
    largest, due, n = 0.0, np.empty(len(block), np.int64), 0
    for j in range(len(D)):
        if D[j] <= L:
            largest = max(largest, E[j])
    for j in block:
        factor = growth[1] if E[j] < urgent * largest else growth[0]
        if D[j] <= L and E[j] > epsilon and steps >= factor * polished[j]:
            due[n] = j
            n += 1
    return due[:n]
