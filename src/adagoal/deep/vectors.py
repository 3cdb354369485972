"""Observations and goals as vectors: numbers in any nesting of mappings, tuples and arrays, and back.

Entries of a mapping come in the order of their names, so that no space is needed to read a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adagoal.core.types import Floats


def flatten_numbers(value: Any) -> Floats:
    """All numbers of a value, as a vector; what holds no numbers is a ``TypeError`` or a ``ValueError``."""
    if isinstance(value, Mapping):
        return _concatenate_parts([flatten_numbers(value[name]) for name in sorted(value)])
    if isinstance(value, tuple):
        return _concatenate_parts([flatten_numbers(part) for part in value])
    return np.asarray(value, np.float64).reshape(-1)


def unflatten_like(template: Any, vector: Floats) -> Any:
    """The inverse of :func:`flatten_numbers`: the vector in the nesting, shapes and types of ``template``."""
    if isinstance(template, Mapping):
        ends = np.cumsum([flatten_numbers(template[name]).size for name in sorted(template)])
        parts = np.split(vector, ends[:-1])
        return {name: unflatten_like(template[name], part) for name, part in zip(sorted(template), parts, strict=True)}
    if isinstance(template, tuple):
        ends = np.cumsum([flatten_numbers(part).size for part in template])
        return tuple(unflatten_like(one, part) for one, part in zip(template, np.split(vector, ends[:-1]), strict=True))
    array = np.asarray(template)
    whole = np.rint(vector) if np.issubdtype(array.dtype, np.integer) else vector
    return whole.reshape(array.shape).astype(array.dtype)


def _concatenate_parts(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)
