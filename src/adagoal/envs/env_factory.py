"""Worlds of several copies: an environment by its name in so many processes, or one of Gymnasium's vectors of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper
from numpy.typing import ArrayLike

from adagoal.core.environment import TabularEnv
from adagoal.core.errors import OBJECT_ENV_PREFIX, InputError
from adagoal.envs import model_sources, registry
from adagoal.envs.env_backends import InProcessEnv, WorkerProcess
from adagoal.envs.env_workers import EnvWorker, WorkerFactory
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.indexed_env import StartSeed
from adagoal.envs.model import TabularMDP
from adagoal.envs.model_families import mixture_from_models, model_from_mixture
from adagoal.envs.model_sources import toy_text_model
from adagoal.envs.parallel_env import ParallelEnv
from adagoal.envs.simulator import ModelSimulator

GymVectorEnv = VectorEnv[Any, Any, Any]
EnvLike = str | registry.GymEnv | TabularEnv | TabularMDP


def make_env(
    env: EnvLike | GymVectorEnv,
    env_args: Mapping[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None = None,
    workers: int = 1,
    hire: WorkerFactory = WorkerProcess,
) -> tuple[TabularEnv, str]:
    """The world to explore, and its name in results: that of :func:`registry.make_single_env` for a single worker.

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
    if env in registry.MODEL_BUILDERS or model_sources.model_from_argument(env, env_args) is not None:
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


# A world from d candidate simulators: the real one is a mixture of them.


MixtureCandidate = str | TabularMDP | ModelSimulator | gymnasium.Env[Any, Any]


def mixture(
    envs: Sequence[MixtureCandidate],
    theta: ArrayLike | None = None,
    *,
    world: MixtureCandidate | None = None,
    B: float | None = None,
) -> ModelSimulator | GymAdapter:
    """A world whose kernel is sum_i theta_i p_i, p_i being the kernels of ``envs``; the learner knows them, not theta.

    Parameters
    ----------
    envs: names, models, or environments whose model is known (built-in and toy-text ones), all over the same states.
    theta: the true weights, hidden in the simulator.
    world: the real world, instead of theta. An environment object is stepped as it is, and its model need not be known;
        where it is no mixture of ``envs``, the run will notice and say so.
    B: a bound on the norm of theta; 1 by default, as for weights that are probabilities.
    """
    if isinstance(envs, str) or not isinstance(envs, Sequence):
        raise InputError(f"mixture: envs must be a list of environments, got {envs!r}")
    if (theta is None) == (world is None):
        raise InputError("mixture: give either theta, or the world that is a mixture of the environments")
    models = [_require_exact_model(env, f"number {i}") for i, env in enumerate(envs)]
    features = mixture_from_models(models, B)
    if theta is not None:
        return ModelSimulator(model_from_mixture(features, theta, "mixture", models[0].labels, models[0].layout))
    _ = features.theta_parametrisation  # is B large enough?
    if isinstance(world, gymnasium.Env):
        stepped = registry.make_single_env(world, {}, None, None)[0]
        assert isinstance(stepped, GymAdapter)
        shape = stepped.state_bound, stepped.n_actions, stepped.start
        if shape != (features.n_states, features.n_actions, features.start):
            raise InputError(
                f"mixture: the world has {shape[0]} states, {shape[1]} actions and the start {shape[2]}, "
                f"the environments have {features.n_states}, {features.n_actions} and {features.start}"
            )
        stepped.mixture = features
        return stepped
    assert world is not None
    truth = _require_exact_model(world, "the world")
    mixture_from_models([truth, models[0]])  # the same states, actions, start and ends
    return ModelSimulator(replace(truth, mixture=features))


def _require_exact_model(env: MixtureCandidate, which: str) -> TabularMDP:
    model = env if isinstance(env, TabularMDP) else registry.make_exact_model(env, {}, None)
    if model is None:
        raise InputError(
            f"mixture: no exact model is known of {which}, {env}; it takes built-in or toy-text environments"
        )
    return model
