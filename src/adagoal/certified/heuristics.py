"""When to plan, for which goals, and how much: every scheduling decision of the certified explorer.

No certificate depends on this file. Bounds are valid whenever they are computed, for any goals and in any order, so
every number of :class:`Heuristics` may be changed without touching a proof.

Plans are paid in operations, and no clock is read: a run is the same on every machine. One operation is one successor
of one pair, read for one goal by a sweep with closed forms. It takes about a nanosecond. There are three kinds of
plans, each with a token bucket:

    sweeps   both bounds of a block of goals, with the closed forms of lemma 4
    duals    the same with exact duals
    gaps     the action gaps of one goal (lemmas 7 to 9), or hops to all open goals (lemma 12)

Every step of the agent adds the same number of tokens to each bucket. A plan may start while its bucket is not
negative; the cost is deducted afterwards. A small world lives on the initial tokens and plans as often as new counts
are worth a look. A large one spends them in its first seconds and then plans as fast as it steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from adagoal.core.file_formats import object_schema
from adagoal.planning.model_arrays import BLOCK_GOALS


@dataclass(frozen=True)
class WorldStrategy:
    """What depends on the number of states seen so far."""

    known_successor_balls: bool
    """Whether lower bounds use the ball of lemma 2 for pairs whose successors are all known. That ball may be wider,
    but it loses nothing for values far away, which pays only in large worlds."""
    upper_cap_factor: float
    """Upper bounds are cut at this multiple of C, at least 1. Above 1, a policy whose value they cannot bound by C yet
    may still get a better bound from its action gaps."""
    max_dual_error: float
    """Exact duals are solved for goals whose error is at most this many epsilons."""
    max_dual_step_growth: float
    """Exact duals wait at most until the step count has grown by this factor since the goal's last ones."""
    action_gaps: bool
    """Whether action gaps are computed and probed. They need a dense inverse [S, S]."""
    triangle: bool
    """Whether bounds are copied from neighbouring goals (lemma 13). Small worlds are swept until nothing changes."""
    several_blocks: bool
    """Whether one plan may have several blocks of goals, one per thread."""


SMALL_WORLD = WorldStrategy(
    known_successor_balls=False,
    upper_cap_factor=1.25,
    max_dual_error=np.inf,
    max_dual_step_growth=1.01,  # soon, because action gaps say where to try next
    action_gaps=True,
    triangle=False,
    several_blocks=False,
)
LARGE_WORLD = WorldStrategy(
    known_successor_balls=True,
    upper_cap_factor=1.0,
    max_dual_error=2.0,
    max_dual_step_growth=1.05,
    action_gaps=False,
    triangle=True,
    several_blocks=True,
)


@dataclass(frozen=True)
class Heuristics:
    """Every tuning number of the certified explorer."""

    small_world: WorldStrategy = SMALL_WORLD
    large_world: WorldStrategy = LARGE_WORLD
    max_small_states: int = 400
    """States seen up to which a world is small: a dense inverse takes S^3 operations."""

    # Token buckets, in operations
    tokens_per_step: float = 100.0
    """Tokens per step for each bucket: about half of what a step itself costs."""
    sweep_capacity: float = 1e9
    """Initial and largest number of tokens for sweeps: about a second."""
    dual_capacity: float = 2e8
    gap_capacity: float = 1e9
    cost_per_plan: float = 1e5
    """Cost of a plan of any size: blocks are copied and functions are called."""
    dual_cost: float = 20.0
    """Cost of one exact dual, in closed forms."""
    gap_cost_cubic: float = 0.1
    """Cost of the action gaps of one goal, per S^3: eliminations, which skip zeros."""
    gap_cost_quadratic: float = 40.0
    """Cost of the action gaps of one goal, per S^2: moments of all columns of the inverse."""
    hop_cost: float = 10.0
    """Cost of hops, per goal and pair: every pair is searched a few times."""

    # Time between plans, in steps
    min_replan_steps: int = 16
    """Fewest steps of a rollout: fewer new counts are not worth a look."""
    replan_step_divisor: int = 256
    """A rollout takes one step per this many steps before it. The agent backs up bounds on the way, so longer rollouts
    lose steps only to goals that no longer need them. One small plan per rollout is free: there are this many while
    the steps grow by a factor e."""

    # Size of a plan
    max_closed_form_sweeps: int = 4
    """Sweeps per plan; the next plan continues where this one stopped."""
    max_dual_sweeps: int = 2
    sweep_tolerance: float = 1e-3
    """Sweeps stop when no bound moves by this many epsilons."""
    min_threaded_work: float = 1e6
    """Operations of a plan from which threads pay."""
    min_split_work: float = 1e7
    """Operations of one block from which a plan in a large world has several."""
    max_blocks_per_plan: int = 8
    many_goals: int = 2048
    """Above this number of goals planning dominates the run time, if plans have several blocks."""
    many_goals_cost_factor: float = 0.1
    """Share of their cost that closed forms are charged then."""

    # Exact duals
    min_dual_step_growth: float = 1.01
    """Exact duals of a goal follow at the earliest when the step count has grown by this factor. Errors fall like
    1/sqrt(steps), so the factor shrinks from ``max_dual_step_growth`` to this one as the error approaches epsilon."""
    urgent_error_share: float = 0.9
    """Goals with less than this share of the largest error are not played yet, so their duals may wait."""
    deferred_dual_step_growth: float = 1.25
    """Growth of the step count that those duals wait for. It is finite, so runs that end early have useful bounds for
    these goals too."""

    # Probing of action gaps
    rare_probe_period: int = 10
    """One rollout of this many probes action gaps if the interval upper - D is the smaller bound."""
    frequent_probe_period: int = 3
    """All rollouts but one of this many probe them if the gap is the smaller bound."""
    gap_preference: float = 1.5
    """Gaps up to this multiple of the interval count as smaller: probing makes them so."""
    probe_horizon: float = 4.0
    """The probing policy looks ahead this many times as far as the longest way to the goal."""
    max_probe_sweeps: int = 30
    """Sweeps to find the probing policy; a nearly best policy probes as well."""

    # Hops (lemma 12)
    hop_step_growth: float = 1.02
    """Hops are counted again when the step count has grown by this factor."""
    hop_error_share: float = 0.5
    """Hops are counted until the error is this share of epsilon: an uncertain reset adds to it (lemma 10)."""
    hop_policy_error_share: float = 0.9
    """A policy along the fewest hops is recorded if it leaves at most this share of the error, or closes the goal."""

    # Neighbouring goals (lemma 13)
    min_triangle_gain: float = 0.1
    """Epsilons by which a neighbour must improve the bound of the start to be worth copying a row."""

    # The window of lemma 3b
    window_entry_factor: int = 4
    """A pair enters after this many times the tries at which any pair last surprised."""

    def strategy(self, n_states: int) -> WorldStrategy:
        """Return the strategy for a world of which this many states were seen."""
        return self.large_world if n_states > self.max_small_states else self.small_world


class TokenBucket:
    """Operations that may be spent on one kind of plan."""

    def __init__(self, capacity: float) -> None:
        self.capacity = self.tokens = capacity

    @property
    def has_tokens(self) -> bool:
        """Whether a plan may start: the bucket is not negative."""
        return self.tokens >= 0.0

    def refill(self, tokens: float) -> None:
        """Add tokens, up to the capacity."""
        self.tokens = min(self.tokens + tokens, self.capacity)

    def spend(self, cost: float) -> None:
        """Deduct the cost of a plan; the bucket may become negative."""
        self.tokens -= cost


class Schedule:
    """The token buckets of one run, and the sizes on which the cost of a plan depends."""

    FACTS_SCHEMA = object_schema(
        tokens={"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "number"}},
        credited_steps={"type": "number", "minimum": 0},
        free_plan_step={"type": "number", "minimum": 0},
    )

    def __init__(self, heuristics: Heuristics) -> None:
        self.heuristics = heuristics
        self.n_states = self.n_columns = self.n_transitions = 0
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
        for bucket in (self.sweeps, self.duals, self.gaps):
            bucket.refill(self.heuristics.tokens_per_step * (steps - self._credited_steps))
        self._credited_steps = steps

    @property
    def strategy(self) -> WorldStrategy:
        """The strategy for a world of this size."""
        return self.heuristics.strategy(self.n_states)

    @property
    def can_sweep(self) -> bool:
        """Whether a plan with closed forms may start: there are tokens, or a free plan is due.

        Steps towards goals whose bounds are out of date are wasted, so the goals to be played next get a free plan.
        """
        return self.sweeps.has_tokens or self._credited_steps >= self._free_plan_step

    def replan_interval(self) -> int:
        """Return the number of steps until the next look."""
        h = self.heuristics
        return max(h.min_replan_steps, int(self._credited_steps) // h.replan_step_divisor)

    def goals_per_plan(self, candidates: int) -> int:
        """Return the largest number of goals of the next plan: one block, or as many as the next rollout pays for.

        The number of cores does not matter: the run must be the same on every machine.
        """
        if not (self.sweeps.has_tokens and candidates >= BLOCK_GOALS and self.splits_plans):
            return BLOCK_GOALS
        earned = self.heuristics.tokens_per_step * self.replan_interval()
        return BLOCK_GOALS * int(np.clip(earned / self.sweep_cost(BLOCK_GOALS), 1, self.heuristics.max_blocks_per_plan))

    @property
    def splits_plans(self) -> bool:
        """Whether plans have several blocks, each a job for at least one thread."""
        return (
            self.strategy.several_blocks
            and self._operations(BLOCK_GOALS, self.heuristics.max_closed_form_sweeps) > self.heuristics.min_split_work
        )

    def sweep_cost(self, goals: int) -> float:
        """Return the cost of a plan with closed forms for this many goals."""
        h = self.heuristics
        dominates = self.n_columns > h.many_goals and self.splits_plans
        return self._operations(goals, h.max_closed_form_sweeps) * (h.many_goals_cost_factor if dominates else 1.0)

    def dual_cost(self, goals: int) -> float:
        """Return the cost of a plan with exact duals for this many goals."""
        return self._operations(goals, self.heuristics.max_dual_sweeps, self.heuristics.dual_cost)

    def _operations(self, goals: int, sweeps: int, cost: float = 1.0) -> float:
        return 2.0 * cost * sweeps * goals * self.n_transitions  # two bounds

    def spend_on_sweeps(self, work: float) -> None:
        """Pay for a plan with closed forms, or take the free plan."""
        if self.sweeps.has_tokens:
            self.sweeps.spend(self.heuristics.cost_per_plan + work)
        else:
            self._free_plan_step = self._credited_steps + self.replan_interval()

    def spend_on_duals(self, work: float) -> None:
        """Pay for a plan with exact duals."""
        self.duals.spend(self.heuristics.cost_per_plan + work)

    def spend_on_gaps(self) -> float:
        """Pay for the action gaps of one goal; return their cost."""
        h = self.heuristics
        work = h.cost_per_plan + h.gap_cost_cubic * self.n_states**3 + h.gap_cost_quadratic * self.n_states**2
        self.gaps.spend(work)
        return work

    def spend_on_hops(self, goals: int, pairs: int) -> None:
        """Pay for hops to this many goals over this many pairs."""
        self.gaps.spend(self.heuristics.cost_per_plan + self.heuristics.hop_cost * goals * pairs)

    def state(self) -> dict[str, Any]:
        """Return the facts of a checkpoint."""
        return {
            "tokens": [float(bucket.tokens) for bucket in (self.sweeps, self.duals, self.gaps)],
            "credited_steps": self._credited_steps,
            "free_plan_step": self._free_plan_step,
        }

    def restore(self, facts: dict[str, Any]) -> None:
        """Invert :meth:`state`."""
        self.sweeps.tokens, self.duals.tokens, self.gaps.tokens = map(float, facts["tokens"])
        self._credited_steps, self._free_plan_step = float(facts["credited_steps"]), float(facts["free_plan_step"])


# Which goals next. Compiled loops, because a small run asks thousands of times, and one NumPy call takes as long as a
# loop over a thousand columns. D, E, stale and polished are rows [columns].


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def select_foremost(columns, first, E, most):  # type: ignore[no-untyped-def]
    """Return at most ``most`` of the columns, in their order: those marked ``first``, then those of largest error."""
    chosen, n = np.empty(most + 1, np.int64), 0  # indices into columns, the best one first
    for i in range(len(columns)):
        k = n
        while k > 0:
            other = chosen[k - 1]
            if first[i] < first[other] or (first[i] == first[other] and E[columns[i]] <= E[columns[other]]):
                break
            chosen[k] = other
            k -= 1
        chosen[k], n = i, min(n + 1, most)
    taken, selected, m = np.zeros(len(columns), np.bool_), np.empty(n, np.int64), 0
    for k in range(n):
        taken[chosen[k]] = True
    for i in range(len(columns)):
        if taken[i]:
            selected[m] = columns[i]
            m += 1
    return selected


@numba.njit(cache=True, nogil=True)
def worst_column(D, E, L):  # type: ignore[no-untyped-def]
    """Return the column of largest error within the radius, the first one of several."""
    worst, most = 0, -np.inf
    for j in range(len(D)):
        error = E[j] if D[j] <= L else -1.0
        if error > most:
            worst, most = j, error
    return worst


@numba.njit(cache=True, nogil=True)
def columns_due_for_duals(block, steps, D, E, polished, L, epsilon, within, urgent, growth):  # type: ignore[no-untyped-def]
    """Return the open columns of ``block`` with an error of at most ``within`` whose last exact duals are old enough.

    They are if the steps have grown by the square of the error, in epsilons, clipped to the first two numbers of
    ``growth``; by the third if the error is less than the share ``urgent`` of the largest.
    """
    least, most, later = growth
    largest, due, n = 0.0, np.empty(len(block), np.int64), 0
    for j in range(len(D)):
        if D[j] <= L:
            largest = max(largest, E[j])
    for j in block:
        factor = later if E[j] < urgent * largest else min(max((E[j] / epsilon) ** 2, least), most)
        if D[j] <= L and epsilon < E[j] <= within and steps >= factor * polished[j]:
            due[n] = j
            n += 1
    return due[:n]
