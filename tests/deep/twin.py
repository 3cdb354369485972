"""A second algorithm, as a newcomer would write it: DDPG with two critics, of which the smaller counts (TD3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adagoal.deep import networks, numpy_networks
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.networks import CriticBatch, LayerWeights, NetworkState, TransitionBatch


class Nets(NamedTuple):
    actor: NetworkState
    critics: tuple[NetworkState, NetworkState]


def init_networks(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> Nets:
    og = sizes.observation + sizes.goal
    first, second = (networks.init_network(config, rng, (og + sizes.action, *config.hidden, 1)) for _ in range(2))
    return Nets(networks.init_network(config, rng, (og, *config.hidden, sizes.action)), (first, second))


def critic_targets(config: Config, nets: Nets, batch: TransitionBatch) -> Array:
    ahead = policy_actions(nets.actor.target, batch.next_obs_goal)
    least = jnp.minimum(*(networks.q_values(critic.target, batch.next_obs_goal, ahead) for critic in nets.critics))
    return networks.bellman_targets(config, batch, least)


def update_networks(
    config: Config, knobs: dict[str, Array], nets: Nets, batch: CriticBatch, key: Array
) -> tuple[Nets, dict[str, Array]]:
    def cost(layers: LayerWeights) -> Array:
        return -jnp.mean(
            networks.q_values(nets.critics[0].online, batch.obs_goal, policy_actions(layers, batch.obs_goal))
        )

    (first, error), (second, _) = (networks.fit_critic(config, critic, batch) for critic in nets.critics)
    improved, value = networks.gradient_step(config, nets.actor, cost)
    return Nets(improved, (first, second)), {"policy_loss": value, "twin_loss": error}


def select_actions(nets: Nets, og: Array) -> Array:
    return policy_actions(nets.actor.online, og)


def actor_layers(nets: Nets) -> LayerWeights:
    return nets.actor.online


def ensemble_layers(nets: Nets) -> None:
    """Two critics are no ensemble."""


def policy_actions(layers: LayerWeights, og: Array) -> Array:
    return numpy_networks.forward_actor(layers, og, jax.nn.relu, jnp.tanh)
