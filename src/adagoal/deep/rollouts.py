"""Fresh rollouts of a policy for given goals, in worker processes: was each goal reached within L steps?

The starts come from a stream of their own, which no training and no test has used. Needs no JAX.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.types import Bools, Floats
from adagoal.deep.certification import MIN_BLOCKS_PER_ROUND, ROLLOUTS_PER_BLOCK, ReachFunction
from adagoal.deep.config import Config
from adagoal.deep.envs import EnvSource
from adagoal.deep.fleet import RolloutWorkers
from adagoal.deep.goalspace import GoalSampler
from adagoal.deep.policy import Policy
from adagoal.deep.survey import inspect_env


@contextlib.contextmanager
def open_certification_rollouts(
    policy: Policy, source: EnvSource, horizon: int, test_goals: str, radius: int, seed: int, workers: int
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
    fleet = RolloutWorkers(configs, source, sizes, workers)

    def reach(goals: Floats, round_: int) -> Bools:
        return np.asarray((fleet.evaluate_goals(round_, policy.actor, goals) <= sizes.success).any(1))

    try:
        yield space, reach
    finally:
        fleet.close()
