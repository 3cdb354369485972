"""Tests of a trained policy: how often it reaches its goals, and which ones it misses. Needs no JAX."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from adagoal.core.checks import integer
from adagoal.core.errors import InputError
from adagoal.core.types import Bools, Floats
from adagoal.deep import envs, goalspace
from adagoal.deep.config import Config, recorded
from adagoal.deep.policy import load
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

    def summary(self) -> dict[str, Any]:
        """Success with a 95% interval (Clopper-Pearson), and by distance and by each coordinate of the goal."""
        low, high = binomtest(int(self.held.sum()), len(self.held)).proportion_ci(0.95, "exact")
        views = {"distance from the start": np.linalg.norm(self.goals - self.starts, axis=1)}
        views |= {f"goal coordinate {i}": self.goals[:, i] for i in range(self.goals.shape[1])}
        return {
            "episodes": len(self.held),
            "success": float(self.held.mean()),
            "interval": [float(low), float(high)],
            "success_any": float(self.touched.mean()),
            "by": {name: self._binned(values) for name, values in views.items() if np.ptp(values) > 0},
        }

    def _binned(self, values: Floats) -> list[dict[str, Any]]:
        """Success in :data:`BINS` intervals of equal width."""
        edges = np.linspace(values.min(), values.max(), BINS + 1)
        where = np.clip(np.searchsorted(edges, values, "right") - 1, 0, BINS - 1)
        return [
            {
                "from": float(edges[k]),
                "to": float(edges[k + 1]),
                "episodes": int((where == k).sum()),
                "success": float(self.held[where == k].mean()) if (where == k).any() else None,
            }
            for k in range(BINS)
        ]


def evaluate(
    folder: Path | str, *, run: int = 0, episodes: int = 200, test_goals: str | None = None, seed: int = 0
) -> Evaluation:
    """Play ``episodes`` episodes of the policy of a training folder, without noise, on its test goals or on others."""
    integer("--episodes", episodes, 1, 10**6)
    integer("--seed", seed, 0, 2**31 - 1)
    policy = load(folder, run)
    try:
        data = json.loads((Path(folder) / "result.json").read_text())
        trained = recorded(data)[run]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"FOLDER: {folder} holds no readable result.json of adagoal train") from error
    env = envs.make(policy.env)
    sizes = envs.dimensions(env, policy.env, trained.horizon)
    option = "--test-goals"
    goals = goalspace.goal_space(env, option, test_goals or trained.test_goals)(np.random.default_rng(seed), episodes)
    env.close()
    side_by_side = min(TOGETHER, episodes)
    config = Config(policy.env, seed=seed)
    slots = Slots([config], [(0, k) for k in range(side_by_side)], sizes.horizon)
    rounds = -(-episodes // side_by_side)
    padded = np.resize(goals, (rounds, side_by_side, sizes.goal))
    played = [slots.test({0: policy.actor}, padded[i], 0, i) for i in range(rounds)]
    starts = np.concatenate([e.achieved[:, 0] for e, _ in played])[:episodes].astype(np.float64)
    distances = np.concatenate([d for _, d in played])[:episodes]
    inside = distances <= sizes.success
    return Evaluation(goals, starts, inside[:, -1], np.asarray(inside.any(1)))
