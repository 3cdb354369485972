"""What can be known of an environment before training: its sizes, its ball of success, and whether it is one of ours.

Success and reward are those of ``compute_reward``, which must be sparse with a ball around the goal, whatever the
info says (Fetch, Maze, HandReach, panda-gym): :func:`success_distance` measures its radius by bisection, and a few
random steps check that nothing else decides. Everything that does not fit is refused in one line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from adagoal.core.errors import InputError
from adagoal.core.types import Floats
from adagoal.deep.envs import Dimensions, Source, blaming
from adagoal.deep.families import FETCH, is_a
from adagoal.deep.vectors import flat, like
from adagoal.worlds.probe import time_limit

KEYS = ("observation", "achieved_goal", "desired_goal")
STEPS = 24
"""Random steps that look at an environment, at most."""
RESETS, CLOSE = 4, 1e-5
"""Other beginnings that are looked at, where nothing moves; what counts as the same number."""
MOST = 10_000
"""Numbers in an observation, at most."""


def dimensions(env: Any, source: Source, horizon: int) -> Dimensions:
    """Check that the environment is goal-conditioned with box actions, and measure it."""
    name = source.name
    action = _spaces(env, name)
    limit = _limit(env, name, horizon)
    with blaming(name):
        seen, _ = env.reset(seed=0)
        goal = seen["desired_goal"]
    observation, achieved, vector = (_numbers(name, seen, key) for key in KEYS)
    if vector.shape != achieved.shape:
        raise InputError(f"{name}: achieved and desired goals differ in size ({achieved.size}, {vector.size})", "env")
    seen, states, infos = _look(env, name)
    success = success_distance(env, name, goal, infos[0])
    _only_the_ball(env, name, goal, states, infos, success)
    apart = not _contained(states, env, name)
    low, high = (tuple(np.asarray(end, np.float64).reshape(-1).tolist()) for end in (action.low, action.high))
    return Dimensions(
        observation.size + apart * vector.size,
        vector.size,
        len(low),
        limit,
        success,
        _aims(env, source, vector),
        apart,
        low,
        high,
        action.shape,
        is_a(env, FETCH),
    )


def _spaces(env: Any, name: str) -> spaces.Box:
    """The action space, where the spaces are those of a goal-conditioned environment."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or any(key not in space.spaces for key in KEYS):
        wanted = f"its observations must be a Dict of {', '.join(KEYS)}"
        raise InputError(f"{name} is not goal-conditioned; {wanted}", name="env")
    for key in KEYS[1:]:
        if not _boxes(space[key]):
            raise InputError(f"{name}: {key} must be a Box of numbers, or a Dict or Tuple of them", name="env")
    action = env.action_space
    good = isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating) and action.is_bounded()
    if not good or not (action.low < action.high).all():
        raise InputError(f"{name} needs a bounded Box of real actions, got {action}", name="env")
    return action


def _boxes(space: Any) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return all(_boxes(part) for part in (space.values() if isinstance(space, spaces.Dict) else space))
    return isinstance(space, spaces.Box)


def own_limit(env: Any) -> int:
    """Steps after which the environment ends an episode: as it is registered, or wrapped; 0 where it says nothing."""
    return _registered(env) or time_limit(env) or 0


def _registered(env: Any) -> int:
    return (env.spec.max_episode_steps if env.spec is not None else None) or 0


def _limit(env: Any, name: str, horizon: int) -> int:
    """T, the steps of an episode."""
    own = _registered(env)
    if own and horizon > own:
        raise InputError(f"{name} ends its episodes after {own} steps; accepted 1 to {own}", name="horizon")
    limit = horizon or own_limit(env)
    if not limit:
        raise InputError(f"{name} has no time limit of its own; give 1 to 1000000 steps", name="horizon")
    return int(limit)


def _numbers(name: str, seen: Any, key: str) -> Floats:
    """One entry of an observation as a vector."""
    try:
        vector = flat(seen[key])
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{name}: {key} holds no numbers that can be read ({error})", name="env") from error
    if not 0 < vector.size <= MOST:
        raise InputError(f"{name}: {key} has {vector.size} numbers; accepted 1 to {MOST}", name="env")
    return vector


def _look(env: Any, name: str) -> tuple[Any, list[tuple[Floats, Floats]], list[dict[str, Any]]]:
    """A few random steps: the last observation, (observation, achieved goal) pairs, and the infos."""
    rng = np.random.default_rng(0)
    box = env.action_space
    states, infos = [], []
    with blaming(name):
        seen, info = env.reset(seed=0)
        for _ in range(STEPS):
            states.append((flat(seen["observation"]), flat(seen["achieved_goal"])))
            seen, _, terminated, truncated, info = env.step(rng.uniform(box.low, box.high).astype(box.dtype))
            infos.append(info)
            if terminated or truncated:
                break
        states.append((flat(seen["observation"]), flat(seen["achieved_goal"])))
    return seen, states, infos


def _contained(states: list[tuple[Floats, Floats]], env: Any, name: str) -> bool:
    """Whether every coordinate of the achieved goal is one of the observation.

    Something that has never moved may be equal to anything, such as a box that nobody has pushed: then a few other
    beginnings are looked at, and where it is in the same place in all of them, the answer is no.
    """
    if not _moves(states):
        with blaming(name):
            seen = [env.reset(seed=seed)[0] for seed in range(1, 1 + RESETS)]
        states = states + [(flat(each["observation"]), flat(each["achieved_goal"])) for each in seen]
    observations, achieved = (np.stack(part) for part in zip(*states, strict=True))
    same = np.abs(observations[:, :, None] - achieved[:, None, :]).max(0) <= CLOSE
    return bool(same.any(0).all()) and _moves(states)


def _moves(states: list[tuple[Floats, Floats]]) -> bool:
    """Whether the achieved goal is not the same in all of them."""
    return bool(np.ptp(np.stack([achieved for _, achieved in states]), axis=0).max() > CLOSE)


def success_distance(env: Any, name: str, goal: Any, info: dict[str, Any]) -> float:
    """Radius of the ball around ``goal`` in which ``compute_reward`` says success, found by bisection."""
    if not env.has_wrapper_attr("compute_reward"):
        raise InputError(f"{name} has no compute_reward(achieved_goal, desired_goal, info)", name="env")
    centre = flat(goal)
    best, far = _reward(env, name, goal, goal, info), _reward(env, name, like(goal, centre + 1e3), goal, info)
    rng = np.random.default_rng(0)
    radii = []
    for _ in range(4):
        direction = rng.normal(size=centre.shape)
        direction /= np.linalg.norm(direction)
        radii.append(_edge(env, name, goal, direction, best, far, info))
    if best <= far or max(radii) - min(radii) > max(1e-6, 1e-4 * min(radii)):
        raise InputError(f"{name} does not reward a ball around the goal; such goals are not supported", name="env")
    return float(np.mean(radii))


def _edge(env: Any, name: str, goal: Any, direction: Floats, best: float, far: float, info: Any) -> float:
    """Where, in a direction, the reward changes from ``best`` to ``far``."""
    low, high, centre = 0.0, 1e3, flat(goal)
    form = like(_real(goal), centre)
    for _ in range(60):
        middle = 0.5 * (low + high)
        value = _reward(env, name, like(form, centre + middle * direction), goal, info)
        if value not in (best, far):
            raise InputError(f"{name} has a dense reward; hindsight needs the sparse variant of the id", name="env")
        low, high = (middle, high) if value == best else (low, middle)
    return low


def _real(goal: Any) -> Any:
    """The goal with real numbers, also where its own are whole."""
    if isinstance(goal, dict):
        return {key: _real(part) for key, part in goal.items()}
    if isinstance(goal, tuple):
        return tuple(_real(part) for part in goal)
    return np.asarray(goal, np.float64)


def _reward(env: Any, name: str, achieved: Any, goal: Any, info: Any) -> float:
    with blaming(name):
        return float(env.get_wrapper_attr("compute_reward")(achieved, goal, info))


def _only_the_ball(
    env: Any, name: str, goal: Any, states: list[tuple[Floats, Floats]], infos: list[Any], success: float
) -> None:
    """Whether the reward of what was achieved on the way depends on the distance to the goal alone, not on the info."""
    best = _reward(env, name, goal, goal, infos[0])
    for (_, achieved), info in zip(states[1:], infos, strict=True):
        for centre in (flat(goal), achieved):
            away = float(np.linalg.norm(achieved - centre))
            if abs(away - success) < 1e-6 * (1.0 + success):
                continue
            reached = _reward(env, name, like(goal, achieved), like(goal, centre), info) == best
            if reached != (away <= success):
                text = "its compute_reward depends on more than the distance to the goal; that is not supported"
                raise InputError(f"{name}: {text}", name="env")


def _aims(env: Any, source: Source, own: Floats) -> bool:
    """Whether the environment takes the goal that it is told."""
    tell = source.setter(env)
    if tell is None:
        return False
    with blaming(source.name):
        others = [flat(env.reset(seed=seed)[0]["desired_goal"]) for seed in range(1, 5)]
        other = max(others, key=lambda goal: float(np.abs(goal - own).max()))
        seen, _ = env.reset(seed=0)
        tell(like(seen["desired_goal"], other))
        box = env.action_space
        seen, *_ = env.step(((box.low + box.high) / 2).astype(box.dtype))
        taken = bool(np.allclose(flat(seen["desired_goal"]), other, atol=1e-5))
    if source.hook is not None and not taken:
        raise InputError(f"{source.name} does not show the goal that it was given as desired_goal", name="set_goal")
    return taken
