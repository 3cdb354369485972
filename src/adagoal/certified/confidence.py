"""What the counts say about the kernel, with probability 1 - delta (docs/theory.md, lemmas 1 to 3).

A pair with n transitions in all has the counts c of its o observed successors; n' transitions, with the counts c',
came since the o-th successor was found, c0 = c - c' before. With the union logarithms l1, l2, l3 of the three lemmas,

    r_low = [ l1 + ln LEVELS ] / n                                                                     (lemma 1)
    r     = [ l2 + ln max(4, o(o-1) if o > 4) + sum_i c'_i ln(c'_i/n') - ln KT(c) + ln KT(c0) ] / n',
            KT(c) = Gamma(o/2) / Gamma(n + o/2) prod_i Gamma(c_i + 1/2) / Gamma(1/2)                    (lemma 2)
    q     = 1 - exp( -[l3 + ln o(o+1)] / n' ), and 0 where o is the known number of successors         (lemma 3)
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from adagoal.certified.unseen_mass import EXCLUDED, UnseenMassWindow
from adagoal.core.compiled_code import run_jobs_in_threads
from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays
from adagoal.core.local_backup import N_LEVELS
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Bools, Floats, Ints, Longs
from adagoal.planning.model_arrays import EmpiricalModel

DELTA_SHARES = (0.35, 0.35, 0.05, 0.25)
"""Of delta, for the events of lemmas 1, 2, 3a and 3b."""
PAIRS_PER_JOB = 4096
"""A job for one thread."""
UNINFORMATIVE_RADIUS = 1e3
"""A radius that no bound survives, yet finite: infinity times a variance of zero is not a number."""


class PairCounts(NamedTuple):
    """The arrays of :class:`~adagoal.core.transition_data.TransitionCounts` that the radii depend on."""

    counts: Longs
    """[X, K] c"""
    recent: Longs
    """[X, K] c'"""
    support: Ints
    """[X] o"""
    n: Longs
    """[X]"""
    settled: Longs
    """[X] n - n'"""


class PairRadii(NamedTuple):
    """What is kept of every pair; the fields are those of :class:`~adagoal.planning.model_arrays.EmpiricalModel`."""

    p: Floats
    p_split: Floats
    r_low: Floats
    r: Floats
    q: Floats


class ConfidenceSets:
    """The empirical kernel of the counts, and the radii of every pair."""

    def __init__(
        self, counts: TransitionCounts, states: int, pairs: int, goals: int, delta: float, branching: int
    ) -> None:
        """``states``, ``pairs`` and ``goals`` bound their numbers, ``branching`` the successors of a pair."""
        self.counts, self.branching = counts, branching
        self.union_logs = np.log(np.array([states * goals, pairs, pairs], float) / DELTA_SHARES[:3] / delta)
        """ln of the unions of lemmas 1, 2 and 3a over their shares of delta"""
        self._first_union_log = float(self.union_logs[0])
        self.window = UnseenMassWindow(DELTA_SHARES[3] * delta)
        X, places = len(counts.n), counts.successor.shape
        self._radii = PairRadii(np.zeros(places), np.zeros(places), np.full(X, np.inf), np.full(X, np.inf), np.ones(X))
        self._counts_at_update = np.zeros(X, int)
        self.transitions = 0
        """Transitions at the last update; -1 where the next one computes everything anew"""
        self.window_visits: Floats = np.zeros(X)
        """[X] visits inside the quiet window, of the last update"""
        self.q: Floats = np.ones(X)
        """[X] bounds on the unseen mass, of the last update; 1 for pairs that there has been made room for since"""
        self.complete: Bools = np.zeros(X, bool)
        """[X] pairs whose lower bounds take the ball of lemma 2: all their successors were known at the last update"""

    def update_radii(self, threads: Executor | None = None, large: bool = False) -> bool:
        """Take in new counts; return False if there are none since the last update.

        ``large``: lower bounds take the ball of lemma 2 where no successor is unknown. Its radius may be the larger
        one, but values far away cost nothing there: in a small world that does not pay.
        """
        counts = self.counts
        self.grow_arrays()
        if counts.absent.any():
            self._set_absent_pairs(np.flatnonzero(counts.absent & (self._radii.q > 0.0)))
        changed, widest = changed_pairs(counts.n, self._counts_at_update, counts.support)
        if not len(changed):
            return False
        if widest > self.branching:
            raise InputError(
                f"branching={self.branching}: a pair with more successors has been observed", name="method_args"
            )
        tally = PairCounts(counts.count, counts.recent, counts.support, counts.n, counts.settled)
        jobs = [
            partial(
                update_pair_radii, changed[i : i + PAIRS_PER_JOB], tally, self.union_logs, self.branching, self._radii
            )
            for i in range(0, len(changed), PAIRS_PER_JOB)
        ]
        run_jobs_in_threads(jobs, threads if len(jobs) > 1 else None)
        self.window_visits = self.window.update_visits(counts.n, counts.settled)
        self.q = np.minimum(self._radii.q, self.window.unseen_mass_bounds(self.window_visits))
        if large:
            self.complete = (self._radii.q == 0.0) & (counts.support > 1) & (counts.n > counts.settled)
        self._counts_at_update[changed] = counts.n[changed]
        before, self.transitions = self.transitions, int(counts.n.sum())
        return self.transitions != before

    @property
    def kl_ball(self) -> tuple[Floats, Floats]:
        """Centre [X, K] and radius [X] of lemma 2, of the last update."""
        return self._radii.p_split, self._radii.r

    @property
    def lower_radius_log(self) -> float:
        """l: with n tries of a pair its r_low is l/n."""
        return float(self.union_logs[0]) + math.log(N_LEVELS)

    def invalidate_radii(self) -> None:
        """Compute everything anew at the next update."""
        self._counts_at_update[:], self.transitions = -1, -1

    def set_curriculum_stage(self, stage: int) -> None:
        """The share of stage 1, 2, ... of a curriculum in the event of lemma 1."""
        self.union_logs[0] = self._first_union_log + math.log(stage * (stage + 1))
        self.invalidate_radii()

    def empirical_model(self) -> EmpiricalModel:
        """For the sweeps."""
        c, known = self.counts, self._radii
        return EmpiricalModel(
            successor=c.successor,
            p=known.p,
            p_split=known.p_split,
            support=c.support,
            r_low=known.r_low,
            r=known.r,
            q=self.q,
            complete=self.complete,
            quiet=self.window_visits,
            quiet_log=self.window.log_inverse_delta,
            terminal=c.terminal,
            start=c.start,
        )

    def _set_absent_pairs(self, pairs: Longs) -> None:
        """Pairs that do not exist: each is the reset, of which all is known."""
        p, p_split, r_low, r, q = self._radii
        p[pairs, 0], p_split[pairs, 0] = 1.0, 1.0
        r_low[pairs], r[pairs], q[pairs] = 0.0, 0.0, 0.0

    def grow_arrays(self) -> None:
        """Places for the pairs and the successors that the counts made room for."""
        shape, old = self.counts.successor.shape, self._radii.p.shape
        if old == shape:
            return
        room = [(0, new - before) for new, before in zip(shape, old, strict=True)]
        nothing = (0.0, 0.0, np.inf, np.inf, 1.0)
        self._radii = PairRadii(
            *(np.pad(a, room[: a.ndim], constant_values=v) for a, v in zip(self._radii, nothing, strict=True))
        )
        self.window_visits, self._counts_at_update = (
            np.pad(self.window_visits, room[0]),
            np.pad(self._counts_at_update, room[0]),
        )
        self.q, self.complete = np.pad(self.q, room[0], constant_values=1.0), np.pad(self.complete, room[0])

    # --- saving -----------------------------------------------------------------------------------------------

    WINDOW_SCHEMA: ClassVar[ArraySchema] = {"quiet": ArraySpec("int64", ("P",), low=0, high=EXCLUDED)}
    UNSEEN_SCHEMA: ClassVar[ArraySchema] = {"unseen": ArraySpec("float64", ("X",), low=0, high=1)}
    BALL_SCHEMA: ClassVar[ArraySchema] = {
        "complete": ArraySpec("bool", ("X",)),
        "complete_p": ArraySpec("float64", ("M", "K"), low=0, high=1),
        "complete_r": ArraySpec("float64", ("M",), low=0),
    }
    """Only where some pair is: what local backups take from the last update, for the M of them."""

    def radii_state(self) -> dict[str, NDArray[Any]]:
        """What the counts do not determine, beside the number of the window."""
        arrays: dict[str, NDArray[Any]] = {"quiet": self.window.entry_counts, "unseen": self.q}
        if self.complete.any():
            p, r = self.kl_ball
            arrays |= {"complete": self.complete, "complete_p": p[self.complete], "complete_r": r[self.complete]}
        return arrays

    def restore_radii(self, arrays: dict[str, NDArray[Any]], windows: int, transitions: int) -> None:
        """The inverse of :meth:`radii_state`, on restored counts, in the window of this number.

        ``transitions`` is their number at the last update. The next update computes all radii anew, because a
        checkpoint has none. It still returns False if there are no more transitions by then: whether goals become
        stale must not depend on a resume.
        """
        if check_arrays(self.WINDOW_SCHEMA, arrays)["P"] > len(self.counts.n):
            raise ValueError("the window does not fit the counts")
        self.grow_arrays()
        self.window.window_number, self.window.entry_counts = windows, np.array(arrays["quiet"])
        self.invalidate_radii()
        if transitions >= 0:
            self._counts_at_update[:], self.transitions = 0, transitions
        if check_arrays(self.UNSEEN_SCHEMA, arrays)["X"] != len(self.q):
            raise ValueError("the bounds on the unseen mass do not fit the counts")
        self.q = np.array(arrays["unseen"])
        self._restore_kl_balls(arrays)

    def _restore_kl_balls(self, arrays: dict[str, NDArray[Any]]) -> None:
        if "complete" not in arrays:
            return
        sizes, complete = check_arrays(self.BALL_SCHEMA, arrays), np.array(arrays["complete"])
        p, r = self.kl_ball
        if (sizes["X"], sizes["M"]) != (len(r), complete.sum()) or sizes["K"] > p.shape[1]:
            raise ValueError("the known successors do not fit the counts")
        self.complete = complete
        p[complete, : sizes["K"]], r[complete] = arrays["complete_p"], arrays["complete_r"]


@numba.njit(cache=True, nogil=True)
def changed_pairs(n, seen, support):  # type: ignore[no-untyped-def]
    """The pairs whose n [X] is not what was ``seen`` [X] of them, and the most successors of one of them."""
    pairs, found, widest = np.empty(len(n), np.int64), 0, 0
    for x in range(len(n)):
        if n[x] != seen[x]:
            pairs[found], widest = x, max(widest, support[x])
            found += 1
    return pairs[:found], widest


@numba.njit(cache=True, nogil=True)
def update_pair_radii(pairs, tally, logs, branching, out):  # type: ignore[no-untyped-def]
    """Refresh the empirical kernels and the radii ``out`` (Radii) of the listed pairs; logs: [3] l1, l2, l3."""
    for x in pairs:
        total, o = tally.n[x], tally.support[x]
        if total == 0:
            continue
        fresh = total - tally.settled[x]
        regret = math.lgamma(total + o / 2) - math.lgamma(tally.settled[x] + o / 2)
        for k in range(o):
            c, count = tally.recent[x, k], tally.counts[x, k]
            out.p[x, k] = count / total
            out.p_split[x, k] = c / fresh if fresh > 0 else out.p[x, k]
            if c > 0:
                regret += c * math.log(c / fresh) - math.lgamma(count + 0.5) + math.lgamma(count - c + 0.5)
        restart = math.log(4.0 if o <= 4 else o * (o - 1.0))
        out.r_low[x] = (logs[0] + math.log(N_LEVELS)) / total
        out.r[x] = (logs[1] + restart + regret) / fresh if fresh > 0 else UNINFORMATIVE_RADIUS
        out.q[x] = 1.0 - math.exp(-(logs[2] + math.log(o * (o + 1.0))) / fresh) if fresh > 0 else 1.0
        if o >= branching:
            out.q[x] = 0.0


# An interval for every single transition probability (docs/theory.md, lemmas 2 and 3; lemma 1 is not used).
#
# For a pair x whose o observed successors are the set O, the events of the certified method say that
#
#     KL(p_hat || p(. | O)) <= r      (lemma 2)      and      p(not O) <= q      (lemma 3).
#
# The image of a Kullback-Leibler ball under one coordinate is the ball of the two-point distributions (y, 1 - y):
# grouping the other successors never increases the divergence, and keeping their proportions attains it. So
#
#     p(s' | O) in [lo, hi],    lo, hi the solutions y of  p_hat ln(p_hat/y) + (1 - p_hat) ln((1 - p_hat)/(1 - y)) = r,
#
# and p(s') = (1 - p(not O)) p(s' | O) lies in [(1 - q) lo, hi]. Where o = 1 there is nothing to estimate: lo = hi = 1.
# These intervals hold for all pairs and successors at once, at any time, on the very events on which the certificates
# rest. No further union bound is paid.


BISECTION_STEPS = 60
"""Of the bracket of an end; the outer side is returned, so that rounding widens an interval."""


def conditional_intervals(model: EmpiricalModel) -> tuple[Floats, Floats]:
    """(lo, hi), each [X, K]: bounds on p(s' | O), the probability given that the successor is one of those observed.

    Zero in places that are not in use.
    """
    used = np.arange(model.p.shape[1]) < model.support[:, None]
    radius = np.broadcast_to(model.r[:, None], used.shape)
    single = (model.support == 1)[:, None] & used
    low, high = _interval_end(model.p_split, radius, 0.0), _interval_end(model.p_split, radius, 1.0)
    low[single] = high[single] = 1.0
    low[~used] = high[~used] = 0.0
    return low, high


def _interval_end(p: Floats, radius: Floats, outer: float) -> Floats:
    """The end of {y : kl(p, y) <= radius} on the side of ``outer`` (0 or 1), by bisection between p and ``outer``."""
    inside, outside = p.copy(), np.full(p.shape, outer)
    for _ in range(BISECTION_STEPS):
        middle = (inside + outside) / 2
        within = _binary_divergence(p, middle) <= radius
        inside, outside = np.where(within, middle, inside), np.where(within, outside, middle)
    return outside


def _binary_divergence(p: Floats, y: Floats) -> Floats:
    """kl(p, y) of the two-point distributions."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(p > 0, p * np.log(p / y), 0.0)
        second = np.where(p < 1, (1 - p) * np.log((1 - p) / (1 - y)), 0.0)
    result: Floats = first + second
    return result
