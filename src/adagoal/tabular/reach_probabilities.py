"""Bounds on the probability of reaching a goal within k steps, with policies (docs/probabilities.md).

The loop minimises a cost D with an error E, within a radius L. Here the cost of a policy is the probability that it
misses the goal within k steps, so that the rule and the stop of the paper apply word by word:

    D = 1 - U,    L = 1 - p,    E = U - W,    "D <= L and E > epsilon"  is  "U >= p and U - W > epsilon"

Only D, E and L are costs: they are for the loop. ``distance_bounds``, which become the certificates, are (W, U).

:class:`RestartedBalls` are the confidence sets of the method ``certified`` (docs/theory-more.md, lemma P1). Lemma 2
restarts at every new successor and then pays (o - 1)/2 ln n for not knowing where the truth lies. Here a pair restarts
again whenever it has been tried eight times as often: the counts c0 before the restart become the prior, and the price
falls to (o - 1)/2 ln(n / |c0|) and the logarithm of the share of the restart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from adagoal.certified.confidence_sets import ConfidenceSets, PairCounts, observed_ball_radius, unseen_mass_bound
from adagoal.certified.uncertain_reset import wrong_reset_bound
from adagoal.core.array_types import Actions, Bools, Floats, Longs
from adagoal.core.compiled_code import compiled
from adagoal.core.environment import OTHER_GOALS, ExplorationPlan
from adagoal.core.errors import InputError
from adagoal.core.file_formats import (
    COUNT_SCHEMA,
    ArraySchema,
    ArraySpec,
    check_arrays,
    check_json_value,
    object_schema,
)
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import MAX_TRANSITIONS, TransitionCounts
from adagoal.planning.model_arrays import BLOCK_GOALS, EmpiricalModel, RobustModel
from adagoal.planning.robust_bounds import HorizonGoals, bound_probabilities

# A rollout ends when the steps of the run have grown by this share, or a pair has been tried this many times as often.
STEP_GROWTH, PAIR_GROWTH = 0.02, 2
# Exploration gives an episode up where the interval is at most this share of epsilon: little is left to learn there.
ENOUGH = 0.25
MAX_TABLE_ENTRIES = 2**31  # of a policy table: 4 GiB
RESTART_FACTOR = 8  # growth of n between two restarts: less costs shares of delta, more costs a larger regret
FIRST_RESTART = 64  # tries before the first restart, which a pair with few tries could not pay


def rounding_margin(within: int, n_successors: int) -> float:
    """Return a bound on the rounding error of the recursion over ``within`` steps (docs/theory-more.md).

    Without it, probability 1 would ask for a U of exactly 1, and a sum of frequencies may be 1 - 1e-16.

    >>> rounding_margin(50, 4) < 1e-12
    True
    """
    return within * (8 * n_successors + 32) * 2.0**-53


class KernelSets(Protocol):
    """Confidence sets of all pairs, valid at all times together with probability 1 - delta."""

    def update(self) -> bool:
        """Take in new counts; return False if the sets are as before."""

    def model(self) -> EmpiricalModel | RobustModel:
        """Return the sets in the form that the recursion reads."""

    def next_counts(self) -> Longs | None:
        """Return [X] the counts at which a rollout must end; None if any counts will do."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON facts for a checkpoint."""

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved state, on restored counts."""


class ReachProbabilities:
    """Bounds on the largest probability of reaching each goal within ``within`` steps, and a policy for each.

    Goals never seen share column 0. ``avoided`` returns the states to avoid, as a mask of the given length.
    ``reset_log`` is ln(1/delta') of the event that the reset leads to the start (lemma 10); None if it surely does.
    """

    guarantee = True

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **dict.fromkeys(("explore", "proven"), ArraySpec("int16", ("k", "R", "C"), low=0, high="A")),
        **dict.fromkeys(("missed", "failed"), ArraySpec("float64", ("C",), low=0, high=1)),
        "goal_state": ArraySpec("int64", ("C",), low=-1, below="N"),
        "column": ArraySpec("int64", ("N",), low=0, below="C"),
        "stale": ArraySpec("bool", ("C",)),
    }

    def __init__(
        self,
        name: str,
        counts: TransitionCounts,
        sets: KernelSets,
        space: GoalSpace,
        within: int,
        probability: float,
        epsilon: float,
        avoided: Callable[[int], Bools],
        reset_log: float | None = None,
    ) -> None:
        self.name, self.counts, self.sets, self.space, self.within = name, counts, sets, space, within
        self.L, self.epsilon, self.plans = 1.0 - probability, epsilon, 0
        self._avoided, self._reset_log = avoided, reset_log
        # In states never seen every action may be absent, so the tables give up there.
        gives_up = np.full((within, counts.n_states, 1), counts.n_actions, np.int16)
        self.explore: Actions = gives_up  # [k, S, columns] greedy for U
        self.proven: Actions = gives_up.copy()  # [k, S, columns] greedy for W, when W was best
        self.missed: Floats = np.zeros(1)  # [columns] 1 - U at the start
        self.failed: Floats = np.ones(1)  # [columns] 1 - W at the start
        self.goal_state: Longs = np.full(1, -1)
        self.stale: Bools = np.ones(1, bool)
        self._n_absent_in_start = 0  # at the last update
        self.column: Longs = np.zeros(0, np.int64)
        self._sync_with_counts()

    @property
    def goals(self) -> Longs:
        """The goals [G] that ``column`` has; the goal space may have more, found since the last plan."""
        numbers = self.space.goal_numbers
        return numbers[numbers < len(self.column)]

    @property
    def _reset_q(self) -> float:
        """Bound on the probability that a reset, with which an attempt begins, leads elsewhere (lemma 10)."""
        return 0.0 if self._reset_log is None else wrong_reset_bound(self._reset_log, self.counts.n_resets)

    def _holds_start(self, goals: Longs) -> Bools:
        return self.space.contains_state(self.counts.start, goals) & (goals >= 0)

    @property
    def _upper_cost(self) -> Floats:
        return 1.0 - (1.0 - self.failed) * (1.0 - self._reset_q)

    @property
    def D(self) -> Floats:
        """Lower bounds on the least probability of missing the goal [columns]; infinite if no goal has the column."""
        D: Floats = np.maximum(self.missed - self._reset_q, 0.0)
        D[0] = np.inf if len(D) > self.space.goal_bound else D[0]
        return D

    @property
    def E(self) -> Floats:
        """Errors [columns]: U - W."""
        return np.maximum(self._upper_cost - np.minimum(self.D, 1.0), 0.0)

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """(W, U): the policy reaches the goal with probability W at least, no policy with more than U."""
        j = self.column[goal]
        return float(1.0 - self._upper_cost[j]), float(min(1.0 - self.missed[j] + self._reset_q, 1.0))

    def goal_policy(self, goal: int) -> Actions:
        """Return the policy [k, S] that the upper cost is proved for."""
        return np.ascontiguousarray(self.proven[:, :, self.column[goal]])

    def refresh_columns(self, wanted: Bools) -> bool:
        """Plan a block of open goals, those with the largest errors, if one of ``wanted`` is out of date."""
        self._sync_with_counts()
        wanted = np.pad(wanted, (0, len(self.stale) - len(wanted)))
        if not (self.stale & wanted).any():
            return False
        D, E = self.D, self.E
        # Others that are open fill the block: they cost nothing, and will be wanted next.
        rank = np.where(self.stale, np.where(wanted, 2.0, np.where((D <= self.L) & (E > self.epsilon), E, -1.0)), -1.0)
        block = np.argsort(-rank, kind="stable")[:BLOCK_GOALS]
        self._plan_block(np.sort(block[rank[block] >= 0]))
        return True

    def finalize(self, wanted: Bools) -> None:
        """Plan the wanted columns with all counts."""
        self._sync_with_counts()
        todo = np.flatnonzero(self.stale & np.pad(wanted, (0, len(self.stale) - len(wanted))))
        for first in range(0, len(todo), BLOCK_GOALS):
            self._plan_block(todo[first : first + BLOCK_GOALS])

    def exploration_plan(self) -> ExplorationPlan:
        """Return the policies of U."""
        c = self.counts
        steps = int(c.visits.sum())
        thresholds = self.sets.next_counts()
        if thresholds is None:
            thresholds = np.maximum(PAIR_GROWTH * c.n, steps // 1000 + 16)
        max_steps = max(int(STEP_GROWTH * steps), 500)
        own = np.append(np.where(self.column > 0, np.arange(len(self.column)), OTHER_GOALS), -1)
        # A state to avoid never counts as reached.
        goals_of_states = np.where(
            self._avoided(c.n_states)[:, None], -1, own[self.space.goals_of_states[: c.n_states]]
        )
        # Nor does the start: a goal that holds it is tried only to learn about the reset, by taking it.
        goals_of_states[c.start] = -1
        return ExplorationPlan(
            self.explore,
            self.goal_state,
            self.within,
            thresholds,
            goals_of_states,
            max_steps,
            reset_ends_episode=True,
            counts_steps_since_reset=not self.space.members_complete,
        )

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the states to avoid [S]."""
        return {"avoided": self._avoided(self.counts.n_states)}

    def _sync_with_counts(self) -> None:
        """Add states and goals that were found, and take in new counts."""
        c, old = self.counts, self.explore.shape[1]
        self.space.grow_states(c.n_states)
        self.column = np.pad(self.column, (0, self.space.n_goal_numbers - len(self.column)))
        if c.n_states > old:
            room = ((0, 0), (0, c.n_states - old), (0, 0))
            self.explore, self.proven = (
                np.pad(table, room, constant_values=c.n_actions) for table in (self.explore, self.proven)
            )
        found = np.unique(self.space.goals_of_states[: c.n_states][c.seen])
        new = [g for g in found[found >= 0] if self.column[g] == 0]
        if new:
            self._add_columns(new)
        # The mask of the start becomes known without a transition.
        n_absent = c.n_absent_in_start
        if self.sets.update() or new or n_absent != self._n_absent_in_start:
            self.stale[:], self._n_absent_in_start = True, n_absent

    def _add_columns(self, goals: list[int]) -> None:
        columns = len(self.missed) + len(goals)
        if self.explore[:, :, 0].size * columns > MAX_TABLE_ENTRIES:
            k, S = self.explore.shape[:2]
            raise InputError(
                f"{k} steps, {S} states and {columns} goals need too large a table; give fewer goals", "goals"
            )
        self.column[goals] = np.arange(len(self.missed), columns)
        # A copy of column 0 is a bound for each goal that shared it.
        copies = np.append(np.arange(len(self.missed)), np.zeros(len(goals), int))
        for name in ("explore", "proven", "missed", "failed", "stale"):
            setattr(self, name, np.ascontiguousarray(getattr(self, name)[..., copies]))
        self.goal_state = np.append(self.goal_state, goals)
        # An attempt that begins in the start reaches it at once.
        self.failed[self._holds_start(self.goal_state)] = 0.0

    def _plan_block(self, block: Longs) -> None:
        c = self.counts
        avoided = self._avoided(c.n_states)
        position = np.full(len(self.missed), -1)
        position[block] = np.arange(len(block))
        # Column 0 has no states here: its goals lie among successors that were never seen.
        at = np.append(np.where(self.column > 0, position[self.column], -1), -1)[
            self.space.goals_of_states[: c.n_states]
        ]
        goals = HorizonGoals(at, np.flatnonzero(c.seen), c.terminal | avoided, avoided, c.absent, ENOUGH * self.epsilon)
        tables = np.full((2, self.within, c.n_states, len(block)), c.n_actions, np.int16)
        model = self.sets.model()
        U, W = bound_probabilities(model, goals, *tables)
        margin = rounding_margin(self.within, model.successor.shape[1])
        U, W = np.minimum(U + margin, 1.0), np.maximum(W - margin, 0.0)
        self.explore[:, :, block] = tables[0]
        self.explore[:, c.start, self._holds_start(self.goal_state)] = c.n_actions
        # The bounds of every plan hold together, so the best of all plans are kept.
        self.missed[block] = np.maximum(self.missed[block], 1.0 - U)
        better = 1.0 - W <= self.failed[block]
        self.failed[block[better]] = 1.0 - W[better]
        self.proven[:, :, block[better]] = tables[1][:, :, better]
        self.stale[block] = False
        self.plans += 1

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the bounds, the policies and the state of the sets."""
        arrays, facts = self.sets.state()
        return arrays | {name: getattr(self, name) for name in self.ARRAY_SCHEMA}, {"plans": self.plans, "sets": facts}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`, on restored counts."""
        check_json_value(object_schema(plans=COUNT_SCHEMA, sets={"type": "object"}), facts)
        c, own = self.counts, {name: arrays[name] for name in self.ARRAY_SCHEMA if name in arrays}
        sizes = check_arrays(self.ARRAY_SCHEMA, own, {"A": c.n_actions, "k": self.within})
        self.space.grow_states(c.n_states)
        shown = np.flatnonzero(own["column"])
        # Compiled loops do not check indices. A forged checkpoint must not make them read outside of the tables.
        if not (
            sizes["R"] <= c.n_states
            and sizes["N"] <= self.space.n_goal_numbers
            and own["goal_state"][0] == -1
            and len(shown) == sizes["C"] - 1
            and np.array_equal(own["goal_state"][own["column"][shown]], shown)
        ):
            raise ValueError("the columns and the goals do not belong together")
        for name, array in own.items():
            setattr(self, name, np.array(array))
        self.plans = facts["plans"]
        # Before the first count the saved plans may be older than the mask of the start.
        self._n_absent_in_start = c.n_absent_in_start if c.n.any() else 0
        self.sets.restore(arrays, facts["sets"])


class RestartedBalls(ConfidenceSets):
    """Confidence sets whose balls use the counts since one of the last two restarts."""

    uses_lemma_1 = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        X, K = self.counts.successor.shape
        # [2, X, K] counts at the restart in use, and at the next one; [3, X] their numbers, and the support of both
        self.prior_counts: Longs = np.zeros((2, X, K), np.int64)
        self.restarts: Longs = np.zeros((3, X), np.int64)

    def compute_radii(self, pairs: Longs, threads: Executor | None) -> None:
        """Restart pairs that are due, and compute their balls and unseen mass again."""
        c = self.counts
        tally = PairCounts(c.count, c.recent, c.support, c.n, c.settled)
        logs = self.union_logs, self._pair_logs
        update_restarted_radii(pairs, tally, self.prior_counts, self.restarts, *logs, self.branching, self._radii)

    def grow_arrays(self) -> None:
        """Follow the counts to more pairs and successors."""
        super().grow_arrays()
        old, new = self.prior_counts.shape[1:], self.counts.successor.shape
        if old != new:
            room = (0, new[0] - old[0])
            self.prior_counts = np.pad(self.prior_counts, ((0, 0), room, (0, new[1] - old[1])))
            self.restarts = np.pad(self.restarts, ((0, 0), room))

    def update(self) -> bool:
        """Take in new counts; return False if nothing was counted since the last update."""
        return self.update_radii()

    def next_counts(self) -> None:
        """Return None: the events hold at all times, so any counts will do."""

    def model(self) -> EmpiricalModel:
        """Return centres, radii and unseen mass of all pairs."""
        return self.empirical_model()

    FACTS_SCHEMA: ClassVar[dict[str, Any]] = object_schema(**ConfidenceSets.FACT_SCHEMAS)
    RESTART_SCHEMA: ClassVar[ArraySchema] = {
        "prior_counts": ArraySpec("int64", (2, "X", "K"), low=0, high=MAX_TRANSITIONS),
        "restarts": ArraySpec("int64", (3, "X"), low=0, high=1000),
    }

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return what cannot be computed from the counts."""
        arrays, facts = super().state()
        return arrays | {"prior_counts": self.prior_counts, "restarts": self.restarts}, facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`, on restored counts."""
        check_json_value(self.FACTS_SCHEMA, facts)
        super().restore(arrays, facts)
        sizes = check_arrays(self.RESTART_SCHEMA, arrays)
        X, K = sizes["X"], sizes["K"]
        prior, counts = arrays["prior_counts"], self.counts.count
        if X > len(counts) or K > counts.shape[1] or (prior > counts[:X, :K]).any():
            raise ValueError("the restarts do not fit the counts")
        self.prior_counts[:, :X, :K], self.restarts[:, :X] = prior, arrays["restarts"]


@compiled
def update_restarted_radii(pairs, tally, prior, restarts, logs, pair_logs, branching, out):  # type: ignore[no-untyped-def]
    """Restart these pairs if due, and write their frequencies and radii into ``out`` (PairRadii)."""
    recent, settled = tally.recent.copy(), tally.settled.copy()
    own = PairCounts(tally.counts, recent, tally.support, tally.n, settled)
    for x in pairs:
        n, o = tally.n[x], tally.support[x]
        if n == 0:
            continue
        if restarts[2, x] != o:
            # A new successor: the counts with it are the prior of the first ball for o successors.
            prior[0, x] = prior[1, x] = tally.counts[x] - tally.recent[x]
            restarts[0, x], restarts[1, x], restarts[2, x] = 0, 0, o
        elif n >= max(FIRST_RESTART, RESTART_FACTOR * prior[1, x].sum()):
            prior[0, x], restarts[0, x] = prior[1, x], restarts[1, x]
            prior[1, x], restarts[1, x] = tally.counts[x], restarts[1, x] + 1
        recent[x], settled[x] = tally.counts[x] - prior[0, x], prior[0, x].sum()
        fresh = n - settled[x]
        for k in range(o):
            out.p[x, k] = tally.counts[x, k] / n
            out.p_split[x, k] = recent[x, k] / fresh if fresh > 0 else out.p[x, k]
        # The j-th restart, from 0, has the share 1 / ((j + 1)(j + 2)) of the event of its pair and support.
        share = math.log((restarts[0, x] + 1.0) * (restarts[0, x] + 2.0))
        out.r[x] = observed_ball_radius(x, own, logs[1] + pair_logs[x] + share)
        out.q[x] = unseen_mass_bound(n - tally.settled[x], o, logs[2] + pair_logs[x]) if o < branching else 0.0
