"""Try a goal-conditioned environment before a training: spaces, resets, reward, goals, seeds, speed. Needs no JAX.

What :mod:`adagoal.deep.measure` refuses, a training refuses in the same words.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from adagoal.api.checked import Check
from adagoal.core import npz
from adagoal.core.errors import EnvironmentFailure
from adagoal.core.text import to_single_line
from adagoal.core.types import Floats
from adagoal.deep import measure
from adagoal.deep.config import Config
from adagoal.deep.envs import POINT_MASS_NAME, EnvDimensions, EnvSource, EpisodeEnd, GoalEnv, register_robotics_envs
from adagoal.worlds import registry

TRAINING_PROCESS_BYTES = 800_000_000
"""Bytes of a training process without its replay buffer, as measured with JAX on a CPU."""
REPLAY_BUFFER_COPIES = 2
"""Copies of the replay buffer: a checkpoint holds the second."""
REPEATED_WALK_STEPS = 100
"""Steps of a walk that is repeated."""


def is_training_only_env(name: str) -> bool:
    """Whether a name means something to trainings alone: ``point-mass``, and what gymnasium-robotics registers."""
    if name == POINT_MASS_NAME:
        return True
    unknown = not registry.is_model_name(name) and name not in gymnasium.registry and not set(":./") & set(name)
    if unknown and importlib.util.find_spec("gymnasium_robotics") is not None:
        register_robotics_envs()
    return unknown and name in gymnasium.registry


def is_goal_conditioned(env: Any) -> bool:
    """Whether an environment is for trainings: goals to choose, and real actions."""
    space = getattr(env, "observation_space", None)
    keys = isinstance(space, spaces.Dict) and all(key in space.spaces for key in measure.GOAL_OBSERVATION_KEYS)
    return keys and isinstance(env.action_space, spaces.Box)


def check_goal_env(check: Check, source: EnvSource, steps: int, seed: int) -> None:
    """Measure the environment as a training does, step it, and say what a training will do with it."""
    env = source.make_env()
    check.observations = to_single_line(env.observation_space, 100)
    check.time_limit = measure.declared_time_limit(env) or None
    if check.time_limit is None:
        check.warnings.append(
            f"it has no time limit of its own: a training needs a horizon, here {REPEATED_WALK_STEPS} steps"
        )
    sizes = measure.measure_dimensions(env, source, 0 if check.time_limit else REPEATED_WALK_STEPS)
    check.goal_size, check.reached_within, check.takes_goals = sizes.goal, sizes.success, sizes.accepts_goals
    world = GoalEnv(source, sizes)
    try:
        _step_goal_env(check, world, steps, seed)
    except EnvironmentFailure as error:
        check.errors.append(str(error))
    config = Config(source.name).resolve_for_horizon(sizes.horizon, sizes.is_fetch)
    check.memory = TRAINING_PROCESS_BYTES + REPLAY_BUFFER_COPIES * config.replay_capacity * sizes.episode_bytes
    if check.memory > npz.total_memory_bytes():
        check.warnings.append(
            "a training takes more memory than this machine has: give fewer steps or a smaller buffer"
        )
    check.plan += _describe_training(check, config, sizes)


def _step_goal_env(check: Check, world: GoalEnv, steps: int, seed: int) -> None:
    """Speed, and whether a seed decides what happens."""
    walks = [_random_walk_observations(world, seed) for _ in range(2)]
    check.seed_decides = np.array_equal(walks[0], walks[1])
    if not check.seed_decides:
        check.warnings.append(
            "the same seed does not give the same steps, so a training cannot be repeated or resumed bit for bit"
        )
    rng, began = np.random.default_rng(seed), time.perf_counter()
    while check.steps < steps:
        world.reset(int(rng.integers(2**31)))
        for _ in range(min(world.sizes.horizon, steps - check.steps)):
            check.steps += 1
            if world.step(rng.uniform(-1.0, 1.0, world.sizes.action))[2] is not EpisodeEnd.CONTINUES:
                break
    check.steps_per_second = check.steps / max(time.perf_counter() - began, 1e-9)


def _random_walk_observations(world: GoalEnv, seed: int) -> Floats:
    """What is seen ``[n, observation]`` with random actions."""
    rng = np.random.default_rng(seed)
    seen = [world.reset(seed)[0]]
    for _ in range(min(world.sizes.horizon, REPEATED_WALK_STEPS)):
        observation, _, end = world.step(rng.uniform(-1.0, 1.0, world.sizes.action))
        seen.append(observation)
        if end is not EpisodeEnd.CONTINUES:
            break
    return np.stack(seen)


def _describe_training(check: Check, config: Config, sizes: EnvDimensions) -> list[str]:
    """What a training with the settings that are not given will do."""
    seen = f"{sizes.observation} numbers" + (", the achieved goal among them," if sizes.with_achieved else "")
    return [
        f"sees {seen} and a goal of {sizes.goal}, and answers with {sizes.action}",
        f"plays episodes of {sizes.horizon} steps, {config.episodes} in a cycle",
        f"asks for goals within L = {config.radius:g} steps, and discounts with {config.gamma:g}",
        f"counts a goal as reached within {sizes.success:g} of it, as compute_reward does",
        f"takes up to {(check.memory or 0) / 1e9:.1f} GB of memory for {config.steps:,} steps, beside its workers",
        "tells the environment its goal"
        if check.takes_goals
        else "cannot tell the environment its goal, and goes on where that ends an episode at its own (see set_goal)",
    ]
