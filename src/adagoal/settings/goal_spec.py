"""The goals that were asked for: from what a caller gives to a setting, and from a setting to a goal space.

States are kept in a setting as they are (``goal_space``). Everything else has a description there (``goal_sets``), with
exactly one entry:

    labels      names of states or of sets of states, and numbers of states
    sets        names with lists of states
    keys        entries of the observation; states that agree in them are one goal
    file        FILE.py:NAME, a function of observations, or named predicates
    function    the name of a function of observations, an object of the caller's program
    predicates  names of predicates, objects of the caller's program

The first three are data, and a resumed run needs nothing. The others are code: it must be given again, and a file that
only the folder names is run on demand alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from adagoal.core.environment import TabularEnv
from adagoal.core.errors import InputError
from adagoal.core.goal_space import (
    GoalLabeler,
    GoalSpace,
    NameLabeler,
    PredicateLabeler,
    StoredLabeler,
    ValueLabeler,
    make_entry_selector,
)
from adagoal.core.types import Longs
from adagoal.core.user_code import is_file_spec, load_from_file
from adagoal.settings.exploration import ExplorationSettings

GoalCode = Callable[[Any], Any] | Mapping[str, Any] | StoredLabeler
"""A function of observations, named predicates, or those that a checkpoint holds."""
GoalsArgument = Iterable[int | str] | str | GoalCode
"""What a caller may call goals."""
KEYS_PREFIX = "keys:"


class GoalSpec(NamedTuple):
    """What a caller asked for."""

    states: tuple[int, ...] | None = None
    description: dict[str, Any] | None = None
    code: GoalCode | None = None


def parse_goals(goals: GoalsArgument | None) -> GoalSpec:
    """The goals of a call as a setting has them, with the code that it cannot hold."""
    if goals is None:
        return GoalSpec()
    if isinstance(goals, str) and is_file_spec(goals):
        return GoalSpec(description={"file": goals}, code=_check_goal_code(load_from_file(goals, "goals")))
    if isinstance(goals, str) and goals.startswith(KEYS_PREFIX):
        keys = [int(key) if key.isdigit() else key for key in goals.removeprefix(KEYS_PREFIX).split(",")]
        return GoalSpec(description={"keys": keys})
    if isinstance(goals, Mapping):
        if all(not callable(given) for given in goals.values()):
            PredicateLabeler(goals)
            return GoalSpec(description={"sets": {name: sorted(map(int, states)) for name, states in goals.items()}})
        return GoalSpec(description={"predicates": list(map(str, goals))}, code=goals)
    if callable(goals):
        return GoalSpec(description={"function": getattr(goals, "__name__", "custom")}, code=goals)
    return _parse_goal_list([goals] if isinstance(goals, str) else goals)


def _parse_goal_list(goals: Iterable[Any]) -> GoalSpec:
    """States, labels, or both."""
    try:
        items = [item.item() if isinstance(item, np.generic) else item for item in goals]
    except TypeError:
        text = f"must be states, labels, a function of observations, or names with predicates; got {goals!r}"
        raise InputError(text, "goals") from None
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
        raise InputError(f"must be states (whole numbers) or labels (texts), got {items!r}", "goals")
    if any(isinstance(item, str) for item in items):
        return GoalSpec(description={"labels": items})
    return GoalSpec(states=tuple(items))


def to_goals_argument(setting: ExplorationSettings) -> GoalsArgument | None:
    """The goals of a setting as a caller gives them, where they are not objects of another program."""
    if setting.goal_sets is None:
        return setting.goal_space
    ((kind, value),) = setting.goal_sets.items()
    return KEYS_PREFIX + ",".join(map(str, value)) if kind == "keys" else cast(GoalsArgument, value)


def resolve_goals_on_resume(setting: ExplorationSettings, goals: GoalsArgument | None, trust: bool) -> GoalCode | None:
    """The code of a run's goals, given again; a file that only the folder names is run where ``trust`` says so."""
    spec = setting.goal_sets or {}
    if spec:
        check_goal_description(spec)
    if goals is not None:
        now = parse_goals(goals)
        same = now.description == spec or {*spec, *(now.description or {})} <= {"file", "function", "predicates"}
        if not same or (spec and now.description is None) or (not spec and now.states != setting.goal_space):
            raise InputError("these are not the goals of the run", "goals")
        return now.code
    if "file" in spec:
        if not trust:
            text = f"the run has the goals {spec['file']!r}, a file to run; give the goals again, or trust the folder"
            raise InputError(text, "goals")
        return _check_goal_code(load_from_file(spec["file"], "goals"))
    if "function" in spec or "predicates" in spec:
        raise InputError("the goals of the run are code of the program that ran it; give them again", "goals")
    return None


def check_goal_description(spec: Mapping[str, Any]) -> None:
    """One entry of the module's text, of its type: a folder may say anything."""
    rules: dict[str, Callable[[Any], bool]] = {
        "labels": _is_list_of(int | str),
        "keys": _is_list_of(int | str),
        "predicates": _is_list_of(str),
        "file": lambda given: isinstance(given, str) and is_file_spec(given),
        "function": lambda given: isinstance(given, str),
        "sets": lambda given: isinstance(given, dict) and bool(given) and all(map(_is_list_of(int), given.values())),
    }
    if len(spec) != 1 or not all(name in rules and rules[name](given) for name, given in spec.items()):
        raise InputError("the setting describes them as no goals are described", "goals")


def _is_list_of(kind: Any) -> Callable[[Any], bool]:
    """Whether something is a list of these, and not empty."""
    return lambda given: isinstance(given, list | tuple) and bool(given) and all(isinstance(x, kind) for x in given)


def build_goal_space(setting: ExplorationSettings, world: TabularEnv, code: GoalCode | None) -> GoalSpace:
    """The goals of a run, with the states of the world that are known already."""
    n_states, bound = world.initial_states, world.state_bound
    found = n_states < bound
    if found and str(setting.radius).startswith("all"):
        text = 'the states of this environment are numbered as they are found; use "auto" with a budget, not "all"'
        raise InputError(text, "radius")
    if setting.goal_sets is None:
        return GoalSpace.from_states(n_states, bound, _check_goal_states(setting.goal_space, world))
    check_goal_description(setting.goal_sets)
    sort = _make_goal_labeler(setting.goal_sets, world, code)
    if not hasattr(world, "assign_states_to_goals"):
        raise InputError(f"{world.name} does not say what is observed in its states; give states as goals", "goals")
    sets = GoalSpace.from_labeler(sort, n_states, bound)
    whole = world.assign_states_to_goals(sets)
    if isinstance(sort, StoredLabeler):
        sets.mark_as_stored(whole)
        return sets
    if not whole:
        return sets
    empty = sets.finalize_members() if not isinstance(sort, NameLabeler) else _check_labels_exist(sets, world)
    for name in empty:
        world.add_warning(f"no state belongs to the goal {name}")
    if (
        isinstance(sort, NameLabeler)
        and sort.names_single_states
        and all(sets.states_of_goal(g).sum() == 1 for g in sets.goal_numbers)
    ):
        return GoalSpace.from_states(n_states, bound, np.unique(np.nonzero(sets.goals_of_states >= 0)[0]))
    return sets


def _make_goal_labeler(spec: Mapping[str, Any], world: TabularEnv, code: GoalCode | None) -> GoalLabeler:
    if "keys" in spec:
        return ValueLabeler(make_entry_selector(spec["keys"]))
    if "labels" in spec:
        named = world.initial_states < world.state_bound and any(isinstance(item, int) for item in spec["labels"])
        if named:
            raise InputError(_unnumbered_states_message("numbers"), "goals")
        mdp = getattr(world, "mdp", None)
        return NameLabeler(spec["labels"], mdp.sets if mdp is not None else {})
    if "sets" in spec:
        _check_goal_states([state for states in spec["sets"].values() for state in states], world)
        return PredicateLabeler(spec["sets"])
    assert code is not None
    if isinstance(code, StoredLabeler):
        return code
    return PredicateLabeler(code) if isinstance(code, Mapping) else ValueLabeler(code)


def _check_labels_exist(sets: GoalSpace, world: TabularEnv) -> list[str]:
    """All labels are some state's; the first that is none is told, with what it may have meant."""
    names = sets.names or []
    for number, name in enumerate(names):
        if not sets.states_of_goal(number).any():
            mdp = getattr(world, "mdp", None)
            known = [*(mdp.sets if mdp is not None else ()), *world.labels]
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
            hint = f"there are {', '.join(map(repr, close))}" if close else "its states have no labels"
            raise InputError(f"{world.name} has no state and no set of states called {name!r}; {hint}", "goals")
    return sets.finalize_members()


def _check_goal_states(goals: Iterable[Any] | None, world: TabularEnv) -> Longs | None:
    """States, checked against the world."""
    if goals is None:
        return None
    if world.initial_states < world.state_bound:
        raise InputError(_unnumbered_states_message("states"), "goals")
    numbers = list(goals)
    whole = all(isinstance(g, int) and not isinstance(g, bool) and abs(g) < 2**62 for g in numbers)
    states = np.unique(np.asarray(numbers if whole else [], np.int64))
    if len(states) == 0 or states.min() < 0 or states.max() >= world.state_bound:
        raise InputError(f"goals must be states in 0..{world.state_bound - 1}, at least one", "goals")
    return states


def _unnumbered_states_message(what: str) -> str:
    return (
        f"the states of this environment are numbered as they are found, so {what} cannot name goals in advance; "
        "use labels, a function of observations, or predicates"
    )


def _check_goal_code(code: Any) -> GoalCode:
    if isinstance(code, Mapping) or callable(code):
        return cast(GoalCode, code)
    raise InputError(f"must be a function of observations, or names with predicates; got {code!r}", "goals")
