"""A world from d candidate simulators: the real one is a mixture of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
from numpy.typing import ArrayLike

from adagoal.core.errors import InputError
from adagoal.worlds import registry
from adagoal.worlds.combine import combine, from_models
from adagoal.worlds.gym import GymWorld
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelWorld

Candidate = str | TabularMDP | ModelWorld | gymnasium.Env[Any, Any]


def mixture(
    envs: Sequence[Candidate], theta: ArrayLike | None = None, *, world: Candidate | None = None, B: float | None = None
) -> ModelWorld | GymWorld:
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
    models = [_model(env, f"number {i}") for i, env in enumerate(envs)]
    features = from_models(models, B)
    if theta is not None:
        return ModelWorld(combine(features, theta, "mixture", models[0].labels, models[0].layout))
    _ = features.known_part  # is B large enough?
    if isinstance(world, gymnasium.Env):
        stepped = registry.make_world(world, {}, None, None)[0]
        assert isinstance(stepped, GymWorld)
        shape = stepped.state_bound, stepped.n_actions, stepped.start
        if shape != (features.n_states, features.n_actions, features.start):
            raise InputError(
                f"mixture: the world has {shape[0]} states, {shape[1]} actions and the start {shape[2]}, "
                f"the environments have {features.n_states}, {features.n_actions} and {features.start}"
            )
        stepped.mixture = features
        return stepped
    assert world is not None
    truth = _model(world, "the world")
    from_models([truth, models[0]])  # the same states, actions, start and ends
    return ModelWorld(replace(truth, mixture=features))


def _model(env: Candidate, which: str) -> TabularMDP:
    model = env if isinstance(env, TabularMDP) else registry.make_model(env, {}, None)
    if model is None:
        raise InputError(
            f"mixture: no exact model is known of {which}, {env}; it takes built-in or toy-text environments"
        )
    return model
