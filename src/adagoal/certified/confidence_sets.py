"""Confidence sets of transition probabilities, valid with probability 1 - delta (docs/theory.md, lemmas 1-3).

A pair with n transitions has the counts c of its o observed successors. Since the o-th successor was found, n'
transitions came with the counts c'; c0 = c - c' came before. With the union logarithms l1, l2, l3 of the three lemmas,

    r_low = [ l1 + ln N_LEVELS ] / n                                                                   (lemma 1)
    r     = [ l2 + ln max(4, o(o-1) if o > 4) + sum_i c'_i ln(c'_i/n') - ln KT(c) + ln KT(c0) ] / n',
            KT(c) = Gamma(o/2) / Gamma(n + o/2) prod_i Gamma(c_i + 1/2) / Gamma(1/2)                    (lemma 2)
    q     = 1 - exp( -[l3 + ln o(o+1)] / n' ), and 0 if o is the known number of successors            (lemma 3a)

The smaller one of q and the bound of :class:`UnseenMassWindow` (lemma 3b) is used.

If the number of states is not declared, l1, l2 and l3 depend on the order in which states are discovered. If goals are
not fixed before the first transition, lower bounds use lemmas 2 and 3 instead of lemma 1 (lemma 14).

:class:`ConfidenceSets` is the seam for another confidence bound: a subclass with its own ``compute_radii``,
``improve_lower`` and ``improve_upper`` works in the explorer (tests/test_planning.py has one).
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.certified import sweeps
from adagoal.core.array_types import Actions, Bools, Floats, Ints, Longs
from adagoal.core.compiled_code import compiled, compiled_helper, run_jobs_in_threads
from adagoal.core.environment import NO_LIMIT
from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays
from adagoal.core.operators import N_LEVELS, LocalLowerBounds
from adagoal.core.transition_data import TransitionCounts
from adagoal.planning.model_arrays import EmpiricalModel

# Shares of delta of the events of lemmas 1, 2, 3a and 3b. They sum to one: all events hold together with 1 - delta.
DELTA_SHARES = (0.35, 0.35, 0.05, 0.25)
NO_DATA = 1e3  # radius of lemma 2 without data: useless, but finite
# Logarithm of an event that has no share of delta. The radius is useless, but finite: infinity times 0 is NaN.
NO_EVENT = 1e18
# Lemma 14: with the offset h, the k-th discovered state has the share h / ((k + h - 1)(k + h)) of delta. With h = 100
# the first state pays ln 101, the 100th ln 398, the 10,000th ln(1e6): little more than if their number had been known.
DISCOVERY_OFFSET = 100
# A pair enters the window of lemma 3b after this many times the tries at which any pair last surprised: its own
# successors are probably all known then, so it will not close the window.
WINDOW_ENTRY_FACTOR = 4
# Entry counts of pairs outside the window, and of pairs excluded for good: larger than any number of tries.
NOT_ENTERED, EXCLUDED = 2**62, 2**62 + 1


class PairCounts(NamedTuple):
    """The arrays of :class:`~adagoal.core.transition_data.TransitionCounts` that the radii depend on."""

    counts: Longs  # [X, K] c
    recent: Longs  # [X, K] c'
    support: Ints  # [X] o
    n: Longs  # [X]
    settled: Longs  # [X] n - n'


class PairRadii(NamedTuple):
    """Frequencies and radii of every pair, named as in :class:`~adagoal.planning.model_arrays.EmpiricalModel`."""

    p: Floats
    p_split: Floats
    r_low: Floats
    r: Floats
    q: Floats


class ConfidenceSets:
    """The empirical kernel of the counts, the radii of every pair, and the bounds that follow from them."""

    pairs_per_job = 4096  # enough work for one thread
    uses_lemma_1 = True
    # Each takes (model, block, values [S, B], policy [S, B]) and returns the last two, improved (lemmas 5 and 6).
    improve_lower = staticmethod(sweeps.improve_lower_bounds)
    improve_upper = staticmethod(sweeps.improve_upper_bounds)

    def __init__(
        self,
        counts: TransitionCounts,
        states: int | None,
        pairs: int | None,
        goals: float,
        delta: float,
        branching: int | None,
    ) -> None:
        """``states``, ``pairs`` and ``goals`` bound their numbers, ``branching`` the successors of a pair.

        ``states`` and ``pairs`` are None if the number of states is not declared, and ``goals`` is infinite if they are
        not fixed before the first transition. ``branching`` None: a pair may lead to every state.
        """
        self.counts, self.branching = counts, branching or states or NO_LIMIT
        self._is_declared = states is not None
        # ln of the unions of lemmas 1, 2 and 3a over their shares of delta. If the number of states is not declared, a
        # pair has 1/A of the share of its state; lemma 1 needs one event for a state and a goal, so A cancels.
        unions = (states * goals, pairs, pairs) if states is not None else (goals / counts.n_actions, 1, 1)
        self.union_logs = np.log(np.array(unions, float) / DELTA_SHARES[:3] / delta)
        has_lemma_1 = self.uses_lemma_1 and math.isfinite(goals)
        # Lower bounds of all pairs use lemma 2; RestartedBalls has no lower bounds.
        self._always_uses_ball = self.uses_lemma_1 and not has_lemma_1
        if not has_lemma_1:
            # Lemma 2 has the share of lemma 1, too.
            self.union_logs[0] = NO_EVENT
            self.union_logs[1] -= math.log((DELTA_SHARES[0] + DELTA_SHARES[1]) / DELTA_SHARES[1])
        self._first_union_log = float(self.union_logs[0])
        self.window = UnseenMassWindow(DELTA_SHARES[3] * delta)
        X, shape = len(counts.n), counts.successor.shape
        self._radii = PairRadii(*(np.full(shape[: 1 + (i < 2)], v) for i, v in enumerate(self._untried)))
        self._pair_logs = self._discovery_logs()  # [X] what every pair pays in addition to ``union_logs``
        self._counts_at_update = np.zeros(X, int)
        self.transitions = 0  # at the last update; -1 if the next update computes all radii again
        self.window_visits: Floats = np.zeros(X)  # [X] visits inside the window at the last update
        self.q: Floats = np.ones(X)  # [X] bounds on the unseen mass at the last update; 1 for pairs added since
        # [X] pairs whose lower bounds use lemma 2: those whose successors were all known at the last update, or all
        self.uses_ball: Bools = np.full(X, self._always_uses_ball)

    def update_radii(self, threads: Executor | None = None, known_successor_balls: bool = False) -> bool:
        """Take in new counts; return False if nothing was counted since the last update.

        ``known_successor_balls``: lower bounds use the ball of lemma 2 for pairs whose successors are all known.
        """
        counts = self.counts
        self.grow_arrays()
        if counts.absent.any():
            # An action that a state does not have counts as the reset, which is known exactly.
            p, p_split, r_low, r, q = self._radii
            new = np.flatnonzero(counts.absent & (q > 0.0))
            p[new, 0], p_split[new, 0], r_low[new], r[new], q[new] = 1.0, 1.0, 0.0, 0.0, 0.0
        changed = np.flatnonzero(counts.n != self._counts_at_update)
        if not len(changed):
            return False
        if counts.support[changed].max() > self.branching:
            raise InputError(
                f"branching={self.branching}: a pair with more successors was observed; give a larger number",
                name="method_args",
            )
        self.compute_radii(changed, threads)
        self.window_visits = self.window.update_visits(counts.n, counts.settled)
        # Both bounds hold at the same time, each with its own share of delta. So the smaller one may be used.
        self.q = np.minimum(self._radii.q, self.window.unseen_mass_bounds(self.window_visits))
        if known_successor_balls and not self._always_uses_ball:
            # Without a try since the last new successor the ball of lemma 2 has no centre.
            self.uses_ball = (self._radii.q == 0.0) & (counts.support > 1) & (counts.n > counts.settled)
        self._counts_at_update[changed] = counts.n[changed]
        # After a resume all radii are computed again although nothing was counted: no goal may become stale by that.
        before, self.transitions = self.transitions, int(counts.n.sum())
        return self.transitions != before

    def compute_radii(self, pairs: Longs, threads: Executor | None) -> None:
        """Compute the frequencies and radii of these pairs again (lemmas 1, 2 and 3a)."""
        c, size = self.counts, self.pairs_per_job
        tally, logs = PairCounts(c.count, c.recent, c.support, c.n, c.settled), (self.union_logs, self._pair_logs)
        jobs = [
            partial(update_pair_radii, pairs[i : i + size], tally, *logs, self.branching, self._radii)
            for i in range(0, len(pairs), size)
        ]
        run_jobs_in_threads(jobs, threads if len(jobs) > 1 else None)

    @property
    def kl_ball(self) -> tuple[Floats, Floats]:
        """Centre [X, K] and radius [X] of lemma 2 at the last update."""
        return self._radii.p_split, self._radii.r

    def local_lower_bounds(self, V: Floats, probe: Actions, probing: bool, cap: float) -> LocalLowerBounds:
        """Return lower bounds V [columns, S] that an episode raises with the radii of the moment."""
        c, (log_1, _, log_3a) = self.counts, self.union_logs
        log = float(log_3a) + math.log(2.0) if self._always_uses_ball else float(log_1) + math.log(N_LEVELS)
        logs = log + self._pair_logs[:: c.n_actions]
        # A pair that can have one successor has no unseen mass from its first try on, which may follow this plan.
        q = self.q if self.branching > 1 else np.zeros_like(self.q)
        return LocalLowerBounds(V, probe, probing, q, logs, self.uses_ball, *self.kl_ball, cap, c.start, c.n_actions)

    def invalidate_radii(self) -> None:
        """Make the next update compute all radii again."""
        self._counts_at_update[:], self.transitions = -1, -1

    def set_curriculum_stage(self, stage: int) -> None:
        """Give stage 1, 2, ... of a curriculum its share 1/(stage (stage + 1)) of the event of lemma 1."""
        self.union_logs[0] = self._first_union_log + math.log(stage * (stage + 1))
        self.invalidate_radii()

    def empirical_model(self) -> EmpiricalModel:
        """Return the arrays that sweeps, gaps and exports read."""
        c, radii = self.counts, self._radii
        return EmpiricalModel(
            successor=c.successor,
            p=radii.p,
            p_split=radii.p_split,
            support=c.support,
            r_low=radii.r_low,
            r=radii.r,
            q=self.q,
            uses_ball=self.uses_ball,
            window_visits=self.window_visits,
            window_log=self.window.log_inverse_delta,
            terminal=c.terminal,
            start=c.start,
        )

    def grow_arrays(self) -> None:
        """Add pairs and successors that the counts have allocated."""
        shape, old = self.counts.successor.shape, self._radii.p.shape
        if old == shape:
            return
        room = [(0, new - before) for new, before in zip(shape, old, strict=True)]
        self._radii = PairRadii(
            *(np.pad(a, room[: a.ndim], constant_values=v) for a, v in zip(self._radii, self._untried, strict=True))
        )
        self._pair_logs = self._discovery_logs()
        self.window_visits = np.pad(self.window_visits, room[0])
        self._counts_at_update = np.pad(self._counts_at_update, room[0])
        self.q = np.pad(self.q, room[0], constant_values=1.0)
        self.uses_ball = np.pad(self.uses_ball, room[0], constant_values=self._always_uses_ball)

    @property
    def _untried(self) -> tuple[float, ...]:
        """The entries of a pair never tried, as in :class:`PairRadii`: all of its mass is unseen."""
        # Local backups may read the ball before the next update. It is finite, because 0 times infinity is NaN.
        return (0.0, 0.0, NO_DATA, NO_DATA, 1.0) if self._always_uses_ball else (0.0, 0.0, np.inf, np.inf, 1.0)

    def _discovery_logs(self) -> Floats:
        """Return [X] ln(1/w) with the weight w of every pair: 1/A of that of its state (lemma 14), or 0 if declared."""
        counts = self.counts
        if self._is_declared:
            return np.zeros(len(counts.n))
        # States are numbered in the order of their discovery, from 0.
        later = np.arange(counts.n_states) + float(DISCOVERY_OFFSET)
        logs: Floats = np.repeat(np.log(counts.n_actions * later * (later + 1.0) / DISCOVERY_OFFSET), counts.n_actions)
        return logs

    # The window may know fewer pairs than the counts: some were found since the last plan.
    UNSEEN_SCHEMA: ClassVar[ArraySchema] = {
        "quiet": ArraySpec("int64", ("P",), low=0, high=EXCLUDED),
        "unseen": ArraySpec("float64", ("X",), low=0, high=1),
    }
    # The balls of the M pairs that use them, saved only if there are some. The counts do not determine them: local
    # backups use those of the last update.
    BALL_SCHEMA: ClassVar[ArraySchema] = {
        "uses_ball": ArraySpec("bool", ("X",)),
        "ball_p": ArraySpec("float64", ("M", "K"), low=0, high=1),
        "ball_r": ArraySpec("float64", ("M",), low=0),
    }

    FACT_SCHEMAS: ClassVar[dict[str, Any]] = {
        # The most windows that a checkpoint may claim. Every closed window excludes a pair for good.
        "windows": {"type": "integer", "minimum": 1, "maximum": 10**6},
        "transitions": {"type": "integer", "minimum": -1},
    }

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the arrays and facts that cannot be computed from the counts."""
        arrays: dict[str, NDArray[Any]] = {"quiet": self.window.entry_counts, "unseen": self.q}
        if self.uses_ball.any():
            p, r = self.kl_ball
            arrays |= {"uses_ball": self.uses_ball, "ball_p": p[self.uses_ball], "ball_r": r[self.uses_ball]}
        return arrays, {"windows": self.window.window_number, "transitions": self.transitions}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Invert :meth:`state` on restored counts."""
        self.grow_arrays()
        sizes = check_arrays(self.UNSEEN_SCHEMA, arrays)
        if sizes["P"] > len(self.q) or sizes["X"] != len(self.q):
            raise ValueError("the bounds on the unseen mass do not fit the counts")
        self.window.window_number, self.window.entry_counts = facts["windows"], np.array(arrays["quiet"])
        self.invalidate_radii()
        if facts["transitions"] >= 0:
            self._counts_at_update[:], self.transitions = 0, facts["transitions"]
        self.q = np.array(arrays["unseen"])
        if "uses_ball" not in arrays:
            return
        sizes, uses_ball = check_arrays(self.BALL_SCHEMA, arrays), np.array(arrays["uses_ball"])
        p, r = self.kl_ball
        if (sizes["X"], sizes["M"]) != (len(r), uses_ball.sum()) or sizes["K"] > p.shape[1]:
            raise ValueError("the balls do not fit the counts")
        self.uses_ball = uses_ball
        p[uses_ball, : sizes["K"]], r[uses_ball] = arrays["ball_p"], arrays["ball_r"]


@compiled
def update_pair_radii(pairs, tally, logs, pair_logs, branching, out):  # type: ignore[no-untyped-def]
    """Write the frequencies and radii of these pairs into ``out`` (PairRadii).

    The union logarithms l1, l2, l3 of a pair are ``logs`` [3] plus its entry of ``pair_logs`` [X].
    """
    for x in pairs:
        n, o = tally.n[x], tally.support[x]
        if n == 0:
            continue
        fresh = n - tally.settled[x]
        # Without a try since the restart any row would do as the centre: NO_DATA covers every distribution.
        for k in range(o):
            out.p[x, k] = tally.counts[x, k] / n
            out.p_split[x, k] = tally.recent[x, k] / fresh if fresh > 0 else out.p[x, k]
        out.r_low[x] = fixed_function_radius(n, logs[0] + pair_logs[x])
        out.r[x] = observed_ball_radius(x, tally, logs[1] + pair_logs[x])
        out.q[x] = unseen_mass_bound(fresh, o, logs[2] + pair_logs[x]) if o < branching else 0.0


@compiled_helper
def fixed_function_radius(n, union_log):  # type: ignore[no-untyped-def]
    """Return r_low of a pair with n transitions (lemma 1)."""
    return (union_log + math.log(N_LEVELS)) / n


@compiled_helper
def observed_ball_radius(x, tally, union_log):  # type: ignore[no-untyped-def]
    """Return r of the pair x (lemma 2)."""
    n, o, settled = tally.n[x], tally.support[x], tally.settled[x]
    fresh = n - settled
    # No transition since the restart: useless, but finite, because infinity times a variance of 0 is NaN.
    if fresh == 0:
        return NO_DATA
    regret = math.lgamma(n + o / 2) - math.lgamma(settled + o / 2)
    for k in range(o):
        c, count = tally.recent[x, k], tally.counts[x, k]
        # 0 ln 0 would be NaN.
        if c > 0:
            regret += c * math.log(c / fresh) - math.lgamma(count + 0.5) + math.lgamma(count - c + 0.5)
    # -ln w_o: the weights of all restarts sum to one, so no bound on their number is needed.
    restart = math.log(4.0 if o <= 4 else o * (o - 1.0))
    return (union_log + restart + regret) / fresh


@compiled_helper
def unseen_mass_bound(fresh, o, union_log):  # type: ignore[no-untyped-def]
    """Return q of a pair with o successors, none of them found in the last ``fresh`` transitions (lemma 3a)."""
    return 1.0 - math.exp(-(union_log + math.log(o * (o + 1.0))) / fresh) if fresh > 0 else 1.0


class UnseenMassWindow:
    """One bound on the unseen mass of many pairs together (lemma 3b).

    A *surprise* is a transition seen for the first time; pair x surprises with probability q_x. A window is opened,
    and pairs enter it one after the other. The product of 1/(1 - q) over the steps of the pairs inside is a martingale
    that drops to zero at their first surprise. So, until then, sum_x m_x ln(1/(1 - q_x)) <= ln(1/delta'') with m_x the
    visits of x since it entered: no union over pairs, and no price for the number of states.

    A surprise inside closes the window. The next one is opened without the pair that surprised: it has rare
    successors. The k-th window has the share 1/(k (k + 1)) of delta.
    """

    def __init__(self, delta: float) -> None:
        self._delta = delta
        self.window_number = 1  # k
        self.entry_counts: Longs = np.zeros(0, np.int64)  # [X] the count n with which every pair entered

    @property
    def log_inverse_delta(self) -> float:
        """ln(1/delta'') of the open window."""
        return math.log(self.window_number * (self.window_number + 1) / self._delta)

    def update_visits(self, n: Longs, settled: Longs) -> Floats:
        """Return [X] the visits of every pair inside the window, 0 outside.

        ``n`` [X] are the counts, ``settled`` [X] their values at the last surprise of each pair.
        """
        extra = len(n) - len(self.entry_counts)
        if extra > 0:
            self.entry_counts = np.pad(self.entry_counts, (0, extra), constant_values=NOT_ENTERED)
        if close_if_surprised(self.entry_counts, settled):
            self.window_number += 1
        inside: Floats = enter_mature_pairs(self.entry_counts, n, settled, WINDOW_ENTRY_FACTOR)
        return inside

    def unseen_mass_bounds(self, visits: Floats) -> Floats:
        """Return [X] bounds on the unseen mass of each pair, 1 outside the window."""
        inside, bound = visits > 0, np.ones(len(visits))
        bound[inside] = 1.0 - np.exp(-self.log_inverse_delta / visits[inside])
        return bound


@compiled
def close_if_surprised(starts, settled):  # type: ignore[no-untyped-def]
    """Return whether a pair inside has surprised. If so it is excluded and all other pairs leave the window."""
    surprised = False
    for x in range(len(starts)):
        surprised |= settled[x] > starts[x]
    # The next window is a new event, and only visits after its opening count. So every pair must enter again.
    for x in range(len(starts) if surprised else 0):
        if settled[x] > starts[x]:
            starts[x] = EXCLUDED
        elif starts[x] != EXCLUDED:
            starts[x] = NOT_ENTERED
    return surprised


@compiled
def enter_mature_pairs(starts, n, settled, entry_factor):  # type: ignore[no-untyped-def]
    """Let pairs enter that were tried often enough; return the visits [X] of those inside, 0 elsewhere.

    Enough is ``entry_factor`` times the count at which any pair that is not excluded last surprised.
    """
    latest, visits = 0, np.zeros(len(n))
    # A late surprise of an excluded pair must not keep all others out.
    for x in range(len(n)):
        if starts[x] != EXCLUDED:
            latest = max(latest, settled[x])
    for x in range(len(n)):
        if starts[x] == NOT_ENTERED and n[x] >= max(entry_factor * latest, 1):
            starts[x] = n[x]
        visits[x] = max(n[x] - starts[x], 0)
    return visits


def conditional_intervals(model: EmpiricalModel) -> tuple[Floats, Floats]:
    """Return (lo, hi), each [X, K]: an interval for every p(s' | O), O the observed successors of the pair.

    The image of a Kullback-Leibler ball under one coordinate is the ball of the two-point distributions (y, 1 - y):
    grouping the other successors never increases the divergence, and keeping their proportions attains it. So lo and
    hi solve

        p_hat ln(p_hat/y) + (1 - p_hat) ln((1 - p_hat)/(1 - y)) = r,

    and p(s') = (1 - p(not O)) p(s' | O) lies in [(1 - q) lo, hi]. All intervals hold at once and at any time, on the
    events of lemmas 2 and 3, so no further union bound is paid. Entries that are not in use are zero.
    """
    used = np.arange(model.p.shape[1]) < model.support[:, None]
    radius = np.broadcast_to(model.r[:, None], used.shape)
    single = (model.support == 1)[:, None] & used
    low, high = interval_end(model.p_split, radius, 0.0), interval_end(model.p_split, radius, 1.0)
    # Given that the only observed successor comes, its probability is one: there is nothing to estimate.
    low[single] = high[single] = 1.0
    low[~used] = high[~used] = 0.0
    return low, high


def interval_end(p: Floats, radius: Floats, outer: float) -> Floats:
    """Return the end of {y : kl(p, y) <= radius} on the side of ``outer`` (0 or 1), by bisection."""
    inside, outside = p.copy(), np.full(p.shape, outer)
    for _ in range(60):
        middle = (inside + outside) / 2
        within = _binary_divergence(p, middle) <= radius
        inside, outside = np.where(within, middle, inside), np.where(within, outside, middle)
    # The outer side, so rounding widens the interval.
    return outside


def _binary_divergence(p: Floats, y: Floats) -> Floats:
    """Return kl(p, y) of the two-point distributions."""
    # NumPy computes both branches: 0 ln 0 = NaN is discarded, and an infinite divergence is outside of every radius.
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(p > 0, p * np.log(p / y), 0.0)
        second = np.where(p < 1, (1 - p) * np.log((1 - p) / (1 - y)), 0.0)
    result: Floats = first + second
    return result
