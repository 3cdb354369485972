"""Goal spaces: the distributions of training and test goals.

A goal space is a function ``sample(rng, n) -> [n, G]``. Its text form, for the settings ``train_goals`` and
``test_goals``, is ``env`` (the environment's own goals) or ``key=value`` pairs:

    scale=K     stretch the space by K around its centre (section ``section_AdaGoal_deepRL``): x and y for Fetch tasks
                with an object, every coordinate elsewhere
    air=P       Fetch with an object: share of goals lifted by U(0, 0.45) m. The environment's own default is 0.5 for
                PickAndPlace and 0 elsewhere; the paper has 0 (its z0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.types import Bools, Floats
from adagoal.deep.goal_envs import convert_env_exceptions, flatten_numbers
from adagoal.deep.robotics_envs import KnownClass, inherits_method, is_instance_of

GoalSampler = Callable[[np.random.Generator, int], Floats]


def parse_goal_space(name: str, text: str) -> dict[str, float]:
    """Parse ``env`` or ``scale=K,air=P``, the value of the setting ``name``."""
    accepted = f"must be env or scale=K[,air=P], got {text!r}"
    if not isinstance(text, str):
        raise InputError(accepted, name=name)
    if text == "env":
        return {}
    options: dict[str, float] = {}
    for item in text.split(","):
        key, _, value = item.partition("=")
        if key not in ("scale", "air"):
            raise InputError(accepted, name=name)
        try:
            options[key] = float(value)
        except ValueError:
            raise InputError(f"{key} needs a number, got {value!r}", name=name) from None
    if not 0.0 < options.get("scale", 1.0) <= 1000.0:
        raise InputError("scale must lie in (0, 1000]", name=name)
    if not 0.0 <= options.get("air", 0.0) <= 1.0:
        raise InputError("air must lie in [0, 1]", name=name)
    return options


def make_goal_sampler(env: Any, name: str, text: str) -> GoalSampler:
    """The goal space ``text`` of a Gymnasium environment; ``name`` is ``train_goals`` or ``test_goals``.

    An environment whose goal sampler is not known gets a pool of goals for each of the two names, from other resets.
    """
    options = parse_goal_space(name, text)
    scale = options.get("scale", 1.0)
    core = env.unwrapped
    fetch = inherits_method(env, KnownClass.FETCH, "_sample_goal")
    if "air" in options and not (fetch and core.has_object):
        raise InputError("air is for Fetch environments with an object", name=name)
    if fetch:
        return fetch_goal_sampler(core, scale, options.get("air", 0.5 if core.target_in_the_air else 0.0))
    if inherits_method(env, KnownClass.MAZE, "generate_target_goal"):
        return _scale_sampler(maze_goal_sampler(core), scale)
    return _scale_sampler(pooled_goal_sampler(env, name == "test_goals"), scale)


def fetch_goal_sampler(core: Any, scale: float, air: float) -> GoalSampler:
    """``_sample_goal`` of the Fetch environments, vectorised, with a stretched range."""
    centre = np.asarray(core.initial_gripper_xpos[:3], np.float64).copy()
    reach = scale * float(core.target_range)
    if not core.has_object:
        return lambda rng, n: centre + rng.uniform(-reach, reach, (n, 3))
    centre += core.target_offset
    height = float(core.height_offset)

    def sample(rng: np.random.Generator, n: int) -> Floats:
        goals = centre + rng.uniform(-reach, reach, (n, 3))
        goals[:, 2] = height + np.where(rng.random(n) < air, rng.uniform(0.0, 0.45, n), 0.0)
        return goals

    return sample


def maze_goal_sampler(core: Any) -> GoalSampler:
    """Goals of PointMaze and AntMaze: a goal cell, plus the environment's own noise."""
    cells = np.asarray(core.maze.unique_goal_locations, np.float64)
    noise = float(core.position_noise_range) * float(core.maze.maze_size_scaling)
    return lambda rng, n: cells[rng.integers(len(cells), size=n)] + rng.uniform(-noise, noise, (n, cells.shape[1]))


def pooled_goal_sampler(env: Any, is_test: bool, size: int = 512) -> GoalSampler:
    """A finite pool of goals, from resets of the environment with consecutive seeds."""
    # other seeds for tests, so test goals are not those of training
    seeds = range(size * is_test, size * (is_test + 1))
    with convert_env_exceptions(type(env.unwrapped).__name__):
        pool = np.stack([flatten_numbers(env.reset(seed=seed)[0]["desired_goal"]) for seed in seeds])
    return lambda rng, n: pool[rng.integers(len(pool), size=n)]


def _scale_sampler(sample: GoalSampler, scale: float) -> GoalSampler:
    if scale == 1.0:
        return sample
    # the centre is estimated with a seed of its own, so a goal space is the same for every seed of training
    centre = sample(np.random.default_rng(0), 4096).mean(0)
    return lambda rng, n: centre + scale * (sample(rng, n) - centre)


def bounding_box(sample: GoalSampler) -> Floats:
    """Smallest axis-parallel box around many goals: ``[2, G]`` (low, high)."""
    goals = sample(np.random.default_rng(0), 20_000)
    return np.stack([goals.min(0), goals.max(0)])


def is_inside_box(box: Floats, goals: Floats) -> Bools:
    """Whether each of the goals ``[..., G]`` lies in the box, with a millimetre of slack."""
    return np.asarray(((goals >= box[0] - 1e-3) & (goals <= box[1] + 1e-3)).all(-1))


def fetch_table_box(env: Any) -> Floats | None:
    """The table top of a Fetch environment with an object, ``[2, 2]`` in x and y; None for others."""
    core = env.unwrapped
    if not (is_instance_of(env, KnownClass.FETCH) and core.has_object):
        return None
    import mujoco

    body = int(mujoco.mj_name2id(core.model, mujoco.mjtObj.mjOBJ_BODY, "table0"))
    if body < 0:
        return None
    geom = int(core.model.body_geomadr[body])
    centre, half = core.data.geom_xpos[geom][:2], core.model.geom_size[geom][:2]
    return np.stack([centre - half, centre + half])
