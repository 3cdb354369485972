"""What has been seen: transition counts, the only thing a tabular learner knows about its world.

The pair (s, a) has the number ``x = s * A + a``. Its observed successors stand in the first ``support[x]``
places of ``successor[x]``, with their counts in the same places of ``count[x]``. The reset is not
counted: it is known.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from adagoal.core.types import Bools, Floats, Ints, Longs


class Counts:
    """Growing transition counts over S states (allocated, not necessarily all seen) and A actions."""

    ARRAYS = ("successor", "count", "recent", "support", "n", "settled", "visits", "seen", "terminal")

    def __init__(self, n_states: int, n_actions: int, start: int, width: int = 4) -> None:
        self.n_actions, self.start = n_actions, start
        pairs = n_states * n_actions
        self.successor: Ints = np.zeros((pairs, width), np.int32)
        self.count: Longs = np.zeros((pairs, width), np.int64)
        self.recent: Longs = np.zeros((pairs, width), np.int64)
        """[X, K] the counts since the last new successor was observed"""
        self.support: Ints = np.zeros(pairs, np.int32)
        """[X] number of different successors observed"""
        self.n: Longs = np.zeros(pairs, np.int64)
        """[X] number of transitions observed"""
        self.settled: Longs = np.zeros(pairs, np.int64)
        """[X] the value of n when the last new successor was observed"""
        self.visits: Longs = np.zeros(n_states, np.int64)
        """[S] number of steps taken from each state"""
        self.seen: Bools = np.zeros(n_states, bool)
        """[S] states that were entered at least once"""
        self.terminal: Bools = np.zeros(n_states, bool)
        """[S] states in which the environment allowed nothing but the reset"""
        self.seen[start] = True

    @property
    def n_states(self) -> int:
        """Allocated states; an environment of unknown size may ask for more with :meth:`grow_states`."""
        return len(self.visits)

    @property
    def resets(self) -> int:
        """Resets so far: every step is a transition that was counted, or one of them."""
        return int(self.visits.sum() - self.n.sum())

    def record(self, state: int, action: int, successor: int) -> int:
        """Count one transition; returns the new count of the pair."""
        pair = state * self.n_actions + action
        while not record(pair, successor, self.successor, self.count, self.recent, self.support, self.n, self.settled):
            self.widen(2 * self.successor.shape[1])
        return int(self.n[pair])

    def widen(self, width: int) -> None:
        """Make room for more successors per pair."""
        if width <= self.successor.shape[1]:
            return
        extra = ((0, 0), (0, width - self.successor.shape[1]))
        self.successor = np.pad(self.successor, extra)
        self.count, self.recent = np.pad(self.count, extra), np.pad(self.recent, extra)

    def grow_states(self, n_states: int) -> None:
        """Make room for more states; the new ones are unseen."""
        states, pairs = n_states - self.n_states, (n_states - self.n_states) * self.n_actions
        for name in self.ARRAYS:
            array = getattr(self, name)
            rows = states if name in ("visits", "seen", "terminal") else pairs
            setattr(self, name, np.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1)))

    def kernel(self) -> Floats:
        """[X, S] empirical transition probabilities, zero where a pair was never tried. For small S only."""
        p_hat = np.zeros((len(self.n), self.n_states))
        rows = np.repeat(np.arange(len(self.n)), self.support)
        inside = np.arange(self.successor.shape[1]) < self.support[:, None]
        p_hat[rows, self.successor[inside]] = self.count[inside] / self.n[rows]
        return p_hat

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything, for a checkpoint."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """The inverse of :meth:`state`."""
        states = len(arrays["visits"])
        if any(len(arrays[name]) not in (states, states * self.n_actions) for name in self.ARRAYS):
            raise ValueError("the counts do not fit together")
        for name in self.ARRAYS:
            setattr(self, name, np.array(arrays[name]))


@numba.njit(cache=True, nogil=True)
def record(pair, successor, successors, count, recent, support, n, settled):  # type: ignore[no-untyped-def]
    """Count one transition of a pair; False (and nothing counted) where the row has no place left."""
    places = support[pair]
    for k in range(places):
        if successors[pair, k] == successor:
            count[pair, k] += 1
            recent[pair, k] += 1
            n[pair] += 1
            return True
    if places == successors.shape[1]:
        return False
    successors[pair, places] = successor
    count[pair, places] = 1
    support[pair] += 1
    n[pair] += 1
    settled[pair] = n[pair]
    for k in range(places):
        recent[pair, k] = 0
    return True
