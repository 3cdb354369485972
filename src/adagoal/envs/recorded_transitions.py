"""Transitions that were recorded elsewhere: arrays, tables, CSV files, event logs and Minari datasets.

States and actions are any hashable values. They are numbered in the order in which they appear. An *event log* has the
columns ``case`` and ``activity``: the state is the last activity of a case, there is one action ("next"), every case
begins in the state "(start)", and after its last activity it ends in the terminal state "(end)".
"""

from __future__ import annotations

import csv
import importlib
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from adagoal.core import file_io
from adagoal.core.array_types import MAX_ACTIONS, Bools, Longs
from adagoal.core.errors import InputError, to_single_line

ROWS_PER_CHUNK = 5_000  # rows of a file in memory at once: with more, garbage collection takes most of the time
EVENT_START, EVENT_END, EVENT_ACTION = "(start)", "(end)", "next"
COLUMN_NAMES = ("state", "action", "next_state", "terminated", "episode")
COLUMN_ALIASES = {"case": "episode"}
MINARI_PREFIX = "minari:"


@dataclass(frozen=True)
class RecordedTransitions:
    """N transitions in the order in which they were recorded."""

    name: str  # of the file; empty without a file
    states: tuple[Any, ...]  # the value of every state, by number, in the order of their first use
    actions: tuple[Any, ...]  # the value of every action, by number
    state: Longs  # [N]
    action: Longs  # [N]; -1 for the reset
    next_state: Longs  # [N]
    terminated: Bools  # [N]
    has_terminated: bool  # whether the log says which states are terminal
    begins_episode: Bools | None  # [N] first step of an episode; None if the log does not say
    row_name: str = "row"
    first_row: int = 0  # number of the first transition in messages
    n_added_states: int = 0  # of the states, those that are not in the data: (start) and (end)

    def __len__(self) -> int:
        return len(self.state)

    def with_first_state(self, value: Any) -> RecordedTransitions:
        """Return the same transitions with one state more, number 0, that none of them has."""
        log = replace(self, states=(value, *self.states), n_added_states=self.n_added_states + 1)
        return replace(log, state=self.state + 1, next_state=self.next_state + 1)

    def fail_at(self, i: int, text: str) -> NoReturn:
        """Raise an input error about transition ``i``."""
        raise _error(self.name, f"{self.row_name} {i + self.first_row}: {text}")


def _error(file: str, text: str) -> InputError:
    return InputError(f"{file}: {text}" if file else text, "data")


def read_transitions(
    data: Any, columns: Mapping[str, str] | None = None, reset_action: Any = None
) -> RecordedTransitions:
    """Read transitions of any supported form (:func:`adagoal.certify_data`).

    ``columns`` maps names of :data:`COLUMN_NAMES` to those of a file or a mapping. ``reset_action`` is the action that
    stands for the reset.
    """
    if isinstance(data, RecordedTransitions):
        return data
    if isinstance(data, str) and data.startswith(MINARI_PREFIX):
        data = _load_minari_dataset(data.removeprefix(MINARI_PREFIX))
    if columns is not None and not isinstance(columns, Mapping):
        raise InputError(f'must be a dictionary such as {{"next_state": "s2"}}, got {columns!r}', "columns")
    renamed = {name: wanted for wanted, name in (columns or {}).items()}
    for wanted in columns or {}:
        if wanted not in (*COLUMN_NAMES, *COLUMN_ALIASES, "activity"):
            raise InputError(f"unknown column {wanted!r}; there are {', '.join(COLUMN_NAMES)} and activity", "columns")
    if isinstance(data, str | Path):
        log = _read_csv(Path(data), renamed)
    elif hasattr(data, "iterate_episodes"):
        log = _read_minari_episodes(data)
    elif isinstance(data, Mapping) or hasattr(data, "columns"):
        # A data frame of pandas or polars has its names in ``columns``.
        names = list(getattr(data, "columns", data))
        table = _Table("", list(map(str, names)), renamed)
        table.add_columns({name: data[column] for name, column in zip(table.names, names, strict=True)})
        log = table.finish()
    else:
        log = _read_rows(data)
    if not len(log):
        raise _error(log.name, "there are no transitions")
    if reset_action is not None:
        log = _mark_resets(log, reset_action)
    _check_terminal_states(log)
    return log


class _Numbering(dict[Any, int]):
    """Numbers of values in the order of their first use."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number

    def number_all(self, values: Sequence[Any]) -> Longs:
        """Return the numbers [N] of values."""
        return np.fromiter(map(self.__getitem__, values), np.int64, len(values))


class _Table:
    """Collects the columns of a log, chunk by chunk."""

    def __init__(self, name: str, header: Sequence[str], renamed: Mapping[str, str], first_row: int = 0) -> None:
        self._name, self._first_row, self._row_name = name, first_row, "line" if first_row else "row"
        plain = [renamed.get(column, column.strip().lower()) for column in header]
        self.names = [COLUMN_ALIASES.get(column, column) for column in plain]
        self._is_event_log = "activity" in self.names and "state" not in self.names
        needed = ("episode", "activity") if self._is_event_log else COLUMN_NAMES[:3]
        missing = [column for column in needed if column not in self.names]
        if missing:
            hint = "an event log needs the columns case and activity, other logs state, action and next_state"
            wanted = "case" if self._is_event_log else missing[0]
            raise _error(name, f"no column {wanted} among {to_single_line(', '.join(header) or 'none', 200)}; {hint}")
        for column in (*COLUMN_NAMES, "activity"):
            if self.names.count(column) > 1:
                raise _error(name, f"two columns {column}; leave one out")
        self._states, self._actions, self._episodes = _Numbering(), _Numbering(), _Numbering()
        self._pieces: dict[str, list[NDArray[Any]]] = {"state": [], "action": [], "terminated": [], "episode": []}
        self._n_rows = 0

    def add_columns(self, columns: Mapping[str, Any]) -> None:
        """Add rows, given by their columns; columns of other names are ignored."""
        names = ["episode", "activity"] if self._is_event_log else [n for n in COLUMN_NAMES if n in self.names]
        used = {name: _to_list(self._name, name, columns[name]) for name in names}
        lengths = {name: len(values) for name, values in used.items()}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} {size}" for name, size in lengths.items())
            raise _error(self._name, f"the columns have different lengths: {sizes}")
        try:
            if self._is_event_log:
                self._pieces["state"].append(self._states.number_all(used["activity"]))
            else:
                # One sequence s, s', s, s', ..., so states are numbered in the order of the rows.
                visited = [*itertools.chain.from_iterable(zip(used["state"], used["next_state"], strict=True))]
                self._pieces["state"].append(self._states.number_all(visited))
                self._pieces["action"].append(self._actions.number_all(used["action"]))
            if "episode" in used:
                self._pieces["episode"].append(self._episodes.number_all(used["episode"]))
        except TypeError as error:
            raise _error(self._name, f"states and actions must be hashable ({error})") from None
        if "terminated" in used:
            self._pieces["terminated"].append(self._read_flags(used["terminated"]))
        self._n_rows += next(iter(lengths.values()))

    def _read_flags(self, values: Sequence[Any]) -> Bools:
        numbers = _Numbering()
        column = numbers.number_all(values)
        accepted = {"0": False, "1": True, "false": False, "true": True}
        # Programs write whole numbers as 1.0 if a column has gaps.
        flags = [accepted.get(str(value).strip().lower().removesuffix(".0")) for value in numbers]
        if None in flags:
            row = int(np.argmax(column == flags.index(None)))
            self._fail(self._n_rows + row, f"terminated must be 0 or 1, got {str(values[row])!r}")
        return np.array(flags, bool)[column]

    def _fail(self, row: int, text: str) -> NoReturn:
        raise _error(self._name, f"{self._row_name} {row + self._first_row}: {text}")

    def finish(self) -> RecordedTransitions:
        """Return all transitions."""
        joined = {
            name: np.concatenate([np.zeros(0, np.int64 if name != "terminated" else bool), *pieces])
            for name, pieces in self._pieces.items()
        }
        per_row = 1 if self._is_event_log else 2
        _check_values(self, self._states, joined["state"], per_row, "state")
        _check_values(self, self._actions, joined["action"], 1, "action")
        # Any other value is a name of an episode; there may be millions, so they are not all looked at.
        if "" in self._episodes:
            self._fail(int(np.argmax(joined["episode"] == self._episodes[""])), "the episode is empty")
        if self._is_event_log:
            return _transitions_of_cases(self._name, tuple(self._states), joined["state"], joined["episode"])
        state, next_state = joined["state"].reshape(-1, 2).T
        begins = None
        if "episode" in self.names:
            begins = np.zeros(self._n_rows, bool)
            begins[np.unique(joined["episode"], return_index=True)[1]] = True
        has_flags = "terminated" in self.names
        flags = joined["terminated"] if has_flags else np.zeros(self._n_rows, bool)
        if begins is not None:
            self._check_episodes_end(joined["episode"], flags)
        rest = has_flags, begins, self._row_name, self._first_row
        arrays = np.ascontiguousarray(state), joined["action"], np.ascontiguousarray(next_state), flags
        return RecordedTransitions(self._name, tuple(self._states), tuple(self._actions), *arrays, *rest)

    def _check_episodes_end(self, episode: Longs, flags: Bools) -> None:
        """Refuse rows of an episode after its end: rows in another order would move its beginning."""
        last = np.zeros(len(self._episodes), np.int64)
        last[episode] = rows = np.arange(self._n_rows)
        if (goes_on := flags & (last[episode] > rows)).any():
            end = int(np.argmax(goes_on))
            row = end + 1 + int(np.argmax(episode[end + 1 :] == episode[end]))
            text = f"the episode {list(self._episodes)[episode[end]]!r} goes on, but {self._row_name}"
            text = f"{text} {end + self._first_row} says that it is terminated"
            self._fail(row, f"{text}; sort the rows by time, and give every episode a name of its own")


def _check_values(table: _Table, numbers: _Numbering, column: Longs, per_row: int, name: str) -> None:
    """Refuse values that are missing or not finite; the error names the first row."""
    for value, number in numbers.items():
        text = str(value).strip().lower()
        if text in ("", "nan", "inf", "-inf", "none", "nat", "<na>"):
            table._fail(int(np.argmax(column == number)) // per_row, f"the {name} is {text or 'empty'}")
    # Programs write whole numbers as 1.0 if a column has gaps.
    names = [str(value).strip().removesuffix(".0") for value in numbers]
    if len(set(names)) < len(names):
        twice = next(text for text in names if names.count(text) > 1)
        alike = " and ".join(repr(value) for value, text in zip(numbers, names, strict=True) if text == twice)
        raise _error(table._name, f"the {name}s {alike} look alike; write one value in one way")
    if name == "action" and len(names) > MAX_ACTIONS:
        raise _error(table._name, f"{len(names)} actions; at most {MAX_ACTIONS} are possible")


def _to_list(name: str, column: str, values: Any) -> list[Any]:
    """Return a column as a list; NumPy numbers become Python numbers, which are found faster in a dictionary."""
    if not hasattr(values, "__array__"):
        return list(values)
    array = np.asarray(values)
    if array.ndim != 1:
        raise _error(name, f"{column} must have one dimension, got the shape {list(array.shape)}")
    if array.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)))
        if len(wrong):
            text = f"{column} must be a whole number or text, got {array[wrong[0]]:g}"
            raise _error(name, f"row {wrong[0]}: {text}")
        array = array.astype(np.int64)
    return list(array.tolist())


def _read_csv(path: Path, renamed: Mapping[str, str]) -> RecordedTransitions:
    with file_io.open_regular_file(path) as (file, _):
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            first_line = text.readline()
            delimiter = max(",;\t", key=first_line.count)
            header = next(csv.reader([first_line], delimiter=delimiter), [])
            if not header:
                raise InputError(f"{path}: the file is empty", "data")
            table = _Table(str(path), header, renamed, first_row=2)
            rows, n_read = csv.reader(text, delimiter=delimiter, skipinitialspace=True), 0
            while chunk := list(itertools.islice(rows, ROWS_PER_CHUNK)):
                # The csv module returns an empty list for an empty line, usually the last one.
                if set(map(len, chunk)) != {len(header)}:
                    _refuse_ragged_rows(path, chunk, len(header), n_read + 2)
                n_read += len(chunk)
                if filled := [row for row in chunk if row]:
                    table.add_columns(dict(zip(table.names, zip(*filled, strict=True), strict=True)))
            return table.finish()
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a text file in UTF-8", "data") from None
        except csv.Error as error:
            raise InputError(f"{path}: not a CSV file ({error})", "data") from None


def _refuse_ragged_rows(path: Path, rows: list[list[str]], width: int, first_line: int) -> None:
    for i, row in enumerate(rows):
        if row and len(row) != width:
            text = f"{len(row)} values, but the header has {width} columns"
            raise InputError(f"{path}: line {i + first_line}: {text}", "data")


def _read_rows(data: Any) -> RecordedTransitions:
    """Read a tuple of arrays (s, a, s'[, terminated[, episode]]), or an iterable of such transitions."""
    expected = "a CSV file, arrays (s, a, s'), a mapping of columns, a Minari dataset, or transitions (s, a, s')"
    if not isinstance(data, Iterable):
        raise InputError(f"must be {expected}, got {type(data).__name__}", "data")
    if isinstance(data, tuple) and data and all(isinstance(part, np.ndarray) for part in data):
        columns: list[Any] = list(data)
    elif isinstance(data, np.ndarray) and data.ndim == 2:
        columns = list(data.T)
    else:
        rows = list(data)
        widths = {len(row) if hasattr(row, "__len__") and not isinstance(row, str) else 0 for row in rows}
        if len(widths) > 1:
            raise InputError(f"transitions must all have the same length, got {sorted(widths)}", "data")
        if widths == {0}:
            raise InputError(f"must be {expected}, got {to_single_line(rows[0])!r} among them", "data")
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    if not 3 <= len(columns) <= len(COLUMN_NAMES):
        raise InputError(f"a transition has 3 to 5 parts ({', '.join(COLUMN_NAMES)}), got {len(columns)}", "data")
    table = _Table("", COLUMN_NAMES[: len(columns)], {})
    table.add_columns(dict(zip(table.names, columns, strict=True)))
    return table.finish()


def _load_minari_dataset(dataset: str) -> Any:
    try:
        minari = importlib.import_module("minari")
    except ImportError:
        raise InputError("a Minari dataset needs the package minari: pip install minari[hdf5]", "data") from None
    try:
        return minari.load_dataset(dataset)
    except Exception as error:
        raise InputError(f"{dataset}: not readable by Minari ({to_single_line(error, 200)})", "data") from None


def _read_minari_episodes(dataset: Any) -> RecordedTransitions:
    """Read the episodes of a Minari dataset in their order; an episode has one observation more than actions."""
    from gymnasium.spaces import Discrete

    for name in ("observation_space", "action_space"):
        space = getattr(dataset, name, None)
        if not isinstance(space, Discrete):
            raise InputError(f"the {name} of the dataset must be Discrete, got {space}", "data")
    columns: dict[str, list[NDArray[Any]]] = {name: [np.zeros(0, np.int64)] for name in COLUMN_NAMES}
    for number, episode in enumerate(dataset.iterate_episodes()):
        seen = np.asarray(episode.observations)
        columns["state"].append(seen[:-1])
        columns["next_state"].append(seen[1:])
        columns["action"].append(np.asarray(episode.actions))
        columns["terminated"].append(np.asarray(episode.terminations, np.int64))
        columns["episode"].append(np.full(len(seen) - 1, number))
    table = _Table("", COLUMN_NAMES, {})
    table.add_columns({name: np.concatenate(parts) for name, parts in columns.items()})
    return table.finish()


def _transitions_of_cases(name: str, activities: tuple[Any, ...], activity: Longs, case: Longs) -> RecordedTransitions:
    """Turn the activities of cases into transitions, case by case; events of a case keep their order."""
    order = np.argsort(case, kind="stable")
    case, activity = case[order], activity[order] + 1
    start, end = 0, len(activities) + 1
    begins = np.concatenate([np.ones(min(len(case), 1), bool), case[1:] != case[:-1]])
    # Every case has one transition more than events: into its first, between two, and from its last to the end.
    first = np.flatnonzero(begins)
    place = np.arange(len(case)) + np.cumsum(begins) - 1
    n_transitions = len(case) + len(first)
    state, next_state = np.full(n_transitions, start), np.full(n_transitions, end)
    next_state[place] = activity
    state[place + 1] = activity
    begins_episode = np.zeros(n_transitions, bool)
    begins_episode[place[first]] = True
    states = (EVENT_START, *activities, EVENT_END)
    if len(set(states)) < len(states):
        raise _error(name, f"{EVENT_START} and {EVENT_END} cannot be activities; rename them")
    moves, terminated = np.zeros(n_transitions, np.int64), next_state == end
    # Activities were numbered in the order of the file; transitions are counted case by case.
    numbering = _Numbering()
    state, next_state = (
        numbering.number_all(np.column_stack([state, next_state]).ravel().tolist()).reshape(-1, 2).T.copy()
    )
    states = tuple(states[number] for number in numbering)
    return RecordedTransitions(
        *(name, states, (EVENT_ACTION,), state, moves, next_state, terminated, True, begins_episode),
        n_added_states=2,
    )


def _mark_resets(log: RecordedTransitions, reset_action: Any) -> RecordedTransitions:
    """Give the action of the reset the number -1, and close the gap in the numbers of the others."""
    names = [str(action) for action in log.actions]
    if str(reset_action) not in names:
        raise InputError(f"the log has no action {reset_action!r}; it has {_first_names(names)}", "reset_action")
    number = names.index(str(reset_action))
    numbers = np.arange(len(names)) - (np.arange(len(names)) > number)
    numbers[number] = -1
    actions = tuple(action for i, action in enumerate(log.actions) if i != number)
    if not actions:
        raise _error(log.name, "the log has no action but the reset")
    fields = {name: getattr(log, name) for name in log.__dataclass_fields__}
    return RecordedTransitions(**fields | {"actions": actions, "action": numbers[log.action]})


def _check_terminal_states(log: RecordedTransitions) -> None:
    """Refuse a state that ends an episode at one visit and not at another: it has not one set of actions."""
    is_terminal = np.zeros(len(log.states), bool)
    is_terminal[log.next_state[log.terminated]] = True
    left = np.flatnonzero(is_terminal[log.state] & (log.action >= 0))
    entered = np.flatnonzero(is_terminal[log.next_state] & ~log.terminated & (log.action >= 0))
    for rows, what in ((left, "is left"), (entered, "does not end the episode")):
        if len(rows):
            i = int(rows[0])
            state = int(log.state[i] if rows is left else log.next_state[i])
            other = int(np.flatnonzero(log.terminated & (log.next_state == state))[0]) + log.first_row
            text = f"the state {to_single_line(log.states[state])!r} {what}, but {log.row_name} {other} says that it is"
            log.fail_at(i, f"{text} terminal; give the terminal state another name")


def find_value(values: Sequence[Any], value: Any) -> int | None:
    """Return the number of a state or action given by its value or by its text, or None."""
    names = [str(one) for one in values]
    return names.index(str(value)) if str(value) in names else None


def _first_names(names: Sequence[str]) -> str:
    shown = ", ".join(to_single_line(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def describe_states(log: RecordedTransitions) -> str:
    """Return the first states of a log in words."""
    return _first_names([str(state) for state in log.states])
