"""Worlds of several copies: an environment by its name in so many processes, or one of Gymnasium's vectors of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper

from adagoal.core.checks import shown
from adagoal.core.errors import InputError
from adagoal.core.text import OBJECT
from adagoal.core.world import World
from adagoal.worlds import matrices, registry
from adagoal.worlds.adapter import StartSeed
from adagoal.worlds.body import Local
from adagoal.worlds.copies import Copy
from adagoal.worlds.crew import CrewWorld
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.process import Process
from adagoal.worlds.roster import Hire
from adagoal.worlds.toy_text import toy_text_model

MOST = 256
"""Copies, at most: each is a process with an interpreter of its own, some 150 MB and what the environment takes."""
Vector = VectorEnv[Any, Any, Any]
Single = str | registry.Environment | World | TabularMDP


def check(workers: Any) -> None:
    """A number of copies."""
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= MOST:
        raise InputError(f"must be a whole number in 1..{MOST}, got {shown(workers)}", "workers")


def make_world(
    env: Single | Vector,
    env_args: Mapping[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None = None,
    workers: int = 1,
    hire: Hire = Process,
) -> tuple[World, str]:
    """The world to explore, and its name in results: that of :func:`registry.make_world` for a single worker.

    ``hire`` says where several of them live. They step their environment, also where its model is known.
    """
    if isinstance(env, VectorEnv):
        makers, name, first = _of_vector(env, env_args, start_seed, max_states)
        if workers not in (1, env.num_envs):
            raise InputError(f"the vector has {env.num_envs} environments, got {workers}", "workers")
    elif workers == 1:
        return registry.make_world(env, env_args, start_seed, max_states, step_timeout)
    else:
        makers, name, first = _of_name(env, env_args, start_seed, max_states, workers)
    if step_timeout is not None:
        raise InputError("is for a single worker", "step_timeout")
    world, model = CrewWorld(makers, name, hire), toy_text_model(first, name, start_seed)
    if model is not None:
        world.labels, world.layout = model.labels, model.layout
    for line in registry.look_up(name)[1] if isinstance(env, str) else []:
        world.note(line)
    return world, name


def single(env: Single | Vector) -> Single:
    """One environment of a vector; anything else as it is."""
    if not isinstance(env, VectorEnv):
        return env
    if not isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        text = f"a {type(env).__name__} cannot be taken apart; a SyncVectorEnv or an AsyncVectorEnv can"
        raise InputError(text, "env")
    first: registry.Environment = env.env_fns[0]()
    return first


def _of_vector(
    env: Vector, env_args: Mapping[str, Any], start_seed: StartSeed, max_states: int | None
) -> tuple[list[Callable[[], Copy]], str, registry.Environment]:
    """Makers of copies, made as those of the vector are; a name, and the first of them. Its own are left alone."""
    first: Any = single(env)
    if env_args:
        raise InputError(f"{next(iter(env_args))} given, but the environments are made already", "env_args")
    registry.check_arguments(env_args, start_seed, max_states)
    name = OBJECT + (first.spec.id if first.spec is not None else type(first.unwrapped).__name__)
    made = [CloudpickleWrapper(make) for make in env.env_fns]  # type: ignore[attr-defined]
    return [functools.partial(_by_function, make, name, start_seed, max_states) for make in made], name, first


def _of_name(
    env: Single, env_args: Mapping[str, Any], start_seed: StartSeed, max_states: int | None, workers: int
) -> tuple[list[Callable[[], Copy]], str, registry.Environment]:
    """The same for an environment by its name."""
    if not isinstance(env, str):
        text = "an environment object cannot be sent to other processes; give its name, or a gymnasium.vector of it"
        raise InputError(text, "workers")
    registry.check_arguments(env_args, start_seed, max_states)
    if env in registry.BUILT_IN or matrices.model_of(env, env_args) is not None:
        raise InputError(f"{env} is simulated from its model, faster than several processes would be", "workers")
    first = registry.make(env, env_args)
    return [functools.partial(_by_name, env, dict(env_args), start_seed, max_states)] * workers, env, first


def _by_name(env: str, env_args: Mapping[str, Any], start_seed: StartSeed, max_states: int | None) -> Copy:
    return Copy(Local(registry.make(env, env_args), env, max_states), env, start_seed, max_states)


def _by_function(
    make: Callable[[], gymnasium.Env[Any, Any]], name: str, start_seed: StartSeed, max_states: int | None
) -> Copy:
    return Copy(Local(make(), name, max_states), name, start_seed, max_states)
