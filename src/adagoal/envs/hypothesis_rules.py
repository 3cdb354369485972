"""Read a ``RuleBasedStateMachine`` of Hypothesis: rules with all argument values, preconditions and invariants.

Hypothesis draws arguments at random; here every value is an action of its own, so each strategy must have few values.
Strategies are read by the names of their classes, because Hypothesis has no public way to list the values of one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable
from typing import Any

from adagoal.core.array_types import MAX_ACTIONS
from adagoal.core.errors import InputError, describe_exception, to_single_line
from adagoal.envs.state_machine import Call, Invariant, MachineParts

MAX_ARGUMENT_VALUES = 1_000  # of one argument; every value is an action, and a run tries every action in every state
INITIALIZE = "_adagoal_initialize"  # attribute of a machine: the names of the initialize rules that are still to run


def read_rules(kind: type, state: Callable[[Any], Any] | None) -> MachineParts:
    """Return rules as calls, preconditions as masks, and invariants; initialize rules come first, each once.

    Without a function ``state``, the key has all attributes that the class adds to those of Hypothesis.
    """
    from hypothesis import stateful

    markers = stateful.RULE_MARKER, stateful.INITIALIZE_RULE_MARKER, stateful.INVARIANT_MARKER
    members = [function for _, function in inspect.getmembers(kind)]
    rules, first_rules, invariants = ([r for f in members if (r := getattr(f, m, None)) is not None] for m in markers)
    first_names = frozenset(rule.function.__name__ for rule in first_rules)
    conditions = {rule.function.__name__: rule.preconditions for rule in rules}
    calls = [call for rule in (*first_rules, *rules) for call in _list_calls(rule)]
    if not 1 <= len(calls) <= MAX_ACTIONS:
        raise InputError(
            f"{kind.__name__} has {len(calls)} rules with arguments; 1 to {MAX_ACTIONS} are possible", "make"
        )
    base_names = _base_attributes(kind, stateful.RuleBasedStateMachine)

    def is_allowed(machine: Any, call: Call) -> bool:
        left = getattr(machine, INITIALIZE, ())
        if left or call.name in first_names:
            return call.name in left
        return all(condition(machine) for condition in conditions[call.name])

    def read_state(machine: Any) -> Any:
        own = {name: value for name, value in vars(machine).items() if name not in base_names}
        key = own if state is None else state(machine)
        # Before these rules have run, the same attributes allow other calls.
        left = sorted(getattr(machine, INITIALIZE, ()))
        return ("initialize", *left, key) if left else key

    return MachineParts(
        kind.__name__,
        _with_initialize_rules(kind, first_names) if first_names else kind,
        calls,
        read_state,
        is_allowed,
        [_read_invariant(invariant) for invariant in invariants],
        discard=lambda machine: machine.teardown(),
    )


def _with_initialize_rules(kind: type, names: frozenset[str]) -> Callable[[], Any]:
    @functools.wraps(kind, updated=())
    def make() -> Any:
        machine = kind()
        setattr(machine, INITIALIZE, set(names))
        return machine

    return make


def _list_calls(rule: Any) -> list[Call]:
    name = rule.function.__name__
    places = {key: f"rule {name}, argument {key}" for key in rule.arguments}
    try:
        values = [_list_values(strategy, places[key]) for key, strategy in rule.arguments.items()]
    except InputError:
        raise
    # A function in map() or filter() raised, or this version of Hypothesis stores a strategy in another way.
    except Exception as error:
        text = f"rule {name}: the values of its arguments cannot be listed ({describe_exception(error)})"
        raise InputError(text, "make") from error

    def function(machine: Any, **arguments: Any) -> None:
        # assume() warns outside of a test of Hypothesis.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            rule.function(machine, **arguments)
        if hasattr(machine, INITIALIZE):
            getattr(machine, INITIALIZE).discard(name)

    return [Call(name, function, (), dict(zip(rule.arguments, row, strict=True))) for row in itertools.product(*values)]


def _read_invariant(invariant: Any) -> Invariant:
    def holds(machine: Any) -> None:
        if getattr(machine, INITIALIZE, ()) and not invariant.check_during_init:
            return
        if all(condition(machine) for condition in invariant.preconditions):
            invariant.function(machine)

    return Invariant(invariant.function.__name__, holds, is_method=True)


def _base_attributes(kind: type, base: Any) -> set[str]:
    """Return the names of the attributes that Hypothesis itself gives to a machine."""
    machine: Any = object.__new__(kind)
    try:
        base.__init__(machine)
    except Exception as error:
        raise InputError(f"{kind.__name__} is not a state machine ({describe_exception(error)})", "make") from None
    return {*vars(machine), INITIALIZE}


def _list_values(strategy: Any, place: str) -> list[Any]:
    """Return all values of a strategy; refuse one without a short list of values."""
    values: list[Any] | None = None
    match type(strategy).__name__:
        case "LazyStrategy":
            return _list_values(strategy.wrapped_strategy, place)
        case "SampledFromStrategy" | "JustStrategy":
            values = list(strategy.elements)
            for kind, function, *_ in strategy._transformations:
                values = [*(map if kind == "map" else filter)(function, values)]
        case "BooleansStrategy":
            values = [False, True]
        case "IntegersStrategy" if strategy.start is not None and strategy.end is not None:
            values = [*range(strategy.start, min(strategy.end, strategy.start + MAX_ARGUMENT_VALUES) + 1)]
        case "OneOfStrategy":
            values = [value for part in strategy.original_strategies for value in _list_values(part, place)]
        case "TupleStrategy":
            values = [*itertools.product(*(_list_values(part, place) for part in strategy.element_strategies))]
        case "MappedStrategy":
            values = [strategy.pack(value) for value in _list_values(strategy.mapped_strategy, place)]
        case "FilteredStrategy":
            inner = _list_values(strategy.filtered_strategy, place)
            values = [v for v in inner if all(condition(v) for condition in strategy.flat_conditions)]
        case "Bundle":
            text = f"{place} draws from the bundle {strategy.name!r}; use sampled_from with values, and keep what"
            raise InputError(f"{text} rules return in attributes", "make")
    if values is None or len(values) > MAX_ARGUMENT_VALUES:
        number = "no finite list of" if values is None else f"more than {MAX_ARGUMENT_VALUES:,}"
        text = (
            f"{place} has {number} values ({to_single_line(strategy)}); use sampled_from, booleans, just, or integers"
        )
        raise InputError(f"{text} with close bounds", "make")
    distinct: dict[str, Any] = {repr(value): value for value in values}
    return list(distinct.values())
