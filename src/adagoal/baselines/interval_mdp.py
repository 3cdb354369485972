"""Interval MDPs and L1 balls (Hoeffding, Clopper-Pearson, Weissman, betting) with robust value iteration.

Loop, goal rule, optimistic policies and stopping rule are those of the certified method
(:mod:`adagoal.certified.explorer`). Two things differ: the sets of kernels (:class:`FixedSampleSets`), and that there
are bounds on values only, no action gaps:

    D_g      from  V <- max(V, T_low V)
    upper_g  from  Y <- min(Y, T_up Y),   for the policy that attains it       (:mod:`adagoal.planning.robust_bounds`)
    E_g      = upper_g - D_g    if D_g <= L; C = L + 1 + epsilon stands for upper_g while there is no policy

The sets contain the true kernel at all times with probability 1 - delta, so lemmas 5 and 6 and the consequence of the
theorem in docs/theory.md apply word by word: a run that stops by its rule is certified.

*Fixed sample sizes.* A pair x is *sampled* when its number n of transitions is on a grid: 1, 2, 4, ..., 64, and then a
fifth more each time. Between two grid points the last sample is used. A union over the grid pays for all stopping
times: the k-th point has the share 6 / (pi k)^2 of delta. With X = S A pairs and at most b successors of a pair,

    hoeffding        |p - p_hat| <= sqrt(ln(2 / t) / (2 n))                         t = delta / (X b) * 6 / (pi k)^2
    clopper-pearson  p lies between the exact ends, each of which fails with probability t / 2
    weissman         ||p - p_hat||_1 <= sqrt(2 ln((2^b - 2) / t) / n)               t = delta / X * 6 / (pi k)^2

*Any sample size.* One bound needs no grid. Each transition is a coin, and a gambler bets against every probability y
of it with a mixture: half of the wealth on the Krichevsky-Trofimov mixture KT over all coins, a quarter each on "never"
and "always". The wealth is a martingale of mean one, so by Ville's inequality, for all n at once,

    betting          n kl(p_hat, y) <= ln(X b / delta) + c ln p_hat + (n - c) ln(1 - p_hat)
                                       - ln( KT(c, n - c) / 2 + [c = 0] / 4 + [c = n] / 4 )

It pays ln(n) / 2 where the grid pays 2 ln k and a lag, and a constant for successors that never or always come.

The intervals are those of single transitions. Unobserved successors have the intervals of no success in n trials, and
together at most the mass that the lower ends of the others leave.

*Checked*, in code that the authors or their successors published: the two-sided Hoeffding interval with delta over the
number of transitions (``PACIntervalEstimator`` of the tool of Suilen et al. 2022, "Robust anytime learning of Markov
decision processes"); delta / (X b) for a bound b on the successors, and that the mass that the lower ends leave may go
anywhere (``Grey`` and ``Black`` of Ashok, Kretinsky, Weininger 2019, "PAC statistical model checking for Markov
decision processes and stochastic games", where b is also given as 1 / p_min); the series 6 / (pi k)^2 over rounds of
sampling (the mean-payoff tool of Agarwal et al. 2022). Only the abstracts of the papers could be opened. *Recalled:*
that Meggendorfer, Weininger, Wienhoeft (2024, "What are the odds?") recommend Clopper and Pearson's interval; the bound
of Weissman et al. (2003). *Ours:* the grid, and the betting intervals; Kueffner et al. (2026, arXiv 2606.25797, of
which we read the abstract) argue for confidence sequences in this place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.certified.confidence_sets import interval_end
from adagoal.certified.goal_table import GoalTable
from adagoal.core.array_types import Actions, Bools, Floats, Longs
from adagoal.core.confidence_bounds import clopper_pearson_bounds
from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.errors import InputError
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import MAX_TRANSITIONS, TransitionCounts
from adagoal.planning.model_arrays import BLOCK_GOALS, RobustModel
from adagoal.planning.robust_bounds import improve_robust_bounds


class IntervalEstimates(GoalTable):
    """Robust bounds for all goals."""

    name = "intervals"
    guarantee = True

    def __init__(
        self,
        counts: TransitionCounts,
        state_bound: int,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace | None = None,
        bound: str = "betting",
        branching: int | None = None,
        pairs: int | None = None,
    ) -> None:
        super().__init__(counts, L, epsilon, space or GoalSpace.from_states(counts.n_states, state_bound))
        pairs = pairs or state_bound * counts.n_actions
        self.sample_sets = FixedSampleSets(counts, pairs, delta, branching or state_bound, bound)
        self._n_absent_in_start = 0  # at the last update
        self._sync_with_counts()

    def goal_policy(self, goal: int) -> Actions:
        """Return the certified policy [1, S], or the optimistic one before there is a certificate."""
        return self.proven_policy(goal, self.best)

    def refresh_columns(self, wanted: Bools) -> bool:
        """Update a block of ``wanted`` [columns]; return False if none of them was stale."""
        self._sync_with_counts()
        # The rule has not seen columns that were added since; it will be asked again.
        wanted = np.pad(wanted, (0, len(self.D) - len(wanted)))
        todo = np.flatnonzero(self.stale & wanted)
        if not len(todo):
            return False
        worst_first = todo[np.argsort(-self.E[todo], kind="stable")]
        self._sweep_block(np.sort(worst_first[:BLOCK_GOALS]))
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """Return the optimistic policies, until a pair reaches its next grid point."""
        thresholds, at = self.sample_sets.next_sample_counts, self.space.goals_of_states
        # The first step makes the mask of the start known, and then another plan is due.
        max_steps = NO_LIMIT if self.counts.visits.any() else 1
        limits = self.max_episode_steps, thresholds
        endless = not self.space.members_complete
        return ExplorationPlan(
            self.optimistic[None], self.goal_state, *limits, at, max_steps, counts_steps_since_reset=endless
        )

    def set_radius(self, L: float, stage: int) -> None:
        """Continue with a larger radius (label ``cor_UB_increasingL``); the sets of kernels do not depend on it."""
        self.widen_radius(L, ~np.isfinite(self.upper))

    def _sync_with_counts(self) -> None:
        """Add new states and goals, and sample pairs that have reached a grid point."""
        self.grow()
        # The mask of the start becomes known without a transition.
        n_absent = self.counts.n_absent_in_start
        if self.sample_sets.update() or n_absent != self._n_absent_in_start:
            self.stale[:], self._n_absent_in_start = True, n_absent

    def _sweep_block(self, block: Longs) -> None:
        """Update both bounds of the columns of the block."""
        model, start = self.sample_sets.model(), self.counts.start
        # At most 20 sweeps: the next plan continues from these bounds.
        setting = self.goal_block(block, True, max_sweeps=20, tolerance=1e-3)
        V, optimistic = improve_robust_bounds(model, setting, self.V[:, block], self.optimistic[:, block], True)
        Y, best = improve_robust_bounds(model, setting, self.Y[:, block], self.best[:, block], False)
        self.V[:, block], self.optimistic[:, block], self.Y[:, block], self.best[:, block] = V, optimistic, Y, best
        self.D[block] = np.maximum(self.D[block], V[start])
        self.upper[block] = np.where(Y[start] <= self.cap - 1.0, Y[start], np.inf)
        self.stale[block] = False
        self.plans += 1

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the bounds and the samples."""
        return self.table_state() | self.sample_sets.state()[0], {"plans": self.plans}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`, on restored counts."""
        check_json_value(object_schema(plans=COUNT_SCHEMA), facts)
        self.restore_table(arrays)
        self.sample_sets.restore(arrays, {})
        self.plans = facts["plans"]
        # Before the first count the saved plans may be older than the mask of the start.
        self._n_absent_in_start = self.counts.n_absent_in_start if self.counts.n.any() else 0


def _make_sample_grid() -> Longs:
    # Fixed beforehand, for each pair by itself: its first n_k transitions are independent draws, and n_k is not random.
    # So bounds for a fixed sample size hold, whatever rule chose when to try the pair and when to stop. The
    # rounds of the papers count all samples: n is random within a round, and these bounds do not strictly apply.
    points = [1]
    while points[-1] < MAX_TRANSITIONS:
        points.append(2 * points[-1] if points[-1] < 64 else points[-1] * 6 // 5)
    return np.array(points)


SAMPLE_GRID = _make_sample_grid()  # the numbers of transitions at which a pair is sampled


class IntervalEnds(NamedTuple):
    """Confidence sets of some pairs; the fields are those of :class:`~adagoal.planning.model_arrays.RobustModel`."""

    low: Floats
    high: Floats
    q: Floats
    moved: Floats


def hoeffding_ends(c: Longs, n: Longs, log: Floats, b: int) -> IntervalEnds:
    """Hoeffding intervals of pairs with counts c [m, K] and n [m]; log [m] is ln(1 / (t b)), b the branching."""
    width = np.sqrt((log + math.log(2 * b)) / (2 * n))
    p = c / n[:, None]
    return _make_interval_ends(c, np.maximum(p - width[:, None], 0.0), np.minimum(p + width[:, None], 1.0), width, b)


def clopper_pearson_ends(c: Longs, n: Longs, log: Floats, b: int) -> IntervalEnds:
    """Clopper-Pearson intervals, with the arguments of :func:`hoeffding_ends`."""
    tail = np.exp(-(log + math.log(2 * b)))
    low, high = clopper_pearson_bounds(c, n[:, None], tail[:, None])
    # p lies between the ends but for rounding, and mass would be moved the wrong way.
    p = c / n[:, None]
    return _make_interval_ends(c, np.minimum(low, p), np.maximum(high, p), clopper_pearson_bounds(0, n, tail)[1], b)


def weissman_ball(c: Longs, n: Longs, log: Floats, b: int) -> IntervalEnds:
    """L1 balls, with the arguments of :func:`hoeffding_ends`."""
    # log(2^b - 2), written so that 2^b does not overflow; a single successor is certain.
    subsets = b * math.log(2.0) + math.log1p(-(2.0 ** (1 - b))) if b > 1 else -math.inf
    moved = np.sqrt(np.maximum(log + subsets, 0.0) / (2 * n))
    anything = np.where((c > 0).sum(axis=1) < b, 1.0, 0.0)
    return IntervalEnds(np.zeros(c.shape), np.ones(c.shape), anything, moved)


def betting_ends(c: Longs, n: Longs, log: Floats, b: int) -> IntervalEnds:
    """Intervals by betting, valid for all n at once, with the arguments of :func:`hoeffding_ends`."""
    low, high = _betting_interval(c, n[:, None], log[:, None] + math.log(b))
    unseen = _betting_interval(np.zeros_like(n), n, log + math.log(b))[1]
    return _make_interval_ends(c, low, high, unseen, b)


def _betting_interval(c: Longs, n: Longs, log: Floats) -> tuple[Floats, Floats]:
    from scipy.special import gammaln, xlogy

    p = c / n
    mixture = gammaln(c + 0.5) + gammaln(n - c + 0.5) - gammaln(n + 1.0) - math.log(math.pi)
    # A quarter of the wealth is on "never" and on "always", and one of them may still be there.
    wealth = np.logaddexp(mixture - math.log(2.0), np.where((c == 0) | (c == n), -math.log(4.0), -np.inf))
    radius = np.maximum(log - wealth + xlogy(c, p) + xlogy(n - c, 1.0 - p), 0.0) / n
    return interval_end(p, radius, 0.0), interval_end(p, radius, 1.0)


def _make_interval_ends(c: Longs, low: Floats, high: Floats, unseen: Floats, b: int) -> IntervalEnds:
    """Intervals of the observed successors, and the mass of all others, each of which has at most ``unseen`` [m]."""
    others = b - (c > 0).sum(axis=1)
    left = 1.0 - np.where(c > 0, low, 0.0).sum(axis=1)
    return IntervalEnds(low, high, np.maximum(np.minimum(left, others * unseen), 0.0), np.ones(len(c)))


INTERVAL_BOUNDS: dict[str, Callable[[Longs, Longs, Floats, int], IntervalEnds]] = {
    "hoeffding": hoeffding_ends,
    "clopper-pearson": clopper_pearson_ends,
    "weissman": weissman_ball,
    "betting": betting_ends,
}


class FixedSampleSets:
    """The confidence set of every pair, from its last sample."""

    def __init__(self, counts: TransitionCounts, pairs: int, delta: float, branching: int, bound: str) -> None:
        """``pairs`` bounds the number of pairs, ``branching`` the successors of each; ``bound``: INTERVAL_BOUNDS."""
        self.counts, self.branching, self._bound_function = counts, branching, INTERVAL_BOUNDS[bound]
        # Whether the bound holds for all sample sizes at once. The others pay for the grid.
        self._holds_always = bound == "betting"
        self._union_log = math.log(pairs / delta) + (0.0 if self._holds_always else math.log(math.pi**2 / 6))
        shape = counts.successor.shape
        self.sampled_counts: Longs = np.zeros(shape, np.int64)  # [X, K]: the counts at the last grid point
        self._interval_ends = IntervalEnds(np.zeros(shape), np.zeros(shape), np.ones(shape[0]), np.ones(shape[0]))

    @property
    def next_sample_counts(self) -> Longs:
        """Counts [X] at which the pairs are sampled next."""
        return SAMPLE_GRID[np.searchsorted(SAMPLE_GRID, self.counts.n, side="right")]

    def update(self) -> bool:
        """Sample the pairs that have reached a grid point; return False if no pair has."""
        counts = self.counts
        self._grow_arrays()
        # Pairs that do not exist get the reset, which is known.
        low, high, q, moved = self._interval_ends
        absent = counts.absent & (q > 0.0)
        low[absent, 0], high[absent, 0], q[absent], moved[absent] = 1.0, 1.0, 0.0, 0.0
        n = counts.n
        sampled = self.sampled_counts.sum(axis=1)
        # A bound that holds for every n allows an update at once, but 2% more tries are not worth the time.
        due = n >= 1.02 * sampled if self._holds_always else SAMPLE_GRID[np.searchsorted(SAMPLE_GRID, n)] == n
        pairs = np.flatnonzero(due & (n > sampled))
        if not len(pairs):
            return False
        if counts.support.max() > self.branching:
            text = f"branching={self.branching}: a pair with more successors was observed; give a larger number"
            raise InputError(text, name="method_args")
        self.sampled_counts[pairs] = counts.count[pairs]
        self._compute_ends(pairs)
        return True

    def next_counts(self) -> Longs | None:
        """Return the counts at which a pair must be sampled; None for any."""
        return None if self._holds_always else self.next_sample_counts

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the samples."""
        return {"sampled_counts": self.sampled_counts}, {}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`, on restored counts."""
        check_arrays({"sampled_counts": ArraySpec("int64", ("P", "K"), low=0, high=MAX_TRANSITIONS)}, arrays)
        self.restore_counts(arrays["sampled_counts"])

    def restore_counts(self, count: Longs) -> None:
        """Restore saved ``sampled_counts``."""
        counts = self.counts
        n, (pairs, width) = count.sum(axis=1), count.shape
        if not (
            pairs <= len(counts.n)
            and width <= counts.count.shape[1]
            and (count <= counts.count[:pairs, :width]).all()
            # Observed successors come first: at most one change from positive counts to zeros.
            and (np.diff(count > 0, axis=1).astype(int).sum(axis=1) <= (count[:, 0] > 0)).all()
            and (self._holds_always or np.isin(n, np.append(SAMPLE_GRID, 0)).all())
        ):
            raise ValueError("the samples do not fit the counts")
        self._grow_arrays()
        self.sampled_counts[:pairs, :width] = count
        self._compute_ends(np.flatnonzero(n))

    def model(self) -> RobustModel:
        """Return the sets in the form that sweeps read."""
        counts, n = self.counts, np.maximum(self.sampled_counts.sum(axis=1), 1)
        support = (self.sampled_counts > 0).sum(axis=1).astype(np.int32)
        p = self.sampled_counts / n[:, None]
        support[counts.absent], p[counts.absent, 0] = 1, 1.0
        low, high, q, moved = self._interval_ends
        return RobustModel(counts.successor, p, low, high, support, q, moved, counts.terminal, counts.start)

    def _compute_ends(self, pairs: Longs) -> None:
        c = self.sampled_counts[pairs]
        n = c.sum(axis=1)
        looks = 0.0 if self._holds_always else 2.0 * np.log(1.0 + np.searchsorted(SAMPLE_GRID, n))
        log = self._union_log + looks + np.zeros(len(n))
        for array, new in zip(self._interval_ends, self._bound_function(c, n, log, self.branching), strict=True):
            array[pairs] = new

    def _grow_arrays(self) -> None:
        """Follow the counts to more pairs and successors."""
        shape, old = self.counts.successor.shape, self.sampled_counts.shape
        if old == shape:
            return
        room = [(0, new - before) for new, before in zip(shape, old, strict=True)]
        self.sampled_counts = np.pad(self.sampled_counts, room)
        # Nothing is known about a new pair: all its mass may go anywhere.
        fill = (0.0, 0.0, 1.0, 1.0)
        self._interval_ends = IntervalEnds(
            *(np.pad(a, room[: a.ndim], constant_values=v) for a, v in zip(self._interval_ends, fill, strict=True))
        )
