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
from adagoal.deep.certification import BLOCK, BLOCKS, Reach
from adagoal.deep.config import Config
from adagoal.deep.envs import Source
from adagoal.deep.fleet import Fleet
from adagoal.deep.goalspace import GoalSpace
from adagoal.deep.policy import Policy
from adagoal.deep.survey import survey


@contextlib.contextmanager
def rollouts(
    policy: Policy, source: Source, horizon: int, test_goals: str, radius: int, seed: int, workers: int
) -> Iterator[tuple[GoalSpace, Reach]]:
    """The goal space ``test_goals``, and the function that plays; ``horizon`` 0 is the environment's own."""
    sizes, (space,), _ = survey(source, horizon, [("test_goals", test_goals)])
    policy.check(sizes)
    if radius > sizes.horizon:
        text = f"must be a whole number in 1..{sizes.horizon}, the steps of an episode, got {radius}"
        raise InputError(text, name="radius")
    workers = min(workers, BLOCKS)
    configs, sizes = [Config(policy.env, seed=seed, episodes=BLOCK)] * workers, replace(sizes, horizon=radius)
    fleet = Fleet(configs, source, sizes, workers)

    def reach(goals: Floats, round_: int) -> Bools:
        return np.asarray((fleet.examine(round_, policy.actor, goals) <= sizes.success).any(1))

    try:
        yield space, reach
    finally:
        fleet.close()
