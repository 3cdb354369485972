"""Tests of a trained policy: how often it reaches its goals, and which ones it misses. Needs no JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adagoal.core.argument_checks import check_integer
from adagoal.core.confidence_bounds import clopper_pearson_interval
from adagoal.core.errors import InputError
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.types import Bools, Floats
from adagoal.deep.certification import MIN_BLOCKS_PER_ROUND, ROLLOUTS_PER_BLOCK, ReachFunction
from adagoal.deep.config import Config
from adagoal.deep.env_inspection import inspect_env
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.goal_samplers import GoalSampler
from adagoal.deep.policy import GoalPolicy
from adagoal.deep.rollout_backend import RolloutFactory
from adagoal.deep.rollout_workers import EnvBatch, RolloutWorkers

EPISODES_AT_ONCE = 25
"""Episodes played side by side."""
N_SUCCESS_BINS = 4


@dataclass(frozen=True)
class Evaluation:
    """n test episodes."""

    goals: Floats
    """``[n, goal]``"""
    starts: Floats
    """What was achieved at the start ``[n, goal]``."""
    final_success: Bools
    """Success at the last step ``[n]``."""
    any_success: Bools
    """Success at any step ``[n]``."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What was tested: environment, policy, goals, seed."""

    def summary(self) -> dict[str, Any]:
        """Success with a 95% interval (Clopper-Pearson), and by distance and by each coordinate of the goal."""
        low, high = clopper_pearson_interval(int(self.final_success.sum()), len(self.final_success), 0.95)
        views = {"distance from the start": np.linalg.norm(self.goals - self.starts, axis=1)}
        views |= {f"goal coordinate {i}": self.goals[:, i] for i in range(self.goals.shape[1])}
        return {
            "about": dict(self.about),
            "episodes": len(self.final_success),
            "success": float(self.final_success.mean()),
            "interval": [low, high],
            "success_any": float(self.any_success.mean()),
            "by": {
                name: success_by_bin(x, self.final_success, success_bin_edges(x))
                for name, x in views.items()
                if np.ptp(x) > 0
            },
        }


def success_bin_edges(values: Floats) -> Floats:
    """Of :data:`N_SUCCESS_BINS` intervals of equal width, around all values."""
    return np.linspace(values.min(), values.max(), N_SUCCESS_BINS + 1)


def success_by_bin(values: Floats, held: Bools, edges: Floats) -> list[dict[str, Any]]:
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


def evaluate_policy(
    policy: GoalPolicy, source: EnvSource, horizon: int, test_goals: str, episodes: int, seed: int
) -> Evaluation:
    """Episodes of a policy without noise; ``horizon`` 0 is the environment's own, ``test_goals`` a goal space."""
    check_integer("episodes", episodes, 1, 10**6)
    check_integer("seed", seed, 0, 2**31 - 1)
    source = replace(source, step_timeout=None)  # that is for workers: here it would end the caller
    sizes, (space,), _ = inspect_env(source, horizon, [("test_goals", test_goals)])
    policy.check_matches_env(sizes)
    goals = space(random_stream(seed, StreamPurpose.EVALUATION_GOALS), episodes)
    side_by_side = min(EPISODES_AT_ONCE, episodes)
    slots = EnvBatch([Config(policy.env, seed=seed)], [(0, k) for k in range(side_by_side)], source, sizes)
    rounds = -(-episodes // side_by_side)
    padded = np.resize(goals, (rounds, side_by_side, sizes.goal))
    played = [
        slots.play_test_round({0: policy.actor}, padded[i], 0, i, StreamPurpose.EVALUATION_EPISODE)
        for i in range(rounds)
    ]
    starts = np.concatenate([e.achieved[:, 0] for e, _ in played])[:episodes].astype(np.float64)
    distances = np.concatenate([d for _, d in played])[:episodes]
    inside = distances <= sizes.success
    about = {"env": policy.env, "policy": policy.fingerprint(), "test_goals": test_goals, "seed": seed}
    return Evaluation(goals, starts, inside[:, -1], np.asarray(inside.any(1)), about)


# Fresh rollouts of a policy for given goals, in worker processes: was each goal reached within L steps?
#
# The starts come from a stream of their own, which no training and no test has used. Needs no JAX.


@contextlib.contextmanager
def open_certification_rollouts(
    policy: GoalPolicy,
    source: EnvSource,
    horizon: int,
    test_goals: str,
    radius: int,
    seed: int,
    workers: int,
    make_rollouts: RolloutFactory = RolloutWorkers,
) -> Iterator[tuple[GoalSampler, ReachFunction]]:
    """The goal space ``test_goals``, and the function that plays; ``horizon`` 0 is the environment's own."""
    sizes, (space,), _ = inspect_env(source, horizon, [("test_goals", test_goals)])
    policy.check_matches_env(sizes)
    if radius > sizes.horizon:
        text = f"must be a whole number in 1..{sizes.horizon}, the steps of an episode, got {radius}"
        raise InputError(text, name="radius")
    workers = min(workers, MIN_BLOCKS_PER_ROUND)
    configs, sizes = (
        [Config(policy.env, seed=seed, episodes=ROLLOUTS_PER_BLOCK)] * workers,
        replace(sizes, horizon=radius),
    )
    fleet = make_rollouts(configs, source, sizes, workers)

    def reach(goals: Floats, round_: int) -> Bools:
        return np.asarray((fleet.evaluate_goals(round_, policy.actor, goals) <= sizes.success).any(1))

    try:
        yield space, reach
    finally:
        fleet.close()
