"""The goals of a run: sets of states with numbers and names, and the labelers that assign states to goals.

A goal is reached when any of its states is: V*_g is zero on the set (docs/theory-more.md, "Goals that are sets").

*States.* By default every state is a goal, with the number of the state. The user may choose some of them.

*Sets.* A :class:`GoalLabeler` returns the goals of a state, from its observation or its label. Goals are numbered in
the order in which they are named or discovered. They may overlap, and a state may belong to none. In an environment
whose states are discovered during the run, so are the members of a goal.

Membership is an array ``goals_of_states`` [S, W]: row s has the numbers of the goals of state s, and -1 in unused
entries. W = 1 unless goals overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.errors import EnvironmentFailure, Failure, InputError, describe_user_exception, to_single_line
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays
from adagoal.core.user_code import USER_CODE_SECTION

GoalValue = bool | int | float | str | bytes | tuple["GoalValue", ...] | None
ObservationFunction = Callable[[Any], Any]


class GoalLabeler(Protocol):
    """A function from states to goals, as the user defined them."""

    names: tuple[str, ...]  # goals that exist from the beginning
    discovers_goals: bool  # whether states may belong to other goals than these

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        """Return the names of the goals of a state."""


class GoalSpace:
    """The goals of a run, and the states of each."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {"at": ArraySpec("int64", ("S", "W"), low=-1)}
    NAMES_SCHEMA: ClassVar[dict[str, Any]] = {"type": "array", "items": {"type": "string", "maxLength": 10_000}}
    SAVED_NAMES_SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "array",
        "items": {"type": ["string", "null"], "maxLength": 10_000},
    }

    def __init__(
        self, memberships: Longs, goal_bound: float, chosen: Longs | None = None, labeler: GoalLabeler | None = None
    ) -> None:
        self.goals_of_states = memberships  # [S, W]
        self.goal_bound = goal_bound  # upper bound on the number of goals; infinite if unknown
        # For the union of lemma 1: goals that were fixed before the first transition. Infinite if there is no bound.
        self.union_bound = goal_bound
        # Of the goals known so far [G]; None: goals are states.
        self.names: list[str] | None = None if labeler is None else list(labeler.names)
        self.chosen_states = chosen  # the states that are goals; None: all of them
        self.members_complete = labeler is None  # whether the states of all goals are known
        self._number_of_name = {name: number for number, name in enumerate(self.names or ())}
        self._labeler = labeler
        self._discovers_goals = labeler is not None and labeler.discovers_goals
        self._is_final = False

    @staticmethod
    def from_states(n_states: int, bound: float, chosen: Longs | None = None) -> GoalSpace:
        """Make every state, or every state of ``chosen``, a goal; ``bound`` is that on the number of states, or inf."""
        space = GoalSpace(np.zeros((0, 1), np.int64), bound if chosen is None else len(chosen), chosen)
        space.grow_states(n_states)
        return space

    @staticmethod
    def from_labeler(labeler: GoalLabeler, n_states: int, bound: float) -> GoalSpace:
        """Make a space of the labeler's goals, without members yet; ``bound`` as in :meth:`from_states`."""
        empty = np.full((n_states, max(len(labeler.names), 1)), -1)
        return GoalSpace(empty, bound if labeler.discovers_goals else len(labeler.names), labeler=labeler)

    @property
    def goals_are_states(self) -> bool:
        """Whether goals are states, not sets."""
        return self.names is None

    @property
    def goal_numbers(self) -> Longs:
        """The goals [G]; while more may be discovered, one extra number stands for all of these."""
        if self.names is None:
            return np.arange(len(self.goals_of_states)) if self.chosen_states is None else self.chosen_states
        return np.arange(len(self.names) + (self._discovers_goals and len(self.names) < self.goal_bound))

    @property
    def n_goal_numbers(self) -> int:
        """Length of an array that is indexed by goal numbers."""
        return len(self.goals_of_states) if self.names is None else len(self.goal_numbers)

    def grow_states(self, n_states: int) -> None:
        """Add rows for more states: each its own goal, or a member of no set yet."""
        rows = np.arange(len(self.goals_of_states), n_states)
        if not len(rows):
            return
        new = np.full((len(rows), self.goals_of_states.shape[1]), -1)
        if self.names is None:
            new[:, 0] = rows if self.chosen_states is None else np.where(np.isin(rows, self.chosen_states), rows, -1)
        self.goals_of_states = np.vstack([self.goals_of_states, new])

    def add_state(self, state: int, observation: Any, label: str) -> None:
        """Ask the labeler for the goals of a new state."""
        if self._labeler is None or self.names is None:
            return
        goals = self._labeler(state, observation, label)
        # The proofs need a fixed function V*_g for every goal. A random or stateful labeler has none, and a second call
        # detects most of them.
        if self._labeler(state, observation, label) != goals:
            raise InputError(
                f"the same observation belonged to {goals} in one call and not in the next; use a function of it alone",
                "goals",
            )
        self.grow_states(state + 1)
        for name in goals:
            if name not in self._number_of_name:
                self._number_of_name[name] = len(self.names)
                self.names.append(name)
            if (self.goals_of_states[state] >= 0).all():
                self.goals_of_states = np.pad(self.goals_of_states, ((0, 0), (0, 1)), constant_values=-1)
            free = np.argmin(self.goals_of_states[state] >= 0)
            self.goals_of_states[state, free] = self._number_of_name[name]

    def agrees_with_labeler(self, state: int, observation: Any, label: str) -> bool:
        """Return whether the labeler gives a state, now, the goals that the space has for it."""
        if self.members_complete or self._labeler is None or self.names is None:
            return True
        members = self.goals_of_states[state]
        return {*self._labeler(state, observation, label)} == {self.names[g] for g in members[members >= 0]}

    def finalize_members(self) -> list[str]:
        """Declare that all states were added, so no other goal exists; return the names of goals without a state."""
        members = np.bincount(self.goals_of_states[self.goals_of_states >= 0], minlength=len(self.names or ()))
        if not members.any():
            raise InputError("no state belongs to any of the goals; give other goals", "goals")
        self._discovers_goals, self._is_final, self.members_complete = False, True, True
        # The members are known before the first step, so the union of lemma 1 is over the goals that have any.
        self.goal_bound = self.union_bound = int((members > 0).sum())
        return [name for name, count in zip(self.names or (), members, strict=True) if not count]

    def states_of_goal(self, goal: int) -> Bools:
        """The states of a goal, as a mask [S]."""
        return membership_mask(self.goals_of_states, goal)

    def columns_of_states(self, goals: Longs) -> Longs:
        """Columns [S, W] of the goals of every state, where ``goals`` [B] are the goals of the columns; -1 for none."""
        # One entry more, the last: unused entries of goals_of_states are -1, and index -1 must give no column.
        column = np.full(max(self.n_goal_numbers, int(goals.max(initial=-1)) + 1) + 1, -1)
        column[goals[goals >= 0]] = np.flatnonzero(goals >= 0)
        return column[self.goals_of_states]

    def contains_state(self, state: int, goals: Longs) -> Bools:
        """Whether each of ``goals`` [G] contains the state."""
        return goals == state if self.goals_are_states else np.isin(goals, self.goals_of_states[state])

    def visits_of_goals(self, visits: Longs, goals: Longs) -> Floats:
        """Visits to the states of each goal [G], from the visits to each state [S]."""
        if self.names is None:
            return visits[goals].astype(float)
        at = self.goals_of_states[: len(visits)]
        rows, _ = np.nonzero(at >= 0)
        return np.bincount(at[at >= 0], visits[rows], minlength=self.n_goal_numbers)[goals].astype(float)

    def state(self) -> tuple[dict[str, NDArray[Any]], list[str | None] | None]:
        """Return members and names for a checkpoint; nothing if goals are states.

        The last name is None if more goals may be discovered.
        """
        if self.names is None:
            return {}, None
        return {"at": self.goals_of_states}, [*self.names, *[None] * self._discovers_goals]

    def restore(self, arrays: dict[str, NDArray[Any]], saved_names: list[str | None] | None) -> None:
        """Restore a saved :meth:`state`; members that the labeler assigned before now must agree with it."""
        if saved_names is None or self.names is None:
            kinds = ["single states" if given is None else "sets" for given in (saved_names, self.names)]
            if kinds[0] != kinds[1]:
                raise ValueError(f"the checkpoint stores goals as {kinds[0]}, this run uses {kinds[1]}")
            return
        names = [name for name in saved_names if name is not None]
        check_arrays(self.ARRAY_SCHEMA, arrays)
        at = np.array(arrays["at"])
        if len(set(names)) < len(names) or at.max(initial=-1) >= len(names):
            raise ValueError("the goals do not have one name each")
        rows = [(set(new[new >= 0]), set(old[old >= 0])) for new, old in zip(self.goals_of_states, at, strict=False)]
        # Before all states are added, a row may still lack goals, but it must not have others than the checkpoint.
        same = all(new == old if self._is_final else new <= old for new, old in rows)
        # Lemma 1 shares delta among the names of fixed goals, so none may be missing, and none may be new.
        if not same or (names[: len(self.names)] if self._discovers_goals else names) != self.names:
            raise InputError("these are not the goals of the run: they have other states; give the same again", "goals")
        # Goals that are discovered must not become fixed ones in the middle of a run, nor the other way round.
        if saved_names != [*names, *[None] * self._discovers_goals]:
            kind = "values of a function of observations" if None in saved_names else "named predicates"
            raise InputError(f"the goals of the run are {kind}; give the same again", "goals")
        self.names, self.goals_of_states = list(names), at
        self._number_of_name = {name: number for number, name in enumerate(names)}


def membership_mask(goals_of_states: Longs, goal: int) -> Bools:
    """The states of a goal as a mask [S], from ``goals_of_states`` [S, W]."""
    inside: Bools = (goals_of_states == goal).any(axis=1)
    return inside


def memberships_from_sets(sets: Sequence[Collection[int]], n_states: int) -> Longs:
    """Membership array [S, W] of goals given by their states; goal number i is ``sets[i]``."""
    lists = [np.unique(np.asarray(list(members), np.int64)) for members in sets]
    goal, state = np.repeat(np.arange(len(lists)), [len(m) for m in lists]), np.concatenate([np.zeros(0, int), *lists])
    # Stable, so the goals of a state stay in the order of their numbers.
    order = np.argsort(state, kind="stable")
    goal, state = goal[order], state[order]
    rank = np.arange(len(state)) - np.searchsorted(state, state)  # of a goal among the goals of its state
    goals_of_states = np.full((n_states, int(rank.max(initial=0)) + 1), -1)
    goals_of_states[state, rank] = goal
    return goals_of_states


class ValueLabeler:
    """Goals by the value of a function of observations: states with the same value are one goal, None is no goal."""

    names: tuple[str, ...] = ()
    discovers_goals = True

    def __init__(self, function: ObservationFunction) -> None:
        self._function = function
        self._value_of_name: dict[str, GoalValue] = {}

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        # A failure is a goal of its own: the function is about keys of the system that failed.
        if isinstance(observation, Failure):
            return [str(observation)]
        with _convert_user_errors("the function", observation):
            value = to_goal_value(self._function(observation))
        if value is None:
            return []
        name = value if isinstance(value, str) else repr(value)
        # For instance 1 and "1". A name identifies a goal, so they would become one goal.
        if (other := self._value_of_name.setdefault(name, value)) != value:
            text = f"the values {value!r} and {other!r} are written the same way; return values with different texts"
            raise InputError(text, "goals")
        return [name]


class PredicateLabeler:
    """Goals by name, each with a predicate of observations or with a collection of states."""

    discovers_goals = False

    def __init__(self, predicates: Mapping[str, ObservationFunction | Collection[int]]) -> None:
        if not predicates:
            raise InputError("there must be at least one goal", "goals")
        for name, given in predicates.items():
            is_states = isinstance(given, Collection) and all(isinstance(s, int | np.integer) for s in given)
            if not isinstance(name, str) or not (callable(given) or is_states):
                text = f"must be names with functions, or with lists of states; got {name!r}: {given!r}"
                raise InputError(text, "goals")
            if not callable(given) and len(given) == 0:
                raise InputError(f"the goal {name!r} has no states; give it one, or leave it out", "goals")
        self.names = tuple(predicates)
        self._predicates = dict(predicates)

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        return [name for name, given in self._predicates.items() if self._contains(name, given, state, observation)]

    @staticmethod
    def _contains(name: str, given: ObservationFunction | Collection[int], state: int, observation: Any) -> bool:
        if not callable(given):
            return state in given
        if isinstance(observation, Failure):
            return False
        with _convert_user_errors(f"the goal {name!r}", observation):
            return bool(given(observation))


class NameLabeler:
    """Goals by the labels of states, the labels of sets of states, or the numbers of states."""

    discovers_goals = False

    def __init__(self, labels: Sequence[str | int], sets: Mapping[str, Bools]) -> None:
        self.names = tuple(dict.fromkeys(str(label) for label in labels))
        self._state_numbers = {str(label) for label in labels if not isinstance(label, str)}
        self._label_sets = sets
        self.names_single_states = not any(name in sets for name in self.names)

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        return [name for name in self.names if self._matches_state(name, state, label)]

    def _matches_state(self, name: str, state: int, label: str) -> bool:
        if name in self._state_numbers:
            return name == str(state)
        return bool(self._label_sets[name][state]) if name in self._label_sets else name == label


class StoredLabeler:
    """The goals of a checkpoint that is only inspected: states discovered later belong to no goal."""

    def __init__(self, saved_names: Sequence[str | None] = ()) -> None:
        """``saved_names``: from :meth:`GoalSpace.state`."""
        self.names = tuple(name for name in saved_names if name is not None)
        self.discovers_goals = None in saved_names

    def __call__(self, state: int, observation: Any, label: str) -> list[str]:
        return []


def make_entry_selector(keys: Sequence[str | int]) -> ObservationFunction:
    """Return a function that selects entries of an observation, by position or by name from a dictionary."""

    def select(observation: Any) -> Any:
        entries = tuple(_to_nested_tuples(_observation_entry(observation, key)) for key in keys)
        return entries if len(entries) > 1 else entries[0]

    return select


def _observation_entry(observation: Any, key: str | int) -> Any:
    if isinstance(observation, Mapping):
        if key not in observation:
            known = ", ".join(map(str, observation))
            raise InputError(f"there is no entry {key!r} in an observation; it has {known}", "goals")
        return observation[key]
    if not (isinstance(observation, tuple | list) or (isinstance(observation, np.ndarray) and observation.ndim > 0)):
        shown, kind = to_single_line(observation), type(observation).__name__
        raise InputError(f"an observation such as {shown!r} has no entries (it is {kind}); give a function", "goals")
    if not isinstance(key, int) or not 0 <= key < len(observation):
        raise InputError(f"there is no entry {key!r} in an observation of {len(observation)} entries", "goals")
    return observation[key]


def _to_nested_tuples(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(map(_to_nested_tuples, value)) if isinstance(value, list | tuple) else value


def to_goal_value(value: Any) -> GoalValue:
    """Return a value of a goal function with NumPy scalars converted to Python; raise if its type is not accepted."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return tuple(to_goal_value(part) for part in value)
    if isinstance(value, float):
        # It does not equal itself, so no two states could share it.
        if value != value:
            raise InputError("a function of observations must not return NaN; return None for no goal", "goals")
        # Turns -0.0 into 0.0. The two are equal but written differently, so they would be two goals.
        return value + 0.0
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    text = f"a function of observations returns a number, a text, a tuple of them, or None; got {type(value).__name__}"
    raise InputError(text, "goals")


@contextmanager
def _convert_user_errors(what: str, observation: Any) -> Iterator[None]:
    try:
        with USER_CODE_SECTION:
            yield
    # Ctrl-C is for the run. An InputError of an entry selector names its own argument.
    except (KeyboardInterrupt, InputError):
        raise
    except BaseException as error:
        text = f"{what} raised {describe_user_exception(error)} for the observation {to_single_line(observation)}"
        raise EnvironmentFailure(text, "goals") from error
