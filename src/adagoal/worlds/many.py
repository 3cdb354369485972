"""Worlds of several copies: an environment by its name in so many processes, or one of Gymnasium's vectors of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper

from adagoal.core.checks import format_given_value
from adagoal.core.errors import InputError
from adagoal.core.text import OBJECT_ENV_PREFIX
from adagoal.core.world import TabularEnv
from adagoal.worlds import matrices, registry
from adagoal.worlds.adapter import StartSeed
from adagoal.worlds.body import InProcessEnv
from adagoal.worlds.copies import EnvWorker
from adagoal.worlds.crew import ParallelEnv
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.process import WorkerProcess
from adagoal.worlds.roster import WorkerFactory
from adagoal.worlds.toy_text import toy_text_model

MAX_WORKERS = 256
"""Copies, at most: each is a process with an interpreter of its own, some 150 MB and what the environment takes."""
GymVectorEnv = VectorEnv[Any, Any, Any]
EnvLike = str | registry.GymEnv | TabularEnv | TabularMDP


def check_worker_count(workers: Any) -> None:
    """A number of copies."""
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= MAX_WORKERS:
        raise InputError(f"must be a whole number in 1..{MAX_WORKERS}, got {format_given_value(workers)}", "workers")


def make_env(
    env: EnvLike | GymVectorEnv,
    env_args: Mapping[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None = None,
    workers: int = 1,
    hire: WorkerFactory = WorkerProcess,
) -> tuple[TabularEnv, str]:
    """The world to explore, and its name in results: that of :func:`registry.make_world` for a single worker.

    ``hire`` says where several of them live. They step their environment, also where its model is known.
    """
    if isinstance(env, VectorEnv):
        makers, name, first = _worker_makers_of_vector(env, env_args, start_seed, max_states)
        if workers not in (1, env.num_envs):
            raise InputError(f"the vector has {env.num_envs} environments, got {workers}", "workers")
    elif workers == 1:
        return registry.make_single_env(env, env_args, start_seed, max_states, step_timeout)
    else:
        makers, name, first = _worker_makers_of_name(env, env_args, start_seed, max_states, workers)
    if step_timeout is not None:
        raise InputError("is for a single worker", "step_timeout")
    world, model = ParallelEnv(makers, name, hire), toy_text_model(first, name, start_seed)
    if model is not None:
        world.labels, world.layout = model.labels, model.layout
    for line in registry.find_gym_spec(name)[1] if isinstance(env, str) else []:
        world.add_warning(line)
    return world, name


def first_env_of_vector(env: EnvLike | GymVectorEnv) -> EnvLike:
    """One environment of a vector; anything else as it is."""
    if not isinstance(env, VectorEnv):
        return env
    if not isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        text = f"a {type(env).__name__} cannot be taken apart; a SyncVectorEnv or an AsyncVectorEnv can"
        raise InputError(text, "env")
    first: registry.GymEnv = env.env_fns[0]()
    return first


def _worker_makers_of_vector(
    env: GymVectorEnv, env_args: Mapping[str, Any], start_seed: StartSeed, max_states: int | None
) -> tuple[list[Callable[[], EnvWorker]], str, registry.GymEnv]:
    """Makers of copies, made as those of the vector are; a name, and the first of them. Its own are left alone."""
    first: Any = first_env_of_vector(env)
    if env_args:
        raise InputError(f"{next(iter(env_args))} given, but the environments are made already", "env_args")
    registry.check_env_arguments(env_args, start_seed, max_states)
    name = OBJECT_ENV_PREFIX + (first.spec.id if first.spec is not None else type(first.unwrapped).__name__)
    made = [CloudpickleWrapper(make) for make in env.env_fns]  # type: ignore[attr-defined]
    return (
        [functools.partial(_make_worker_by_function, make, name, start_seed, max_states) for make in made],
        name,
        first,
    )


def _worker_makers_of_name(
    env: EnvLike, env_args: Mapping[str, Any], start_seed: StartSeed, max_states: int | None, workers: int
) -> tuple[list[Callable[[], EnvWorker]], str, registry.GymEnv]:
    """The same for an environment by its name."""
    if not isinstance(env, str):
        text = "an environment object cannot be sent to other processes; give its name, or a gymnasium.vector of it"
        raise InputError(text, "workers")
    registry.check_env_arguments(env_args, start_seed, max_states)
    if env in registry.MODEL_BUILDERS or matrices.model_from_argument(env, env_args) is not None:
        raise InputError(f"{env} is simulated from its model, faster than several processes would be", "workers")
    first = registry.make_gym_env(env, env_args)
    return [functools.partial(_make_worker_by_name, env, dict(env_args), start_seed, max_states)] * workers, env, first


def _make_worker_by_name(
    env: str, env_args: Mapping[str, Any], start_seed: StartSeed, max_states: int | None
) -> EnvWorker:
    return EnvWorker(InProcessEnv(registry.make_gym_env(env, env_args), env, max_states), env, start_seed, max_states)


def _make_worker_by_function(
    make: Callable[[], gymnasium.Env[Any, Any]], name: str, start_seed: StartSeed, max_states: int | None
) -> EnvWorker:
    return EnvWorker(InProcessEnv(make(), name, max_states), name, start_seed, max_states)
