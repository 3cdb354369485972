"""The goals of a run: sets of states, with numbers and names.

A goal is reached when any of its states is: V*_g is zero on the set, and one fixed function for every goal. That is all
that the proofs ask for (docs/theory-more.md, "Goals that are sets").

*States.* Every state is a goal of its own unless something else is asked for; its number is that of the state, and
only some states may be chosen.

*Sets.* A :class:`GoalLabeler` says to which goals a state belongs, from its observation or its label. Goals are
numbered in the order in which they are named or found. They may overlap, and some states may belong to none. Where
states are numbered as they are found, so are the members of a goal, and a goal is seen once one of its states is.

Membership is held as ``at`` [S, W]: row s has the numbers of the goals that state s belongs to, and -1 in places that
are not used. W = 1 unless goals overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception, to_single_line
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays, check_json_value
from adagoal.core.types import Bools, Floats, Longs
from adagoal.core.user_code import USER_CODE_SECTION

GOAL_NAMES_SCHEMA: dict[str, Any] = {"type": "array", "items": {"type": "string", "maxLength": 10_000}}


class GoalLabeler(Protocol):
    """What the user calls goals, as a function of one state (:mod:`adagoal.core.goal_space`)."""

    names: tuple[str, ...]
    """Goals that are there from the beginning"""
    discovers_goals: bool
    """Whether others are found on the way"""

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        """The names of the goals that a state belongs to."""
        ...


class GoalSpace:
    """The goals of a run; see the module's text."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {"at": ArraySpec("int64", ("S", "W"), low=-1)}

    def __init__(self, at: Longs, bound: int, chosen: Longs | None = None, sort: GoalLabeler | None = None) -> None:
        self.goals_of_states = at
        """[S, W] the goals of every state"""
        self.goal_bound = bound
        """How many goals there are, at most: what a union bound pays for"""
        self.names: list[str] | None = None if sort is None else list(sort.names)
        """[G] the names of the goals known so far; None where goals are states"""
        self.chosen_states = chosen
        """The states that are goals, where not all are"""
        self._number_of_name = {name: number for number, name in enumerate(self.names or ())}
        self._labeler = sort
        self._discovers_goals = sort is not None and sort.discovers_goals
        self.members_complete = sort is None
        """Whether the members of all goals are known"""
        self._is_final = False

    @staticmethod
    def from_states(n_states: int, bound: int, chosen: Longs | None = None) -> GoalSpace:
        """Every state, or every one of ``chosen``, is a goal of its own."""
        space = GoalSpace(np.zeros((0, 1), np.int64), bound if chosen is None else len(chosen), chosen)
        space.grow_states(n_states)
        return space

    @staticmethod
    def from_labeler(sort: GoalLabeler, n_states: int, bound: int) -> GoalSpace:
        """Goals that a sorter names or finds; ``bound`` is that on the number of states. States are added with add."""
        at = np.full((n_states, max(len(sort.names), 1)), -1)
        return GoalSpace(at, bound if sort.discovers_goals else len(sort.names), sort=sort)

    @property
    def goals_are_states(self) -> bool:
        """Whether goals are states."""
        return self.names is None

    @property
    def goal_numbers(self) -> Longs:
        """[G] the goals; where others may be found, one more number stands for them."""
        if self.names is None:
            return np.arange(len(self.goals_of_states)) if self.chosen_states is None else self.chosen_states
        return np.arange(len(self.names) + (self._discovers_goals and len(self.names) < self.goal_bound))

    @property
    def n_goal_numbers(self) -> int:
        """Numbers in use: one more than the largest."""
        return len(self.goals_of_states) if self.names is None else len(self.goal_numbers)

    # --- members ----------------------------------------------------------------------------------------------

    def grow_states(self, n_states: int) -> None:
        """Rows for more states: goals of their own, or members of none as far as is known."""
        rows = np.arange(len(self.goals_of_states), n_states)
        if not len(rows):
            return
        new = np.full((len(rows), self.goals_of_states.shape[1]), -1)
        if self.names is None:
            new[:, 0] = rows if self.chosen_states is None else np.where(np.isin(rows, self.chosen_states), rows, -1)
        self.goals_of_states = np.vstack([self.goals_of_states, new])

    def add_state(self, state: int, observation: Any, label: str) -> None:
        """Sort a state that nothing is known of."""
        if self._labeler is None or self.names is None:
            return
        found = self._labeler(state, observation, label)
        if self._labeler(state, observation, label) != found:
            raise InputError(f"the same observation belongs to {found} at first and not the second time", "goals")
        self.grow_states(state + 1)
        for name in found:
            if name not in self._number_of_name:
                self._number_of_name[name] = len(self.names)
                self.names.append(name)
            self._add_membership(state, self._number_of_name[name])

    def _add_membership(self, state: int, goal: int) -> None:
        free = np.flatnonzero(self.goals_of_states[state] < 0)
        if not len(free):
            self.goals_of_states = np.pad(self.goals_of_states, ((0, 0), (0, 1)), constant_values=-1)
            free = np.array([self.goals_of_states.shape[1] - 1])
        self.goals_of_states[state, free[0]] = goal

    def finalize_members(self) -> list[str]:
        """All states have been added: no other goal will be found. Returns the names of goals without a state."""
        members = np.bincount(self.goals_of_states[self.goals_of_states >= 0], minlength=len(self.names or ()))
        if not members.any():
            raise InputError("no state belongs to any of the goals", "goals")
        self._discovers_goals, self._is_final, self.members_complete, self.goal_bound = (
            False,
            True,
            True,
            int((members > 0).sum()),
        )
        return [name for name, count in zip(self.names or (), members, strict=True) if not count]

    def mark_as_stored(self, whole: bool) -> None:
        """The members are those of a checkpoint, to look at; ``whole``: the world had no others to find."""
        self._discovers_goals, self.members_complete = not whole, True

    def states_of_goal(self, goal: int) -> Bools:
        """[S] the states of a goal."""
        return membership_mask(self.goals_of_states, goal)

    def columns_of_states(self, goals: Longs) -> Longs:
        """[S, W] the places, in ``goals`` [B], of the goals that each state belongs to; -1 where there is none."""
        place = np.full(max(self.n_goal_numbers, int(goals.max(initial=-1)) + 1) + 1, -1)  # the last entry is for -1
        place[goals[goals >= 0]] = np.flatnonzero(goals >= 0)
        found: Longs = place[self.goals_of_states]
        return found

    # --- what goal rules look at ------------------------------------------------------------------------------

    def contains_state(self, state: int, goals: Longs) -> Bools:
        """[G] whether each of the goals holds the state."""
        return goals == state if self.goals_are_states else np.isin(goals, self.goals_of_states[state])

    def visits_of_goals(self, visits: Longs, goals: Longs) -> Floats:
        """[G] how often states of each goal were visited, from the visits of states [S]."""
        if self.names is None:
            return visits[goals].astype(float)
        at = self.goals_of_states[: len(visits)]
        rows, _ = np.nonzero(at >= 0)
        total: Floats = np.bincount(at[at >= 0], visits[rows], minlength=self.n_goal_numbers)[goals].astype(float)
        return total

    # --- saving -----------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, NDArray[Any]], list[str] | None]:
        """For a checkpoint: members and names; nothing where goals are states."""
        return ({}, None) if self.names is None else ({"at": self.goals_of_states}, list(self.names))

    def restore(self, arrays: dict[str, NDArray[Any]], names: list[str] | None) -> None:
        """The inverse of :meth:`state`; what was not sorted the same way at the time is a ``ValueError``."""
        if names is None or self.names is None:
            if names is not None or self.names is not None:
                raise ValueError("the goals are states, or they are not")
            return
        check_json_value(GOAL_NAMES_SCHEMA, names)
        check_arrays(self.ARRAY_SCHEMA, arrays)
        at = np.array(arrays["at"])
        if len(set(names)) < len(names) or at.max(initial=-1) >= len(names):
            raise ValueError("the goals do not have one name each")
        rows = [(set(new[new >= 0]), set(old[old >= 0])) for new, old in zip(self.goals_of_states, at, strict=False)]
        same = all(new == old if self._is_final else new <= old for new, old in rows)
        if names[: len(self.names)] != self.names or not same:
            raise InputError("the goals are not those of the run: they hold other states", "goals")
        self.names, self.goals_of_states = list(names), at
        self._number_of_name = {name: number for number, name in enumerate(names)}


def membership_mask(at: Longs, goal: int) -> Bools:
    """[S] the states of a goal, from ``at`` [S, W]."""
    inside: Bools = (at == goal).any(axis=1)
    return inside


def memberships_from_sets(sets: Sequence[Collection[int]], n_states: int) -> Longs:
    """``at`` [S, W] of goals that are given as their members; goal number i is ``sets[i]``."""
    lists = [np.unique(np.asarray(list(members), np.int64)) for members in sets]
    goal, state = np.repeat(np.arange(len(lists)), [len(m) for m in lists]), np.concatenate([np.zeros(0, int), *lists])
    order = np.argsort(state, kind="stable")
    goal, state = goal[order], state[order]
    within = np.arange(len(state)) - np.searchsorted(state, state)  # the how-manieth goal of its state
    at = np.full((n_states, int(within.max(initial=0)) + 1), -1)
    at[state, within] = goal
    return at


# What a user calls goals, as functions of one state: where it is asked to which goals a state belongs.
#
# A function of observations gives every state a value, and states that share a value are one goal; entries of the
# observation (:func:`make_entry_selector`) are such a function. Named predicates and labels are goals from the
# beginning, and may overlap. What code of the user raises here becomes an
# :class:`~adagoal.core.errors.EnvironmentFailure`.


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
        """See :class:`~adagoal.core.goal_space.GoalLabeler`."""
        with _convert_user_errors("the function", observation):
            value = to_goal_value(self._observation_function(observation))
        if value is None:
            return []
        name = value if isinstance(value, str) else repr(value)
        if self._value_of_name.setdefault(name, value) != value:
            text = (
                f"the values {value!r} and {self._value_of_name[name]!r} "
                f"are written the same way, so they name one goal"
            )
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
        """See :class:`~adagoal.core.goal_space.GoalLabeler`."""
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
        """See :class:`~adagoal.core.goal_space.GoalLabeler`."""
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
        """See :class:`~adagoal.core.goal_space.GoalLabeler`."""
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
        text = (
            f"an observation such as {to_single_line(observation)!r} "
            f"has no entries: it is one {type(observation).__name__}"
        )
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
