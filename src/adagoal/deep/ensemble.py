"""The value ensemble: J critics of the algorithm's policy, whose disagreement is what is not known yet.

Each member j learns from its own batches with its own target network (:func:`adagoal.deep.networks.fit_critic`), a' being the
current noise-free action (Zhang et al. 2020).

At a reset observation s0 an ensemble, this one or the algorithm's own (:mod:`adagoal.deep.critics`), gives D of every
candidate goal in steps, and sigma, its E in discounted steps (:mod:`adagoal.deep.values`). With ``value_action="min"``
the action is the cheapest of the policy's and random ones, the paper's min_a.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adagoal.deep import networks
from adagoal.deep.config import Config
from adagoal.deep.envs import EnvDimensions
from adagoal.deep.networks import CriticBatch, LayerWeights, NetworkState, TransitionBatch
from adagoal.deep.values import cost_to_steps

N_RANDOM_ACTIONS = 16
"""Actions tried beside the policy's where ``value_action="min"``."""


def init_value_ensemble(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> NetworkState:
    """Fresh members, stacked along a leading axis J."""
    return networks.init_network_ensemble(config, rng, networks.layer_widths(config, sizes)[1])


def value_ensemble_batches(
    config: Config, members: NetworkState, act: Callable[[Array], Array], batch: TransitionBatch
) -> CriticBatch:
    """Batches ``[n, J * ensemble_batch, ...]`` dealt out to the members, ``[n, J, ensemble_batch, ...]``."""
    shape = config.members, config.ensemble_batch
    shares = jax.tree.map(lambda x: x.reshape(len(x), *shape, *x.shape[2:]), batch)

    def of(target: LayerWeights, own: TransitionBatch) -> Array:
        return networks.bellman_targets(
            config, own, networks.q_values(target, own.next_obs_goal, act(own.next_obs_goal))
        )

    return CriticBatch(shares.obs_goal, shares.action, jax.vmap(of, (0, 1), 1)(members.target, shares))


def update_value_ensemble(
    config: Config, members: NetworkState, shares: CriticBatch
) -> tuple[NetworkState, dict[str, Array]]:
    """One step of every member, each from its share ``[J, ensemble_batch, ...]``."""
    fitted, error = jax.vmap(lambda member, own: networks.fit_critic(config, member, own))(members, shares)
    return fitted, {"ensemble_loss": error.mean()}


def value_ensemble_estimates(
    config: Config, layers: LayerWeights, relu: Callable[[Array], Array], og: Array, action: Array, key: Array
) -> tuple[Array, Array]:
    """D in steps and sigma, each ``[...]``, for normalised (start, goal) ``[..., O + G]`` and the policy's actions."""

    def of_members(action: Array) -> Array:
        return jax.vmap(lambda member: networks.q_values(member, og, action, relu))(layers)

    best = of_members(action)
    if config.value_action == "min":
        for k in jax.random.split(key, N_RANDOM_ACTIONS):
            other = jax.random.uniform(k, action.shape, minval=-1.0, maxval=1.0)
            best = jnp.maximum(best, of_members(other))
    return cost_to_steps(-best.mean(0), config.gamma, jnp), best.std(0)
