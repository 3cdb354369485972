"""What the counts say about the kernel, with probability 1 - delta (docs/theory.md, lemmas 1 to 3)."""

from __future__ import annotations

import math

import numpy as np

from adagoal.core.counts import Counts
from adagoal.core.errors import InputError
from adagoal.core.types import Floats
from adagoal.tabular import kernels
from adagoal.tabular.surprise import Quiet

SHARES = (0.35, 0.35, 0.05, 0.25)
"""Of delta, for the events of lemmas 1, 2, 3a and 3b."""


class Confidence:
    """The empirical kernel of the counts, and the radii of every pair."""

    def __init__(self, counts: Counts, pairs: int, goals: int, delta: float, branching: int) -> None:
        """``pairs`` and ``goals`` bound the numbers of both, ``branching`` the successors of a pair."""
        self.counts, self.branching = counts, branching
        self.logs = np.log(pairs / delta * np.array([goals, 1, 1]) / SHARES[:3])
        """ln of the unions of lemmas 1, 2 and 3a over their shares of delta"""
        self._first = float(self.logs[0])
        self.quiet = Quiet(SHARES[3] * delta)
        self._p, self._p_split = np.zeros((2, *counts.successor.shape))
        X = len(counts.n)
        self._r, self._r_low, self._q, self._seen = np.full(X, np.inf), np.full(X, np.inf), np.ones(X), np.zeros(X, int)
        self._visits: Floats = np.zeros((0, X))

    def update(self) -> bool:
        """Take in new counts; False where there are none."""
        counts = self.counts
        self._make_room()
        changed = np.flatnonzero(counts.n != self._seen)
        if not len(changed):
            return False
        if counts.support.max() > self.branching:
            raise InputError(f"--method-arg branching={self.branching}: a pair with more successors has been observed")
        kernels.radii(
            *(changed, counts.count, counts.recent, counts.support, counts.n, counts.settled),
            *(self.logs, self.branching, self._p, self._p_split, self._r_low, self._r, self._q),
        )
        self._visits = self.quiet.visits(counts.n, counts.settled)
        self._seen[changed] = counts.n[changed]
        return True

    def forget(self) -> None:
        """Compute everything anew at the next update."""
        self._seen[:] = -1

    def set_stage(self, stage: int) -> None:
        """The share of stage 1, 2, ... of a curriculum in the event of lemma 1."""
        self.logs[0] = self._first + math.log(stage * (stage + 1))
        self.forget()

    def model(self) -> kernels.Model:
        """For the sweeps."""
        c, q = self.counts, np.minimum(self._q, self.quiet.bound(self._visits))
        radii = (self._r_low, self._r, q, self._visits, self.quiet.log)
        return kernels.Model(c.successor, self._p, self._p_split, c.support, *radii, c.terminal, c.start)

    def _make_room(self) -> None:
        """Places for the pairs and the successors that the counts made room for."""
        shape = self.counts.successor.shape
        if self._p.shape == shape:
            return
        room = [(0, new - old) for new, old in zip(shape, self._p.shape, strict=True)]
        self._p, self._p_split = np.pad(self._p, room), np.pad(self._p_split, room)
        self._visits = np.pad(self._visits, ((0, 0), room[0]))
        for name, value in (("_r", np.inf), ("_r_low", np.inf), ("_q", 1.0), ("_seen", 0)):
            setattr(self, name, np.pad(getattr(self, name), room[0], constant_values=value))
