"""Successors as a GPU likes to read them: by action and place, so that a sweep is a fixed number of gathers.

A device computes the same formula for many (state, goal) at once. Nearly all pairs have at most :data:`UNROLLED_SUCCESSORS`
successors: for them the places of a row are written out, and one kernel reads, combines and minimises without a
temporary array. States with a wider row, such as a virtual start, form a second, small group with as many places as
the widest needs; its result replaces theirs. Every sum has one fixed order, so that a sweep has one result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import DTypeLike, NDArray

from adagoal.core.types import Floats, Longs

UNROLLED_SUCCESSORS = 4
"""Successors of a pair that are read without a loop."""
MAX_POWER_OF_TWO_SIZE = 4096
"""Sizes are rounded up to powers of two up to this one, then by an eighth at most: code is compiled per size."""


class DeviceRows(NamedTuple):
    """The pairs of N states of a device."""

    state: jax.Array
    """[N] the states, as numbers of the rows of V"""
    successor: jax.Array
    """[A, K, N]; where fewer are in use the first one again, and the state itself where none is"""
    weight: jax.Array
    """[A, K, N]; 0 in places that are not in use"""
    terms: tuple[jax.Array, ...]
    """Each [A, N]: the other numbers in the formula of a pair"""


class SuccessorList(NamedTuple):
    """Successors of the pairs of S states as they come: those of x are ``first[x]`` to ``first[x] + support[x]``."""

    first: Longs
    """[X]"""
    support: Longs
    """[X]"""
    successor: NDArray[np.integer[Any]]
    """[places]"""
    weight: Floats
    """[places]"""


def padded_size(size: int) -> int:
    """The size for which code is compiled that serves ``size``."""
    power = 1 << max(size - 1, 15).bit_length()
    step = power if power <= MAX_POWER_OF_TWO_SIZE else power // 8
    return -(-size // step) * step


def group_rows_by_width(
    places: SuccessorList, terms: tuple[NDArray[Any], ...], n_states: int, dtype: DTypeLike
) -> tuple[DeviceRows, ...]:
    """All states with up to LANES places for each pair; then, if there are any, those that need more, with all."""
    widest = int(places.support.max(initial=1))
    every = np.arange(n_states)
    found = [_build_device_rows(places, terms, every, every, min(UNROLLED_SUCCESSORS, widest), dtype)]
    wide = np.flatnonzero((places.support > UNROLLED_SUCCESSORS).reshape(n_states, -1).any(axis=1))
    if wide.size:
        # some states twice, to the same effect
        found.append(
            _build_device_rows(
                places, terms, np.resize(wide, padded_size(wide.size)), every, padded_size(widest), dtype
            )
        )
    return tuple(found)


def _build_device_rows(
    places: SuccessorList, terms: tuple[NDArray[Any], ...], states: Longs, every: Longs, width: int, dtype: DTypeLike
) -> DeviceRows:
    A = places.support.size // every.size
    pairs = states * A + np.arange(A)[:, None]  # [A, N]
    k = np.arange(width)[:, None]
    count = places.support[pairs][:, None]  # [A, 1, N]
    used = k < count
    at = np.where(used | (count > 0), places.first[pairs][:, None] + np.where(used, k, 0), 0)
    successor = np.where(count > 0, places.successor[at], states)
    weight = np.where(used, places.weight[at], 0.0)
    return DeviceRows(
        jax.numpy.asarray(states.astype(np.int32)),
        jax.numpy.asarray(successor.astype(np.int32)),
        jax.numpy.asarray(weight.astype(dtype)),
        tuple(jax.numpy.asarray(term[pairs]) for term in terms),
    )
