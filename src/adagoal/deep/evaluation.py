"""Tests of a trained policy: how often it reaches its goals, and which ones it misses. Needs no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adagoal.core.checks import integer
from adagoal.core.intervals import clopper_pearson
from adagoal.core.random import Purpose, stream
from adagoal.core.types import Bools, Floats
from adagoal.deep.config import Config
from adagoal.deep.envs import Source
from adagoal.deep.policy import Policy
from adagoal.deep.survey import survey
from adagoal.deep.worker import Slots

TOGETHER = 25
"""Episodes played side by side."""
BINS = 4


@dataclass(frozen=True)
class Evaluation:
    """n test episodes."""

    goals: Floats
    """``[n, goal]``"""
    starts: Floats
    """What was achieved at the start ``[n, goal]``."""
    held: Bools
    """Success at the last step ``[n]``."""
    touched: Bools
    """Success at any step ``[n]``."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What was tested: environment, policy, goals, seed."""

    def summary(self) -> dict[str, Any]:
        """Success with a 95% interval (Clopper-Pearson), and by distance and by each coordinate of the goal."""
        low, high = clopper_pearson(int(self.held.sum()), len(self.held), 0.95)
        views = {"distance from the start": np.linalg.norm(self.goals - self.starts, axis=1)}
        views |= {f"goal coordinate {i}": self.goals[:, i] for i in range(self.goals.shape[1])}
        return {
            "about": dict(self.about),
            "episodes": len(self.held),
            "success": float(self.held.mean()),
            "interval": [low, high],
            "success_any": float(self.touched.mean()),
            "by": {name: binned(x, self.held, edges(x)) for name, x in views.items() if np.ptp(x) > 0},
        }


def edges(values: Floats) -> Floats:
    """Of :data:`BINS` intervals of equal width, around all values."""
    return np.linspace(values.min(), values.max(), BINS + 1)


def binned(values: Floats, held: Bools, edges: Floats) -> list[dict[str, Any]]:
    """Success in the intervals between the edges, by a value of each episode."""
    where = np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(edges) - 2)
    return [
        {
            "from": float(edges[k]),
            "to": float(edges[k + 1]),
            "episodes": int((where == k).sum()),
            "success": float(held[where == k].mean()) if (where == k).any() else None,
        }
        for k in range(len(edges) - 1)
    ]


def play(policy: Policy, source: Source, horizon: int, test_goals: str, episodes: int, seed: int) -> Evaluation:
    """Episodes of a policy without noise; ``horizon`` 0 is the environment's own, ``test_goals`` a goal space."""
    integer("episodes", episodes, 1, 10**6)
    integer("seed", seed, 0, 2**31 - 1)
    source = replace(source, step_timeout=None)  # that is for workers: here it would end the caller
    sizes, (space,), _ = survey(source, horizon, [("test_goals", test_goals)])
    policy.check(sizes)
    goals = space(stream(seed, Purpose.EVALUATION_GOALS), episodes)
    side_by_side = min(TOGETHER, episodes)
    slots = Slots([Config(policy.env, seed=seed)], [(0, k) for k in range(side_by_side)], source, sizes)
    rounds = -(-episodes // side_by_side)
    padded = np.resize(goals, (rounds, side_by_side, sizes.goal))
    played = [slots.test({0: policy.actor}, padded[i], 0, i, Purpose.EVALUATION_EPISODE) for i in range(rounds)]
    starts = np.concatenate([e.achieved[:, 0] for e, _ in played])[:episodes].astype(np.float64)
    distances = np.concatenate([d for _, d in played])[:episodes]
    inside = distances <= sizes.success
    about = {"env": policy.env, "policy": policy.fingerprint(), "test_goals": test_goals, "seed": seed}
    return Evaluation(goals, starts, inside[:, -1], np.asarray(inside.any(1)), about)
