"""DDPG with one ensemble of critics: the actor follows its mean, and distance D and error E are read from it.

J critics Q_j with normalised hidden layers learn from the same batches, each with its own target network:

    y_j = r + gamma Q_j'(s', pi'(s', g), g)     as :mod:`adagoal.deep.networks` says,

and the actor minimises -mean_j Q_j(s, pi(s, g), g) + c mean pi^2 on a share of the batch, by default half. REDQ (Chen
et al. 2021) has such an actor, too. The critics differ by their initial weights and by what follows from them. The
paper samples a batch for each Q-function, as :mod:`adagoal.deep.ddpg` does; here independent batches were not better
(docs/results-deep.md). Layer normalisation keeps critics from overestimating actions that were never tried (RLPD, Ball
et al. 2023); plain critics do that when they are updated often.

An update costs 1 + J + 3J + (3 + 2J)/2 forward passes of one network over one batch: 17.5 for J = 3, 7000 per 800
steps. DDPG costs 10 an update and its ensemble 5J an update: 6400 per 800 steps.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adagoal.deep import networks
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.networks import CriticBatch, LayerWeights, NetworkState, TransitionBatch, policy_actions
from adagoal.deep.replay_buffer import Experience
from adagoal.deep.value_formulas import layer_norm_relu

critic_activation = functools.partial(layer_norm_relu, xp=jnp)  # of the hidden layers


class EnsembleNetworks(NamedTuple):
    """The networks of one run."""

    actor: NetworkState
    critics: NetworkState  # stacked along a leading axis J


def init_networks(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> EnsembleNetworks:
    """Initial networks."""
    widths, critic_widths = networks.layer_widths(config, sizes)
    actor = networks.init_network(config, rng, widths)
    return EnsembleNetworks(actor, networks.init_network(config, rng, critic_widths, (config.members,)))


def learn(
    config: Config, nets: EnsembleNetworks, experience: Experience, keys: Array, needs_values: bool
) -> tuple[EnsembleNetworks, dict[str, Array]]:
    """Update actor and critics; they need all updates, whether or not a goal rule looks at D and E."""

    def batches(nets: EnsembleNetworks, indices: Array) -> CriticBatch:
        batch = experience.sample_batches(keys[0], indices, config.batch, experience.hyperparameters["relabel"])
        return CriticBatch(batch.obs_goal, batch.action, critic_targets(config, nets, batch))

    update = functools.partial(update_agent, config, experience.hyperparameters)
    return networks.run_updates(config, batches, update, nets, config.updates)


def critic_targets(config: Config, nets: EnsembleNetworks, batch: TransitionBatch) -> Array:
    """The targets y_j ``[..., J, B]``."""
    # No minimum over critics as in TD3: each follows its own target, so their disagreement stays a measure of error.
    action = policy_actions(nets.actor.target, batch.next_obs_goal)

    def member_targets(critic: LayerWeights) -> Array:
        values = networks.q_values(critic, batch.next_obs_goal, action, critic_activation)
        return networks.bellman_targets(config, batch, values)

    return jax.vmap(member_targets, out_axes=-2)(nets.critics.target)


def update_agent(
    config: Config, hyperparameters: dict[str, Array], nets: EnsembleNetworks, batch: CriticBatch
) -> tuple[EnsembleNetworks, dict[str, Array]]:
    """One step of the actor and one of every critic, all from the networks before the step."""

    def fit(critic: NetworkState, y: Array) -> tuple[NetworkState, Array]:
        return networks.fit_critic(config, critic, batch._replace(y=y), critic_activation)

    critics, critic_loss = jax.vmap(fit)(nets.critics, batch.y)
    # a part, because the actor's step costs 3 + 2J passes over it: a quarter of an update even for half of the batch
    obs_goal = batch.obs_goal[: max(int(config.actor_share * config.batch), 1)]

    def actor_loss(layers: LayerWeights) -> Array:
        action = policy_actions(layers, obs_goal)
        # nets.critics, not critics: the reference HER, too, takes both gradients before both steps
        q = jax.vmap(lambda critic: networks.q_values(critic, obs_goal, action, critic_activation))
        values = q(nets.critics.online)
        return -jnp.mean(values) + hyperparameters["action_l2"] * jnp.mean(action**2)

    actor, actor_value = networks.gradient_step(config, nets.actor, actor_loss)
    return EnsembleNetworks(actor, critics), {"actor_loss": actor_value, "critic_loss": critic_loss.mean()}


def distance_and_error(config: Config, nets: EnsembleNetworks, obs_goal: Array) -> tuple[Array, Array]:
    """D and sigma of the critics."""
    action = policy_actions(nets.actor.online, obs_goal)
    return networks.ensemble_distance_and_error(config, nets.critics.online, critic_activation, obs_goal, action)


def actor_layers(nets: EnsembleNetworks) -> LayerWeights:
    """Layers of the online actor."""
    return nets.actor.online


def critic_layers(nets: EnsembleNetworks, needs_values: bool) -> tuple[LayerWeights, bool] | None:
    """Layers of the online critics, which are normalised."""
    return nets.critics.online, True
