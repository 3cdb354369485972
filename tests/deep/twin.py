"""A second algorithm, as a newcomer would write it: DDPG with two critics, of which the smaller counts (TD3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adagoal.deep import actor, networks
from adagoal.deep.config import Config
from adagoal.deep.envs import Dimensions
from adagoal.deep.networks import Layers, Learnt, Lessons, Transitions


class Nets(NamedTuple):
    actor: Learnt
    critics: tuple[Learnt, Learnt]


def init(config: Config, sizes: Dimensions, rng: np.random.Generator) -> Nets:
    og = sizes.observation + sizes.goal
    first, second = (networks.fresh(config, rng, (og + sizes.action, *config.hidden, 1)) for _ in range(2))
    return Nets(networks.fresh(config, rng, (og, *config.hidden, sizes.action)), (first, second))


def targets(config: Config, nets: Nets, batch: Transitions) -> Array:
    ahead = pi(nets.actor.target, batch.following)
    least = jnp.minimum(*(networks.q(critic.target, batch.following, ahead) for critic in nets.critics))
    return networks.targets(config, batch, least)


def update(
    config: Config, knobs: dict[str, Array], nets: Nets, batch: Lessons, key: Array
) -> tuple[Nets, dict[str, Array]]:
    def cost(layers: Layers) -> Array:
        return -jnp.mean(networks.q(nets.critics[0].online, batch.og, pi(layers, batch.og)))

    (first, error), (second, _) = (networks.fit(config, critic, batch) for critic in nets.critics)
    improved, value = networks.descend(config, nets.actor, cost)
    return Nets(improved, (first, second)), {"policy_loss": value, "twin_loss": error}


def act(nets: Nets, og: Array) -> Array:
    return pi(nets.actor.online, og)


def actor_layers(nets: Nets) -> Layers:
    return nets.actor.online


def critics(nets: Nets) -> None:
    """Two critics are no ensemble."""


def pi(layers: Layers, og: Array) -> Array:
    return actor.act(layers, og, jax.nn.relu, jnp.tanh)
