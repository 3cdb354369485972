"""Is the world what the certificates take it for? Tests on the stream of transitions, while a run goes on.

A certificate assumes that the successor of a pair (s, a) is drawn from one fixed distribution, whatever happened
before, and that a reset forgets everything. Four tests per pair look for the opposite: the successor depends on

    the step before    (after a reset: on the state in which the reset was taken),
    the age            of the episode, in powers of two,
    the time           in the run, as the number of samples of the pair so far, in powers of two,
    the history        of the episode, all moves since the reset: whenever a history repeats, so does what follows it.

Each is a test martingale. Let the classes be the values of the suspected cause and z_1, z_2, ... the successors
seen. The wealth multiplies the ratios Q_i(z_i) / p(z_i), where p is the true distribution and Q_i predicts z_i from
the earlier samples of the same class (Krichevsky-Trofimov: (count + 1/2) / (total + k/2) over the k successors known so
far), leaving 1/(i + 1) for a new one. The fourth test predicts the successor that followed the same history the last
time, and otherwise all successors of the pair together. It finds hidden states without noise and generators that every
reset seeds anew. If the world is clean its expectation stays at most 1 for any exploration
policy and at any stopping time, so it ever exceeds 1/alpha with probability at most alpha (Ville). The unknown p is
replaced by its maximum likelihood over the known successors, and by 1 where the successor was new: both can
only lower the wealth. The j-th pair gets the share 1/(j (j + 1)) of :data:`FALSE_ALARM_PROBABILITY`: in a clean world
any warning at all appears with probability at most ALPHA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from adagoal.core.file_formats import (
    COUNT_SCHEMA,
    ArraySchema,
    ArraySpec,
    check_arrays,
    check_json_value,
    object_schema,
)
from adagoal.core.types import Floats, Longs
from adagoal.envs.env_backends import ActionMask

FALSE_ALARM_PROBABILITY = 1e-6
"""False alarms per run."""
MAX_TESTED_PAIRS = 4096
"""Pairs that are watched, at most: those that were met first."""
MAX_SUCCESSOR_CLASSES = 8
"""Successors per pair that are told apart; all others count as one."""
MAX_PREVIOUS_STEP_CLASSES = 8
"""Steps before a pair that are told apart; all others count as one."""
MAX_AGE_CLASSES = 16
"""Powers of two of the age."""
HISTORIES = 4096
"""Histories that are remembered; a new one takes the place of an older one with the same remainder."""
LONGEST = 32
"""Moves of a history, at most: longer ones hardly ever repeat."""
FAITH = 63 / 64
"""Weight of the successor that followed the same history the last time."""
N_TESTS = 4

VIOLATION_TEXTS = (
    (
        "what an action does depends on the step before it, so the observation does not tell the whole state",
        "what an action does depends on the time since the reset, so the observation does not tell the whole state",
        "what an action does changed during the run, so the environment is not stationary",
        "what an action does is the same whenever the same actions follow a reset, so the environment hides part of "
        "its state, or every reset seeds its random generator anew",
    ),
    (
        "what the first action after a reset does depends on where the reset was taken, so the reset does not forget",
        "",
        "what the first action after a reset does changed during the run, so the reset does not restore the start",
        "",
    ),
)
"""What looks wrong, for pairs in general and for first steps after a reset."""


@dataclass
class Diagnostics:
    """What was noticed about a world beside the tests: warnings, and reasons for which certificates are void."""

    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = object_schema(
        notes={"type": "array", "items": {"type": "string"}},
        reasons={"type": "array", "items": {"type": "string"}},
        lost=COUNT_SCHEMA,
    )
    lost: int = 0
    """Transitions lost because of what happened in them."""

    def add_warning(self, line: str) -> None:
        """A warning, once."""
        _append_new_line(self.notes, line)

    def add_void_reason(self, line: str) -> None:
        """A reason for which certificates are void; of lines that differ in a number only the first is kept."""
        _append_new_line(self.reasons, line)

    def report_reset_mismatch(self, landed: int) -> None:
        """A reset did not lead to the start."""
        self.add_void_reason(f"a reset led to another state than the start, the first time to state {landed}")

    def ends_now_and_then(self, state: int, bound: int) -> None:
        """A state out of ``bound`` declared ones ended the episode at one visit and not at another."""
        self.add_void_reason(
            f"a state ended the episode at one visit and not at another, first state {state}; max_states={2 * bound} "
            f"(--max-states {2 * bound}) makes the two visits different states"
        )

    def report_lost_transitions(self) -> None:
        """Work goes on: what was lost before is now missing from the samples."""
        if self.lost:
            self.add_void_reason(
                "the environment failed in a step and the run went on, so that the samples lack what happened in it, "
                f"{self._lost_transitions_text} so far"
            )

    def list_warnings(self) -> list[str]:
        """The notes, and what will void the run if it goes on."""
        failed = f"the environment failed in {self._lost_transitions_text}: the samples lack what happened in them"
        return [*self.notes, *([failed] if self.lost else [])]

    @property
    def _lost_transitions_text(self) -> str:
        return f"{self.lost} transition{'s' if self.lost > 1 else ''}"

    def state(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def restore(self, facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        check_json_value(self.FACTS_SCHEMA, facts)
        self.notes, self.reasons, self.lost = list(facts["notes"]), list(facts["reasons"]), int(facts["lost"])


def _append_new_line(lines: list[str], line: str) -> None:
    if not any(line.split(",")[0] == old.split(",")[0] for old in lines):
        lines.append(line)


class MarkovTests:
    """Watches transitions in bounded memory. First steps after a reset are watched apart from other visits."""

    def __init__(self, n_actions: int) -> None:
        self._n_actions = n_actions
        self._row_of_pair = np.full(0, -1, np.int32)  # [2 X]: the row of a pair, for ordinary and for first steps
        self._stream_position = np.array(
            [0, 0, 0, 0]
        )  # the move before, steps since the reset, hash of its moves, rows in use
        self._histories = np.zeros(HISTORIES, np.int64)  # hashes
        self._followed = np.zeros(HISTORIES, np.int32)  # the successor that followed each of them the last time
        self._of = np.zeros((64, 2), np.int64)  # pair, first step or not
        self._symbols = np.full((64, MAX_SUCCESSOR_CLASSES), -1, np.int32)
        self._causes = np.zeros((64, MAX_PREVIOUS_STEP_CLASSES), np.int64)
        self._used = np.zeros((64, 2), np.int64)  # symbols, causes
        self._pooled = np.zeros((64, MAX_SUCCESSOR_CLASSES + 1), np.int64)
        self._classes = np.zeros(
            (64, MAX_PREVIOUS_STEP_CLASSES + 1 + MAX_AGE_CLASSES + 1, MAX_SUCCESSOR_CLASSES + 1), np.int32
        )
        self._score = np.zeros((64, N_TESTS))

    TABLE_ARRAYS = ("_of", "_symbols", "_causes", "_used", "_pooled", "_classes", "_score")
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "row": ArraySpec("int32", ("P",), low=-1, below="R"),
        "past": ArraySpec("int64", (4,), low=-(2**62), high=2**62),
        "histories": ArraySpec("int64", (HISTORIES,), low=0),
        "followed": ArraySpec("int32", (HISTORIES,), low=0),
        "of": ArraySpec("int64", ("R", 2), low=0),
        "symbols": ArraySpec("int32", ("R", MAX_SUCCESSOR_CLASSES), low=-1),
        "causes": ArraySpec("int64", ("R", MAX_PREVIOUS_STEP_CLASSES)),
        "used": ArraySpec("int64", ("R", 2), low=0, high=max(MAX_SUCCESSOR_CLASSES, MAX_PREVIOUS_STEP_CLASSES)),
        "pooled": ArraySpec("int64", ("R", MAX_SUCCESSOR_CLASSES + 1), low=0, high=2**53),
        "classes": ArraySpec(
            "int32", ("R", MAX_PREVIOUS_STEP_CLASSES + 1 + MAX_AGE_CLASSES + 1, MAX_SUCCESSOR_CLASSES + 1), low=0
        ),
        "score": ArraySpec("float64", ("R", N_TESTS)),
    }
    """What a checkpoint holds."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything, for a checkpoint; rows not in use are left out."""
        rows = int(self._stream_position[3])
        whole = {
            "row": self._row_of_pair,
            "past": self._stream_position,
            "histories": self._histories,
            "followed": self._followed,
        }
        return whole | {name[1:]: getattr(self, name)[:rows] for name in self.TABLE_ARRAYS}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The inverse of :meth:`state`."""
        rows = check_arrays(self.ARRAY_SCHEMA, arrays)["R"]
        row, past, watched = arrays["row"], arrays["past"], arrays["of"] @ np.array([2, 1])
        if not (
            past[3] == rows <= MAX_TESTED_PAIRS
            and past[1] >= 0
            and (arrays["of"][:, 1] <= 1).all()
            and (watched < len(row)).all()
            and np.array_equal(row[watched], np.arange(rows))
            and (row >= 0).sum() == rows
        ):
            raise ValueError("the pairs that are watched are not those that were met")
        self._row_of_pair, self._stream_position = np.array(arrays["row"]), np.array(arrays["past"])
        self._histories, self._followed = np.array(arrays["histories"]), np.array(arrays["followed"])
        for name in self.TABLE_ARRAYS:
            kept, array = arrays[name[1:]], getattr(self, name)
            rows = max(len(array), 1 << (len(kept) - 1).bit_length()) if len(kept) else len(array)
            fresh = np.full((rows, *array.shape[1:]), -1 if name == "_symbols" else 0, array.dtype)
            fresh[: len(kept)] = kept
            setattr(self, name, fresh)

    def add_transitions(self, moves: Longs, landed: Longs, thread: Longs | None = None) -> Longs:
        """Steps in order. ``moves``: pairs s * A + a, or -1 - s for a reset taken in s; ``landed``: states after.

        ``thread`` [3] is what an earlier call has returned, where these steps follow on those: the move before, the
        steps since the reset, and the hash of their moves. Without it they follow on the last ones.
        """
        if thread is not None:
            self._stream_position[:3] = thread
        if not len(moves):
            return self._stream_position[:3].copy()
        pairs = (int(max(moves.max(), (-1 - moves).max() * self._n_actions)) + self._n_actions) * 2
        if pairs > len(self._row_of_pair):
            self._row_of_pair = np.pad(self._row_of_pair, (0, 2 * pairs - len(self._row_of_pair)), constant_values=-1)
        done = 0
        while True:
            whole = self._row_of_pair, self._stream_position, self._histories, self._followed
            done = _process_transitions(
                moves, landed, done, *whole, *(getattr(self, name) for name in self.TABLE_ARRAYS)
            )
            if done == len(moves):
                return self._stream_position[:3].copy()
            for name in self.TABLE_ARRAYS:
                array = getattr(self, name)
                setattr(self, name, np.pad(array, [(0, len(array))] + [(0, 0)] * (array.ndim - 1)))

    @property
    def saw_randomness(self) -> bool:
        """Whether some pair had more than one successor."""
        return bool((self._used[: int(self._stream_position[3]), 0] > 1).any())

    def log_wealth(self) -> Floats:
        """[rows, tests]: log wealth, the evidence against a clean world."""
        rows = int(self._stream_position[3])
        m = self._pooled[:rows].astype(float)
        total = m.sum(axis=1, keepdims=True)
        likelihood = np.where(m > 0, m * np.log(np.maximum(m, 1) / np.maximum(total, 1)), 0.0).sum(axis=1)
        evidence: Floats = self._score[:rows] - likelihood[:, None]
        return evidence

    def describe_violations(self) -> list[str]:
        """One line for every kind of violation that was found."""
        wealth = self.log_wealth()
        j = np.arange(1, len(wealth) + 1)
        found = wealth > np.log(N_TESTS * j * (j + 1.0) / FALSE_ALARM_PROBABILITY)[:, None]
        lines = []
        for first in (0, 1):
            of = self._of[: len(wealth)]
            for test in range(N_TESTS):
                hits = np.flatnonzero(found[:, test] & (of[:, 1] == first))
                if len(hits):
                    worst = hits[wealth[hits, test].argmax()]
                    state, action = divmod(int(of[worst, 0]), self._n_actions)
                    pairs = f"{len(hits)} state-action pair{'s' if len(hits) > 1 else ''}"
                    odds = int(wealth[worst, test] / math.log(10))
                    where = f"{pairs}, most clearly state {state}, action {action}: odds 1 : 10^{odds}"
                    lines.append(f"{VIOLATION_TEXTS[first][test]} ({where})")
        return lines


class MonitoredEnv:
    """A world that is stepped and watched: what is said about it."""

    def __init__(self, n_actions: int, reseeded: tuple[str, ...]) -> None:
        self._diagnostics, self._markov_tests = Diagnostics(), MarkovTests(n_actions)
        if reseeded:
            self.add_warning(
                f"every reset seeds the same random numbers ({', '.join(reseeded)}): if steps draw them, all episodes "
                "are alike and the certificates are wrong"
            )

    def add_warning(self, line: str) -> None:
        """Add a warning."""
        self._diagnostics.add_warning(line)

    def add_void_reason(self, line: str) -> None:
        """Add a reason for which certificates are void."""
        self._diagnostics.add_void_reason(line)

    def _list_env_warnings(self, truncates: bool) -> list[str]:
        """What a user should know about the environment."""
        late = ["the environment ends episodes by itself (truncated); each time it was reset"]
        return [*self._diagnostics.list_warnings(), *(late if truncates else [])]

    @property
    def void_reasons(self) -> list[str]:
        """What the sanity checks found: reasons for which no certificate can be given."""
        return list(dict.fromkeys([*self._diagnostics.reasons, *self._markov_tests.describe_violations()]))


@numba.njit(cache=True, nogil=True)
def _process_transitions(  # type: ignore[no-untyped-def]
    moves, landed, done, row_of, past, histories, followed, of, symbols, causes, used, pooled, classes, score
):  # fmt: skip
    """Take in steps from number ``done`` on; returns where it had to stop for want of rows, or the end."""
    before, age, history, rows = past[0], past[1], past[2], past[3]
    for i in range(done, len(moves)):
        move = moves[i]
        if move < 0:
            before, age, history = move, 0, 0
            continue
        key = 2 * move + (age == 0)
        row = row_of[key]
        if row == -1 and rows < MAX_TESTED_PAIRS:
            if rows == len(of):
                past[0], past[1], past[2], past[3] = before, age, history, rows
                return i
            row = row_of[key] = rows
            of[row, 0], of[row, 1] = move, age == 0
            rows += 1
        history = (history ^ (move + 1)) * 6364136223846793005  # wraps around
        history = (history ^ (history >> 29)) & (2**61 - 1)
        place = history % HISTORIES
        again = age < LONGEST and histories[place] == history
        if row >= 0:
            expected = followed[place] if again else -1
            _update_test_scores(row, before, age, expected, landed[i], symbols, causes, used, pooled, classes, score)
        if age < LONGEST:
            histories[place], followed[place] = history, landed[i]
        before = move
        age += 1
    past[0], past[1], past[2], past[3] = before, age, history, rows
    return len(moves)


@numba.njit(cache=True, nogil=True)
def _update_test_scores(  # type: ignore[no-untyped-def]
    row, before, age, expected, successor, symbols, causes, used, pooled, classes, score
):  # fmt: skip
    """One sample of one row: pay or win in all tests, then learn. ``expected`` followed the same history, or is -1."""
    samples = pooled[row].sum() + used[row, 0]
    z = 0
    while z < used[row, 0] and symbols[row, z] != successor:
        z += 1
    if z == used[row, 0] and z < MAX_SUCCESSOR_CLASSES:  # a new successor
        symbols[row, z] = successor
        used[row, 0] += 1
        for test in range(N_TESTS):
            score[row, test] -= math.log(samples + 2.0)
        return
    cause = 0
    while cause < used[row, 1] and causes[row, cause] != before:
        cause += 1
    if cause == used[row, 1] and cause < MAX_PREVIOUS_STEP_CLASSES:
        causes[row, cause] = before
        used[row, 1] += 1
    full = used[row, 0] == MAX_SUCCESSOR_CLASSES
    known = used[row, 0] + full
    stake = 0.0 if full else math.log((samples + 1.0) / (samples + 2.0))
    power = min(int(math.log2(age + 1.0)), MAX_AGE_CLASSES - 1)
    last = classes.shape[1] - 1
    if samples >= 64 and samples & (samples - 1) == 0:  # a new epoch
        classes[row, last, :] = 0
    for test, c in enumerate((cause, MAX_PREVIOUS_STEP_CLASSES + 1 + power, last)):
        score[row, test] += stake + math.log((classes[row, c, z] + 0.5) / (classes[row, c].sum() + 0.5 * known))
        classes[row, c, z] += 1
    q = (pooled[row, z] + 0.5) / (pooled[row].sum() + 0.5 * known)
    if expected >= 0:
        e = 0
        while e < used[row, 0] and symbols[row, e] != expected:
            e += 1
        q = (1.0 - FAITH) * q + (FAITH if e == z else 0.0)
    score[row, N_TESTS - 1] += stake + math.log(q)
    pooled[row, z] += 1


# Which actions the states have, as the environment says it at every visit (``info["action_mask"]``).


class ActionMasks:
    """The masks of the states met; ``used`` is False for a method that takes all actions for there."""

    def __init__(self, n_actions: int, absent: Iterable[int], used: bool) -> None:
        self._n_actions, self._enabled = n_actions, used
        self.absent_pairs = set(absent)
        """Pairs s * A + a that do not exist"""
        self.masks_of_new_states: dict[int, ActionMask] = {}
        """Of the states that were new"""
        self._mask_of_state: dict[int, ActionMask] = {}

    def add_state_mask(self, state: int, mask: ActionMask) -> Longs:
        """A state was entered for the first time: the pairs that are left out from now on."""
        if not self._enabled:
            return np.zeros(0, np.int64)
        self.masks_of_new_states[state] = self._mask_of_state[state] = mask
        if mask is None:
            return np.zeros(0, np.int64)
        pairs = state * self._n_actions + np.flatnonzero(np.frombuffer(mask, np.uint8) == 0)
        self.absent_pairs.update(pairs.tolist())
        return pairs

    def conflicts_with_known(self, state: int, mask: ActionMask) -> bool:
        """Whether a state has another mask than before: what an action leads to would not be one distribution."""
        if not self._enabled:
            return False
        if state not in self._mask_of_state:
            first = state * self._n_actions
            here = bytes(pair not in self.absent_pairs for pair in range(first, first + self._n_actions))
            self._mask_of_state[state] = here if 0 in here else None
        return self._mask_of_state[state] != mask


def describe_mask_conflict(state: int) -> str:
    """What is wrong where a mask differs."""
    return f"a state had other actions at one visit than at another, first state {state}"
