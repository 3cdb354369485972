"""What was seen in the last steps: achieved goals as candidates, their density, and the states where they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adagoal.core.types import Floats

MAX_RECENT_STATES = 4096
"""States that are kept."""
N_DENSITY_POINTS = 256
"""Achieved goals from which a density is estimated."""
DENSITY_BANDWIDTH = 0.3
"""Of the kernel of that density, in standard deviations of the achieved goals."""


class RecentStates:
    """The last states ``{name: [n, ...]}``; only what was achieved there, unless ``whole``."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.states: dict[str, Any] = {}

    @property
    def achieved_goals(self) -> Floats:
        """The achieved goals ``[n, G]``."""
        return np.asarray(self.states["achieved_goal"], np.float64)

    def add_states(self, seen: Mapping[str, Any]) -> None:
        """Take in what all environments show, ``{name: [environments, ...]}``."""
        for name in seen if self.whole else ("achieved_goal",):
            before = [self.states[name]] if name in self.states else []
            self.states[name] = np.concatenate([*before, seen[name]])[-MAX_RECENT_STATES:]

    def sample_states(self, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """States ``{name: [n, ...]}``."""
        at = rng.integers(len(self.achieved_goals), size=n)
        return {name: values[at] for name, values in self.states.items()}

    def achieved_goal_density(self, options: Floats, rng: np.random.Generator) -> Floats:
        """How many of the achieved goals lie near each candidate ``[N, G]``."""
        near = self.achieved_goals[rng.integers(len(self.achieved_goals), size=N_DENSITY_POINTS)]
        return np.asarray(len(self.achieved_goals) * self._mean_gaussian_kernel(options, near))

    def goal_divergence(self, wanted: Floats, achieved: Floats) -> float:
        """KL(p_wanted || p_achieved) of two kernel estimates, at goals ``wanted [M, G]`` of the goal space."""
        wanted, achieved = wanted[:N_DENSITY_POINTS], achieved[:N_DENSITY_POINTS]
        own, others = self._mean_gaussian_kernel(wanted, wanted), self._mean_gaussian_kernel(wanted, achieved)
        return float(np.mean(np.log(own + 1e-12) - np.log(others + 1e-12)))

    def _mean_gaussian_kernel(self, options: Floats, near: Floats) -> Floats:
        """Mean of a Gaussian kernel between each of ``options [N, G]`` and the points ``near [M, G]``."""
        width = DENSITY_BANDWIDTH * np.maximum(self.achieved_goals.std(0), 1e-6)
        apart = (((options[:, None] - near) / width) ** 2).sum(-1)
        return np.asarray(np.exp(-apart / 2.0).mean(1))
