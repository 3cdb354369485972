"""What a training believed and what it could do, over time: kept sparingly, for its page.

maps    D and E over a fixed grid of goals, at the cycles 0, k, 2k, ... where k is the smallest power of two with
        which there are at most :data:`MAX_KEPT_MAPS`. So it does not matter how long the training was planned to be.
tests   how far the goals of every test were at the start, and whether they were held at the last step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import ArraySpec
from adagoal.core.types import Bools, Floats, Singles

MAP_POINTS_PER_AXIS = 21
"""Goals per axis of a map."""
MAX_KEPT_MAPS = 32
"""Maps that are kept at a time."""
MAX_MAP_VALUE = 1e12
"""Distances and errors are smaller than this."""


@dataclass
class ValueMapHistory:
    """Maps and tests of S runs."""

    maps: dict[int, Singles] = field(default_factory=dict)
    """By their cycle, D and E ``[S, 2, POINTS, POINTS]``; ``[S, 2, POINTS]`` where goals are numbers."""
    tests: list[Singles] = field(default_factory=list)
    """Of the last tests, ``[S, n, 2]``: the distance of a goal, and 1 where it was held."""

    def is_map_due(self, cycle: int) -> bool:
        """Whether the map of a cycle is to be kept."""
        return cycle % _map_stride(cycle) == 0

    def add_map(self, cycle: int, D: Floats, E: Floats) -> None:
        """Keep the map of a cycle that is due, and fewer of the earlier ones; none of a training that diverged."""
        found = np.stack([D, E], 1).astype(np.float32)
        self.maps = {c: m for c, m in self.maps.items() if c % _map_stride(cycle) == 0}
        if np.isfinite(found).all() and found.max() < MAX_MAP_VALUE:
            self.maps[cycle] = found

    def add_test(self, away: Floats, held: Bools) -> None:
        """A test: distances at the start and successes, both ``[rounds, S, B]``."""
        found = np.moveaxis(np.stack([away, held], -1), 0, 1)
        self.tests.append(found.reshape(len(found), -1, 2).astype(np.float32))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """What there is, for a file."""
        found: dict[str, NDArray[Any]] = {}
        if self.tests:
            found["tests"] = np.stack(self.tests)
        if self.maps:
            found |= {"map_cycles": np.array(list(self.maps), np.int64), "maps": np.stack(list(self.maps.values()))}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ValueMapHistory:
        """The inverse of :meth:`to_arrays`."""
        cycles = arrays.get("map_cycles", np.zeros(0, np.int64)).tolist()
        return cls(dict(zip(cycles, arrays.get("maps", ()), strict=True)), list(arrays.get("tests", ())))


def value_map_schema(runs: int, cycles: int, axes: int) -> dict[str, ArraySpec]:
    """The schema of :meth:`Past.to_arrays`: maps over one or two ``axes``, of some of the cycles."""
    maps: tuple[int | str, ...] = ("maps", runs, 2, *["points"] * axes)
    return {
        "tests": ArraySpec("float32", ("tests", runs, "goals", 2), low=0.0, high=MAX_MAP_VALUE, optional=True),
        "map_cycles": ArraySpec("int64", ("maps",), low=0, below=cycles, increasing=True, optional=True),
        "maps": ArraySpec("float32", maps, low=0.0, high=MAX_MAP_VALUE, optional=True),
    }


def check_value_maps(arrays: Mapping[str, NDArray[Any]], tests: int) -> None:
    """Whether arrays that keep the rules belong together; a ``ValueError`` says what does not."""
    if ("maps" in arrays) != ("map_cycles" in arrays):
        raise ValueError("the maps over time are incomplete")
    if "maps" in arrays and (arrays["maps"].size == 0 or arrays["maps"].shape[-1] < 2):
        raise ValueError("the maps over time are empty")
    if "tests" in arrays and (arrays["tests"].size == 0 or len(arrays["tests"]) > tests):
        raise ValueError("there are more tests than were made, or none")


def _map_stride(cycle: int) -> int:
    """Cycles between two maps, once so many have passed."""
    return 1 << (cycle // MAX_KEPT_MAPS).bit_length()
