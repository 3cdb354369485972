"""Any Python object as an environment: methods with finite lists of arguments are the actions, a key is the state.

The reset makes a fresh object. An exception of a call, or an invariant that fails, leads to a state of its own
(:class:`~adagoal.core.errors.Failure`), in which only the reset is left. States are numbered as they are met.
"""

from __future__ import annotations

import copy
import enum
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from adagoal.core.array_types import MAX_ACTIONS
from adagoal.core.errors import EnvironmentFailure, Failure, InputError, describe_user_exception, to_single_line
from adagoal.envs.observation_keys import KeySpace, key_text

if TYPE_CHECKING:
    from adagoal.core.environment import CallTexts

Arguments = Sequence[Any]
ActionsArgument = Mapping[Any, Arguments] | Sequence[str | Callable[..., Any]]
Precondition = Callable[..., Any]
VARIABLE = "machine"  # name of the object in scripts
GIVEN = "the function that was given to adagoal.machine"  # comment on a name that cannot be imported
CONTAINERS = (list, dict, set, bytearray, np.ndarray)


class Call(NamedTuple):
    """One action: a call with fixed arguments."""

    name: str
    function: Callable[..., Any]  # (object, *arguments, **keywords)
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}
    is_method: bool = True

    @property
    def label(self) -> str:
        """The call as text, without the object."""
        return f"{self.name}({', '.join(self._argument_texts())})"

    @property
    def script_line(self) -> str:
        """The call as a line of Python, on the object of a script."""
        if self.is_method:
            return f"{VARIABLE}.{self.label}"
        name = getattr(self.function, "__name__", "")
        line = f"{_script_name(self.function, 'action')}({', '.join([VARIABLE, *self._argument_texts()])})"
        return line if name.isidentifier() else f"{line}  # {GIVEN}"

    def _argument_texts(self) -> list[str]:
        named = [f"{name}={_literal(value)}" for name, value in self.keywords.items()]
        return [*map(_literal, self.arguments), *named]


class Invariant(NamedTuple):
    """A property that every state should have; it fails if the function returns False or raises."""

    name: str
    function: Callable[[Any], Any]
    is_method: bool = False


class MachineParts(NamedTuple):
    """What a state machine is made of."""

    name: str
    make: Callable[..., Any]
    calls: Sequence[Call]
    read_state: Callable[[Any], Any] | None
    is_allowed: Callable[[Any, Call], Any] | None = None
    invariants: Sequence[Invariant] = ()
    discard: Callable[[Any], Any] | None = None  # called with an object that is no longer needed


def machine(
    make: Callable[..., Any],
    actions: ActionsArgument | None = None,
    state: Callable[[Any], Any] | None = None,
    *,
    allowed: Precondition | Mapping[str, Precondition] | None = None,
    invariants: Iterable[Callable[[Any], Any]] = (),
    crashes: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    deterministic: bool = False,
) -> StateMachineEnv:
    """Turn any Python object into an environment for :func:`adagoal.explore`.

    Parameters
    ----------
    make: makes a fresh object, which is the reset; a class or a function. If it takes one argument, it gets a
        ``numpy.random.Generator``, so a random system can be repeated. Or a ``RuleBasedStateMachine`` of Hypothesis,
        whose rules, preconditions and invariants are used.
    actions: names of methods with the arguments to try, such as ``{"push": [1, 2], "pop": []}``; a tuple stands for
        several arguments. Or a list of names and of functions of the object.
    state: returns the key of a state: equal keys mean the same state. Without it, all attributes are the key.
    allowed: a precondition ``(object, name, *arguments) -> bool``, or ``{name: (object, *arguments) -> bool}``.
    invariants: functions of the object; the state "fails:NAME" is entered if one returns False or raises.
    crashes: exceptions of a call that lead to the state "crash:TYPE"; any other exception ends the run.
    deterministic: a promise that the same call in the same state always has the same effect. Then one try of each call
        is proof enough. The run ends with one line if it sees the promise broken.

    Examples
    --------
    >>> stack = adagoal.machine(list, {"append": [1], "pop": []}, len, deterministic=True)
    >>> result = adagoal.explore(stack, radius=3, epsilon=0.5)
    >>> [result.label(state) for state in result.goals]
    ['0', '1', '2', '3', 'crash:IndexError']
    """
    if not callable(make):
        raise InputError(f"must be a class or a function that makes a fresh object, got {make!r}", "make")
    _check_crashes(crashes)
    if not isinstance(deterministic, bool):
        raise InputError(f"must be True or False, got {deterministic!r}", "deterministic")
    if state is not None and not callable(state):
        raise InputError(f"must be a function of the object that returns a key, got {state!r}", "state")
    if is_rule_based(make):
        if actions is not None or allowed is not None:
            text = "come from the rules of a RuleBasedStateMachine; leave them out"
            raise InputError(text, "actions" if actions is not None else "allowed")
        from adagoal.envs.hypothesis_rules import read_rules

        parts = read_rules(make, state)
    elif actions is None:
        raise InputError('must be given, such as {"push": [1, 2], "pop": []}', "actions")
    else:
        calls = _parse_actions(actions)
        parts = MachineParts(_action_name(make), make, calls, state, _parse_allowed(allowed, calls))
    given = [*parts.invariants, *_parse_invariants(invariants)]
    names = [invariant.name for invariant in given]
    if double := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two are called {double[0]}; give them different names", "invariants")
    return StateMachineEnv(parts._replace(invariants=given), state, crashes, deterministic)


def is_rule_based(make: Any) -> TypeGuard[type]:
    """Return whether ``make`` is a state machine of Hypothesis, without importing it."""
    return isinstance(make, type) and any(
        base.__module__ == "hypothesis.stateful" and base.__name__ == "RuleBasedStateMachine" for base in make.__mro__
    )


class StateMachineEnv(gymnasium.Env[Any, np.int64]):
    """The environment that :func:`machine` returns: observations are keys, preconditions are action masks."""

    def __init__(
        self,
        parts: MachineParts,
        state: Callable[[Any], Any] | None,
        crashes: type[BaseException] | tuple[type[BaseException], ...],
        deterministic: bool,
    ) -> None:
        self._parts, self._crashes, self.deterministic = parts, crashes, deterministic
        self.spec = EnvSpec(id="".join(c if c.isalnum() or c in "_.-" else "_" for c in parts.name))
        self.observation_space, self.action_space = KeySpace(), spaces.Discrete(len(parts.calls))
        self._passes_rng = _takes_one_argument(parts.make)
        self._object: Any = None
        self._key = ""
        self._has_failed = False
        self._calls_since_reset: list[str] = []
        self._effects: dict[tuple[str, int], str] = {}  # of every call in every state, if they are deterministic
        self.call_texts = _describe_calls(parts, state)
        self.n_calls = 0  # over the life of this environment, resets not included
        try:
            self.reset(seed=0)
        except InputError:
            raise
        except Exception as error:
            raise EnvironmentFailure(f"it raised {describe_user_exception(error)}", "make") from error
        # Here, since in a call a missing name or argument would count as a crash of the system.
        for call in parts.calls:
            method = getattr(self._object, call.name, None)
            called = method if call.is_method else call.function
            if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called):
                text = (
                    f"a call of {call.name} runs none of its code, because it is async or a generator; give a function"
                )
                raise InputError(
                    f"{text} that runs it, such as lambda machine: asyncio.run(machine.{call.name}())", "actions"
                )
            if not call.is_method:
                _check_signature(call, call.function, self._object)
            elif callable(method):
                _check_signature(call, method)
            else:
                raise InputError(f"a {type(self._object).__name__} has no method {call.name!r}", "actions")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Make a fresh object; return its key and the mask of its calls."""
        super().reset(seed=seed)
        if self._object is not None and self._parts.discard is not None:
            self._parts.discard(self._object)
        self._calls_since_reset.clear()
        self._has_failed = False
        self._object = self._parts.make(self.np_random) if self._passes_rng else self._parts.make()
        first = self._observe(None)
        self._check_promise("", -1, "make()")
        return first

    def step(self, action: np.int64 | int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a call; return the key of the next state and the mask of its calls."""
        before, call = self._key, self._parts.calls[int(action)]
        # Only methods that ignore action masks come here: nothing changes a failed object before the reset.
        if self._has_failed:
            return Failure(before), 0.0, False, False, {"action_mask": self._no_calls()}
        self._calls_since_reset.append(call.label)
        self.n_calls += 1
        failure = None
        # A call that changes its arguments must not change those of later calls.
        arguments = [copy.deepcopy(a) if isinstance(a, CONTAINERS) else a for a in call.arguments]
        try:
            call.function(self._object, *arguments, **call.keywords)
        except self._crashes as error:
            # assume() of Hypothesis says that the rule does not apply; the state is the one that it left.
            if type(error).__name__ != "UnsatisfiedAssumption":
                failure = Failure(f"crash:{type(error).__name__}")
        except Exception as error:
            text = f"{self._path()} raised {describe_user_exception(error)}, which crashes= does not name"
            raise EnvironmentFailure(text, "crashes") from error
        observation, info = self._observe(failure)
        self._check_promise(before, int(action), call.label)
        return observation, 0.0, False, False, info

    def _observe(self, failure: Failure | None) -> tuple[Any, dict[str, Any]]:
        observation = failure or self._failed_invariant()
        if observation is not None:
            self._key, self._has_failed = observation, True
            return observation, {"action_mask": self._no_calls()}
        read = self._parts.read_state
        try:
            observation = self._object if read is None else read(self._object)
        except Exception as error:
            raise EnvironmentFailure(f"the function raised {describe_user_exception(error)}", "state") from error
        self._key = key_text(observation)
        return observation, {"action_mask": self._allowed_calls()}

    def _check_promise(self, before: str, action: int, call: str) -> None:
        """Refuse a call in the state ``before`` with another effect than the first time, if that was promised."""
        first = self._effects.setdefault((before, action), self._key) if self.deterministic else self._key
        if first != self._key:
            place = f" in state {to_single_line(before)}" if before else ""
            text = f"{call}{place} led to {to_single_line(first)} once and to {to_single_line(self._key)} now"
            raise InputError(f"{text}; leave it out, or let state= return what makes the difference", "deterministic")

    def _failed_invariant(self) -> Failure | None:
        for invariant in self._parts.invariants:
            try:
                holds = invariant.function(self._object)
            except Exception:
                return Failure(f"fails:{invariant.name}")
            # None is what an invariant without a return statement gives.
            if holds is not None and not holds:
                return Failure(f"fails:{invariant.name}")
        return None

    def _allowed_calls(self) -> NDArray[np.int8] | None:
        is_allowed = self._parts.is_allowed
        if is_allowed is None:
            return None
        try:
            return np.array([bool(is_allowed(self._object, call)) for call in self._parts.calls], np.int8)
        except Exception as error:
            raise EnvironmentFailure(f"the precondition raised {describe_user_exception(error)}", "allowed") from error

    def _no_calls(self) -> NDArray[np.int8]:
        return np.zeros(len(self._parts.calls), np.int8)

    def _path(self) -> str:
        last, *earlier = reversed(self._calls_since_reset)
        return f"{last} after {', '.join(reversed(earlier[:7]))}" if earlier else last


def _describe_calls(parts: MachineParts, state: Callable[[Any], Any] | None) -> CallTexts:
    """Return the texts from which scripts are put together."""
    # Here, because worker processes of a state machine need neither this function nor Numba.
    from adagoal.core.environment import CallTexts

    made = _public_name(parts.make)
    takes_rng = _takes_one_argument(parts.make)
    new = f"{VARIABLE} = {made or 'make'}({'default_rng()' if takes_rng else ''})"
    functions = [parts.make, state, *(i.function for i in parts.invariants if not i.is_method)]
    functions += [call.function for call in parts.calls if not call.is_method]
    values = [value for call in parts.calls for value in (*call.arguments, *call.keywords.values())]
    functions += [np.array if isinstance(value, np.ndarray) else type(value) for value in values]
    imports = [line for function in functions if (line := _import_line(function))]
    return CallTexts(
        imports=(*dict.fromkeys(imports), *["from numpy.random import default_rng"] * takes_rng),
        make=new if made else f"{new}  # {GIVEN}",
        calls=tuple(call.script_line for call in parts.calls),
        state=f"{name}({VARIABLE})" if (name := _public_name(state)) else None,
        invariants={
            i.name: f"{VARIABLE}.{i.name}()" if i.is_method else f"{_script_name(i.function, 'invariant')}({VARIABLE})"
            for i in parts.invariants
        },
    )


def _literal(value: Any) -> str:
    # The repr of an Enum is no Python; the text of a key is, for all simple types.
    if isinstance(value, enum.Enum):
        return key_text(value)
    text = repr(value)
    if isinstance(value, float) and text in ("inf", "-inf", "nan"):
        return f"float({text!r})"
    # A script imports the type, not its module.
    return text.removeprefix("np." if isinstance(value, np.generic) else f"{type(value).__module__}.")


def _public_name(function: Any) -> str | None:
    """Return the name under which a class or function can be imported; None for lambdas, methods and local ones."""
    name = getattr(function, "__name__", None)
    is_public = isinstance(name, str) and name.isidentifier() and getattr(function, "__qualname__", None) == name
    return name if is_public else None


def _script_name(function: Any, otherwise: str) -> str:
    """Return the name of a function in a script; lambdas and objects have none of their own."""
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else otherwise


def _check_signature(call: Call, function: Callable[..., Any], *before: Any) -> None:
    try:
        signature = inspect.signature(function)
    # Builtin methods may have no signature.
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*before, *call.arguments, **call.keywords)
    except TypeError as error:
        raise InputError(f"{call.label} does not fit {call.name}{signature}: {error}", "actions") from None


def _import_line(function: Any) -> str | None:
    name, module = _public_name(function), getattr(function, "__module__", None)
    if module == "__main__":
        # A script that is run has this name; its file can be imported.
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else None
    return None if name is None or module in (None, "builtins") else f"from {module} import {name}"


def _takes_one_argument(make: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(make).parameters.values())
    # Builtin types such as list have no signature.
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind in positional]
    if len(required) > 1:
        names = ", ".join(p.name for p in required)
        raise InputError(f"must take no argument, or one random generator; it takes {names}", "make")
    return len(required) == 1


def _parse_actions(actions: Any) -> list[Call]:
    calls: list[Call] = []
    if isinstance(actions, Mapping):
        for key, given in actions.items():
            if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
                text = (
                    f"the arguments of {_action_name(key)} must be a list such as [1, 2], or [] for none; got {given!r}"
                )
                raise InputError(text, "actions")
            rows = [row if isinstance(row, tuple) else (row,) for row in given] or [()]
            calls += [_make_call(key, row) for row in rows]
    elif isinstance(actions, Iterable) and not isinstance(actions, str | bytes):
        calls = [_make_call(key, ()) for key in actions]
    else:
        text = f'must be a dictionary such as {{"push": [1, 2], "pop": []}}, or a list of names; got {actions!r}'
        raise InputError(text, "actions")
    if not 1 <= len(calls) <= MAX_ACTIONS:
        raise InputError(f"there must be 1 to {MAX_ACTIONS} calls, got {len(calls)}", "actions")
    labels = [call.label for call in calls]
    if double := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"{double[0]} is given twice; give it once, or functions different names", "actions")
    return calls


def _make_call(key: Any, arguments: tuple[Any, ...]) -> Call:
    if isinstance(key, str) and key.isidentifier():
        return Call(key, lambda machine, *given: getattr(machine, key)(*given), arguments)
    if callable(key):
        return Call(_action_name(key), key, arguments, is_method=False)
    raise InputError(f"must be names of methods, or functions of the object; got {key!r}", "actions")


def _action_name(key: Any) -> str:
    return key if isinstance(key, str) else str(getattr(key, "__name__", type(key).__name__))


def _parse_allowed(allowed: Any, calls: Sequence[Call]) -> Callable[[Any, Call], Any] | None:
    if allowed is None:
        return None
    if isinstance(allowed, Mapping):
        names = {call.name for call in calls}
        for name, condition in allowed.items():
            if name not in names:
                raise InputError(f"there is no action {name!r}; there are {', '.join(sorted(names))}", "allowed")
            if not callable(condition):
                raise InputError(f"the precondition of {name} must be a function, got {condition!r}", "allowed")
        conditions = dict(allowed)
        return lambda machine, call: call.name not in conditions or conditions[call.name](machine, *call.arguments)
    if not callable(allowed):
        raise InputError(f"must be a function, or a dictionary of functions by action, got {allowed!r}", "allowed")
    return lambda machine, call: allowed(machine, call.name, *call.arguments)


def _parse_invariants(invariants: Any) -> list[Invariant]:
    if callable(invariants) or not isinstance(invariants, Iterable) or not all(map(callable, given := [*invariants])):
        raise InputError(f"must be a list of functions of the object, got {invariants!r}", "invariants")
    return [Invariant(_action_name(function), function) for function in given]


def _check_crashes(crashes: Any) -> None:
    kinds = crashes if isinstance(crashes, tuple) else (crashes,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise InputError(f"must be an exception class, or a tuple of them, got {crashes!r}", "crashes")
