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
from adagoal.core.text import plain
from adagoal.core.types import Floats
from adagoal.deep import measure
from adagoal.deep.config import Config
from adagoal.deep.envs import POINT_MASS, Dimensions, End, Source, World, register_robotics
from adagoal.worlds import registry

PROCESS = 800_000_000
"""Bytes of a training process without its replay buffer, as measured with JAX on a CPU."""
COPIES = 2
"""Copies of the replay buffer: a checkpoint holds the second."""
WALK = 100
"""Steps of a walk that is repeated."""


def only_trained(name: str) -> bool:
    """Whether a name means something to trainings alone: ``point-mass``, and what gymnasium-robotics registers."""
    if name == POINT_MASS:
        return True
    unknown = not registry.modelled(name) and name not in gymnasium.registry and not set(":./") & set(name)
    if unknown and importlib.util.find_spec("gymnasium_robotics") is not None:
        register_robotics()
    return unknown and name in gymnasium.registry


def goal_conditioned(env: Any) -> bool:
    """Whether an environment is for trainings: goals to choose, and real actions."""
    space = getattr(env, "observation_space", None)
    keys = isinstance(space, spaces.Dict) and all(key in space.spaces for key in measure.KEYS)
    return keys and isinstance(env.action_space, spaces.Box)


def try_training(check: Check, source: Source, steps: int, seed: int) -> None:
    """Measure the environment as a training does, step it, and say what a training will do with it."""
    env = source.make()
    check.observations = plain(env.observation_space, 100)
    check.time_limit = measure.own_limit(env) or None
    if check.time_limit is None:
        check.warnings.append(f"it has no time limit of its own: a training needs a horizon, here {WALK} steps")
    sizes = measure.dimensions(env, source, 0 if check.time_limit else WALK)
    check.goal_size, check.reached_within, check.takes_goals = sizes.goal, sizes.success, sizes.aims
    world = World(source, sizes)
    try:
        _step(check, world, steps, seed)
    except EnvironmentFailure as error:
        check.errors.append(str(error))
    config = Config(source.name).on_time_scale(sizes.horizon, sizes.fetch)
    check.memory = PROCESS + COPIES * config.capacity * sizes.episode_bytes
    if check.memory > npz.memory():
        check.warnings.append(
            "a training takes more memory than this machine has: give fewer steps or a smaller buffer"
        )
    check.plan += _plan(check, config, sizes)


def _step(check: Check, world: World, steps: int, seed: int) -> None:
    """Speed, and whether a seed decides what happens."""
    walks = [_walk(world, seed) for _ in range(2)]
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
            if world.step(rng.uniform(-1.0, 1.0, world.sizes.action))[2] is not End.NO:
                break
    check.steps_per_second = check.steps / max(time.perf_counter() - began, 1e-9)


def _walk(world: World, seed: int) -> Floats:
    """What is seen ``[n, observation]`` with random actions."""
    rng = np.random.default_rng(seed)
    seen = [world.reset(seed)[0]]
    for _ in range(min(world.sizes.horizon, WALK)):
        observation, _, end = world.step(rng.uniform(-1.0, 1.0, world.sizes.action))
        seen.append(observation)
        if end is not End.NO:
            break
    return np.stack(seen)


def _plan(check: Check, config: Config, sizes: Dimensions) -> list[str]:
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
