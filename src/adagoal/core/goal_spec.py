"""Goals and states to avoid in an exploration: from the argument ``goals`` to settings, and then to a goal space.

States are stored as ``goal_space``. Other goals are stored as ``goal_sets``, a description with exactly one entry:

    labels      names of states or of sets of states, and numbers of states
    sets        names with lists of states
    keys        entries of the observation; states that agree in them are one goal
    file        FILE.py:NAME, a function of observations, or named predicates
    function    name of a function of observations in the caller's program
    predicates  names of predicates in the caller's program

The first three are data, so a run with them can be resumed without further arguments. The last three are code, which
the caller must give again; a file that only the folder names runs only if the caller trusts the folder.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from adagoal.core.array_types import Bools, Longs
from adagoal.core.environment import TERMINAL_SUFFIX, TabularEnv
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
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.user_code import is_file_spec, load_from_file
from adagoal.core.validation import format_given_value, to_python_scalar

# A function of observations, named predicates, or the goals that a checkpoint stores.
GoalCode = Callable[[Any], Any] | Mapping[str, Any] | StoredLabeler
GoalsArgument = Iterable[int | str] | str | GoalCode


class GoalSpec(NamedTuple):
    """Goals as settings store them, and the code that settings cannot store."""

    states: tuple[int, ...] | None = None
    description: dict[str, Any] | None = None
    code: GoalCode | None = None


def parse_goals(goals: GoalsArgument | None) -> GoalSpec:
    """Convert the argument ``goals``."""
    if goals is None:
        return GoalSpec()
    if isinstance(goals, str) and is_file_spec(goals):
        return GoalSpec(description={"file": goals}, code=_check_goal_code(load_from_file(goals, "goals")))
    if isinstance(goals, str) and goals.startswith("keys:"):
        keys = [int(key) if key.isdigit() else key for key in goals.removeprefix("keys:").split(",")]
        return GoalSpec(description={"keys": keys})
    if isinstance(goals, Mapping):
        if all(not callable(value) for value in goals.values()):
            # Made only for its checks of the lists.
            PredicateLabeler(goals)
            return GoalSpec(description={"sets": {name: sorted(map(int, states)) for name, states in goals.items()}})
        return GoalSpec(description={"predicates": list(map(str, goals))}, code=goals)
    if callable(goals):
        return GoalSpec(description={"function": getattr(goals, "__name__", "custom")}, code=goals)
    try:
        items = list(map(to_python_scalar, [goals] if isinstance(goals, str) else goals))
    except TypeError:
        text = f"must be states, labels, a function of observations, or named predicates, got {goals!r}"
        raise InputError(text, "goals") from None
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in items):
        raise InputError(f"must be states (whole numbers) or labels (text), got {items!r}", "goals")
    if any(isinstance(item, str) for item in items):
        return GoalSpec(description={"labels": items})
    return GoalSpec(states=tuple(items))


def parse_avoid(avoid: Any) -> tuple[int | str, ...] | None:
    """Convert the argument ``avoid``: a state or label, or several; None and an empty list avoid nothing."""
    if avoid is None:
        return None
    items = [avoid] if isinstance(avoid, str) or not isinstance(avoid, Iterable) else list(avoid)
    plain = tuple(map(to_python_scalar, items))
    if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in plain):
        raise InputError(f"must be states (whole numbers) or labels (text), got {avoid!r}", "avoid")
    return plain or None


def to_goals_argument(setting: ExplorationSettings) -> GoalsArgument | None:
    """Convert stored goals to the argument ``goals``, unless they are code of another program."""
    if setting.goal_sets is None:
        return setting.goal_space
    ((kind, value),) = setting.goal_sets.items()
    return f"keys:{','.join(map(str, value))}" if kind == "keys" else cast(GoalsArgument, value)


def resolve_goals_on_resume(setting: ExplorationSettings, goals: GoalsArgument | None, trust: bool) -> GoalCode | None:
    """Return the code of the goals of a resumed run; run a file that only the folder names only if ``trust``."""
    description = setting.goal_sets or {}
    if description:
        check_goal_description(description)
    if goals is not None:
        spec = parse_goals(goals)
        # Code cannot be compared, so any code may replace the code of the run.
        both_code = {*description, *(spec.description or {})} <= {"file", "function", "predicates"}
        same = spec.description == description or both_code
        if not same or (description and spec.description is None):
            raise InputError(f"must be the goals of the run, {description}", "goals")
        if not description and spec.states != setting.goal_space:
            raise InputError(f"must be the goals of the run, {setting.goal_space or 'all states'}", "goals")
        return spec.code
    # Only the user may choose a file to execute. A folder from another person must not.
    if "file" in description:
        if not trust:
            text = f"the run uses goals from {description['file']!r}, a file to execute; give the goals again, or"
            raise InputError(f"{text} pass trust=True", "goals")
        return _check_goal_code(load_from_file(description["file"], "goals"))
    if "function" in description or "predicates" in description:
        raise InputError("the goals of the run are functions of the program that started it; give them again", "goals")
    return None


def check_goal_description(description: Mapping[str, Any]) -> None:
    """Refuse a description of another form than this module documents: it may come from a forged folder."""
    forms: dict[str, Callable[[Any], bool]] = {
        "labels": _is_list_of(int | str),
        "sets": lambda value: isinstance(value, dict) and bool(value) and all(map(_is_list_of(int), value.values())),
        "keys": _is_list_of(int | str),
        "file": lambda value: isinstance(value, str) and is_file_spec(value),
        "function": lambda value: isinstance(value, str),
        "predicates": _is_list_of(str),
    }
    if len(description) != 1 or not all(name in forms and forms[name](value) for name, value in description.items()):
        text = f"unknown description {format_given_value(description)}; expected exactly one of {', '.join(forms)}"
        raise InputError(text, "goals")


def _is_list_of(kind: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and bool(value) and all(isinstance(x, kind) for x in value)


def build_goal_space(setting: ExplorationSettings, env: TabularEnv, code: GoalCode | None) -> GoalSpace:
    """Return the goals of a run, with the states of the environment that are known at its start."""
    goals = _make_goal_space(setting, env, code)
    if env.is_recorded:
        # The user may have chosen the goals after a look at the data. A union over all states covers every such choice
        # of states; nothing covers every choice of sets.
        goals.union_bound = env.state_bound if goals.goals_are_states and env.pair_bound else math.inf
    return goals


def _make_goal_space(setting: ExplorationSettings, env: TabularEnv, code: GoalCode | None) -> GoalSpace:
    n_states, bound = env.initial_states, env.state_bound
    # With "all" the run ends when every goal is certified. A goal for states that may not exist never is.
    if n_states < bound and str(setting.radius).startswith("all"):
        text = 'the states of this environment are numbered as they are found; use "auto" with a budget, not "all"'
        raise InputError(text, "radius")
    most = math.inf if env.pair_bound is None else bound
    if setting.goal_sets is None:
        return GoalSpace.from_states(n_states, most, _check_goal_states(setting.goal_space, env))
    check_goal_description(setting.goal_sets)
    labeler = _make_goal_labeler(setting.goal_sets, env, code)
    if not hasattr(env, "assign_states_to_goals"):
        raise InputError(f"{env.name} does not say what is observed in its states; give states as goals", "goals")
    goals = GoalSpace.from_labeler(labeler, n_states, most)
    all_states_known = env.assign_states_to_goals(goals)
    # Inspection only: the names and members of the checkpoint replace these when it is restored.
    if isinstance(labeler, StoredLabeler):
        goals.members_complete = True
        return goals
    if not all_states_known:
        return goals
    empty = _check_labels_exist(goals, env) if isinstance(labeler, NameLabeler) else goals.finalize_members()
    for name in empty:
        env.add_warning(f"no state belongs to the goal {name}")
    # Labels that name one state each become states, so goals keep the numbers of their states.
    if (
        isinstance(labeler, NameLabeler)
        and labeler.names_single_states
        and all(goals.states_of_goal(g).sum() == 1 for g in goals.goal_numbers)
    ):
        return GoalSpace.from_states(n_states, most, np.unique(np.nonzero(goals.goals_of_states >= 0)[0]))
    return goals


def find_avoided_states(setting: ExplorationSettings, env: TabularEnv, space: GoalSpace) -> Callable[[int], Bools]:
    """Return a function from a number of states to the mask of those to avoid; refuse what no run could satisfy."""
    items, named_sets = setting.avoid or (), _named_sets(env)
    # Only the start has a label at first. A state that is found during the run gets its label then.
    are_found = env.initial_states < env.state_bound or 0 < len(env.labels) < env.initial_states
    if numbers := [item for item in items if isinstance(item, int)]:
        if are_found:
            text = "the states of this environment are numbered as they are found, so numbers cannot name them"
            raise InputError(f"{text} in advance; use labels", "avoid")
        _check_goal_states(numbers, env, "avoid")

    def avoided(n_states: int) -> Bools:
        mask = avoided_states(items, n_states, env.labels, named_sets)
        # The same observation at the end of an episode is another state with almost the same label.
        return mask | avoided_states(items, n_states, _observation_labels(env), {}) if are_found else mask

    known = avoided(env.initial_states)
    for name in items if not are_found else ():
        if isinstance(name, str) and name not in env.labels and name not in named_sets:
            raise InputError(f"{env.name} has no state and no set of states called {name!r}", "avoid")
    if known[env.start] or getattr(env, "start_label", None) in items:
        raise InputError("the start is among the states to avoid; leave it out", "avoid")
    chosen = [] if space.goals_are_states and space.chosen_states is None else space.goal_numbers.tolist()
    for goal in chosen:
        members = space.states_of_goal(goal)[: len(known)]
        if members.any() and known[members].all():
            name = goal if space.names is None else space.names[goal]
            raise InputError(f"all states of goal {name} are to be avoided; leave it out of the goals", "avoid")
    return avoided


def find_unmet_labels(setting: ExplorationSettings, env: TabularEnv) -> list[str]:
    """Return the labels to avoid that no state has so far."""
    met = {*env.labels, *_observation_labels(env)}
    return [item for item in setting.avoid or () if isinstance(item, str) and item not in met]


def _observation_labels(env: TabularEnv) -> list[str]:
    return [label.removesuffix(TERMINAL_SUFFIX) for label in env.labels]


def avoided_states(
    items: Iterable[int | str], n_states: int, labels: Sequence[str], named_sets: Mapping[str, Any]
) -> Bools:
    """Return the mask [S] of the states with these numbers or labels, or in sets with these labels."""
    items, mask = set(items), np.zeros(n_states, bool)
    mask[[item for item in items if isinstance(item, int)]] = True
    mask[[s for s, label in enumerate(labels[:n_states]) if label in items]] = True
    for name, states in named_sets.items():
        if name in items:
            mask |= states
    return mask


def _make_goal_labeler(description: Mapping[str, Any], env: TabularEnv, code: GoalCode | None) -> GoalLabeler:
    if "keys" in description:
        return ValueLabeler(make_entry_selector(description["keys"]))
    if "labels" in description:
        if env.initial_states < env.state_bound and any(isinstance(item, int) for item in description["labels"]):
            raise InputError(_unnumbered_states_message("numbers"), "goals")
        return NameLabeler(description["labels"], _named_sets(env))
    if "sets" in description:
        _check_goal_states([state for states in description["sets"].values() for state in states], env)
        return PredicateLabeler(description["sets"])
    assert code is not None
    if isinstance(code, StoredLabeler):
        return code
    if not isinstance(code, Mapping):
        return ValueLabeler(code)
    # Beside predicates a mapping may have lists of states.
    if listed := [state for given in code.values() if not callable(given) for state in given]:
        _check_goal_states(listed, env)
    return PredicateLabeler(code)


def _named_sets(env: TabularEnv) -> Mapping[str, Any]:
    # Only a known model has named sets.
    mdp = getattr(env, "mdp", None)
    return mdp.sets if mdp is not None else {}


def _check_labels_exist(goals: GoalSpace, env: TabularEnv) -> list[str]:
    """Refuse a label without a state and suggest similar labels; return the names of goals without a state."""
    for number, name in enumerate(goals.names or []):
        if not goals.states_of_goal(number).any():
            known = [*_named_sets(env), *env.labels]
            similar = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
            hint = f"there are {', '.join(map(repr, similar))}" if similar else "its states have no labels"
            raise InputError(f"{env.name} has no state and no set of states called {name!r}; {hint}", "goals")
    return goals.finalize_members()


def _check_goal_states(goals: Iterable[Any] | None, env: TabularEnv, argument: str = "goals") -> Longs | None:
    if goals is None:
        return None
    if env.initial_states < env.state_bound:
        raise InputError(_unnumbered_states_message("states"), argument)
    numbers = list(goals)
    # The limit is tested in Python: NumPy raises an OverflowError for larger numbers.
    whole = all(isinstance(g, int) and not isinstance(g, bool) and abs(g) < 2**62 for g in numbers)
    states = np.unique(np.asarray(numbers if whole else [], np.int64))
    if len(states) == 0 or states.min() < 0 or states.max() >= env.state_bound:
        shown = ", ".join(map(format_given_value, numbers[:3])) + (", ..." if len(numbers) > 3 else "")
        text = f"must be one or more states in 0..{env.state_bound - 1}, got {shown or 'none'}"
        raise InputError(text, argument)
    return states


def _unnumbered_states_message(what: str) -> str:
    return (
        f"the states of this environment are numbered as they are found, so {what} cannot name goals in advance; "
        "use labels, a function of observations, or predicates"
    )


def _check_goal_code(code: Any) -> GoalCode:
    if isinstance(code, Mapping) or callable(code):
        return cast(GoalCode, code)
    raise InputError(f"must be a function of observations, or named predicates, got {code!r}", "goals")
