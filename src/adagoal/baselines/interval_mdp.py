"""Interval MDPs and L1 balls with robust value iteration: what the model-checking community does, in the same loop.

Everything is as in the certified method (:mod:`adagoal.certified.explorer`), the loop, the goal rule, the optimistic
policies and the stopping rule, except for two things: what the counts say about the kernel
(:mod:`adagoal.baselines.interval_mdp` has the three bounds, and what they pay for), and that bounds on values are all
there is (no action gaps):

    D_g      from  V <- max(V, T_low V)
    upper_g  from  Y <- min(Y, T_up Y),   for the policy that attains it       (:mod:`adagoal.planning.robust_sweeps`)
    E_g      = upper_g - D_g,   with C = L + 1 + epsilon in place of upper_g where there is no policy yet

The sets hold the true kernel at all times with probability 1 - delta, so that lemmas 5 and 6 and the consequence of the
theorem in docs/theory.md apply word by word: a run that stops by its rule is certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.certified.goal_table import GoalTable
from adagoal.core.confidence_bounds import clopper_pearson_bounds
from adagoal.core.environment import ExplorationPlan
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
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.planning.model_arrays import BLOCK_GOALS, GoalBlock, RobustModel
from adagoal.planning.robust_sweeps import improve_robust_lower_bounds, improve_robust_upper_bounds

MAX_ROBUST_SWEEPS = 20
"""Sweeps per plan, at most; the next plan goes on from where this one stopped."""


class IntervalEstimates(GoalTable):
    """Robust bounds on shared counts; see the module's text."""

    name = "intervals"
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
        bound: str = "clopper-pearson",
        branching: int | None = None,
        pairs: int | None = None,
    ) -> None:
        super().__init__(counts, L + 1.0 + epsilon, space or GoalSpace.from_states(counts.n_states, state_bound))
        self.L, self.epsilon = L, epsilon
        pairs = pairs or state_bound * counts.n_actions
        self.sample_sets = FixedSampleSets(counts, pairs, delta, branching or state_bound, bound)
        self.plans = 0
        self._sync_with_counts()

    @property
    def E(self) -> Floats:
        """[columns] error estimates."""
        missing: Floats = np.maximum(np.minimum(self.upper, self.cap) - self.D, 0.0)
        return missing

    def goal_policy(self, goal: int) -> Actions:
        """[1, S] the policy that the certificate speaks of; the optimistic one as long as there is none."""
        return self.proven_policy(goal, self.best)

    def refresh_columns(self, wanted: Bools) -> bool:
        """Bring one block of ``wanted`` [columns] up to date; False if none of them was stale."""
        self._sync_with_counts()
        wanted = np.pad(wanted, (0, len(self.D) - len(wanted)))
        todo = np.flatnonzero(self.stale & wanted)
        if not len(todo):
            return False
        worst_first = todo[np.argsort(-self.E[todo], kind="stable")]
        self._sweep_block(np.sort(worst_first[:BLOCK_GOALS]))
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """The optimistic policies, until a pair is to be looked at."""
        limit = math.ceil(min(4 * self.cap * (self.L + 1) / self.epsilon, 2**62))
        return ExplorationPlan(
            self.optimistic[None],
            self.goal_state,
            limit,
            self.sample_sets.next_sample_counts,
            self.space.goals_of_states,
        )

    def set_radius(self, L: float, stage: int) -> None:
        """Go on with a larger radius (label ``cor_UB_increasingL``); the sets of kernels do not depend on it."""
        unfinished = ~np.isfinite(self.upper)
        self.L, self.cap = L, L + 1.0 + self.epsilon
        self.Y[:, unfinished], self.best[:, unfinished] = self.cap, self.counts.n_actions
        self.zero_at_goals(np.flatnonzero(unfinished))
        self.stale[:] = True

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    def _sync_with_counts(self) -> None:
        """Take in new counts: room for what is new, and new looks."""
        self.add_rows()
        self.add_columns()
        if self.sample_sets.update_sets():
            self.stale[:] = True

    def _sweep_block(self, block: Longs) -> None:
        """Both bounds of the columns of the block."""
        model, start, order = self.sample_sets.robust_model(), self.counts.start, np.flatnonzero(self.counts.seen)
        setting = GoalBlock(
            order, self.block_columns(block), self.cap, True, MAX_ROBUST_SWEEPS, tolerance=1e-3 * self.epsilon
        )
        V, optimistic = improve_robust_lower_bounds(model, setting, self.V[:, block], self.optimistic[:, block])
        Y, best = improve_robust_upper_bounds(model, setting, self.Y[:, block], self.best[:, block])
        self.V[:, block], self.optimistic[:, block], self.Y[:, block], self.best[:, block] = V, optimistic, Y, best
        self.D[block] = np.maximum(self.D[block], V[start])
        self.upper[block] = np.where(Y[start] <= self.cap - 1.0, Y[start], np.inf)
        self.stale[block] = False
        self.plans += 1

    SAMPLE_SCHEMA: ClassVar[ArraySchema] = {"look_count": ArraySpec("int64", ("P", "K"), low=0, high=MAX_TRANSITIONS)}
    FACTS_SCHEMA = object_schema(plans=COUNT_SCHEMA)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that the counts do not determine."""
        return self.table_state() | {"look_count": self.sample_sets.sampled_counts}, {"plans": self.plans}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`, on restored counts; the next plan takes them in as it would have."""
        check_json_value(self.FACTS_SCHEMA, facts)
        check_arrays(self.SAMPLE_SCHEMA, arrays)
        self.restore_table(arrays)
        self.sample_sets.restore_counts(arrays["look_count"])
        self.plans = facts["plans"]


# Confidence sets of the model-checking community, for bounds of a fixed sample size inside a loop that never ends.
#
# A pair x is *looked at* when the number n of its transitions is on a grid n_1 < n_2 < ... that is fixed beforehand: 1,
# 2, 4, ..., 64, and then a fifth more each time. Its first n_k transitions are independent draws, and their number is
# not random: bounds for a fixed sample size hold for them, whatever rule chose when to try x and when to stop. Between
# two looks the last one is used. So all stopping times are paid for by a union over the looks: the k-th has the share
# 6 / (pi k)^2 of delta. With X = S A pairs and at most b successors of a pair (S, unless the user knows better),
#
#     hoeffding        |p - p_hat| <= sqrt(ln(2 / t) / (2 n))                         t = delta / (X b) * 6 / (pi k)^2
#     clopper-pearson  p lies between the exact ends, each of which fails with probability t / 2
#     weissman         ||p - p_hat||_1 <= sqrt(2 ln((2^b - 2) / t) / n)               t = delta / X * 6 / (pi k)^2
#
# The intervals are those of single transitions. Successors not observed have the intervals of no success in n trials,
# and together not more than what the lower ends of the others leave.
#
# *Checked*, in code that the authors or their successors published: the two-sided Hoeffding interval with delta over
# the number of transitions (``PACIntervalEstimator`` of the tool of Suilen et al. 2022, "Robust anytime learning of
# Markov decision processes"); delta / (X b) for a bound b on the successors, and that what the lower ends leave may go
# anywhere (``Grey`` and ``Black`` of Ashok, Kretinsky, Weininger 2019, "PAC statistical model checking for Markov
# decision processes and stochastic games", where b is also given as 1 / p_min); the series 6 / (pi k)^2 over rounds of
# sampling (the mean-payoff tool of Agarwal et al. 2022). Of the papers themselves only abstracts could be opened.
# *Recalled:* that Meggendorfer, Weininger, Wienhoeft (2024, "What are the odds?") recommend Clopper and Pearson's
# interval; the bound of Weissman et al. (2003). *Ours:* the grid. Their rounds count all samples, so that n is random
# within a round and the fixed-sample bounds do not strictly apply; a grid per pair is the sound reading.


def _make_sample_grid() -> Longs:
    points = [1]
    while points[-1] < MAX_TRANSITIONS:
        points.append(2 * points[-1] if points[-1] < 64 else points[-1] * 6 // 5)
    return np.array(points)


SAMPLE_GRID = _make_sample_grid()
"""The numbers of transitions at which a pair is looked at."""


class IntervalEnds(NamedTuple):
    """The set of some pairs; the fields are those of :class:`~adagoal.planning.model_arrays.RobustModel`."""

    low: Floats
    high: Floats
    q: Floats
    moved: Floats


def hoeffding_ends(c: Longs, n: Longs, log: Floats, b: int) -> IntervalEnds:
    """Of pairs with the counts c [m, K] and n [m]; log [m] is ln(1 / (t b)), b the most successors of a pair."""
    width = np.sqrt((log + math.log(2 * b)) / (2 * n))
    p = c / n[:, None]
    return _make_interval_ends(c, np.maximum(p - width[:, None], 0.0), np.minimum(p + width[:, None], 1.0), width, b)


def clopper_pearson_ends(c: Longs, n: Longs, log: Floats, b: int) -> IntervalEnds:
    """The same."""
    tail = np.exp(-(log + math.log(2 * b)))
    low, high = clopper_pearson_bounds(c, n[:, None], tail[:, None])
    p = c / n[:, None]  # between the ends, but for rounding
    return _make_interval_ends(c, np.minimum(low, p), np.maximum(high, p), clopper_pearson_bounds(0, n, tail)[1], b)


def weissman_ball(c: Longs, n: Longs, log: Floats, b: int) -> IntervalEnds:
    """The same, with an L1 ball in place of intervals."""
    subsets = b * math.log(2.0) + math.log1p(-(2.0 ** (1 - b))) if b > 1 else -math.inf
    moved = np.sqrt(np.maximum(log + subsets, 0.0) / (2 * n))
    anything = np.where((c > 0).sum(axis=1) < b, 1.0, 0.0)
    return IntervalEnds(np.zeros(c.shape), np.ones(c.shape), anything, moved)


def _make_interval_ends(c: Longs, low: Floats, high: Floats, never: Floats, b: int) -> IntervalEnds:
    """Intervals of the listed successors; one that was never observed has at most ``never`` [m]."""
    others = b - (c > 0).sum(axis=1)
    left = 1.0 - np.where(c > 0, low, 0.0).sum(axis=1)
    return IntervalEnds(low, high, np.maximum(np.minimum(left, others * never), 0.0), np.ones(len(c)))


INTERVAL_BOUNDS: dict[str, Callable[[Longs, Longs, Floats, int], IntervalEnds]] = {
    "hoeffding": hoeffding_ends,
    "clopper-pearson": clopper_pearson_ends,
    "weissman": weissman_ball,
}


class FixedSampleSets:
    """The set of every pair, from its last look."""

    def __init__(self, counts: TransitionCounts, pairs: int, delta: float, branching: int, bound: str) -> None:
        """``pairs`` bounds the number of pairs, ``branching`` the successors of one; ``bound`` is one of BOUNDS."""
        self.counts, self.branching, self._bound_function = counts, branching, INTERVAL_BOUNDS[bound]
        self._union_log = math.log(pairs / delta) + math.log(math.pi**2 / 6)
        places = counts.successor.shape
        self.sampled_counts: Longs = np.zeros(places, np.int64)
        """[X, K] the counts at the last look, from which all else follows"""
        self._interval_ends = IntervalEnds(np.zeros(places), np.zeros(places), np.ones(places[0]), np.ones(places[0]))

    @property
    def next_sample_counts(self) -> Longs:
        """[X] the counts at which the pairs are looked at next."""
        return SAMPLE_GRID[np.searchsorted(SAMPLE_GRID, self.counts.n, side="right")]

    def update_sets(self) -> bool:
        """Look at the pairs whose time has come; False where there are none."""
        counts = self.counts
        self._grow_arrays()
        self._set_absent_pairs(np.flatnonzero(counts.absent & (self._interval_ends.q > 0.0)))
        n = counts.n
        on_grid = SAMPLE_GRID[np.searchsorted(SAMPLE_GRID, n)] == n
        pairs = np.flatnonzero(on_grid & (n > self.sampled_counts.sum(axis=1)))
        if not len(pairs):
            return False
        if counts.support.max() > self.branching:
            raise InputError(
                f"branching={self.branching}: a pair with more successors has been observed", name="method_args"
            )
        self.sampled_counts[pairs] = counts.count[pairs]
        self._compute_ends(pairs)
        return True

    def restore_counts(self, count: Longs) -> None:
        """The inverse of keeping ``count``."""
        counts = self.counts
        n, (pairs, places) = count.sum(axis=1), count.shape
        if not (
            pairs <= len(counts.n)
            and places <= counts.count.shape[1]
            and (count <= counts.count[:pairs, :places]).all()
            and (np.diff(count > 0, axis=1).astype(int).sum(axis=1) <= (count[:, 0] > 0)).all()
            and np.isin(n, np.append(SAMPLE_GRID, 0)).all()
        ):
            raise ValueError("the looks do not fit the counts")
        self._grow_arrays()
        self.sampled_counts[:pairs, :places] = count
        self._compute_ends(np.flatnonzero(n))

    def robust_model(self) -> RobustModel:
        """For the sweeps."""
        counts, n = self.counts, np.maximum(self.sampled_counts.sum(axis=1), 1)
        support = (self.sampled_counts > 0).sum(axis=1).astype(np.int32)
        p = self.sampled_counts / n[:, None]
        support[counts.absent], p[counts.absent, 0] = 1, 1.0
        low, high, q, moved = self._interval_ends
        return RobustModel(counts.successor, p, low, high, support, q, moved, counts.terminal, counts.start)

    def _compute_ends(self, pairs: Longs) -> None:
        c = self.sampled_counts[pairs]
        n = c.sum(axis=1)
        log = self._union_log + 2.0 * np.log(1.0 + np.searchsorted(SAMPLE_GRID, n))
        for kept, found in zip(self._interval_ends, self._bound_function(c, n, log, self.branching), strict=True):
            kept[pairs] = found

    def _set_absent_pairs(self, pairs: Longs) -> None:
        """Pairs that do not exist: each is the reset, of which all is known."""
        low, high, q, moved = self._interval_ends
        low[pairs, 0], high[pairs, 0], q[pairs], moved[pairs] = 1.0, 1.0, 0.0, 0.0

    def _grow_arrays(self) -> None:
        """Places for the pairs and the successors that the counts made room for."""
        shape, old = self.counts.successor.shape, self.sampled_counts.shape
        if old == shape:
            return
        room = [(0, new - before) for new, before in zip(shape, old, strict=True)]
        self.sampled_counts = np.pad(self.sampled_counts, room)
        nothing = (0.0, 0.0, 1.0, 1.0)
        self._interval_ends = IntervalEnds(
            *(np.pad(a, room[: a.ndim], constant_values=v) for a, v in zip(self._interval_ends, nothing, strict=True))
        )
