"""What can be known of an environment before training: its sizes, its ball of success, and whether it is one of ours.

Success and reward are those of ``compute_reward``, which must be sparse with a ball around the goal, whatever the
info says (Fetch, Maze, HandReach, panda-gym): :func:`measure_success_radius` measures its radius by bisection, and a
few random steps check that nothing else decides. Everything that does not fit is refused in one line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from gymnasium import spaces

from adagoal.core.errors import InputError
from adagoal.core.file_formats import COUNT_SCHEMA, object_schema
from adagoal.core.types import Floats
from adagoal.deep import goal_samplers
from adagoal.deep.goal_envs import (
    EnvDimensions,
    EnvSource,
    convert_env_exceptions,
    flatten_numbers,
    kill_after_timeout,
    unflatten_like,
)
from adagoal.deep.goal_samplers import GoalSampler
from adagoal.deep.robotics_envs import FETCH_CLASS, is_instance_of
from adagoal.deep.rollout_workers import explain_worker_exit, make_rollout_process
from adagoal.envs.env_checker import find_time_limit
from adagoal.parallel.worker_process import FunctionCaller

GOAL_OBSERVATION_KEYS = ("observation", "achieved_goal", "desired_goal")
MAX_RANDOM_STEPS = 24
"""Random steps that look at an environment, at most."""
N_EXTRA_RESETS, EQUALITY_TOLERANCE = 4, 1e-5
"""Other beginnings that are looked at, where nothing moves; what counts as the same number."""
MAX_OBSERVATION_SIZE = 10_000
"""Numbers in an observation, at most."""


def measure_dimensions(env: Any, source: EnvSource, horizon: int) -> EnvDimensions:
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
    seen, states, infos = _take_random_steps(env, name)
    success = measure_success_radius(env, name, goal, infos[0])
    _check_reward_is_ball(env, name, goal, states, infos, success)
    apart = not _contains_achieved_goal(states, env, name)
    low, high = (tuple(np.asarray(end, np.float64).reshape(-1).tolist()) for end in (action.low, action.high))
    return EnvDimensions(
        observation.size + apart * vector.size,
        vector.size,
        len(low),
        limit,
        success,
        _check_goal_is_taken(env, source, vector),
        apart,
        low,
        high,
        action.shape,
        is_instance_of(env, FETCH_CLASS),
    )


def _check_spaces(env: Any, name: str) -> spaces.Box:
    """The action space, where the spaces are those of a goal-conditioned environment."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or any(key not in space.spaces for key in GOAL_OBSERVATION_KEYS):
        wanted = f"its observations must be a Dict of {', '.join(GOAL_OBSERVATION_KEYS)}"
        raise InputError(f"{name} is not goal-conditioned; {wanted}", name="env")
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
    """Steps after which the environment ends an episode: as it is registered, or wrapped; 0 where it says nothing."""
    return _registered_time_limit(env) or find_time_limit(env) or 0


def _registered_time_limit(env: Any) -> int:
    return (env.spec.max_episode_steps if env.spec is not None else None) or 0


def _resolve_horizon(env: Any, name: str, horizon: int) -> int:
    """T, the steps of an episode."""
    own = _registered_time_limit(env)
    if own and horizon > own:
        raise InputError(f"{name} ends its episodes after {own} steps; accepted 1 to {own}", name="horizon")
    limit = horizon or declared_time_limit(env)
    if not limit:
        raise InputError(f"{name} has no time limit of its own; give 1 to 1000000 steps", name="horizon")
    return int(limit)


def _read_observation_entry(name: str, seen: Any, key: str) -> Floats:
    """One entry of an observation as a vector."""
    try:
        vector = flatten_numbers(seen[key])
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{name}: {key} holds no numbers that can be read ({error})", name="env") from error
    if not 0 < vector.size <= MAX_OBSERVATION_SIZE:
        raise InputError(f"{name}: {key} has {vector.size} numbers; accepted 1 to {MAX_OBSERVATION_SIZE}", name="env")
    return vector


def _take_random_steps(env: Any, name: str) -> tuple[Any, list[tuple[Floats, Floats]], list[dict[str, Any]]]:
    """A few random steps: the last observation, (observation, achieved goal) pairs, and the infos."""
    rng = np.random.default_rng(0)
    box = env.action_space
    states, infos = [], []
    with convert_env_exceptions(name):
        seen, info = env.reset(seed=0)
        for _ in range(MAX_RANDOM_STEPS):
            states.append((flatten_numbers(seen["observation"]), flatten_numbers(seen["achieved_goal"])))
            seen, _, terminated, truncated, info = env.step(rng.uniform(box.low, box.high).astype(box.dtype))
            infos.append(info)
            if terminated or truncated:
                break
        states.append((flatten_numbers(seen["observation"]), flatten_numbers(seen["achieved_goal"])))
    return seen, states, infos


def _contains_achieved_goal(states: list[tuple[Floats, Floats]], env: Any, name: str) -> bool:
    """Whether every coordinate of the achieved goal is one of the observation.

    Something that has never moved may be equal to anything, such as a box that nobody has pushed: then a few other
    beginnings are looked at, and where it is in the same place in all of them, the answer is no.
    """
    if not _achieved_goal_moves(states):
        with convert_env_exceptions(name):
            seen = [env.reset(seed=seed)[0] for seed in range(1, 1 + N_EXTRA_RESETS)]
        states = states + [
            (flatten_numbers(each["observation"]), flatten_numbers(each["achieved_goal"])) for each in seen
        ]
    observations, achieved = (np.stack(part) for part in zip(*states, strict=True))
    same = np.abs(observations[:, :, None] - achieved[:, None, :]).max(0) <= EQUALITY_TOLERANCE
    return bool(same.any(0).all()) and _achieved_goal_moves(states)


def _achieved_goal_moves(states: list[tuple[Floats, Floats]]) -> bool:
    """Whether the achieved goal is not the same in all of them."""
    return bool(np.ptp(np.stack([achieved for _, achieved in states]), axis=0).max() > EQUALITY_TOLERANCE)


def measure_success_radius(env: Any, name: str, goal: Any, info: dict[str, Any]) -> float:
    """Radius of the ball around ``goal`` in which ``compute_reward`` says success, found by bisection."""
    if not env.has_wrapper_attr("compute_reward"):
        raise InputError(f"{name} has no compute_reward(achieved_goal, desired_goal, info)", name="env")
    centre = flatten_numbers(goal)
    best, far = (
        _call_compute_reward(env, name, goal, goal, info),
        _call_compute_reward(env, name, unflatten_like(goal, centre + 1e3), goal, info),
    )
    rng = np.random.default_rng(0)
    radii = []
    for _ in range(4):
        direction = rng.normal(size=centre.shape)
        direction /= np.linalg.norm(direction)
        radii.append(_find_reward_edge(env, name, goal, direction, best, far, info))
    if best <= far or max(radii) - min(radii) > max(1e-6, 1e-4 * min(radii)):
        raise InputError(f"{name} does not reward a ball around the goal; such goals are not supported", name="env")
    return float(np.mean(radii))


def _find_reward_edge(env: Any, name: str, goal: Any, direction: Floats, best: float, far: float, info: Any) -> float:
    """Where, in a direction, the reward changes from ``best`` to ``far``."""
    low, high, centre = 0.0, 1e3, flatten_numbers(goal)
    form = unflatten_like(_convert_goal_to_float(goal), centre)
    for _ in range(60):
        middle = 0.5 * (low + high)
        value = _call_compute_reward(env, name, unflatten_like(form, centre + middle * direction), goal, info)
        if value not in (best, far):
            raise InputError(f"{name} has a dense reward; hindsight needs the sparse variant of the id", name="env")
        low, high = (middle, high) if value == best else (low, middle)
    return low


def _convert_goal_to_float(goal: Any) -> Any:
    """The goal with real numbers, also where its own are whole."""
    if isinstance(goal, dict):
        return {key: _convert_goal_to_float(part) for key, part in goal.items()}
    if isinstance(goal, tuple):
        return tuple(_convert_goal_to_float(part) for part in goal)
    return np.asarray(goal, np.float64)


def _call_compute_reward(env: Any, name: str, achieved: Any, goal: Any, info: Any) -> float:
    with convert_env_exceptions(name):
        return float(env.get_wrapper_attr("compute_reward")(achieved, goal, info))


def _check_reward_is_ball(
    env: Any, name: str, goal: Any, states: list[tuple[Floats, Floats]], infos: list[Any], success: float
) -> None:
    """Whether the reward of what was achieved on the way depends on the distance to the goal alone, not on the info."""
    best = _call_compute_reward(env, name, goal, goal, infos[0])
    for (_, achieved), info in zip(states[1:], infos, strict=True):
        for centre in (flatten_numbers(goal), achieved):
            away = float(np.linalg.norm(achieved - centre))
            if abs(away - success) < 1e-6 * (1.0 + success):
                continue
            reached = (
                _call_compute_reward(env, name, unflatten_like(goal, achieved), unflatten_like(goal, centre), info)
                == best
            )
            if reached != (away <= success):
                text = "its compute_reward depends on more than the distance to the goal; that is not supported"
                raise InputError(f"{name}: {text}", name="env")


def _check_goal_is_taken(env: Any, source: EnvSource, own: Floats) -> bool:
    """Whether the environment takes the goal that it is told."""
    tell = source.find_goal_setter(env)
    if tell is None:
        return False
    with convert_env_exceptions(source.name):
        others = [flatten_numbers(env.reset(seed=seed)[0]["desired_goal"]) for seed in range(1, 5)]
        other = max(others, key=lambda goal: float(np.abs(goal - own).max()))
        seen, _ = env.reset(seed=0)
        tell(unflatten_like(seen["desired_goal"], other))
        box = env.action_space
        seen, *_ = env.step(((box.low + box.high) / 2).astype(box.dtype))
        taken = bool(np.allclose(flatten_numbers(seen["desired_goal"]), other, atol=1e-5))
    if source.pickled_set_goal is not None and not taken:
        raise InputError(f"{source.name} does not show the goal that it was given as desired_goal", name="set_goal")
    return taken


# What must be known of an environment before it is played for long: its sizes, and where goals are drawn from.
#
# It is found out here; where resets and steps are timed, in a process of its own, which one that takes longer ends.


class EnvInspection(NamedTuple):
    """What was found."""

    sizes: EnvDimensions
    goal_samplers: list[GoalSampler]
    """As they were asked for."""
    table_box: Floats | None
    """That of Fetch (:func:`adagoal.deep.goal_samplers.fetch_table_box`)."""


def inspect_env(source: EnvSource, horizon: int, spaces: Sequence[tuple[str, str]]) -> EnvInspection:
    """Look at an environment; ``spaces`` are settings and their texts, as for :func:`goalspace.goal_space`."""
    if source.step_timeout is None:
        return _inspect_here(source, horizon, spaces)
    worker = make_rollout_process(FunctionCaller)
    worker.start()
    try:
        worker.send("call", _inspect_and_pickle, source, horizon, spaces)
        with explain_worker_exit(source):
            inspection: EnvInspection = cloudpickle.loads(worker.receive())
    finally:
        worker.stop()
    return inspection


def _inspect_and_pickle(source: EnvSource, horizon: int, spaces: Sequence[tuple[str, str]]) -> bytes:
    """Return the inspection pickled: goal samplers are functions, which plain pickle rejects."""
    pickled: bytes = cloudpickle.dumps(_inspect_here(source, horizon, spaces))
    return pickled


def _inspect_here(source: EnvSource, horizon: int, spaces: Sequence[tuple[str, str]]) -> EnvInspection:
    env = source.make_env()
    if source.step_timeout is not None:
        for name in ("reset", "step"):
            setattr(env, name, functools.partial(_call_with_timeout, source.step_timeout, getattr(env, name)))
    sizes = measure_dimensions(env, source, horizon)
    found = EnvInspection(
        sizes, [goal_samplers.make_goal_sampler(env, *space) for space in spaces], goal_samplers.fetch_table_box(env)
    )
    env.close()
    return found


def _call_with_timeout(seconds: float, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with kill_after_timeout(seconds):
        return call(*args, **kwargs)


# Whether an environment that is given again is like the one of a run: what is kept of it, and what may not differ.


DIMENSION_TEXTS = {
    "observation": "the size of observations",
    "goal": "the size of goals",
    "action": "the size of actions",
    "low": "the low end of actions",
    "high": "the high end of actions",
    "success": "the radius of success",
}
SUCCESS_RADIUS_SCHEMA: dict[str, Any] = {"type": "number", "minimum": 0}
_ENDS = {"type": "array", "minItems": 1, "maxItems": 100_000, "items": {"type": "number"}}
ENV_FACTS_SCHEMA = object_schema(
    observation=COUNT_SCHEMA,
    goal=COUNT_SCHEMA,
    action=COUNT_SCHEMA,
    low=_ENDS,
    high=_ENDS,
    success=SUCCESS_RADIUS_SCHEMA,
)
"""What a checkpoint holds of the environment."""


def env_facts(sizes: EnvDimensions) -> dict[str, Any]:
    """What is kept, JSON-ready."""
    return {name: list(x) if isinstance(x := getattr(sizes, name), tuple) else x for name in DIMENSION_TEXTS}


def check_same_env(name: str, known: Mapping[str, Any], sizes: EnvDimensions) -> None:
    """Whether an environment of this name and these sizes is like the one of which so much is known."""
    for entry, was in known.items():
        now = getattr(sizes, entry)
        if np.shape(was) != np.shape(now) or not np.allclose(was, now, rtol=1e-3, atol=0.0):
            text = (
                f"{name} is not that of the run: "
                f"{DIMENSION_TEXTS[entry]} is {_format_numbers(now)}, and was {_format_numbers(was)}"
            )
            raise InputError(text, name="env")


def _format_numbers(numbers: Any) -> str:
    return " ".join(f"{x:.4g}" for x in np.ravel(numbers)[:8])
