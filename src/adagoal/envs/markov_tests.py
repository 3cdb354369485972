"""Test during a run that successors do not depend on the past or on time, as certificates assume.

A certificate assumes that the successor of a pair (s, a) is drawn from one fixed distribution, independent of the past,
and that a reset forgets everything. Four tests per pair look for a dependence of the successor on

    the previous step  (after a reset: on the state in which the reset was taken),
    the age            of the episode, in powers of two,
    the time           in the run: the number of samples of the pair so far, in powers of two,
    the history        of the episode: all moves since the reset. If a history repeats, does its successor repeat?

Each is a test martingale. Its classes are the values of the suspected cause; z_1, z_2, ... are the successors. The
wealth multiplies the ratios Q_i(z_i) / p(z_i). Here p is the true distribution, and Q_i predicts z_i from the earlier
samples of the same class (Krichevsky-Trofimov: (count + 1/2) / (total + k/2) over the k successors known so far). Q_i
reserves 1/(i + 1) for a new successor. The fourth test predicts the successor that followed the same history the last
time; for a new history, it predicts from all samples of the pair. It detects hidden states without noise, and
generators that every reset seeds anew.

If the assumptions hold, the expected wealth stays at most 1 for any exploration policy and at any stopping time. So
the wealth ever exceeds 1/alpha with probability at most alpha (Ville's inequality). The unknown p is replaced by its
maximum likelihood estimate over the known successors, and by 1 for a new successor. Both can only lower the wealth. The
j-th pair gets the share 1/(j (j + 1)) of :data:`FALSE_ALARM_PROBABILITY`, which therefore bounds the probability of any
false alarm in a run.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Floats, Ints, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays

FALSE_ALARM_PROBABILITY = 1e-6  # per run, for all tests together
MAX_TESTED_PAIRS = 4096  # the pairs that were met first; a row takes 1.2 kB


class PairTables(NamedTuple):
    """Samples and log scores of the tested pairs; :attr:`MarkovTests.ARRAY_SCHEMA` has the shapes.

    First steps after a reset have rows of their own.
    """

    pair: Longs  # the pair, and whether the row is for first steps after a reset
    successors: Ints  # in the order in which they were observed
    previous_steps: Longs  # moves before the pair, likewise
    n_known: Longs  # successors and previous steps in use
    counts: Longs  # samples per successor, and of all other successors
    class_counts: Ints  # the same per class: previous steps and all others, ages, current epoch
    log_scores: Floats  # sums of log Q_i(z_i), one per test

    @staticmethod
    def empty(rows: int) -> PairTables:
        """Return tables with room for ``rows`` pairs."""
        specs = [MarkovTests.ARRAY_SCHEMA[name] for name in PairTables._fields]
        return PairTables(*(np.zeros((rows, *map(int, (spec.shape or ())[1:])), spec.dtype) for spec in specs))

    def used_rows(self, rows: int) -> dict[str, NDArray[Any]]:
        """Return the first rows of every table, by name."""
        return {name: getattr(self, name)[:rows] for name in self._fields}

    def with_room_for(self, rows: int) -> PairTables:
        """Return copies with more rows, the new ones empty."""
        larger = PairTables.empty(rows)
        for name, table in self.used_rows(rows).items():
            getattr(larger, name)[: len(table)] = table
        return larger


class MarkovTests:
    """The tests of all pairs, in bounded memory."""

    # The shapes bound the memory, and the kernels read their limits from them. Of a pair the tests distinguish
    # 8 successors and 8 previous steps (all others count as one), and 16 powers of two of the age. The table of
    # histories is a hash table: a new history replaces an older one with the same remainder.
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "row_of_pair": ArraySpec("int32", ("P",), low=-1, below="R"),
        "stream_position": ArraySpec("int64", (4,), low=-(2**62), high=2**62),
        "histories": ArraySpec("int64", (4096,), low=0),
        "history_successors": ArraySpec("int32", (4096,), low=0),
        "pair": ArraySpec("int64", ("R", 2), low=0),
        "successors": ArraySpec("int32", ("R", 8), low=0),
        "previous_steps": ArraySpec("int64", ("R", 8)),
        "n_known": ArraySpec("int64", ("R", 2), low=0, high=8),
        "counts": ArraySpec("int64", ("R", 8 + 1), low=0, high=2**53),
        "class_counts": ArraySpec("int32", ("R", 8 + 1 + 16 + 1, 8 + 1), low=0),
        "log_scores": ArraySpec("float64", ("R", 4)),
    }

    def __init__(self, n_actions: int) -> None:
        self._n_actions = n_actions
        self._row_of_pair = np.full(0, -1, np.int32)  # [2 X] row of each pair, for ordinary and for first steps
        self._stream_position = np.zeros(4, np.int64)  # previous move, age, hash of the history, rows in use
        self._histories = np.zeros(4096, np.int64)  # hashes
        self._history_successors = np.zeros(4096, np.int32)  # successor that followed each history
        self._tables = PairTables.empty(64)

    @property
    def _n_rows(self) -> int:
        return int(self._stream_position[3])

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all arrays for a checkpoint, without unused rows."""
        memory: dict[str, NDArray[Any]] = {
            "row_of_pair": self._row_of_pair,
            "stream_position": self._stream_position,
            "histories": self._histories,
            "history_successors": self._history_successors,
        }
        return memory | self._tables.used_rows(self._n_rows)

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the arrays of :meth:`state`; raise ``ValueError`` if they contradict each other."""
        n_rows = check_arrays(self.ARRAY_SCHEMA, arrays)["R"]
        rows, position, tested = arrays["row_of_pair"], arrays["stream_position"], arrays["pair"] @ np.array([2, 1])
        if not (
            # The kernels index these tables without bounds checks, so a forged file could write anywhere in memory.
            position[3] == n_rows <= MAX_TESTED_PAIRS
            and position[1] >= 0
            and (arrays["pair"][:, 1] <= 1).all()
            and (tested < len(rows)).all()
            and np.array_equal(rows[tested], np.arange(n_rows))
            and (rows >= 0).sum() == n_rows
        ):
            raise ValueError("the tested pairs are not those that were met")
        self._row_of_pair, self._stream_position = np.array(rows), np.array(position)
        self._histories = np.array(arrays["histories"])
        self._history_successors = np.array(arrays["history_successors"])
        # A power of two, as doubling makes it, so a resumed run grows its tables at the same transitions.
        saved = PairTables(*(arrays[name] for name in PairTables._fields))
        self._tables = saved.with_room_for(max(64, 1 << (n_rows - 1).bit_length() if n_rows else 0))

    def add_transitions(self, moves: Longs, next_states: Longs, stream_position: Longs | None = None) -> Longs:
        """Test transitions in order. A move is a pair s * A + a, or -1 - s for a reset in s.

        ``stream_position`` [3] is the return value of an earlier call, if these transitions continue that stream:
        previous move, age, hash of the history. By default they continue the last stream.
        """
        if stream_position is not None:
            self._stream_position[:3] = stream_position
        if not len(moves):
            return self._stream_position[:3].copy()
        # Rows are indexed by 2 * pair + first step. Twice the need, so new states rarely copy the array.
        pairs = (int(max(moves.max(), (-1 - moves).max() * self._n_actions)) + self._n_actions) * 2
        if pairs > len(self._row_of_pair):
            self._row_of_pair = np.pad(self._row_of_pair, (0, 2 * pairs - len(self._row_of_pair)), constant_values=-1)
        memory = self._row_of_pair, self._stream_position, self._histories, self._history_successors
        # Compiled code cannot replace an array of the caller, so it stops where the tables are full.
        done = _test_transitions(moves, next_states, 0, *memory, self._tables)
        while done < len(moves):
            self._tables = self._tables.with_room_for(2 * len(self._tables.pair))
            done = _test_transitions(moves, next_states, done, *memory, self._tables)
        return self._stream_position[:3].copy()

    @property
    def saw_randomness(self) -> bool:
        """Whether some pair had more than one successor."""
        return bool((self._tables.n_known[: self._n_rows, 0] > 1).any())

    def log_wealth(self) -> Floats:
        """[rows, tests] log wealth: the evidence against the assumptions."""
        counts = self._tables.counts[: self._n_rows].astype(float)
        total = counts.sum(axis=1, keepdims=True)
        # Skip successors without counts: 0 * log(0) would be NaN.
        terms = np.where(counts > 0, counts * np.log(np.maximum(counts, 1) / np.maximum(total, 1)), 0.0)
        # The maximum likelihood estimate is at least as likely as the true p, so it can only lower the wealth.
        evidence: Floats = self._tables.log_scores[: self._n_rows] - terms.sum(axis=1)[:, None]
        return evidence

    def describe_violations(self) -> list[str]:
        """Return one line for every kind of violation that was detected."""
        texts = (
            (
                "what an action does depends on the step before it, so the observation is not the whole state",
                "what an action does depends on the time since the reset, so the observation is not the whole state",
                "what an action does changed during the run, so the environment is not stationary",
                "what an action does is the same whenever the same actions follow a reset, so the environment hides "
                "part of its state, or every reset seeds its random generator anew",
            ),
            (
                "what the first action after a reset does depends on where the reset was taken, so the reset does not "
                "forget",
                "",  # a first step has only one age and one history
                "what the first action after a reset does changed during the run, so the reset does not restore the "
                "start",
                "",
            ),
        )
        wealth = self.log_wealth()
        # The shares 1/(j (j + 1)) sum to one however many pairs the run meets, which is unknown at its start.
        j = np.arange(1, len(wealth) + 1)
        detected = wealth > np.log(wealth.shape[1] * j * (j + 1.0) / FALSE_ALARM_PROBABILITY)[:, None]
        pair = self._tables.pair[: len(wealth)]
        lines = []
        for is_first_step in (0, 1):
            for test in range(wealth.shape[1]):
                rows = np.flatnonzero(detected[:, test] & (pair[:, 1] == is_first_step))
                if len(rows):
                    worst = rows[wealth[rows, test].argmax()]
                    state, action = divmod(int(pair[worst, 0]), self._n_actions)
                    pairs = f"{len(rows)} state-action pair{'s' if len(rows) > 1 else ''}"
                    odds = int(wealth[worst, test] / math.log(10))
                    where = f"{pairs}, most clearly state {state}, action {action}: odds 1 : 10^{odds}"
                    lines.append(f"{texts[is_first_step][test]} ({where})")
        return lines


@compiled
def _test_transitions(  # type: ignore[no-untyped-def]
    moves, next_states, done, row_of_pair, stream_position, histories, history_successors, tables
):  # fmt: skip
    """Test transitions from number ``done`` on; return the number of the first one without room in the tables."""
    previous, age, history, n_rows = stream_position[0], stream_position[1], stream_position[2], stream_position[3]
    # Longer histories hardly ever repeat, so they would only overwrite short ones in the hash table.
    max_history_length, i = 32, done
    while i < len(moves):
        move = moves[i]
        if move < 0:
            # The move that was a reset stays as the previous step: the first action may depend on where it was taken.
            previous, age, history = move, 0, 0
            i += 1
            continue
        # First steps have their own row: there the previous step says whether the reset forgets.
        key = 2 * move + (age == 0)
        row = row_of_pair[key]
        if row == -1 and n_rows < MAX_TESTED_PAIRS:
            # Before anything of this transition is stored, so the caller can grow the tables and repeat it.
            if n_rows == len(tables.pair):
                break
            row = row_of_pair[key] = n_rows
            tables.pair[row, 0], tables.pair[row, 1] = move, age == 0
            n_rows += 1
        # A 64-bit hash whose product wraps around; the mask keeps it positive, as the schema of checkpoints demands.
        history = (history ^ (move + 1)) * 6364136223846793005
        history = (history ^ (history >> 29)) & (2**61 - 1)
        slot = history % len(histories)
        if row >= 0:
            repeats = age < max_history_length and histories[slot] == history
            expected = history_successors[slot] if repeats else -1
            _update_scores(row, previous, age, expected, next_states[i], tables)
        if age < max_history_length:
            histories[slot], history_successors[slot] = history, next_states[i]
        previous = move
        age += 1
        i += 1
    stream_position[0], stream_position[1], stream_position[2], stream_position[3] = previous, age, history, n_rows
    return i


@compiled_helper
def _update_scores(row, previous, age, expected, successor, tables):  # type: ignore[no-untyped-def]
    """Score one sample in all tests, then count it. ``expected`` followed the same history, or is -1."""
    counts, n_known, log_scores = tables.counts[row], tables.n_known[row], tables.log_scores[row]
    # The first sample of a successor is scored but not counted.
    n_samples = counts.sum() + n_known[0]
    z = _find_value(tables.successors[row], n_known[0], successor)
    # A new successor lowers the wealth of all tests: they predict it with 1/(i + 1), and p is replaced by 1. No class
    # can predict it better than another one, so it is not counted.
    if z == n_known[0] and z < len(tables.successors[row]):
        tables.successors[row, z] = successor
        n_known[0] += 1
        for test in range(len(log_scores)):
            log_scores[test] -= math.log(n_samples + 2.0)
        return
    cause = _find_value(tables.previous_steps[row], n_known[1], previous)
    if cause == n_known[1] and cause < len(tables.previous_steps[row]):
        tables.previous_steps[row, cause] = previous
        n_known[1] += 1
    # When the table is full, "all others" is one more successor, and none can be new: nothing is reserved any more.
    is_full = n_known[0] == len(tables.successors[row])
    k = n_known[0] + is_full
    log_factor = 0.0 if is_full else math.log((n_samples + 1.0) / (n_samples + 2.0))
    epoch = tables.class_counts.shape[1] - 1
    age_class = min(len(tables.previous_steps[row]) + 1 + int(math.log2(age + 1.0)), epoch - 1)
    # At a power of two a new epoch starts, which predicts from its own samples only. So a change of p shows as a
    # better prediction. The first 64 samples are one epoch.
    if n_samples >= 64 and n_samples & (n_samples - 1) == 0:
        tables.class_counts[row, epoch, :] = 0
    for test, c in enumerate((cause, age_class, epoch)):
        in_class = tables.class_counts[row, c]
        log_scores[test] += log_factor + math.log((in_class[z] + 0.5) / (in_class.sum() + 0.5 * k))
        in_class[z] += 1
    # Before the sample is counted: a test martingale may predict from the past only.
    q = (counts[z] + 0.5) / (counts.sum() + 0.5 * k)
    if expected >= 0:
        repeats = _find_value(tables.successors[row], n_known[0], expected) == z
        # Not certainty: one sample that differs would make the wealth zero for ever.
        repeat_weight = 63 / 64
        q = (1.0 - repeat_weight) * q + (repeat_weight if repeats else 0.0)
    log_scores[-1] += log_factor + math.log(q)
    counts[z] += 1


@compiled_helper
def _find_value(values, n, value):  # type: ignore[no-untyped-def]
    """Return the index of a value among the first n, or n."""
    i = 0
    while i < n and values[i] != value:
        i += 1
    return i
