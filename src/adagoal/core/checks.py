"""Checks of what a world is built from: each names the argument and the accepted range."""

from __future__ import annotations

import math

import numpy as np

from adagoal.core.errors import InputError

MOST_TOGETHER = 20_000_000
"""Entries of the largest model that is built."""


def integer(name: str, value: int, low: int, high: int) -> None:
    """``value`` is a whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"{name}: must be a whole number in {low}..{high}, got {value!r}")


def together(names: str, *sizes: int) -> None:
    """Sizes whose product must fit in memory."""
    size = math.prod(sizes)
    if size > MOST_TOGETHER:
        raise InputError(f"{names}: their product must be at most {MOST_TOGETHER:,}, is {size:,}")


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
        raise InputError(f"{name}: must be a number in {closed[0]}{low:g}, {high:g}{closed[1]}, got {value!r}")
