"""Networks that learn: multi-layer perceptrons with Adam and a slow copy, the target network.

Every critic (the algorithm's own, and each member of the ensemble) is fitted to

    y = clip( r + gamma Q'(s', a', g),  -1/(1 - gamma),  0 ),     loss = mean (Q(s, a, g) - y)^2

with Q' the target network and a' the action that a policy takes at s'. Where the episode terminated at s', nothing
follows: y = 0 if the goal is reached there, and y = -1/(1 - gamma), which is never, if it is not. An episode that was
cut off (``truncated``, or the horizon) is no end in this sense. All functions act on one run.

Target networks stand still for ``target_every`` updates, and so does what follows from them: batches are drawn and
their y computed for several updates at once (:func:`run_updates`), which a GPU does in little more than the time of
one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from adagoal.deep import numpy_networks
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.numpy_networks import cost_to_steps

LayerWeights = list[tuple[Any, Any]]
"""Weights and biases: of JAX, or of NumPy where they are fresh."""
ActivationFunction = Callable[[Array], Array]
MAX_BATCHES_AT_ONCE = 20
"""Batches that are drawn at once, at most."""


class NetworkState(NamedTuple):
    """A network with its target and the state of its optimiser."""

    online: Any
    target: Any
    adam: Any


class TransitionBatch(NamedTuple):
    """A batch as networks see it, ``[B, ...]``: goals relabelled, observations and goals normalised."""

    obs_goal: Array
    """(observation, goal) ``[B, O + G]``"""
    action: Array
    next_obs_goal: Array
    """(next observation, goal) ``[B, O + G]``"""
    reward: Array
    terminal: Array
    """Whether nothing follows ``[B]``."""


class CriticBatch(NamedTuple):
    """What networks learn from: a batch, and what critics are to say of it."""

    obs_goal: Array
    """(observation, goal) ``[B, O + G]``"""
    action: Array
    """``[B, A]``"""
    y: Array
    """``[B]``, or ``[J, B]`` where every critic has targets of its own."""


def init_layers(rng: np.random.Generator, sizes: Sequence[int], members: Sequence[int] = ()) -> LayerWeights:
    """Weights and biases uniform in +-1/sqrt(fan in), as in the reference HER; so many ``members``, stacked.

    NumPy draws them, so that nothing has to be compiled before a training starts.
    """
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        bound = fan_in**-0.5
        weight, bias = (rng.uniform(-bound, bound, (*members, *shape)) for shape in ((fan_in, fan_out), (fan_out,)))
        layers.append((weight.astype(np.float32), bias.astype(np.float32)))
    return layers


def layer_widths(config: Config, sizes: EnvDimensions) -> tuple[Sequence[int], Sequence[int]]:
    """Of the layers of an actor, which sees (observation, goal), and of a critic, which sees the action, too."""
    og = sizes.observation + sizes.goal
    return (og, *config.hidden, sizes.action), (og + sizes.action, *config.hidden, 1)


def init_network(config: Config, rng: np.random.Generator, sizes: Sequence[int]) -> NetworkState:
    """A network that has learnt nothing; its target is the same."""
    online = init_layers(rng, sizes)
    return NetworkState(online, online, _zero_adam_state(optax.adam(config.learning_rate).init, online))


def init_network_ensemble(config: Config, rng: np.random.Generator, sizes: Sequence[int]) -> NetworkState:
    """J fresh networks, stacked along a leading axis."""
    online = init_layers(rng, sizes, (config.members,))
    return NetworkState(online, online, _zero_adam_state(jax.vmap(optax.adam(config.learning_rate).init), online))


def _zero_adam_state(init: Callable[[Any], Any], online: LayerWeights) -> Any:
    """The state with which Adam begins: zeros, which nothing has to be compiled for."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(init, online))


def q_values(critic: LayerWeights, og: Array, action: Array, relu: ActivationFunction = jax.nn.relu) -> Array:
    """Values ``[...]``."""
    return numpy_networks.forward_mlp(critic, jnp.concatenate([og, action], -1), relu)[..., 0]


def gradient_step(config: Config, learnt: NetworkState, loss: Callable[[Any], Array]) -> tuple[NetworkState, Array]:
    """One step of Adam on the online network, and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(learnt.online)
    change, moments = optax.adam(config.learning_rate).update(gradient, learnt.adam)
    return learnt._replace(online=optax.apply_updates(learnt.online, change), adam=moments), value


def bellman_targets(config: Config, batch: TransitionBatch, following: Array) -> Array:
    """The targets y ``[..., B]``, from the values ``following [..., B]`` of what comes next."""
    floor = -1.0 / (1.0 - config.gamma)
    last = jnp.where(batch.reward < 0.0, floor, 0.0)
    return jnp.where(batch.terminal, last, jnp.clip(batch.reward + config.gamma * following, floor, 0.0))


def fit_critic(
    config: Config, critic: NetworkState, batch: CriticBatch, relu: ActivationFunction = jax.nn.relu
) -> tuple[NetworkState, Array]:
    """Fit a critic to its targets ``[B]``; returns its loss."""
    return gradient_step(
        config, critic, lambda p: jnp.mean((q_values(p, batch.obs_goal, batch.action, relu) - batch.y) ** 2)
    )


def polyak_update(learnt: NetworkState, step: float) -> NetworkState:
    """Move the target network by ``step`` towards the online one."""
    return learnt._replace(target=jax.tree.map(lambda t, p: t + step * (p - t), learnt.target, learnt.online))


def run_updates(
    config: Config,
    prepare: Callable[[Any, Array], Any],
    update: Callable[[Any, Any], tuple[Any, Any]],
    nets: Any,
    count: int,
) -> tuple[Any, Any]:
    """``count`` updates; targets move after every ``target_every``. Returns the nets and the mean losses.

    ``prepare(nets, numbers [n])`` makes what n updates need, stacked along a leading axis; it may look at nothing but
    what stands still between two moves. ``update(nets, its part)`` gives the nets and the losses.

    A loop of a single turn is none for XLA, which then copies all that ``prepare`` looks at: there are two turns.
    """

    def some(nets: Any, numbers: Array) -> tuple[Any, Any]:
        return jax.lax.scan(update, nets, prepare(nets, numbers))

    def in_turn(nets: Any, numbers: Array, turns: int) -> tuple[Any, Any]:
        most = max(min(MAX_BATCHES_AT_ONCE, len(numbers) // turns), 1)
        together = next(n for n in range(most, 0, -1) if len(numbers) % n == 0)
        nets, losses = jax.lax.scan(some, nets, numbers.reshape(-1, together))
        return nets, jax.tree.map(jnp.ravel, losses)

    def block(nets: Any, first: Array) -> tuple[Any, Any]:
        nets, losses = in_turn(nets, first + jnp.arange(config.target_every), 1 if whole > 1 else 2)
        follow = lambda learnt: polyak_update(learnt, config.target_step)  # noqa: E731
        return jax.tree.map(follow, nets, is_leaf=lambda leaf: isinstance(leaf, NetworkState)), losses

    whole, rest = divmod(count, config.target_every)
    parts = []
    if whole:
        nets, losses = jax.lax.scan(block, nets, config.target_every * jnp.arange(whole))
        parts.append(jax.tree.map(jnp.ravel, losses))
    if rest:
        nets, losses = in_turn(nets, count - rest + jnp.arange(rest), 2)
        parts.append(losses)
    return nets, jax.tree.map(lambda *loss: jnp.concatenate(loss).mean(), *parts)


# Running mean and standard deviation (Chan's merge), with the floor and clip of the reference HER.
#
# The clip has a price for goals. With ``normaliser="achieved"`` their mean and deviation are those of achieved goals,
# so all coordinates beyond :data:`MAX_NORMALISED_VALUE` standard deviations of what was achieved look the same to actor
# and critics.


MIN_DEVIATION = 0.01
"""Standard deviations are at least this, in the units of the environment."""
MAX_NORMALISED_VALUE = 5.0
"""Normalised coordinates lie in [-CLIP, CLIP]."""


class RunningMoments(NamedTuple):
    """Weighted moments of vectors: total weight [], mean [d], sum of squared deviations [d]."""

    weight: Any
    mean: Any
    squares: Any


def empty_moments(size: int) -> RunningMoments:
    """Those of no vector, of NumPy."""
    return RunningMoments(*(np.zeros(shape, np.float32) for shape in ((), size, size)))


def merge_moments(old: RunningMoments, x: Array, weight: Array) -> RunningMoments:
    """Add vectors ``x [n, d]`` with weights ``[n]``; a total weight of 0 changes nothing."""
    total = weight.sum()
    mean = (weight[:, None] * x).sum(0) / jnp.maximum(total, 1e-8)
    squares = (weight[:, None] * (x - mean) ** 2).sum(0)
    both = jnp.maximum(old.weight + total, 1e-8)
    shift = mean - old.mean
    return RunningMoments(
        old.weight + total,
        old.mean + shift * total / both,
        old.squares + squares + shift**2 * old.weight * total / both,
    )


def moments_deviation(moments: RunningMoments) -> Array:
    """Standard deviation ``[d]``, at least :data:`MIN_DEVIATION`; 1 before the first vector."""
    deviation = jnp.sqrt(moments.squares / jnp.maximum(moments.weight, 1e-8))
    return jnp.where(moments.weight > 0, jnp.maximum(deviation, MIN_DEVIATION), 1.0)


def normalise_vectors(moments: RunningMoments, x: Array) -> Array:
    return jnp.clip((x - moments.mean) / moments_deviation(moments), -MAX_NORMALISED_VALUE, MAX_NORMALISED_VALUE)


# The value ensemble: J critics of the algorithm's policy, whose disagreement is what is not known yet.
#
# Each member j learns from its own batches with its own target network (:func:`adagoal.deep.networks.fit_critic`), a'
# being the current noise-free action (Zhang et al. 2020).
#
# At a reset observation s0 an ensemble, this one or the algorithm's own (:mod:`adagoal.deep.ensemble_ddpg`), gives D of
# every candidate goal in steps, and sigma, its E in discounted steps (:mod:`adagoal.deep.numpy_networks`). With
# ``value_action="min"`` the action is the cheapest of the policy's and random ones, the paper's min_a.


N_RANDOM_ACTIONS = 16
"""Actions tried beside the policy's where ``value_action="min"``."""


def init_value_ensemble(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> NetworkState:
    """Fresh members, stacked along a leading axis J."""
    return init_network_ensemble(config, rng, layer_widths(config, sizes)[1])


def value_ensemble_batches(
    config: Config, members: NetworkState, act: Callable[[Array], Array], batch: TransitionBatch
) -> CriticBatch:
    """Batches ``[n, J * ensemble_batch, ...]`` dealt out to the members, ``[n, J, ensemble_batch, ...]``."""
    shape = config.members, config.ensemble_batch
    shares = jax.tree.map(lambda x: x.reshape(len(x), *shape, *x.shape[2:]), batch)

    def of(target: LayerWeights, own: TransitionBatch) -> Array:
        return bellman_targets(config, own, q_values(target, own.next_obs_goal, act(own.next_obs_goal)))

    return CriticBatch(shares.obs_goal, shares.action, jax.vmap(of, (0, 1), 1)(members.target, shares))


def update_value_ensemble(
    config: Config, members: NetworkState, shares: CriticBatch
) -> tuple[NetworkState, dict[str, Array]]:
    """One step of every member, each from its share ``[J, ensemble_batch, ...]``."""
    fitted, error = jax.vmap(lambda member, own: fit_critic(config, member, own))(members, shares)
    return fitted, {"ensemble_loss": error.mean()}


def value_ensemble_estimates(
    config: Config, layers: LayerWeights, relu: Callable[[Array], Array], og: Array, action: Array, key: Array
) -> tuple[Array, Array]:
    """D in steps and sigma, each ``[...]``, for normalised (start, goal) ``[..., O + G]`` and the policy's actions."""

    def of_members(action: Array) -> Array:
        return jax.vmap(lambda member: q_values(member, og, action, relu))(layers)

    best = of_members(action)
    if config.value_action == "min":
        for k in jax.random.split(key, N_RANDOM_ACTIONS):
            other = jax.random.uniform(k, action.shape, minval=-1.0, maxval=1.0)
            best = jnp.maximum(best, of_members(other))
    return cost_to_steps(-best.mean(0), config.gamma, jnp), best.std(0)
