"""One bound on the unseen mass of all pairs together (docs/theory.md, lemma 3b).

A *surprise* is a transition seen for the first time; pair x surprises with probability q_x. Over a window of time
that starts at a stopping time, the product of 1/(1 - q) over the steps of a set of pairs is a martingale that drops to
zero at their first surprise. So, while the window has had none, sum_x m_x ln(1/(1 - q_x)) <= ln(1/delta') for all its
pairs *together*, m_x being the visits of x inside it: no union over pairs, no price for the number of states. Windows
start at the first look after 2^5, 2^6, ..., 2^36 transitions and share delta; each has the pairs that have been tried
often enough to surprise no more, judged by all surprises so far.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.core.types import Floats, Longs

FIRST, WINDOWS = 5, 32
OUTSIDE = 2**62
"""Start of a pair that a window does not have."""
MATURE = 2
"""A pair enters a window if it was tried this many times as often as any pair that has ever surprised."""


class Quiet:
    """The windows without a surprise so far."""

    def __init__(self, delta: float) -> None:
        self.log = math.log(WINDOWS / delta)
        self.started = 0
        self.starts: Longs = np.zeros((0, 0), np.int64)
        """[windows, X] the count of every pair at the start of each quiet window, oldest first"""

    def visits(self, n: Longs, settled: Longs) -> Floats:
        """[windows, X] visits of every pair inside each quiet window, 0 where the window does not have it.

        ``n`` [X] are the counts and ``settled`` [X] their values when the pair last surprised.
        """
        extra = len(n) - self.starts.shape[1]
        if extra > 0:
            self.starts = np.pad(self.starts, ((0, 0), (0, extra)), constant_values=OUTSIDE)
        tried = np.flatnonzero(n)  # in a large world few pairs are: no other one is looked at
        starts = self.starts[:, tried]
        surprised = (settled[tried] > starts).any(axis=1)
        if surprised.any():
            self.starts, starts = self.starts[~surprised], starts[~surprised]
        steps = int(n.sum())
        if self.started < WINDOWS and steps >= 2 ** (FIRST + self.started):
            self.started = min(steps.bit_length() - FIRST, WINDOWS)
            self.starts = np.vstack([self.starts, np.where(n >= MATURE * settled.max(), n, OUTSIDE)])
        inside = np.zeros(self.starts.shape)
        inside[: len(starts), tried] = np.maximum(n[tried] - starts, 0)
        return inside

    def bound(self, visits: Floats) -> Floats:
        """[X] bounds on the unseen mass of each pair, 1 where nothing is known."""
        most = visits.max(axis=0, initial=0.0)
        return np.where(most > 0, 1.0 - np.exp(-self.log / np.maximum(most, 1.0)), 1.0)
