"""Inspect an environment before training (sizes, success radius), refuse unsuitable ones, and make goal samplers.

A goal space is a function ``sample(rng, n) -> [n, G]``. Its text form, for the settings ``train_goals`` and
``test_goals``, is ``env`` (the environment's own goals) or ``key=value`` pairs:

    scale=K     stretch the space by K around its centre (section ``section_AdaGoal_deepRL``): x and y for Fetch tasks
                with an object, every coordinate elsewhere
    air=P       Fetch with an object: share of goals lifted by U(0, 0.45) m. The environment's own default is 0.5 for
                PickAndPlace and 0 elsewhere; the paper has 0 (its z0)

``compute_reward`` must be sparse and reward a ball around the goal, whatever the info says (Fetch, Maze, HandReach and
panda-gym do). :func:`measure_success_radius` measures the radius of the ball by bisection, and a few random steps check
that the reward depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import cloudpickle
import numpy as np
from gymnasium import spaces

from adagoal.core.array_types import Bools, Floats
from adagoal.core.errors import InputError
from adagoal.deep.goal_envs import (
    EnvDimensions,
    EnvSource,
    convert_env_exceptions,
    flatten_numbers,
    kill_after_timeout,
    unflatten_like,
)
from adagoal.deep.robotics_envs import KnownClass, inherits_method, is_instance_of
from adagoal.deep.rollouts import explain_worker_exit
from adagoal.envs.env_checker import find_time_limit
from adagoal.parallel.worker_process import FunctionCaller, make_rollout_process

GoalSampler = Callable[[np.random.Generator, int], Floats]

POOL_SIZE = 512  # goals in the pool of an environment whose goal sampler is not known; each costs a reset
MAX_ENTRY_SIZE = 10_000  # numbers in an entry of an observation: an image is refused, as the networks have no filters


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
        raise InputError(f"scale must lie in (0, 1000], got {options['scale']:g}", name=name)
    if not 0.0 <= options.get("air", 0.0) <= 1.0:
        raise InputError(f"air must lie in [0, 1], got {options['air']:g}", name=name)
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
        raise InputError("air is for Fetch environments with an object; leave it out", name=name)
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


def pooled_goal_sampler(env: Any, is_test: bool) -> GoalSampler:
    """A finite pool of goals, from resets of the environment with consecutive seeds."""
    # other seeds for tests, so test goals are not those of training
    seeds = range(POOL_SIZE * is_test, POOL_SIZE * (is_test + 1))
    with convert_env_exceptions(type(env.unwrapped).__name__):
        pool = np.stack([flatten_numbers(env.reset(seed=seed)[0]["desired_goal"]) for seed in seeds])
    return lambda rng, n: pool[rng.integers(len(pool), size=n)]


def _scale_sampler(sample: GoalSampler, scale: float) -> GoalSampler:
    if scale == 1.0:
        return sample
    # the centre has a seed of its own, so a goal space is the same for every seed of training
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


GOAL_OBSERVATION_KEYS = ("observation", "achieved_goal", "desired_goal")


class EnvInspection(NamedTuple):
    """Result of an inspection."""

    sizes: EnvDimensions
    goal_samplers: list[GoalSampler]  # in the order of the request
    table_box: Floats | None  # of Fetch (:func:`fetch_table_box`)


def inspect_env(source: EnvSource, horizon: int | None, goal_spaces: Sequence[tuple[str, str]]) -> EnvInspection:
    """Inspect an environment; ``goal_spaces`` are arguments of :func:`make_goal_sampler`."""
    # A step that takes longer than the timeout kills its process. That must not be the user's.
    if source.step_timeout is None:
        return _inspect_here(source, horizon, goal_spaces)
    worker = make_rollout_process(FunctionCaller)
    worker.start()
    try:
        worker.send("call", _inspect_and_pickle, source, horizon, goal_spaces)
        with explain_worker_exit(source):
            return cast(EnvInspection, cloudpickle.loads(worker.receive()))
    finally:
        worker.stop()


def _inspect_and_pickle(source: EnvSource, horizon: int | None, goal_spaces: Sequence[tuple[str, str]]) -> bytes:
    # cloudpickle, because goal samplers are closures, which the pipe of a worker cannot carry
    return bytes(cloudpickle.dumps(_inspect_here(source, horizon, goal_spaces)))


def _inspect_here(source: EnvSource, horizon: int | None, goal_spaces: Sequence[tuple[str, str]]) -> EnvInspection:
    env = source.make_env()
    if source.step_timeout is not None:
        # on the instance, so the calls of goal samplers are timed as well
        for name in ("reset", "step"):
            setattr(env, name, kill_after_timeout(source.step_timeout)(getattr(env, name)))
    sizes = measure_dimensions(env, source, horizon)
    samplers = [make_goal_sampler(env, name, text) for name, text in goal_spaces]
    inspection = EnvInspection(sizes, samplers, fetch_table_box(env))
    env.close()
    return inspection


def measure_dimensions(env: Any, source: EnvSource, horizon: int | None) -> EnvDimensions:
    """Check that the environment is goal-conditioned with box actions, and measure it."""
    name = source.name
    action = _check_spaces(env, name)
    limit = _resolve_horizon(env, name, horizon)
    with convert_env_exceptions(name):
        seen, _ = env.reset(seed=0)
        goal = seen["desired_goal"]
    observation, achieved, vector = (_read_observation_entry(name, seen, key) for key in GOAL_OBSERVATION_KEYS)
    if vector.shape != achieved.shape:
        raise InputError(f"{name}: achieved and desired goals differ in size ({achieved.size}, {vector.size})", "env")
    states, infos = _take_random_steps(env, name)
    success = measure_success_radius(env, name, goal, infos[0])
    _check_reward_is_ball(env, name, goal, states, infos, success)
    with_achieved = not _contains_achieved_goal(states, env, name)
    low, high = (tuple(np.asarray(end, np.float64).reshape(-1).tolist()) for end in (action.low, action.high))
    return EnvDimensions(
        observation=observation.size + with_achieved * vector.size,
        goal=vector.size,
        action=len(low),
        horizon=limit,
        success=success,
        accepts_goals=_check_goal_is_taken(env, source, vector),
        with_achieved=with_achieved,
        low=low,
        high=high,
        shape=action.shape,
        is_fetch=is_instance_of(env, KnownClass.FETCH),
    )


def _check_spaces(env: Any, name: str) -> spaces.Box:
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or any(key not in space.spaces for key in GOAL_OBSERVATION_KEYS):
        wanted = f"its observations must be a Dict of {', '.join(GOAL_OBSERVATION_KEYS)}"
        raise InputError(f"{name} is not goal-conditioned; {wanted}", name="env")
    # Only goals must be boxes, because success is a distance. Observations may be anything that holds numbers.
    for key in GOAL_OBSERVATION_KEYS[1:]:
        if not _is_made_of_boxes(space[key]):
            raise InputError(f"{name}: {key} must be a Box of numbers, or a Dict or Tuple of them", name="env")
    action = env.action_space
    good = isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating) and action.is_bounded()
    if not good or not (action.low < action.high).all():
        raise InputError(f"{name} needs a bounded Box of real actions, got {action}", name="env")
    return action


def _is_made_of_boxes(space: Any) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return all(_is_made_of_boxes(part) for part in (space.values() if isinstance(space, spaces.Dict) else space))
    return isinstance(space, spaces.Box)


def declared_time_limit(env: Any) -> int:
    """Steps after which the environment ends an episode, from its registration or a wrapper; 0 if neither has one."""
    return (env.spec and env.spec.max_episode_steps) or find_time_limit(env) or 0


def _resolve_horizon(env: Any, name: str, horizon: int | None) -> int:
    registered = env.spec and env.spec.max_episode_steps
    if horizon and registered and horizon > registered:
        text = f"{name} ends its episodes after {registered} steps; accepted 1 to {registered}"
        raise InputError(text, name="horizon")
    limit = horizon or declared_time_limit(env)
    if not limit:
        raise InputError(f"{name} has no time limit of its own; give 1 to 1000000 steps", name="horizon")
    return int(limit)


def _read_observation_entry(name: str, seen: Any, key: str) -> Floats:
    try:
        vector = flatten_numbers(seen[key])
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{name}: {key} holds no numbers that can be read ({error})", name="env") from error
    if not 0 < vector.size <= MAX_ENTRY_SIZE:
        raise InputError(f"{name}: {key} has {vector.size} numbers; accepted 1 to {MAX_ENTRY_SIZE}", name="env")
    return vector


State = tuple[Floats, Floats]  # an observation and the achieved goal, as vectors


def _read_state(seen: Any) -> State:
    return flatten_numbers(seen["observation"]), flatten_numbers(seen["achieved_goal"])


def _take_random_steps(env: Any, name: str) -> tuple[list[State], list[dict[str, Any]]]:
    """States of an episode with random actions, and the info of each step."""
    rng, box = np.random.default_rng(0), env.action_space
    infos = []
    with convert_env_exceptions(name):
        seen, _ = env.reset(seed=0)
        states = [_read_state(seen)]
        # enough steps for something to move, and fast everywhere
        for _ in range(24):
            seen, _, terminated, truncated, info = env.step(rng.uniform(box.low, box.high).astype(box.dtype))
            states.append(_read_state(seen))
            infos.append(info)
            if terminated or truncated:
                break
    return states, infos


def _contains_achieved_goal(states: list[State], env: Any, name: str) -> bool:
    """Whether every coordinate of the achieved goal is one of the observation."""
    # An object that random actions never moved may equal some coordinate by chance. Then other starts are compared as
    # well. If it has the same position in all of them, nothing is known, and the answer is no.
    if not _achieved_goal_moves(states):
        with convert_env_exceptions(name):
            states = states + [_read_state(env.reset(seed=seed)[0]) for seed in range(1, 5)]
    observations, achieved = (np.stack(part) for part in zip(*states, strict=True))
    same = np.abs(observations[:, :, None] - achieved[:, None, :]).max(0) <= 1e-5
    return bool(same.any(0).all()) and _achieved_goal_moves(states)


def _achieved_goal_moves(states: list[State]) -> bool:
    return bool(np.ptp(np.stack([achieved for _, achieved in states]), axis=0).max() > 1e-5)


def measure_success_radius(env: Any, name: str, goal: Any, info: dict[str, Any]) -> float:
    """Radius of the ball around ``goal`` in which ``compute_reward`` says success, by bisection."""
    if not env.has_wrapper_attr("compute_reward"):
        raise InputError(f"{name} has no compute_reward(achieved_goal, desired_goal, info)", name="env")
    centre = flatten_numbers(goal)
    # An environment with a ball of more than 1000 is refused: then `best` equals `far`.
    best = _call_compute_reward(env, name, goal, goal, info)
    far = _call_compute_reward(env, name, unflatten_like(goal, centre + 1e3), goal, info)

    def find_edge(direction: Floats) -> float:
        low, high = 0.0, 1e3
        # 60 halvings of 1000 leave less than 1e-15
        for _ in range(60):
            middle = 0.5 * (low + high)
            # in floats, because the type of integer goals would round the point
            achieved = unflatten_like(goal, centre + middle * direction, np.float64)
            value = _call_compute_reward(env, name, achieved, goal, info)
            if value not in (best, far):
                raise InputError(f"{name} has a dense reward; hindsight needs the sparse variant of the id", name="env")
            low, high = (middle, high) if value == best else (low, middle)
        return low

    # Several directions: a box or an ellipsoid has other radii, and hindsight in the compiled learner needs a ball.
    directions = np.random.default_rng(0).normal(size=(4, *centre.shape))
    radii = [find_edge(direction / np.linalg.norm(direction)) for direction in directions]
    if best <= far or max(radii) - min(radii) > max(1e-6, 1e-4 * min(radii)):
        raise InputError(f"{name} does not reward a ball around the goal; such goals are not supported", name="env")
    return float(np.mean(radii))


def _call_compute_reward(env: Any, name: str, achieved: Any, goal: Any, info: Any) -> float:
    with convert_env_exceptions(name):
        return float(env.get_wrapper_attr("compute_reward")(achieved, goal, info))


def _check_reward_is_ball(
    env: Any, name: str, goal: Any, states: list[State], infos: list[Any], success: float
) -> None:
    """Check on played states that the reward depends on the distance to the goal alone, and not on the info."""
    best = _call_compute_reward(env, name, goal, goal, infos[0])
    for (_, achieved), info in zip(states[1:], infos, strict=True):
        for centre in (flatten_numbers(goal), achieved):
            distance = float(np.linalg.norm(achieved - centre))
            # on the edge rounding decides
            if abs(distance - success) < 1e-6 * (1.0 + success):
                continue
            pair = unflatten_like(goal, achieved), unflatten_like(goal, centre)
            if (_call_compute_reward(env, name, *pair, info) == best) != (distance <= success):
                text = "its compute_reward depends on more than the distance to the goal; that is not supported"
                raise InputError(f"{name}: {text}", name="env")


def _check_goal_is_taken(env: Any, source: EnvSource, own: Floats) -> bool:
    """Whether the environment shows a goal that was set; an error if the user's ``set_goal`` has no effect."""
    set_goal = source.find_goal_setter(env)
    if set_goal is None:
        return False
    with convert_env_exceptions(source.name):
        # the farthest of a few goals, so "shows the goal" and "ignored it" cannot look alike
        others = [flatten_numbers(env.reset(seed=seed)[0]["desired_goal"]) for seed in range(1, 5)]
        other = max(others, key=lambda goal: float(np.abs(goal - own).max()))
        seen, _ = env.reset(seed=0)
        set_goal(unflatten_like(seen["desired_goal"], other))
        # a step is the only way to see desired_goal again without a reset
        box = env.action_space
        seen, *_ = env.step(((box.low + box.high) / 2).astype(box.dtype))
        taken = bool(np.allclose(flatten_numbers(seen["desired_goal"]), other, atol=1e-5))
    if source.pickled_set_goal is not None and not taken:
        raise InputError(
            f"{source.name} does not show the goal that was set as desired_goal; give another set_goal", name="set_goal"
        )
    return taken
