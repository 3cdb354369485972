"""Checks of what a world is built from: each names the argument and the accepted range."""

from __future__ import annotations

import math

import numpy as np

from adagoal.errors import InputError


def integer(name: str, value: int, low: int, high: int) -> None:
    """``value`` is a whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"{name}: must be a whole number in {low}..{high}, got {value!r}")


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
