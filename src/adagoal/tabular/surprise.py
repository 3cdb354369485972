"""One bound on the unseen mass of all pairs together (docs/theory.md, lemma 3b).

A *surprise* is a transition seen for the first time; pair x surprises with probability q_x. Over a window of time
that starts at a stopping time, the product of 1/(1 - q) over its steps is a martingale that drops to zero at the
first surprise. So, while the window has had none, sum_x m_x ln(1/(1 - q_x)) <= ln(1/delta') for all pairs *together*,
m_x being the visits of x inside it: no union over pairs, no price for the number of states. Windows start when the
step count first reaches 2^5, 2^6, ..., 2^36, and share delta.
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
        self.starts: list[NDArray[np.int64]] = []
        """Counts [X] at the start of each window, oldest first; only windows without a surprise are kept."""

    def bound(self, n: NDArray[np.int64], surprises: int) -> NDArray[np.float64]:
        """[X] bounds on the unseen mass, 1 where nothing is known; n [X] and the surprises so far."""
        if surprises != self.surprises:
            self.starts, self.surprises = [], surprises
        steps = int(n.sum())
        if self.started < WINDOWS and steps >= 2 ** (FIRST + self.started):
            self.started = max(self.started + 1, min(int(math.log2(steps)) - FIRST + 1, WINDOWS))
            self.starts.append(n.copy())
        if not self.starts:
            return np.ones(len(n))
        oldest = self.starts[0]
        if len(oldest) < len(n):
            oldest = np.pad(oldest, (0, len(n) - len(oldest)))
        visits = n - oldest
        return np.where(visits > 0, 1.0 - np.exp(-self.log / np.maximum(visits, 1)), 1.0)
