"""DDPG (Lillicrap et al. 2016) and a separate critic ensemble for distance D and error E, as in the paper.

**DDPG.** The critic is fitted as :mod:`adagoal.deep.networks` says, with a' = pi'(s', g) of the actor's target network.
The actor minimises -mean Q(s, pi(s, g), g) + c mean pi^2, where c is the setting ``action_l2``.

**Ensemble** (Zhang et al. 2020). Each of J critics learns from its own batches, with its own target network and with
the current noise-free action as a'. Their disagreement is E. One critic cannot disagree, so DDPG's own is not used.
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


class DDPGNetworks(NamedTuple):
    """The networks of one run."""

    actor: NetworkState
    critic: NetworkState
    ensemble: NetworkState | None  # stacked along a leading axis J; None while actor and critic are updated


def init_networks(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> DDPGNetworks:
    """Initial networks."""
    actor_widths, critic_widths = networks.layer_widths(config, sizes)
    return DDPGNetworks(
        networks.init_network(config, rng, actor_widths),
        networks.init_network(config, rng, critic_widths),
        networks.init_network(config, rng, critic_widths, (config.members,)),
    )


def learn(
    config: Config, nets: DDPGNetworks, experience: Experience, keys: Array, needs_values: bool
) -> tuple[DDPGNetworks, dict[str, Array]]:
    """Update actor and critic, then the ensemble if a goal rule looks at it."""
    batch_key, _, ensemble_key = keys
    hyperparameters = experience.hyperparameters

    def batches(agent: DDPGNetworks, indices: Array) -> CriticBatch:
        batch = experience.sample_batches(batch_key, indices, config.batch, hyperparameters["relabel"])
        return CriticBatch(batch.obs_goal, batch.action, critic_targets(config, agent, batch))

    update = functools.partial(update_agent, config, hyperparameters)
    # Without the ensemble, whose targets would move with those of the agent. Its updates come afterwards, with the
    # actor that the next episodes use.
    agent, losses = networks.run_updates(config, batches, update, nets._replace(ensemble=None), config.updates)
    if not needs_values or nets.ensemble is None:
        return agent._replace(ensemble=nets.ensemble), losses

    def ensemble_batches(ensemble: NetworkState, indices: Array) -> CriticBatch:
        count, relabel = config.members * config.ensemble_batch, hyperparameters["ensemble_relabel"]
        batch = experience.sample_batches(ensemble_key, indices, count, relabel)
        return divide_among_members(config, ensemble, agent.actor.online, batch)

    ensemble_update = functools.partial(update_ensemble, config)
    ensemble, ensemble_losses = networks.run_updates(
        config, ensemble_batches, ensemble_update, nets.ensemble, config.ensemble_updates
    )
    return agent._replace(ensemble=ensemble), losses | ensemble_losses


def critic_targets(config: Config, nets: DDPGNetworks, batch: TransitionBatch) -> Array:
    """The targets y ``[..., B]`` of DDPG's critic."""
    action = policy_actions(nets.actor.target, batch.next_obs_goal)
    return networks.bellman_targets(config, batch, networks.q_values(nets.critic.target, batch.next_obs_goal, action))


def update_agent(
    config: Config, hyperparameters: dict[str, Array], nets: DDPGNetworks, batch: CriticBatch
) -> tuple[DDPGNetworks, dict[str, Array]]:
    """One step of the actor and one of the critic, both from the networks before the step."""

    def actor_loss(layers: LayerWeights) -> Array:
        action = policy_actions(layers, batch.obs_goal)
        values = networks.q_values(nets.critic.online, batch.obs_goal, action)
        return -jnp.mean(values) + hyperparameters["action_l2"] * jnp.mean(action**2)

    actor, actor_value = networks.gradient_step(config, nets.actor, actor_loss)
    critic, critic_value = networks.fit_critic(config, nets.critic, batch)
    return nets._replace(actor=actor, critic=critic), {"actor_loss": actor_value, "critic_loss": critic_value}


def divide_among_members(
    config: Config, ensemble: NetworkState, actor: LayerWeights, batch: TransitionBatch
) -> CriticBatch:
    """Batches ``[n, J * ensemble_batch, ...]`` as ``[n, J, ensemble_batch, ...]``, with the targets of each member."""
    shape = config.members, config.ensemble_batch
    shares = jax.tree.map(lambda x: x.reshape(len(x), *shape, *x.shape[2:]), batch)

    # the online actor: it stands still while the ensemble learns, so it needs no target network
    def member_targets(target: LayerWeights, share: TransitionBatch) -> Array:
        values = networks.q_values(target, share.next_obs_goal, policy_actions(actor, share.next_obs_goal))
        return networks.bellman_targets(config, share, values)

    return CriticBatch(shares.obs_goal, shares.action, jax.vmap(member_targets, (0, 1), 1)(ensemble.target, shares))


def update_ensemble(
    config: Config, ensemble: NetworkState, batch: CriticBatch
) -> tuple[NetworkState, dict[str, Array]]:
    """One step of every member, each from its share of the batch ``[J, ensemble_batch, ...]``."""
    fitted, loss = jax.vmap(lambda member, share: networks.fit_critic(config, member, share))(ensemble, batch)
    return fitted, {"ensemble_loss": loss.mean()}


def distance_and_error(config: Config, nets: DDPGNetworks, obs_goal: Array) -> tuple[Array, Array]:
    """D and sigma of the ensemble."""
    assert nets.ensemble is not None
    # plain ReLU: the critics of the reference HER have no layer normalisation
    action = policy_actions(nets.actor.online, obs_goal)
    return networks.ensemble_distance_and_error(config, nets.ensemble.online, jax.nn.relu, obs_goal, action)


def actor_layers(nets: DDPGNetworks) -> LayerWeights:
    """Layers of the online actor."""
    return nets.actor.online


def critic_layers(nets: DDPGNetworks, needs_values: bool) -> tuple[LayerWeights, bool] | None:
    """Layers of the ensemble; None if no goal rule had it trained."""
    assert nets.ensemble is not None
    return (nets.ensemble.online, False) if needs_values else None
