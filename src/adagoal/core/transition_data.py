"""What has been seen: transition counts, the only thing a tabular learner knows about its world.

The pair (s, a) has the number ``x = s * A + a``. Its observed successors stand in the first ``support[x]``
places of ``successor[x]``, with their counts in the same places of ``count[x]``. The reset is not
counted: it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays
from adagoal.core.types import Bools, Floats, Ints, Longs

MAX_TRANSITIONS = 2**53
"""Transitions of a pair, at most: sums stay exact."""

EMPIRICAL_MODEL_SCHEMA: ArraySchema = {
    "moves_pair": ArraySpec("int64", ("M",), low=0, below="S*A"),
    "moves_to": ArraySpec("int32", ("M",), low=0, below="S"),
    "moves_count": ArraySpec("int64", ("M",), low=1, high=MAX_TRANSITIONS),
}
"""What a result keeps of the counts."""


COUNTING_LOOP_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
"""Without Numba's reference counts, which cost more than the steps themselves: nothing is allocated in such loops."""


class TransitionCounts:
    """Growing transition counts over S states (allocated, not necessarily all seen) and A actions."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "successor": ArraySpec("int32", ("S*A", "K"), low=0, below="S"),
        "count": ArraySpec("int64", ("S*A", "K"), low=0, high=MAX_TRANSITIONS),
        "recent": ArraySpec("int64", ("S*A", "K"), low=0, high=MAX_TRANSITIONS),
        "support": ArraySpec("int32", ("S*A",), low=0, high="K"),
        "n": ArraySpec("int64", ("S*A",), low=0, high=MAX_TRANSITIONS),
        "settled": ArraySpec("int64", ("S*A",), low=0, high=MAX_TRANSITIONS),
        "visits": ArraySpec("int64", ("S",), low=0, high=MAX_TRANSITIONS),
        "seen": ArraySpec("bool", ("S",)),
        "terminal": ArraySpec("bool", ("S",)),
        "absent": ArraySpec("bool", ("S*A",)),
    }
    """What a checkpoint holds."""

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
        self.absent: Bools = np.zeros(pairs, bool)
        """[X] pairs that do not exist, as the state does not have the action: the reset stands in for it"""
        self.seen[start] = True
        self.transition_log: TransitionLog | None = None
        """Every step that was counted, where a run is to keep them"""

    @property
    def n_states(self) -> int:
        """Allocated states; an environment of unknown size may ask for more with :meth:`grow_states`."""
        return len(self.visits)

    @property
    def n_resets(self) -> int:
        """Resets so far: every step is a transition that was counted, or one of them."""
        return int(self.visits.sum() - self.n.sum())

    def record_transition(self, state: int, action: int, successor: int) -> int:
        """Count one transition; returns the new count of the pair."""
        pair = state * self.n_actions + action
        while not count_transition(
            pair, successor, self.successor, self.count, self.recent, self.support, self.n, self.settled
        ):
            self.grow_successors(2 * self.successor.shape[1])
        return int(self.n[pair])

    def mark_absent_pairs(self, pairs: Longs) -> None:
        """These pairs do not exist: each is known to be the reset, with the start as its successor and no counts."""
        self.absent[pairs], self.support[pairs], self.successor[pairs, 0] = True, 1, self.start

    def add_steps(self, moves: Longs, landed: Longs) -> None:
        """Count steps, in order: pairs s * A + a, or -1 - s for a reset in s, and the states after them."""
        if self.transition_log is not None:
            self.transition_log.append_steps(moves, landed)
        done = 0
        while done < len(moves):
            arrays = self.successor, self.count, self.recent, self.support, self.n, self.settled
            done = count_steps_from(moves, landed, done, self.n_actions, self.visits, self.seen, *arrays)
            if done < len(moves):
                self.grow_successors(2 * self.successor.shape[1])

    def grow_successors(self, width: int) -> None:
        """Make room for more successors per pair."""
        if width <= self.successor.shape[1]:
            return
        extra = ((0, 0), (0, width - self.successor.shape[1]))
        self.successor = np.pad(self.successor, extra)
        self.count, self.recent = np.pad(self.count, extra), np.pad(self.recent, extra)

    def grow_states(self, n_states: int) -> None:
        """Make room for more states; the new ones are unseen."""
        states, pairs = n_states - self.n_states, (n_states - self.n_states) * self.n_actions
        for name in self.ARRAY_SCHEMA:
            array = getattr(self, name)
            rows = states if name in ("visits", "seen", "terminal") else pairs
            setattr(self, name, np.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1)))

    def empirical_kernel(self) -> Floats:
        """[X, S] empirical transition probabilities, zero where a pair was never tried. For small S only."""
        p_hat = np.zeros((len(self.n), self.n_states))
        inside = self.count > 0
        rows = np.repeat(np.arange(len(self.n)), inside.sum(axis=1))
        p_hat[rows, self.successor[inside]] = self.count[inside] / self.n[rows]
        return p_hat

    def empirical_model_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The empirical model as three arrays [M] (:data:`EMPIRICAL_MODEL_SCHEMA`): pair x, successor, and how often it
        followed."""
        inside = self.count > 0
        pair = np.repeat(np.arange(len(self.n)), inside.sum(axis=1))
        return {"moves_pair": pair, "moves_to": self.successor[inside], "moves_count": self.count[inside]}

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything, for a checkpoint."""
        return {name: getattr(self, name) for name in self.ARRAY_SCHEMA}

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """The inverse of :meth:`state`; what does not fit together is a ``ValueError``, and nothing is changed."""
        check_arrays(self.ARRAY_SCHEMA, arrays, {"A": self.n_actions})
        other = object.__new__(TransitionCounts)
        other.n_actions, other.start = self.n_actions, self.start
        for name in self.ARRAY_SCHEMA:
            setattr(other, name, np.array(arrays[name]))
        other._check_consistency()
        vars(self).update(vars(other))

    def _check_consistency(self) -> None:
        """Every array says the same about the same transitions."""
        places = np.arange(self.successor.shape[1])
        inside = places < self.support[:, None]
        named = np.sort(np.where(inside, self.successor, -1 - places), axis=1)
        tried = self.n.reshape(self.n_states, self.n_actions).sum(axis=1)
        rules = {
            "a count beyond the support": (self.count > 0) == (inside & ~self.absent[:, None]),
            "an absent pair that is not the reset": (self.support == 1) & (self.successor[:, 0] == self.start)
            | ~self.absent,
            "a successor twice": named[:, 1:] != named[:, :-1],
            "an n that is not the sum of the counts": self.n == self.count.sum(axis=1),
            "more recent transitions than transitions": self.recent <= self.count,
            "recent transitions that do not add up": self.recent.sum(axis=1) == self.n - self.settled,
            "fewer visits than transitions": self.visits >= tried,
            "a state that was visited and not seen": self.seen | (self.visits == 0),
            "a successor that was not seen": self.seen[self.successor[inside]],
            "a start that was not seen": self.seen[self.start : self.start + 1],
        }
        for problem, holds in rules.items():
            if not holds.all():
                raise ValueError(f"the counts have {problem}")


@numba.njit(cache=True, nogil=True)
def count_transition(pair, successor, successors, count, recent, support, n, settled):  # type: ignore[no-untyped-def]
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


@numba.njit(**COUNTING_LOOP_OPTIONS)
def count_steps_from(moves, landed, done, n_actions, visits, seen, *arrays):  # type: ignore[no-untyped-def]
    """Count steps from number ``done`` on; returns where a row had no place left, or the end."""
    for i in range(done, len(moves)):
        if moves[i] >= 0 and not count_transition(moves[i], landed[i], *arrays):
            return i
        visits[moves[i] // n_actions if moves[i] >= 0 else -1 - moves[i]] += 1
        seen[landed[i]] = True
    return len(moves)


# Every step of a run, in order: the data from which its counts were made.
#
# Three arrays [N] with one entry per step: ``state``, ``action`` and ``next_state``. The reset is a step like any
# other; its action is A, the number after the last one of the environment. Those of several workers follow one another,
# round by round. That makes 10 bytes a step, in memory and on disk.


TRANSITION_LOG_SCHEMA: ArraySchema = {
    "state": ArraySpec("int32", ("N",), low=0, below="S"),
    "action": ArraySpec("int16", ("N",), low=0, high="A"),
    "next_state": ArraySpec("int32", ("N",), low=0, below="S"),
}


class TransitionLog:
    """The steps so far; :attr:`adagoal.core.transition_data.Counts.transition_log` is where a world adds to it."""

    def __init__(self, n_actions: int) -> None:
        self._n_actions = n_actions
        self._array_pieces: dict[str, list[NDArray[Any]]] = {
            name: [np.zeros(0, a.dtype)] for name, a in TRANSITION_LOG_SCHEMA.items()
        }

    def append_steps(self, moves: Longs, landed: Longs) -> None:
        """Steps: pairs s * A + a, or -1 - s for a reset in s, and the states after them."""
        real, A = moves >= 0, self._n_actions
        states = np.where(real, moves // A, -1 - moves)
        for name, values in zip(TRANSITION_LOG_SCHEMA, (states, np.where(real, moves % A, A), landed), strict=True):
            self._array_pieces[name].append(values.astype(TRANSITION_LOG_SCHEMA[name].dtype))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """What is saved."""
        self._array_pieces = {name: [np.concatenate(pieces)] for name, pieces in self._array_pieces.items()}
        return {name: pieces[0] for name, pieces in self._array_pieces.items()}

    def restore_steps(self, arrays: Mapping[str, NDArray[Any]], counts: TransitionCounts) -> None:
        """Back to the steps behind some counts: later ones are dropped, and a ``ValueError`` says if some are missing.

        (A checkpoint may be older than what was saved last, where the newer one was damaged.)
        """
        steps = int(counts.visits.sum())
        kept = {name: arrays[name][:steps] for name in TRANSITION_LOG_SCHEMA}
        if not np.array_equal(np.bincount(kept["state"], minlength=counts.n_states), counts.visits):
            raise ValueError("the steps are not those that were counted")
        self._array_pieces = {name: [array] for name, array in kept.items()}
