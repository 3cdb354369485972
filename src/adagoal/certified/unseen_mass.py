"""One bound on the unseen mass of all pairs together (docs/theory.md, lemma 3b).

A *surprise* is a transition seen for the first time; pair x surprises with probability q_x. A window is open from some
moment on, and pairs enter it one after the other. The product of 1/(1 - q) over the steps of the pairs inside is a
martingale that drops to zero at their first surprise. So, while the window has had none, sum_x m_x ln(1/(1 - q_x)) <=
ln(1/delta') for all its pairs *together*, m_x being the visits of x since it entered: no union over pairs, no price for
the number of states.

A pair enters when it has been tried often enough to surprise no more, judged by all surprises so far. If it does
surprise, the window is closed and the next one is opened, without this pair for good: it has rare successors. The k-th
window has the share 1/(k (k + 1)) of delta.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from adagoal.core.types import Floats, Longs

NOT_ENTERED, EXCLUDED = 2**62, 2**62 + 1
"""Start of a pair that is not inside yet, and of one that never will be again."""
ENTRY_FACTOR = 4
"""A pair enters if it was tried this many times as often as any other that is not banned when it last surprised."""
MAX_WINDOWS = 10**6
"""Windows of a run, at most: many more than there can be."""


class UnseenMassWindow:
    """The window that is open now."""

    def __init__(self, delta: float) -> None:
        self._delta = delta
        self.window_number = 1
        """k"""
        self.entry_counts: Longs = np.zeros(0, np.int64)
        """[X] the count with which every pair has entered"""

    @property
    def log_inverse_delta(self) -> float:
        """ln(1/delta') of the open window."""
        return math.log(self.window_number * (self.window_number + 1) / self._delta)

    def update_visits(self, n: Longs, settled: Longs) -> Floats:
        """[X] visits of every pair inside the window, 0 where it is not.

        ``n`` [X] are the counts and ``settled`` [X] their values when the pair last surprised.
        """
        extra = len(n) - len(self.entry_counts)
        if extra > 0:
            self.entry_counts = np.pad(self.entry_counts, (0, extra), constant_values=NOT_ENTERED)
        if close_if_surprised(self.entry_counts, settled):
            self.window_number += 1
        inside: Floats = enter_mature_pairs(self.entry_counts, n, settled)
        return inside

    def unseen_mass_bounds(self, visits: Floats) -> Floats:
        """[X] bounds on the unseen mass of each pair, 1 where nothing is known."""
        inside, bound = visits > 0, np.ones(len(visits))
        bound[inside] = 1.0 - np.exp(-self.log_inverse_delta / visits[inside])
        return bound


@numba.njit(cache=True, nogil=True)
def close_if_surprised(starts, settled):  # type: ignore[no-untyped-def]
    """Whether a pair inside has surprised. It is banned then, and all others are outside: the window is closed."""
    found = False
    for x in range(len(starts)):
        found |= settled[x] > starts[x]
    for x in range(len(starts) if found else 0):
        if settled[x] > starts[x]:
            starts[x] = EXCLUDED
        elif starts[x] != EXCLUDED:
            starts[x] = NOT_ENTERED
    return found


@numba.njit(cache=True, nogil=True)
def enter_mature_pairs(starts, n, settled):  # type: ignore[no-untyped-def]
    """Let pairs enter whose time has come; returns the visits [X] of those inside, 0 elsewhere."""
    latest, visits = 0, np.zeros(len(n))
    for x in range(len(n)):
        if starts[x] != EXCLUDED:
            latest = max(latest, settled[x])
    for x in range(len(n)):
        if starts[x] == NOT_ENTERED and n[x] >= max(ENTRY_FACTOR * latest, 1):
            starts[x] = n[x]
        visits[x] = max(n[x] - starts[x], 0)
    return visits
