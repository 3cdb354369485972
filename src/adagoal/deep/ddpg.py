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

from adagoal.deep import actor, networks
from adagoal.deep.config import Config
from adagoal.deep.envs import Dimensions
from adagoal.deep.networks import Layers, Learnt, Lessons, Transitions


class Nets(NamedTuple):
    """What DDPG learns."""

    actor: Learnt
    critic: Learnt


def init(config: Config, sizes: Dimensions, rng: np.random.Generator) -> Nets:
    """Fresh networks."""
    actor_widths, critic_widths = networks.widths(config, sizes)
    return Nets(networks.fresh(config, rng, actor_widths), networks.fresh(config, rng, critic_widths))


def targets(config: Config, nets: Nets, batch: Transitions) -> Array:
    """The targets y, ``[..., B]``."""
    ahead = pi(nets.actor.target, batch.following)
    return networks.targets(config, batch, networks.q(nets.critic.target, batch.following, ahead))


def update(
    config: Config, knobs: dict[str, Array], nets: Nets, batch: Lessons, key: Array
) -> tuple[Nets, dict[str, Array]]:
    """One step of the actor and one of the critic, both from the networks as they were."""

    def actor_loss(layers: Layers) -> Array:
        action = pi(layers, batch.og)
        return -jnp.mean(networks.q(nets.critic.online, batch.og, action)) + knobs["action_l2"] * jnp.mean(action**2)

    improved, value = networks.descend(config, nets.actor, actor_loss)
    fitted, error = networks.fit(config, nets.critic, batch)
    return Nets(improved, fitted), {"actor_loss": value, "critic_loss": error}


def act(nets: Any, og: Array) -> Array:
    """The online actor's actions; ``nets`` are any with an ``actor``."""
    return pi(nets.actor.online, og)


def actor_layers(nets: Any) -> Layers:
    """The online actor's layers, likewise."""
    layers: Layers = nets.actor.online
    return layers


def critics(nets: Nets) -> None:
    """One critic cannot disagree: D and E come from the ensemble beside it."""


def pi(layers: Layers, og: Array) -> Array:
    """Actions ``[..., A]`` in [-1, 1] for normalised (observation, goal) ``[..., O + G]``."""
    return actor.act(layers, og, jax.nn.relu, jnp.tanh)
