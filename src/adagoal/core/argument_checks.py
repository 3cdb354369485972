"""Checks of arguments: each names the argument and the accepted range."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.file_io import parse_json

MAX_MODEL_ENTRIES = 20_000_000
"""Entries of the largest model that is built."""


def to_python_scalar(value: Any) -> Any:
    """A NumPy scalar as the Python number that it is, which JSON can hold; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def format_given_value(value: Any) -> str:
    """Return a value for a message; Python refuses to print whole numbers of more than 4,300 digits."""
    whole = isinstance(value, int) and value.bit_length() > 128
    return f"a whole number of {value.bit_length()} bits" if whole else repr(value)


def check_integer(name: str, value: int, low: int, high: int) -> None:
    """``value`` is a whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"must be a whole number in {low}..{high}, got {format_given_value(value)}", name)


def check_seed(name: str, value: Any) -> None:
    """``value`` is a seed of at most 128 bits, as NumPy draws them: files hold no longer numbers."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not 0 <= value < 2**128:
        raise InputError(f"must be a whole number in 0..2**128 - 1, got {format_given_value(value)}", name)


def check_argument_dict(name: str, value: Any) -> None:
    """``value`` is a dictionary of arguments."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"must be names with their values, got {format_given_value(value)}", name)


def check_folder_path(name: str, value: Any) -> Path:
    """Return the absolute path of a run's folder.

    Absolute, because an environment may change the current folder while the run writes. An empty text is refused: it
    would be the current folder by mistake.
    """
    if not isinstance(value, str | os.PathLike) or value == "":
        raise InputError(f"must be the path of a run's folder, got {value!r}", name)
    try:
        path = Path(value).absolute()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(value)[:100]!r} cannot be the path of a run's folder ({reason})", name) from None
    return path


def check_total_size(names: str, *sizes: int) -> None:
    """Sizes whose product must fit in memory."""
    size = math.prod(sizes)
    if size > MAX_MODEL_ENTRIES:
        raise InputError(f"their product must be at most {MAX_MODEL_ENTRIES:,}, is {size:,}", names)


def check_number(name: str, value: float, low: float, high: float, *, closed: str = "[]") -> None:
    """``value`` is a number between low and high; ``closed`` is "[]", "(]", "[)" or "()"."""
    good = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and value == value  # not NaN; math.isnan would turn a large whole number into a float
        and (low < value or (closed[0] == "[" and value == low))
        and (value < high or (closed[1] == "]" and value == high))
    )
    if not good:
        raise InputError(
            f"must be a number in {closed[0]}{low:g}, {high:g}{closed[1]}, got {format_given_value(value)}", name
        )


def parse_key_value(text: str) -> tuple[str, Any]:
    """``key=value``; the value is JSON (0.1, true, [1, 2]) or else plain text (8x8)."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"must look like key=value, got {text[:100]!r}")
    try:
        return key, parse_json(value.encode())
    except ValueError:
        return key, {"True": True, "False": False, "None": None}.get(value, value)
