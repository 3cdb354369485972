"""What a training believed and what it could do, over time: kept sparingly, for its page.

maps    D and E over a fixed grid of goals, at the cycles 0, k, 2k, ... where k is the smallest power of two with
        which there are at most :data:`MOST`. So it does not matter how long the training was planned to be.
tests   how far the goals of every test were at the start, and whether they were held at the last step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import Array
from adagoal.core.types import Bools, Floats, Singles

POINTS = 21
"""Goals per axis of a map."""
MOST = 32
"""Maps that are kept at a time."""
FAR = 1e12
"""Distances and errors are smaller than this."""


@dataclass
class Past:
    """Maps and tests of S runs."""

    maps: dict[int, Singles] = field(default_factory=dict)
    """By their cycle, D and E ``[S, 2, POINTS, POINTS]``; ``[S, 2, POINTS]`` where goals are numbers."""
    tests: list[Singles] = field(default_factory=list)
    """Of the last tests, ``[S, n, 2]``: the distance of a goal, and 1 where it was held."""

    def due(self, cycle: int) -> bool:
        """Whether the map of a cycle is to be kept."""
        return cycle % _stride(cycle) == 0

    def add_map(self, cycle: int, D: Floats, E: Floats) -> None:
        """Keep the map of a cycle that is due, and fewer of the earlier ones; none of a training that diverged."""
        found = np.stack([D, E], 1).astype(np.float32)
        self.maps = {c: m for c, m in self.maps.items() if c % _stride(cycle) == 0}
        if np.isfinite(found).all() and found.max() < FAR:
            self.maps[cycle] = found

    def add_test(self, away: Floats, held: Bools) -> None:
        """A test: distances at the start and successes, both ``[rounds, S, B]``."""
        found = np.moveaxis(np.stack([away, held], -1), 0, 1)
        self.tests.append(found.reshape(len(found), -1, 2).astype(np.float32))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What there is, for a file."""
        found: dict[str, NDArray[Any]] = {}
        if self.tests:
            found["tests"] = np.stack(self.tests)
        if self.maps:
            found |= {"map_cycles": np.array(list(self.maps), np.int64), "maps": np.stack(list(self.maps.values()))}
        return found

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Past:
        """The inverse of :meth:`arrays`."""
        cycles = arrays.get("map_cycles", np.zeros(0, np.int64)).tolist()
        return cls(dict(zip(cycles, arrays.get("maps", ()), strict=True)), list(arrays.get("tests", ())))


def rules(runs: int, cycles: int, axes: int) -> dict[str, Array]:
    """The schema of :meth:`Past.arrays`: maps over one or two ``axes``, of some of the cycles."""
    maps: tuple[int | str, ...] = ("maps", runs, 2, *["points"] * axes)
    return {
        "tests": Array("float32", ("tests", runs, "goals", 2), low=0.0, high=FAR, optional=True),
        "map_cycles": Array("int64", ("maps",), low=0, below=cycles, rising=True, optional=True),
        "maps": Array("float32", maps, low=0.0, high=FAR, optional=True),
    }


def check(arrays: Mapping[str, NDArray[Any]], tests: int) -> None:
    """Whether arrays that keep the rules belong together; a ``ValueError`` says what does not."""
    if ("maps" in arrays) != ("map_cycles" in arrays):
        raise ValueError("the maps over time are incomplete")
    if "maps" in arrays and (arrays["maps"].size == 0 or arrays["maps"].shape[-1] < 2):
        raise ValueError("the maps over time are empty")
    if "tests" in arrays and (arrays["tests"].size == 0 or len(arrays["tests"]) > tests):
        raise ValueError("there are more tests than were made, or none")


def _stride(cycle: int) -> int:
    """Cycles between two maps, once so many have passed."""
    return 1 << (cycle // MOST).bit_length()
