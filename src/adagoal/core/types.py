"""Names for arrays, by what they hold. Shapes stand in the docstrings of those who use them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError, to_single_line

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Actions = NDArray[np.int16]
MAX_ACTIONS = 32_766
"""Policies are tables of 16-bit numbers, and the reset is one more action."""


# Where states lie, for drawing maps.


@dataclass(frozen=True)
class GridLayout:
    """How states lie in a plane, for drawing maps: a grid of cells, some of which are walls."""

    shape: tuple[int, int]
    """Rows and columns."""
    cells: Longs
    """[S, 2]: row and column of every state; (-1, -1) where a state has no place on the map."""
    walls: Bools
    """[rows, columns]: True where no state lies."""


# Names of states: labels for people, and the observations by which a program knows them.
#
# An observation is looked up by the digest of its key (:mod:`adagoal.envs.observation_keys` says what makes two
# observations the same), so that a result can do so without its environment. Where a world has no observations, the
# number of a state or its label stands for it.


DIGEST_BYTES = 16
"""Bytes by which the key of an observation is known."""


class ObservedStates(NamedTuple):
    """How states are known by their observations."""

    key_format: dict[str, Any]
    """How an observation becomes a key (:func:`adagoal.envs.observation_keys.make_key_reader`); of kind "states" it is
    the state's number, counted from ``first``"""
    digests: NDArray[np.uint8] = np.zeros((0, DIGEST_BYTES), np.uint8)
    """[N, DIGEST] of the keys of the states; zero where a state is no observation"""


def state_label(labels: Sequence[str], state: int) -> str:
    """The name of a state: plain text, its number where it has none."""
    return to_single_line(labels[state]) if state < len(labels) else str(state)


def resolve_number(name: Any, names: Sequence[str], size: int, what: str) -> int:
    """The number of a state or goal that is given by its number, below ``size``, or by its name."""
    if not isinstance(name, str):
        try:
            number = index(name)
        except TypeError:
            raise InputError(f"{what} {name!r} is neither a number nor a name") from None
        if not 0 <= number < size:
            raise InputError(f"{what} {number} is not in 0..{size - 1}")
        return number
    found = [number for number, given in enumerate(names) if given == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{len(found)} {what}s are called {name!r}, the first are {found[:3]}; give a number")
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise InputError(f"no {what} is called {name!r}{hint}")
