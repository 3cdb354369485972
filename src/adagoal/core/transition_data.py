"""Transition counts, the only data of a tabular learner, and the log of single transitions.

The pair (s, a) has the number ``x = s * A + a``. The first ``support[x]`` entries of ``successor[x]`` are its observed
successors, and ``count[x]`` has their counts. Resets are not counted, because their outcome is known.

Rollouts report steps as two arrays: ``moves``, a pair x or -1 - s for a reset in state s, and ``landed``, the state
after the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Bools, Floats, Ints, Longs
from adagoal.core.compiled_code import compiled
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays

MAX_TRANSITIONS = 2**53  # of a pair; up to here whole numbers are exact in double precision
# Numba options of loops that allocate nothing. Reference counting would cost more than the steps themselves.
COUNTING_LOOP_OPTIONS: dict[str, Any] = {"_nrt": False}


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
    EMPIRICAL_MODEL_SCHEMA: ClassVar[ArraySchema] = {
        "moves_pair": ArraySpec("int64", ("M",), low=0, below="S*A"),
        "moves_to": ArraySpec("int32", ("M",), low=0, below="S"),
        "moves_count": ArraySpec("int64", ("M",), low=1, high=MAX_TRANSITIONS),
    }

    def __init__(self, n_states: int, n_actions: int, start: int, width: int = 4) -> None:
        self.n_actions, self.start = n_actions, start
        pairs = n_states * n_actions
        self.successor: Ints = np.zeros((pairs, width), np.int32)  # [X, K]
        self.count: Longs = np.zeros((pairs, width), np.int64)  # [X, K]
        # Lemma 2 starts again whenever a pair has a new successor, so these counts are kept apart.
        self.recent: Longs = np.zeros((pairs, width), np.int64)  # [X, K]: counts since the last new successor
        self.support: Ints = np.zeros(pairs, np.int32)  # [X]: number of different successors observed
        self.n: Longs = np.zeros(pairs, np.int64)  # [X]: number of transitions observed
        self.settled: Longs = np.zeros(pairs, np.int64)  # [X]: n when the last new successor was observed
        self.visits: Longs = np.zeros(n_states, np.int64)  # [S]: steps taken from each state, resets included
        self.seen: Bools = np.zeros(n_states, bool)  # [S]: states entered or left at least once
        self.terminal: Bools = np.zeros(n_states, bool)  # [S]: states in which only the reset is possible
        self.absent: Bools = np.zeros(pairs, bool)  # [X]: actions that the state does not have
        self.seen[start] = True
        self.transition_log: TransitionLog | None = None  # if set, every counted step is appended to it

    @property
    def n_states(self) -> int:
        """Number of allocated states; environments of unknown size call :meth:`grow_states`."""
        return len(self.visits)

    @property
    def n_resets(self) -> int:
        """Number of resets: the steps that are not counted transitions."""
        return int(self.visits.sum() - self.n.sum())

    @property
    def n_absent_in_start(self) -> int:
        """Number of actions that the start is known not to have."""
        first = self.start * self.n_actions
        return int(self.absent[first : first + self.n_actions].sum())

    def mark_absent_pairs(self, pairs: Longs) -> None:
        """Give pairs that do not exist the reset as their known transition, without counts."""
        # Every state has the reset, so a pair that repeats it adds no policy and changes no optimal value.
        self.absent[pairs], self.support[pairs], self.successor[pairs, 0] = True, 1, self.start

    def add_steps(self, moves: Longs, landed: Longs) -> None:
        """Count steps in order."""
        if self.transition_log is not None:
            self.transition_log.append_steps(moves, landed)
        done, steps = 0, (moves, landed)
        # Compiled code cannot replace the arrays by wider ones, so it returns at the first step that needs more room.
        while done < len(moves):
            done = count_steps_from(*steps, done, self.n_actions, self.visits, self.seen, *self.transition_arrays())
            if done < len(moves):
                self.grow_successors(2 * self.successor.shape[1])

    def transition_arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays that :func:`count_transition` updates."""
        return self.successor, self.count, self.recent, self.support, self.n, self.settled

    def grow_successors(self, width: int) -> None:
        """Allocate more successors per pair."""
        if width <= self.successor.shape[1]:
            return
        extra = ((0, 0), (0, width - self.successor.shape[1]))
        self.successor = np.pad(self.successor, extra)
        self.count, self.recent = np.pad(self.count, extra), np.pad(self.recent, extra)

    def grow_states(self, n_states: int) -> None:
        """Allocate more states, unseen so far."""
        states, pairs = n_states - self.n_states, (n_states - self.n_states) * self.n_actions
        for name in self.ARRAY_SCHEMA:
            array = getattr(self, name)
            rows = states if name in ("visits", "seen", "terminal") else pairs
            setattr(self, name, np.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1)))

    def empirical_kernel(self) -> Floats:
        """Empirical transition probabilities [X, S], zero for untried pairs; dense, for small S."""
        p_hat = np.zeros((len(self.n), self.n_states))
        inside = self.count > 0
        rows = np.repeat(np.arange(len(self.n)), inside.sum(axis=1))
        p_hat[rows, self.successor[inside]] = self.count[inside] / self.n[rows]
        return p_hat

    def empirical_model_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Observed transitions as arrays [M]: pair, successor and count, by pair."""
        inside = self.count > 0
        pair = np.repeat(np.arange(len(self.n)), inside.sum(axis=1))
        return {"moves_pair": pair, "moves_to": self.successor[inside], "moves_count": self.count[inside]}

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return all arrays, for a checkpoint."""
        return {name: getattr(self, name) for name in self.ARRAY_SCHEMA}

    def restore(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Restore a saved :meth:`state`; raise a ``ValueError`` and change nothing if the arrays are inconsistent."""
        check_arrays(self.ARRAY_SCHEMA, arrays, {"A": self.n_actions})
        # Into another object first, so a failed check leaves this one as it was.
        other = object.__new__(TransitionCounts)
        other.n_actions, other.start = self.n_actions, self.start
        for name in self.ARRAY_SCHEMA:
            setattr(other, name, np.array(arrays[name]))
        other._check_consistency()
        vars(self).update(vars(other))

    def _check_consistency(self) -> None:
        # Kernels rely on these rules without testing them, and a file may be forged.
        places = np.arange(self.successor.shape[1])
        inside = places < self.support[:, None]
        # Unused places get different negative numbers, so they do not count as a successor twice.
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


@compiled
def count_transition(pair, successor, successors, count, recent, support, n, settled):  # type: ignore[no-untyped-def]
    """Count one transition of a pair; return False and count nothing if the row of the pair is full."""
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
    # The transition that finds a successor is the last before the restart, so `recent` begins after it.
    settled[pair] = n[pair]
    for k in range(places):
        recent[pair, k] = 0
    return True


@compiled(**COUNTING_LOOP_OPTIONS)
def count_steps_from(moves, landed, done, n_actions, visits, seen, *arrays):  # type: ignore[no-untyped-def]
    """Count steps from number ``done`` on; return the first step whose row is full, or the number of steps."""
    for i in range(done, len(moves)):
        if moves[i] >= 0 and not count_transition(moves[i], landed[i], *arrays):
            return i
        state = moves[i] // n_actions if moves[i] >= 0 else -1 - moves[i]
        visits[state] += 1
        # A log may leave a state that it never enters.
        seen[state] = seen[landed[i]] = True
    return len(moves)


class TransitionLog:
    """Every step of a run in order, as arrays [N]: state, action (A for a reset) and next state.

    The steps of several workers follow one another, round by round. A step takes 10 bytes, in memory and on disk.
    """

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "state": ArraySpec("int32", ("N",), low=0, below="S"),
        "action": ArraySpec("int16", ("N",), low=0, high="A"),
        "next_state": ArraySpec("int32", ("N",), low=0, below="S"),
    }

    def __init__(self, n_actions: int) -> None:
        self._n_actions = n_actions
        self._pieces = {name: [np.zeros(0, spec.dtype)] for name, spec in self.ARRAY_SCHEMA.items()}

    def append_steps(self, moves: Longs, landed: Longs) -> None:
        """Append steps."""
        is_move, A = moves >= 0, self._n_actions
        columns = np.where(is_move, moves // A, -1 - moves), np.where(is_move, moves % A, A), landed
        for (name, spec), values in zip(self.ARRAY_SCHEMA.items(), columns, strict=True):
            self._pieces[name].append(values.astype(spec.dtype))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of ``ARRAY_SCHEMA``."""
        # The joined arrays replace the pieces, so the next checkpoint does not join them again.
        self._pieces = {name: [np.concatenate(pieces)] for name, pieces in self._pieces.items()}
        return {name: pieces[0] for name, pieces in self._pieces.items()}

    def restore_steps(self, arrays: Mapping[str, NDArray[Any]], counts: TransitionCounts) -> None:
        """Restore the steps behind ``counts``; raise a ``ValueError`` if some are missing.

        Later steps are dropped: if the newest checkpoint is damaged, the run continues from an older one.
        """
        steps = int(counts.visits.sum())
        log = {name: arrays[name][:steps] for name in self.ARRAY_SCHEMA}
        if not np.array_equal(np.bincount(log["state"], minlength=counts.n_states), counts.visits):
            raise ValueError("the steps are not those that were counted")
        self._pieces = {name: [array] for name, array in log.items()}
