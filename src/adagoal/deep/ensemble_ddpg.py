"""One ensemble of critics for everything: the policy climbs it, and D and E are read from it.

J critics Q_j with normalised hidden layers learn from the same batches, each with its own target network:

    y_j = r + gamma Q_j'(s', pi'(s', g), g)     as :mod:`adagoal.deep.networks` says,

and the actor minimises -mean_j Q_j(s, pi(s, g), g) + c mean pi^2 on a share of the batch, by default half. This is DDPG
with an ensemble of critics whose mean the actor follows, as in REDQ (Chen et al. 2021). The critics differ by their
initial weights and by what follows from them. The paper samples a batch for each Q-function, as the ensemble beside
``ddpg`` does (:mod:`adagoal.deep.networks`); here independent batches were tried and were not better (docs/deep.md).
Layer normalisation keeps critics from overestimating actions that were never tried (RLPD, Ball et al. 2023), as plain
ones do when they are updated often.

In forward passes of one network over one batch an update costs 1 + J + 3J + (3 + 2J)/2: 17.5 for J = 3, 7000 per 800
steps. DDPG beside an ensemble of its own costs 10 an update and 5J an update of the ensemble: 6400 per 800 steps.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adagoal.deep import networks
from adagoal.deep.config import Config
from adagoal.deep.ddpg import actor_layers, policy_actions, select_actions
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.networks import CriticBatch, LayerWeights, NetworkState, TransitionBatch
from adagoal.deep.numpy_networks import layer_norm_relu

__all__ = [
    "actor_layers",
    "critic_targets",
    "ensemble_layers",
    "init_networks",
    "select_actions",
    "update_networks",
]  # an algorithm; it acts as DDPG does


class EnsembleNetworks(NamedTuple):
    """What is learnt."""

    actor: NetworkState
    critics: NetworkState
    """Stacked along a leading axis J."""


def init_networks(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> EnsembleNetworks:
    """Fresh networks."""
    actor, critic = networks.layer_widths(config, sizes)
    return EnsembleNetworks(
        networks.init_network(config, rng, actor), networks.init_network_ensemble(config, rng, critic)
    )


def critic_targets(config: Config, nets: EnsembleNetworks, batch: TransitionBatch) -> Array:
    """The targets y_j, ``[..., J, B]``."""
    ahead = policy_actions(nets.actor.target, batch.next_obs_goal)

    def of(critic: LayerWeights) -> Array:
        return networks.bellman_targets(
            config, batch, networks.q_values(critic, batch.next_obs_goal, ahead, critic_activation)
        )

    return jax.vmap(of, out_axes=-2)(nets.critics.target)


def update_networks(
    config: Config, knobs: dict[str, Array], nets: EnsembleNetworks, batch: CriticBatch, key: Array
) -> tuple[EnsembleNetworks, dict[str, Array]]:
    """One step of the actor and one of every critic, all from the networks as they were."""
    fitted, error = jax.vmap(
        lambda critic, y: networks.fit_critic(config, critic, batch._replace(y=y), critic_activation)
    )(nets.critics, batch.y)
    some = batch.obs_goal[: max(int(config.actor_share * config.batch), 1)]

    def actor_loss(layers: LayerWeights) -> Array:
        action = policy_actions(layers, some)
        values = jax.vmap(lambda critic: networks.q_values(critic, some, action, critic_activation))(
            nets.critics.online
        )
        return -jnp.mean(values) + knobs["action_l2"] * jnp.mean(action**2)

    improved, value = networks.gradient_step(config, nets.actor, actor_loss)
    return EnsembleNetworks(improved, fitted), {"actor_loss": value, "critic_loss": error.mean()}


def ensemble_layers(nets: EnsembleNetworks) -> LayerWeights | None:
    """The online critics, stacked."""
    return nets.critics.online


def critic_activation(x: Array) -> Array:
    """Between the layers of a critic."""
    return layer_norm_relu(x, jnp)
