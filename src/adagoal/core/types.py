"""Array types by dtype, the layout of states on a map, observation digests, and texts for state-machine tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Actions = NDArray[np.int16]
MAX_ACTIONS = 2**15 - 2  # the dtype of Actions holds this many, and one more for the reset
DIGEST_BYTES = 16  # of the hash that identifies an observation


@dataclass(frozen=True)
class GridLayout:
    """Positions of the states in a grid of cells, for drawing maps."""

    shape: tuple[int, int]  # rows and columns
    cells: Longs  # [S, 2]: row and column of every state; (-1, -1) for a state that is not on the map
    walls: Bools  # [rows, columns]: True for cells without a state
    marks: Mapping[str, Longs] = field(default_factory=dict)  # [n, 2]: cells that the environment names, such as "hole"


# A state that ends the episode has this after the label of its observation, if states are numbered as they are found.
TERMINAL_SUFFIX = " (end)"


class ObservedStates(NamedTuple):
    """The digests of all observations, with which a result maps observations to states without the environment."""

    # For envs.observation_keys.make_key_reader. The kind "states": the observation is one of `size` numbers, counted
    # from `first`.
    key_format: dict[str, Any]
    digests: NDArray[np.uint8] = np.zeros((0, DIGEST_BYTES), np.uint8)  # [N, DIGEST_BYTES]; 0 without an observation


class Failure(str):
    """The observation of a state machine after an exception ("crash:TYPE") or a failed invariant ("fails:NAME")."""


class CallTexts(NamedTuple):
    """The actions as Python text, from which ``Result.script`` puts a test together."""

    imports: tuple[str, ...]  # lines
    make: str  # the line that makes the object
    calls: tuple[str, ...]  # one line per action
    state: str | None  # expression for the key of a state; None if the function has no name
    invariants: Mapping[str, str]  # expressions by name
