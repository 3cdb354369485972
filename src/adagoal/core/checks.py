"""Checks of arguments: each names the argument and the accepted range."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.files import parsed

MOST_TOGETHER = 20_000_000
"""Entries of the largest model that is built."""


def native(value: Any) -> Any:
    """A NumPy scalar as the Python number that it is, which JSON can hold; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def integer(name: str, value: int, low: int, high: int) -> None:
    """``value`` is a whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"must be a whole number in {low}..{high}, got {value!r}", name)


def seed(name: str, value: Any) -> None:
    """``value`` is a seed of at most 128 bits, as NumPy draws them: files hold no longer numbers."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not 0 <= value < 2**128:
        got = f"one of {int(value).bit_length()} bits" if whole and value > 0 else repr(value)
        raise InputError(f"must be a whole number in 0..2**128 - 1, got {got}", name)


def folder_path(name: str, value: Any) -> Path:
    """The path of a run's folder; an empty text is no path, since that would be the current folder by mistake."""
    if not isinstance(value, str | os.PathLike) or value == "":
        raise InputError(f"must be the path of a run's folder, got {value!r}", name)
    return Path(value)


def together(names: str, *sizes: int) -> None:
    """Sizes whose product must fit in memory."""
    size = math.prod(sizes)
    if size > MOST_TOGETHER:
        raise InputError(f"their product must be at most {MOST_TOGETHER:,}, is {size:,}", names)


def number(name: str, value: float, low: float, high: float, *, closed: str = "[]") -> None:
    """``value`` is a number between low and high; ``closed`` is "[]", "(]", "[)" or "()"."""
    good = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and not math.isnan(value)
        and (low < value or (closed[0] == "[" and value == low))
        and (value < high or (closed[1] == "]" and value == high))
    )
    if not good:
        raise InputError(f"must be a number in {closed[0]}{low:g}, {high:g}{closed[1]}, got {value!r}", name)


def pair(text: str) -> tuple[str, Any]:
    """``key=value``; the value is JSON (0.1, true, [1, 2]) or else plain text (8x8)."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"must look like key=value, got {text[:100]!r}")
    try:
        return key, parsed(value.encode())
    except ValueError:
        return key, {"True": True, "False": False, "None": None}.get(value, value)
