"""Refuse misspelt keyword arguments of the public functions, and suggest the right one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from adagoal.core.argument_checks import suggest_name
from adagoal.core.errors import InputError

Parameters = ParamSpec("Parameters")
ReturnT = TypeVar("ReturnT")


def refuse_unknown_arguments(function: Callable[Parameters, ReturnT]) -> Callable[Parameters, ReturnT]:
    """Make a function refuse an unknown keyword argument with an :class:`InputError` instead of a TypeError."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ReturnT:
        for name in kwargs:
            if name not in known:
                raise unknown_argument(function.__name__, name, known)
        return function(*args, **kwargs)

    return call


def unknown_argument(function: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error about an argument that a function does not have."""
    hint = suggest_name(name, known, f"help(adagoal.{function}) lists its arguments")
    return InputError(f"{function} has no argument {name!r}{hint}")
