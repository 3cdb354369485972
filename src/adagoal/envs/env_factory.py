"""Make the environment to explore: alone, as several copies in workers, or as a mixture of candidate simulators."""

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
from adagoal.envs.env_backends import InProcessEnv
from adagoal.envs.env_workers import EnvWorker
from adagoal.envs.gym_adapter import GymAdapter, StartSeed
from adagoal.envs.mixture_models import mixture_from_models, model_from_mixture
from adagoal.envs.model import TabularMDP
from adagoal.envs.parallel_env import ParallelEnv
from adagoal.envs.simulator import ModelSimulator
from adagoal.parallel.worker_process import WorkerFactory, WorkerProcess

GymVectorEnv = VectorEnv[Any, Any, Any]
EnvLike = str | registry.GymEnv | TabularEnv | TabularMDP


def make_env(
    env: EnvLike | GymVectorEnv,
    env_args: Mapping[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None = None,
    workers: int = 1,
    make_worker: WorkerFactory = WorkerProcess,
) -> tuple[TabularEnv, str]:
    """Return the environment to explore and its name in results.

    With several workers, ``make_worker`` decides where they are. They step their copies even if a model is known.
    """
    if not isinstance(env, VectorEnv) and workers == 1:
        return registry.make_single_env(env, env_args, start_seed, max_states, step_timeout)
    registry.check_env_arguments(env_args, start_seed, max_states)
    first: Any
    makers: list[Callable[[], registry.GymEnv]]
    if isinstance(env, VectorEnv):
        # Workers make environments of their own with the functions of the vector; those of the vector are not stepped.
        first = first_env_of_vector(env)
        if env_args:
            raise InputError("cannot be combined with environment objects; pass them when you create these", "env_args")
        if workers not in (1, env.num_envs):
            raise InputError(f"the vector has {env.num_envs} environments, got {workers}", "workers")
        name = OBJECT_ENV_PREFIX + (first.spec.id if first.spec is not None else type(first.unwrapped).__name__)
        makers = [CloudpickleWrapper(make) for make in env.env_fns]  # type: ignore[attr-defined]
    elif not isinstance(env, str):
        text = "an environment object cannot be sent to other processes; give its name, or a gymnasium.vector of it"
        raise InputError(text, "workers")
    elif env in registry.MODEL_BUILDERS or model_sources.model_from_argument(env, env_args) is not None:
        raise InputError(f"{env} is simulated from its model and needs no workers; leave workers out", "workers")
    else:
        name, first = env, registry.make_gym_env(env, env_args)
        makers = [functools.partial(registry.make_gym_env, env, dict(env_args))] * workers
    if step_timeout is not None:
        raise InputError("works with one worker only; leave one of the two out", "step_timeout")
    worker_makers = [functools.partial(_make_env_worker, make, name, start_seed, max_states) for make in makers]
    parallel_env = ParallelEnv(worker_makers, name, make_worker)
    model = model_sources.toy_text_model(first, name, start_seed)
    if model is not None:
        parallel_env.labels, parallel_env.layout = model.labels, model.layout
    for line in registry.find_gym_spec(name)[1] if isinstance(env, str) else []:
        parallel_env.add_warning(line)
    return parallel_env, name


def _make_env_worker(
    make: Callable[[], registry.GymEnv], name: str, start_seed: StartSeed, max_states: int | None
) -> EnvWorker:
    return EnvWorker(InProcessEnv(make(), name, max_states), name, start_seed, max_states)


def first_env_of_vector(env: EnvLike | GymVectorEnv) -> EnvLike:
    """Make one environment of a vector; return anything else unchanged."""
    if not isinstance(env, VectorEnv):
        return env
    if not isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        text = f"a {type(env).__name__} cannot be split into environments; use a SyncVectorEnv or an AsyncVectorEnv"
        raise InputError(text, "env")
    first: registry.GymEnv = env.env_fns[0]()
    return first


MixtureCandidate = str | TabularMDP | ModelSimulator | gymnasium.Env[Any, Any]


def mixture(
    envs: Sequence[MixtureCandidate],
    theta: ArrayLike | None = None,
    *,
    world: MixtureCandidate | None = None,
    B: float | None = None,
) -> ModelSimulator | GymAdapter:
    """Return an environment with the kernel sum_i theta_i p_i; the learner knows the p_i, those of ``envs``, not theta.

    Parameters
    ----------
    envs: names, models, or environments whose model is known (built-in and toy-text ones), all over the same states.
    theta: the true weights, hidden in the simulator.
    world: the real environment, instead of theta. An environment object is stepped, and its model need not be known; if
        it is not a mixture of ``envs``, the run detects it.
    B: a bound on the norm of theta; by default 1, which holds for weights that are probabilities.

    Examples
    --------
    >>> env = adagoal.mixture(["chain", "chain"], [0.3, 0.7])
    >>> adagoal.explore(env, radius=2).goals
    [0, 1, 2]
    """
    if isinstance(envs, str) or not isinstance(envs, Sequence):
        raise InputError(f"mixture: envs must be a list of environments, got {envs!r}")
    if (theta is None) == (world is None):
        raise InputError("mixture: give either theta, or the world that is a mixture of the environments, not both")
    models = [_require_exact_model(env, f"number {i}") for i, env in enumerate(envs)]
    features = mixture_from_models(models, B)
    if theta is not None:
        return ModelSimulator(model_from_mixture(features, theta, "mixture", models[0].labels, models[0].layout))
    # Raises here, before the first step of the run, if B is too small.
    _ = features.theta_parametrisation
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
    true_model = _require_exact_model(world, "the world")
    # Raises unless states, actions, start and terminal states agree. Whether the world is a mixture is for the run to
    # find out.
    mixture_from_models([true_model, models[0]])
    return ModelSimulator(replace(true_model, mixture=features))


def _require_exact_model(env: MixtureCandidate, which: str) -> TabularMDP:
    model = env if isinstance(env, TabularMDP) else registry.make_exact_model(env, {}, None)
    if model is None:
        text = f"mixture: the exact model of {which}, {env}, is not known; use built-in or toy-text environments"
        raise InputError(text)
    return model
