"""One bound on the unseen mass of all pairs together (docs/theory.md, lemma 3b).

A *surprise* is a transition seen for the first time; pair x surprises with probability q_x. Over a window of time
that starts at a stopping time, the product of 1/(1 - q) over its steps is a martingale that drops to zero at the
first surprise. So, while the window has had none, sum_x m_x ln(1/(1 - q_x)) <= ln(1/delta') for all pairs *together*,
m_x being the visits of x inside it: no union over pairs, no price for the number of states. Windows start at the
first look after 2^5, 2^6, ..., 2^36 transitions, unless an older one is still quiet, and share delta.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FIRST, WINDOWS = 5, 32


class Quiet:
    """The windows without a surprise so far."""

    def __init__(self, delta: float) -> None:
        self.log = math.log(WINDOWS / delta)
        self.started = 0
        self.surprises = 0
        self.start: NDArray[np.int64] | None = None
        """Counts [X] at the start of the oldest window without a surprise, the best one; None if there is none."""

    def visits(self, n: NDArray[np.int64], surprises: int) -> NDArray[np.float64]:
        """[X] visits inside the window, 0 where there is none; n [X] and the surprises so far."""
        if surprises != self.surprises:
            self.start, self.surprises = None, surprises
        steps = int(n.sum())
        if self.started < WINDOWS and steps >= 2 ** (FIRST + self.started):
            self.started = min(steps.bit_length() - FIRST, WINDOWS)
            self.start = n.copy() if self.start is None else self.start
        if self.start is None:
            return np.zeros(len(n))
        if len(self.start) < len(n):
            self.start = np.pad(self.start, (0, len(n) - len(self.start)))
        return (n - self.start).astype(float)

    def bound(self, visits: NDArray[np.float64]) -> NDArray[np.float64]:
        """[X] bounds on the unseen mass of each pair, 1 where nothing is known."""
        return np.where(visits > 0, 1.0 - np.exp(-self.log / np.maximum(visits, 1.0)), 1.0)

    def state(self) -> dict[str, NDArray[np.int64]]:
        """For a checkpoint."""
        return {"quiet_start": np.zeros(0, np.int64) if self.start is None else self.start}

    def restore(self, arrays: dict[str, NDArray[np.int64]], started: int, surprises: int) -> None:
        """The inverse of :meth:`state`."""
        self.started, self.surprises = started, surprises
        self.start = np.array(arrays["quiet_start"]) if len(arrays["quiet_start"]) else None
