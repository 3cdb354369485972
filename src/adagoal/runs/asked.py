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

from adagoal.core.errors import InputError
from adagoal.core.goalspace import GoalSpace, Sorter
from adagoal.core.sorters import ByLabel, ByPredicate, ByValue, Stored, entries
from adagoal.core.types import Longs
from adagoal.core.usercode import from_file, names_file
from adagoal.core.world import World
from adagoal.runs.setting import Setting

Code = Callable[[Any], Any] | Mapping[str, Any] | Stored
"""A function of observations, named predicates, or those that a checkpoint holds."""
Given = Iterable[int | str] | str | Code
"""What a caller may call goals."""
KEYS = "keys:"


class Asked(NamedTuple):
    """What a caller asked for."""

    states: tuple[int, ...] | None = None
    spec: dict[str, Any] | None = None
    code: Code | None = None


def asked(goals: Given | None) -> Asked:
    """The goals of a call as a setting has them, with the code that it cannot hold."""
    if goals is None:
        return Asked()
    if isinstance(goals, str) and names_file(goals):
        return Asked(spec={"file": goals}, code=_checked(from_file(goals, "goals")))
    if isinstance(goals, str) and goals.startswith(KEYS):
        keys = [int(key) if key.isdigit() else key for key in goals.removeprefix(KEYS).split(",")]
        return Asked(spec={"keys": keys})
    if isinstance(goals, Mapping):
        if all(not callable(given) for given in goals.values()):
            ByPredicate(goals)
            return Asked(spec={"sets": {name: sorted(map(int, states)) for name, states in goals.items()}})
        return Asked(spec={"predicates": list(map(str, goals))}, code=goals)
    if callable(goals):
        return Asked(spec={"function": getattr(goals, "__name__", "custom")}, code=goals)
    return _listed([goals] if isinstance(goals, str) else goals)


def _listed(goals: Iterable[Any]) -> Asked:
    """States, labels, or both."""
    try:
        items = [item.item() if isinstance(item, np.generic) else item for item in goals]
    except TypeError:
        text = f"must be states, labels, a function of observations, or names with predicates; got {goals!r}"
        raise InputError(text, "goals") from None
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
        raise InputError(f"must be states (whole numbers) or labels (texts), got {items!r}", "goals")
    if any(isinstance(item, str) for item in items):
        return Asked(spec={"labels": items})
    return Asked(states=tuple(items))


def as_given(setting: Setting) -> Given | None:
    """The goals of a setting as a caller gives them, where they are not objects of another program."""
    if setting.goal_sets is None:
        return setting.goal_space
    ((kind, value),) = setting.goal_sets.items()
    return KEYS + ",".join(map(str, value)) if kind == "keys" else cast(Given, value)


def given_again(setting: Setting, goals: Given | None, trust: bool) -> Code | None:
    """The code of a run's goals, given again; a file that only the folder names is run where ``trust`` says so."""
    spec = setting.goal_sets or {}
    if spec:
        check_spec(spec)
    if goals is not None:
        now = asked(goals)
        same = now.spec == spec or {*spec, *(now.spec or {})} <= {"file", "function", "predicates"}
        if not same or (spec and now.spec is None) or (not spec and now.states != setting.goal_space):
            raise InputError("these are not the goals of the run", "goals")
        return now.code
    if "file" in spec:
        if not trust:
            text = f"the run has the goals {spec['file']!r}, a file to run; give the goals again, or trust the folder"
            raise InputError(text, "goals")
        return _checked(from_file(spec["file"], "goals"))
    if "function" in spec or "predicates" in spec:
        raise InputError("the goals of the run are code of the program that ran it; give them again", "goals")
    return None


def check_spec(spec: Mapping[str, Any]) -> None:
    """One entry of the module's text, of its type: a folder may say anything."""
    rules: dict[str, Callable[[Any], bool]] = {
        "labels": _all(int | str),
        "keys": _all(int | str),
        "predicates": _all(str),
        "file": lambda given: isinstance(given, str) and names_file(given),
        "function": lambda given: isinstance(given, str),
        "sets": lambda given: isinstance(given, dict) and bool(given) and all(map(_all(int), given.values())),
    }
    if len(spec) != 1 or not all(name in rules and rules[name](given) for name, given in spec.items()):
        raise InputError("the setting describes them as no goals are described", "goals")


def _all(kind: Any) -> Callable[[Any], bool]:
    """Whether something is a list of these, and not empty."""
    return lambda given: isinstance(given, list | tuple) and bool(given) and all(isinstance(x, kind) for x in given)


def space(setting: Setting, world: World, code: Code | None) -> GoalSpace:
    """The goals of a run, with the states of the world that are known already."""
    n_states, bound = world.initial_states, world.state_bound
    found = n_states < bound
    if found and str(setting.radius).startswith("all"):
        text = 'the states of this environment are numbered as they are found; use "auto" with a budget, not "all"'
        raise InputError(text, "radius")
    if setting.goal_sets is None:
        return GoalSpace.states(n_states, bound, _states(setting.goal_space, world))
    check_spec(setting.goal_sets)
    sort = _sorter(setting.goal_sets, world, code)
    if not hasattr(world, "classify"):
        raise InputError(f"{world.name} does not say what is observed in its states; give states as goals", "goals")
    sets = GoalSpace.sets(sort, n_states, bound)
    whole = world.classify(sets)
    if isinstance(sort, Stored):
        sets.as_stored(whole)
        return sets
    if not whole:
        return sets
    empty = sets.settle() if not isinstance(sort, ByLabel) else _known_labels(sets, world)
    for name in empty:
        world.note(f"no state belongs to the goal {name}")
    if isinstance(sort, ByLabel) and sort.single and all(sets.inside(g).sum() == 1 for g in sets.numbers):
        return GoalSpace.states(n_states, bound, np.unique(np.nonzero(sets.at >= 0)[0]))
    return sets


def _sorter(spec: Mapping[str, Any], world: World, code: Code | None) -> Sorter:
    if "keys" in spec:
        return ByValue(entries(spec["keys"]))
    if "labels" in spec:
        named = world.initial_states < world.state_bound and any(isinstance(item, int) for item in spec["labels"])
        if named:
            raise InputError(_on_the_fly("numbers"), "goals")
        mdp = getattr(world, "mdp", None)
        return ByLabel(spec["labels"], mdp.sets if mdp is not None else {})
    if "sets" in spec:
        _states([state for states in spec["sets"].values() for state in states], world)
        return ByPredicate(spec["sets"])
    assert code is not None
    if isinstance(code, Stored):
        return code
    return ByPredicate(code) if isinstance(code, Mapping) else ByValue(code)


def _known_labels(sets: GoalSpace, world: World) -> list[str]:
    """All labels are some state's; the first that is none is told, with what it may have meant."""
    names = sets.names or []
    for number, name in enumerate(names):
        if not sets.inside(number).any():
            mdp = getattr(world, "mdp", None)
            known = [*(mdp.sets if mdp is not None else ()), *world.labels]
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
            hint = f"there are {', '.join(map(repr, close))}" if close else "its states have no labels"
            raise InputError(f"{world.name} has no state and no set of states called {name!r}; {hint}", "goals")
    return sets.settle()


def _states(goals: Iterable[Any] | None, world: World) -> Longs | None:
    """States, checked against the world."""
    if goals is None:
        return None
    if world.initial_states < world.state_bound:
        raise InputError(_on_the_fly("states"), "goals")
    numbers = list(goals)
    whole = all(isinstance(g, int) and not isinstance(g, bool) and abs(g) < 2**62 for g in numbers)
    states = np.unique(np.asarray(numbers if whole else [], np.int64))
    if len(states) == 0 or states.min() < 0 or states.max() >= world.state_bound:
        raise InputError(f"goals must be states in 0..{world.state_bound - 1}, at least one", "goals")
    return states


def _on_the_fly(what: str) -> str:
    return (
        f"the states of this environment are numbered as they are found, so {what} cannot name goals in advance; "
        "use labels, a function of observations, or predicates"
    )


def _checked(code: Any) -> Code:
    if isinstance(code, Mapping) or callable(code):
        return cast(Code, code)
    raise InputError(f"must be a function of observations, or names with predicates; got {code!r}", "goals")
