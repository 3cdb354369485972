"""DDPG (Lillicrap et al. 2016): a deterministic actor that climbs its critic.

The critic is fitted as :mod:`adagoal.deep.networks` says, with a' = pi'(s', g) of the actor's target network. The
actor minimises -mean Q(s, pi(s, g), g) + c mean pi^2, with c the setting ``action_l2``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adagoal.deep import networks, numpy_networks
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.networks import CriticBatch, LayerWeights, NetworkState, TransitionBatch


class DDPGNetworks(NamedTuple):
    """What DDPG learns."""

    actor: NetworkState
    critic: NetworkState


def init_networks(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> DDPGNetworks:
    """Fresh networks."""
    actor_widths, critic_widths = networks.layer_widths(config, sizes)
    return DDPGNetworks(
        networks.init_network(config, rng, actor_widths), networks.init_network(config, rng, critic_widths)
    )


def critic_targets(config: Config, nets: DDPGNetworks, batch: TransitionBatch) -> Array:
    """The targets y, ``[..., B]``."""
    ahead = policy_actions(nets.actor.target, batch.next_obs_goal)
    return networks.bellman_targets(config, batch, networks.q_values(nets.critic.target, batch.next_obs_goal, ahead))


def update_networks(
    config: Config, knobs: dict[str, Array], nets: DDPGNetworks, batch: CriticBatch, key: Array
) -> tuple[DDPGNetworks, dict[str, Array]]:
    """One step of the actor and one of the critic, both from the networks as they were."""

    def actor_loss(layers: LayerWeights) -> Array:
        action = policy_actions(layers, batch.obs_goal)
        return -jnp.mean(networks.q_values(nets.critic.online, batch.obs_goal, action)) + knobs["action_l2"] * jnp.mean(
            action**2
        )

    improved, value = networks.gradient_step(config, nets.actor, actor_loss)
    fitted, error = networks.fit_critic(config, nets.critic, batch)
    return DDPGNetworks(improved, fitted), {"actor_loss": value, "critic_loss": error}


def select_actions(nets: Any, og: Array) -> Array:
    """The online actor's actions; ``nets`` are any with an ``actor``."""
    return policy_actions(nets.actor.online, og)


def actor_layers(nets: Any) -> LayerWeights:
    """The online actor's layers, likewise."""
    layers: LayerWeights = nets.actor.online
    return layers


def ensemble_layers(nets: DDPGNetworks) -> None:
    """One critic cannot disagree: D and E come from the ensemble beside it."""


def policy_actions(layers: LayerWeights, og: Array) -> Array:
    """Actions ``[..., A]`` in [-1, 1] for normalised (observation, goal) ``[..., O + G]``."""
    return numpy_networks.forward_actor(layers, og, jax.nn.relu, jnp.tanh)
