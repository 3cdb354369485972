"""Checks of arguments. An error names the argument, the accepted range and the value."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.file_io import parse_json


def to_python_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, which JSON can hold; return other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def format_given_value(value: Any) -> str:
    """Return a value for a message; Python refuses to print whole numbers of more than 4,300 digits."""
    too_long = isinstance(value, int) and value.bit_length() > 128
    return f"a whole number of {value.bit_length()} bits" if too_long else repr(value)


def format_range(low: float, high: float, closed: str) -> str:
    """Return a range for a message: ``[0, 1)``."""
    return f"{closed[0]}{low:g}, {high:g}{closed[1]}"


def format_integer_range(low: float, high: float) -> str:
    """Return a range of whole numbers for a message: ``0..12``, ``0..2**128 - 1``."""
    end = str(high)
    if isinstance(high, int) and high > 2**53:
        bits = (high - 1).bit_length()
        end = f"2**{bits}" + (" - 1" if high == 2**bits - 1 else "")
    return f"{low}..{end}"


def is_in_range(value: float, low: float, high: float, closed: str) -> bool:
    """Return whether low <= value <= high, without the ends that ``closed`` leaves out; False for NaN."""
    # Every comparison with NaN is False, so these must not be turned into "not (value < low)".
    above = low < value or (closed[0] == "[" and value == low)
    return above and (value < high or (closed[1] == "]" and value == high))


def check_integer(name: str, value: int, low: int, high: int) -> None:
    """Refuse everything but a whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        text = f"must be a whole number in {format_integer_range(low, high)}, got {format_given_value(value)}"
        raise InputError(text, name)


def check_number(name: str, value: float, low: float, high: float, *, closed: str = "[]") -> None:
    """Refuse everything but a number between low and high; ``closed`` is "[]", "(]", "[)" or "()"."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_in_range(value, low, high, closed):
        text = f"must be a number in {format_range(low, high, closed)}, got {format_given_value(value)}"
        raise InputError(text, name)


def check_total_size(names: str, *sizes: int) -> None:
    """Refuse sizes of a model whose product does not fit into memory."""
    # 160 MB of float64. Larger sizes are typing errors, which would fill the memory before anything is printed.
    size, limit = math.prod(sizes), 20_000_000
    if size > limit:
        raise InputError(f"their product must be at most {limit:,}, got {size:,}", names)


def check_folder_path(name: str, value: Any) -> Path:
    """Return the absolute path of a run folder."""
    # An empty text is usually a shell variable without a value; as a path it would be the current directory.
    if not isinstance(value, str | os.PathLike) or value == "":
        raise InputError(f"must be the path of a run's folder, got {value!r}", name)
    try:
        # Absolute, because an environment may change the current directory while the run writes.
        path = Path(value).absolute()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(value)[:100]!r} cannot be the path of a run's folder ({reason})", name) from None
    return path


def suggest_name(name: object, known: Iterable[str], otherwise: str) -> str:
    """Return the end of a message about an unknown name: the most similar known name, or ``otherwise``."""
    close = difflib.get_close_matches(str(name).lower(), known, n=1)
    return f". Did you mean {close[0]!r}?" if close else f"; {otherwise}"


def parse_key_value(text: str) -> tuple[str, Any]:
    """Split ``key=value``; the value is JSON (0.1, true, [1, 2]) or else plain text (8x8)."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"must look like key=value, got {text[:100]!r}")
    try:
        return key, parse_json(value.encode())
    except ValueError:
        # Users who write Python type its constants. As text, "False" would be true.
        return key, {"True": True, "False": False, "None": None}.get(value, value)


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
