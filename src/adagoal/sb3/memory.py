"""What was seen in the last steps: achieved goals as candidates, their density, and the states where they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adagoal.core.types import Floats

REMEMBERED = 4096
"""States that are kept."""
NEIGHBOURS = 256
"""Achieved goals from which a density is estimated."""
WIDTH = 0.3
"""Of the kernel of that density, in standard deviations of the achieved goals."""


class Memory:
    """The last states ``{name: [n, ...]}``; only what was achieved there, unless ``whole``."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.states: dict[str, Any] = {}

    @property
    def achieved(self) -> Floats:
        """The achieved goals ``[n, G]``."""
        return np.asarray(self.states["achieved_goal"], np.float64)

    def add(self, seen: Mapping[str, Any]) -> None:
        """Take in what all environments show, ``{name: [environments, ...]}``."""
        for name in seen if self.whole else ("achieved_goal",):
            before = [self.states[name]] if name in self.states else []
            self.states[name] = np.concatenate([*before, seen[name]])[-REMEMBERED:]

    def draw(self, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """States ``{name: [n, ...]}``."""
        at = rng.integers(len(self.achieved), size=n)
        return {name: values[at] for name, values in self.states.items()}

    def density(self, options: Floats, rng: np.random.Generator) -> Floats:
        """How many of the achieved goals lie near each candidate ``[N, G]``."""
        near = self.achieved[rng.integers(len(self.achieved), size=NEIGHBOURS)]
        return np.asarray(len(self.achieved) * self._kernel(options, near))

    def divergence(self, wanted: Floats, achieved: Floats) -> float:
        """KL(p_wanted || p_achieved) of two kernel estimates, at goals ``wanted [M, G]`` of the goal space."""
        wanted, achieved = wanted[:NEIGHBOURS], achieved[:NEIGHBOURS]
        own, others = self._kernel(wanted, wanted), self._kernel(wanted, achieved)
        return float(np.mean(np.log(own + 1e-12) - np.log(others + 1e-12)))

    def _kernel(self, options: Floats, near: Floats) -> Floats:
        """Mean of a Gaussian kernel between each of ``options [N, G]`` and the points ``near [M, G]``."""
        width = WIDTH * np.maximum(self.achieved.std(0), 1e-6)
        apart = (((options[:, None] - near) / width) ** 2).sum(-1)
        return np.asarray(np.exp(-apart / 2.0).mean(1))
