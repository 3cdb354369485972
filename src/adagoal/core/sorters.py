"""What a user calls goals, as functions of one state: where it is asked to which goals a state belongs.

A function of observations gives every state a value, and states that share a value are one goal; entries of the
observation (:func:`make_entry_selector`) are such a function. Named predicates and labels are goals from the beginning, and may
overlap. What code of the user raises here becomes an :class:`~adagoal.core.errors.EnvironmentFailure`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from adagoal.core.ctrlc import USER_CODE_SECTION
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.text import describe_exception, to_single_line
from adagoal.core.types import Bools

GoalValue = bool | int | float | str | bytes | tuple["GoalValue", ...] | None
ObservationFunction = Callable[[Any], Any]


class ValueLabeler:
    """States that share a value of the function are one goal; those where it is None belong to none."""

    names: tuple[str, ...] = ()
    discovers_goals = True

    def __init__(self, function: ObservationFunction) -> None:
        self._observation_function = function
        self._value_of_name: dict[str, GoalValue] = {}

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        """See :class:`~adagoal.core.goalspace.GoalLabeler`."""
        with _convert_user_errors("the function", observation):
            value = to_goal_value(self._observation_function(observation))
        if value is None:
            return []
        name = value if isinstance(value, str) else repr(value)
        if self._value_of_name.setdefault(name, value) != value:
            text = f"the values {value!r} and {self._value_of_name[name]!r} are written the same way, so they name one goal"
            raise InputError(text, "goals")
        return [name]


class PredicateLabeler:
    """Goals by name, each with a function that says whether an observation belongs to it, or with its states."""

    discovers_goals = False

    def __init__(self, predicates: Mapping[str, ObservationFunction | Collection[int]]) -> None:
        if not predicates:
            raise InputError("there must be at least one goal", "goals")
        for name, given in predicates.items():
            if not isinstance(name, str) or not (callable(given) or _is_state_collection(given)):
                text = f"must be names with functions, or with lists of states; got {name!r}: {given!r}"
                raise InputError(text, "goals")
            if not callable(given) and len(given) == 0:
                raise InputError(f"the goal {name!r} has no states", "goals")
        self.names = tuple(predicates)
        self._predicates = dict(predicates)

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        """See :class:`~adagoal.core.goalspace.GoalLabeler`."""
        found = []
        for name, given in self._predicates.items():
            if not callable(given):
                inside = state in given
            else:
                with _convert_user_errors(f"the goal {name!r}", observation):
                    inside = bool(given(observation))
            found += [name] if inside else []
        return found


class NameLabeler:
    """Goals by the labels of states or of sets of states, and by the numbers of states."""

    discovers_goals = False

    def __init__(self, labels: Sequence[str | int], sets: Mapping[str, Bools]) -> None:
        self.names = tuple(dict.fromkeys(str(label) for label in labels))
        self._state_numbers = {str(label) for label in labels if not isinstance(label, str)}
        self._label_sets = sets
        self.names_single_states = not any(name in sets for name in self.names)
        """Whether all are names or numbers of states, none that of a set"""

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        """See :class:`~adagoal.core.goalspace.GoalLabeler`."""
        return [name for name in self.names if self._matches_state(name, state, label)]

    def _matches_state(self, name: str, state: int, label: str) -> bool:
        if name in self._state_numbers:
            return name == str(state)
        return bool(self._label_sets[name][state]) if name in self._label_sets else name == label


class StoredLabeler:
    """The goals of a run, as its checkpoint has them, to look at: states that are new since belong to none."""

    discovers_goals = True

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        """See :class:`~adagoal.core.goalspace.GoalLabeler`."""
        return []


def make_entry_selector(keys: Sequence[str | int]) -> ObservationFunction:
    """The function that takes entries out of an observation: by position, or by name from a dictionary."""

    def select(observation: Any) -> Any:
        found = tuple(_to_nested_tuples(_observation_entry(observation, key)) for key in keys)
        return found if len(found) > 1 else found[0]

    return select


def _observation_entry(observation: Any, key: str | int) -> Any:
    if isinstance(observation, Mapping):
        if key not in observation:
            known = ", ".join(map(str, observation))
            raise InputError(f"there is no entry {key!r} in an observation; it has {known}", "goal_keys")
        return observation[key]
    whole = isinstance(observation, tuple | list) or (isinstance(observation, np.ndarray) and observation.ndim > 0)
    if not whole:
        text = f"an observation such as {to_single_line(observation)!r} has no entries: it is one {type(observation).__name__}"
        raise InputError(text, "goal_keys")
    if not isinstance(key, int) or not 0 <= key < len(observation):
        raise InputError(f"there is no entry {key!r} in an observation of {len(observation)} entries", "goal_keys")
    return observation[key]


def _to_nested_tuples(value: Any) -> Any:
    """Arrays and lists as tuples, all the way down."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(map(_to_nested_tuples, value)) if isinstance(value, list | tuple) else value


def to_goal_value(value: Any) -> GoalValue:
    """What a function of observations may return, with NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return tuple(to_goal_value(part) for part in value)
    if isinstance(value, float):
        return value + 0.0  # -0.0 is the same number as 0.0, and must not have a name of its own
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    text = f"a function of observations returns a number, a text, a tuple of them, or None; got {type(value).__name__}"
    raise InputError(text, "goals")


def _is_state_collection(given: Any) -> bool:
    return isinstance(given, Collection) and all(isinstance(state, int | np.integer) for state in given)


@contextmanager
def _convert_user_errors(what: str, observation: Any) -> Iterator[None]:
    """Exceptions of any kind, SystemExit included, are those of the user's code."""
    try:
        with USER_CODE_SECTION:
            yield
    except (KeyboardInterrupt, InputError):
        raise
    except BaseException as error:
        text = f"{what} raised {describe_exception(error)} for the observation {to_single_line(observation)}"
        raise EnvironmentFailure(text, "goals") from error
