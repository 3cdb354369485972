"""A world from d candidate simulators: the real one is a mixture of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
from numpy.typing import ArrayLike

from adagoal.core.errors import InputError
from adagoal.worlds import registry
from adagoal.worlds.combine import mixture_from_models, model_from_mixture
from adagoal.worlds.gym import GymAdapter
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelSimulator

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
