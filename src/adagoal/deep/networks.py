"""Building blocks of learning algorithms: networks with Adam and a target, critic updates, normalisers.

A critic is fitted to

    y = clip( r + gamma Q'(s', a', g),  -1/(1 - gamma),  0 ),     loss = mean (Q(s, a, g) - y)^2

where Q' is the target network and a' the policy's action at s'. If the episode terminated at s', then y = 0 if the goal
is reached there, and y = -1/(1 - gamma), the cost of never, if it is not. An episode that was cut off (``truncated``,
or the horizon) did not terminate. All functions act on one run.
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

from adagoal.deep import value_formulas
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions

LayerWeights = list[tuple[Any, Any]]
"""Weights and biases: arrays of JAX, or of NumPy before the first update."""
ActivationFunction = Callable[[Array], Array]
# Batches that are drawn at once, at most: it bounds the memory that they take.
MAX_BATCHES_AT_ONCE = 20


class NetworkState(NamedTuple):
    """A network, its target network and the state of its optimiser."""

    online: LayerWeights
    target: LayerWeights
    adam: Any


class TransitionBatch(NamedTuple):
    """Transitions as networks see them: goals relabelled, observations and goals normalised."""

    obs_goal: Array  # [B, O + G]
    action: Array  # [B, A]
    next_obs_goal: Array  # [B, O + G]
    reward: Array  # [B]
    terminal: Array  # [B], whether the episode terminated with this transition


class CriticBatch(NamedTuple):
    """Transitions with the targets of critics."""

    obs_goal: Array  # [B, O + G]
    action: Array  # [B, A]
    y: Array  # [B], or [J, B] if every critic has its own targets


def init_layers(rng: np.random.Generator, widths: Sequence[int], members: Sequence[int]) -> LayerWeights:
    """Weights and biases uniform in +-1/sqrt(fan in), as in the reference HER; with leading axes ``members``."""
    # NumPy draws them, because JAX would compile a program for every shape before training starts.
    layers = []
    for fan_in, fan_out in itertools.pairwise(widths):
        bound = fan_in**-0.5
        weight, bias = (rng.uniform(-bound, bound, (*members, *shape)) for shape in ((fan_in, fan_out), (fan_out,)))
        layers.append((weight.astype(np.float32), bias.astype(np.float32)))
    return layers


def layer_widths(config: Config, sizes: EnvDimensions) -> tuple[Sequence[int], Sequence[int]]:
    """Widths of an actor, whose input is (observation, goal), and of a critic, which sees the action as well."""
    inputs = sizes.observation + sizes.goal
    return (inputs, *config.hidden, sizes.action), (inputs + sizes.action, *config.hidden, 1)


def init_network(
    config: Config, rng: np.random.Generator, widths: Sequence[int], members: Sequence[int] = ()
) -> NetworkState:
    """An initial network, whose target is the same; or a stack of networks with leading axes ``members``."""
    online = init_layers(rng, widths, members)
    init = optax.adam(config.learning_rate).init
    # Adam starts from zeros. Only shapes are asked of optax, so nothing is compiled.
    shapes = jax.eval_shape(jax.vmap(init) if members else init, online)
    return NetworkState(online, online, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))


def policy_actions(layers: LayerWeights, obs_goal: Array) -> Array:
    """Actions ``[..., A]`` in [-1, 1], the same as those of :class:`adagoal.deep.policy.NumpyActor`."""
    return jnp.tanh(value_formulas.forward_mlp(layers, obs_goal, jax.nn.relu))


def q_values(
    critic: LayerWeights, obs_goal: Array, action: Array, activation: ActivationFunction = jax.nn.relu
) -> Array:
    """Values ``[...]``."""
    return value_formulas.forward_mlp(critic, jnp.concatenate([obs_goal, action], -1), activation)[..., 0]


def gradient_step(config: Config, net: NetworkState, loss: Callable[[Any], Array]) -> tuple[NetworkState, Array]:
    """One step of Adam on the online network, and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(net.online)
    change, moments = optax.adam(config.learning_rate).update(gradient, net.adam)
    return net._replace(online=optax.apply_updates(net.online, change), adam=moments), value


def bellman_targets(config: Config, batch: TransitionBatch, next_values: Array) -> Array:
    """The targets y ``[..., B]`` from the values Q'(s', a', g) ``[..., B]``."""
    # The clip keeps targets in the range of true returns, so errors of Q' at unseen actions cannot grow without bound.
    floor = -1.0 / (1.0 - config.gamma)
    final = jnp.where(batch.reward < 0.0, floor, 0.0)
    return jnp.where(batch.terminal, final, jnp.clip(batch.reward + config.gamma * next_values, floor, 0.0))


def fit_critic(
    config: Config, critic: NetworkState, batch: CriticBatch, activation: ActivationFunction = jax.nn.relu
) -> tuple[NetworkState, Array]:
    """One step of a critic towards its targets ``[B]``, and the loss before it."""
    return gradient_step(
        config, critic, lambda p: jnp.mean((q_values(p, batch.obs_goal, batch.action, activation) - batch.y) ** 2)
    )


def ensemble_distance_and_error(
    config: Config, critics: LayerWeights, activation: ActivationFunction, obs_goal: Array, action: Array
) -> tuple[Array, Array]:
    """D in steps and sigma, each ``[...]``, of J stacked critics at the policy's actions ``[..., A]``."""
    # The paper has min_a. The cheapest of 17 actions was not better than the policy's.
    values = jax.vmap(lambda critic: q_values(critic, obs_goal, action, activation))(critics)
    return value_formulas.cost_to_steps(-values.mean(0), config.gamma, jnp), values.std(0)


def run_updates(
    config: Config,
    prepare: Callable[[Any, Array], Any],
    update: Callable[[Any, Any], tuple[Any, Any]],
    nets: Any,
    count: int,
) -> tuple[Any, Any]:
    """Make ``count`` updates and return the nets and the mean losses; targets move after every ``target_every``.

    ``prepare(nets, indices [n])`` returns the batches of n updates, stacked along a leading axis. It may read target
    networks only, which stand still between two moves: a GPU then draws many batches, and computes their targets, in
    little more than the time of one. ``update(nets, batch)`` returns the nets and the losses.
    """

    blocks, rest = divmod(count, config.target_every)  # a block ends with a move of the targets

    def prepare_and_update(nets: Any, indices: Array) -> tuple[Any, Any]:
        return jax.lax.scan(update, nets, prepare(nets, indices))

    def in_chunks(nets: Any, indices: Array, min_chunks: int) -> tuple[Any, Any]:
        largest = max(min(MAX_BATCHES_AT_ONCE, len(indices) // min_chunks), 1)
        size = next(n for n in range(largest, 0, -1) if len(indices) % n == 0)
        nets, losses = jax.lax.scan(prepare_and_update, nets, indices.reshape(-1, size))
        return nets, jax.tree.map(jnp.ravel, losses)

    def polyak_update(net: NetworkState) -> NetworkState:
        return net._replace(target=jax.tree.map(lambda t, p: t + config.target_step * (p - t), net.target, net.online))

    def until_targets_move(nets: Any, first: Array) -> tuple[Any, Any]:
        # XLA unrolls a loop of one iteration and then copies everything that `prepare` reads, the whole replay buffer
        # included. So there are at least two iterations: of the outer loop if it has several, of the inner one if not.
        nets, losses = in_chunks(nets, first + jnp.arange(config.target_every), 1 if blocks > 1 else 2)
        return jax.tree.map(polyak_update, nets, is_leaf=lambda leaf: isinstance(leaf, NetworkState)), losses

    parts = []
    if blocks:
        nets, losses = jax.lax.scan(until_targets_move, nets, config.target_every * jnp.arange(blocks))
        parts.append(jax.tree.map(jnp.ravel, losses))
    if rest:
        nets, losses = in_chunks(nets, count - rest + jnp.arange(rest), 2)
        parts.append(losses)
    return nets, jax.tree.map(lambda *loss: jnp.concatenate(loss).mean(), *parts)


class RunningMoments(NamedTuple):
    """Weighted moments of the vectors ``[d]`` that a normaliser has seen."""

    weight: Any  # [], total weight
    mean: Any  # [d]
    squares: Any  # [d], sum of squared deviations


def empty_moments(size: int) -> RunningMoments:
    """Moments of no vector, as NumPy arrays."""
    return RunningMoments(*(np.zeros(shape, np.float32) for shape in ((), size, size)))


def merge_moments(old: RunningMoments, x: Array, weight: Array) -> RunningMoments:
    """Add vectors ``x [n, d]`` with weights ``[n]``; a total weight of 0 changes nothing."""
    added = weight.sum()
    # the maxima keep 0 / 0 away before the first vector, and where all weights are 0
    mean = (weight[:, None] * x).sum(0) / jnp.maximum(added, 1e-8)
    squares = (weight[:, None] * (x - mean) ** 2).sum(0)
    total = jnp.maximum(old.weight + added, 1e-8)
    mean_shift, squares_shift = value_formulas.moment_shifts(mean - old.mean, old.weight, added, total)
    return RunningMoments(old.weight + added, old.mean + mean_shift, old.squares + squares + squares_shift)


def moments_deviation(moments: RunningMoments) -> Array:
    """Standard deviation ``[d]``; 1 before the first vector."""
    deviation = jnp.sqrt(moments.squares / jnp.maximum(moments.weight, 1e-8))
    return jnp.where(moments.weight > 0, jnp.maximum(deviation, value_formulas.MIN_DEVIATION), 1.0)


def normalise_vectors(moments: RunningMoments, x: Array) -> Array:
    """Vectors ``[..., d]`` in standard deviations from the mean, clipped."""
    limit = value_formulas.MAX_NORMALISED_VALUE
    return jnp.clip((x - moments.mean) / moments_deviation(moments), -limit, limit)
