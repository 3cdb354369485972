"""DDPG with hindsight and the value ensemble: everything that is learnt, as one compiled cycle.

Critic (and each member j of the ensemble, with its own batches and target network):

    y = clip( r + gamma Q'(s', pi'(s', g), g),  -1/(1 - gamma),  0 ),     loss = mean (Q(s, a, g) - y)^2

Actor: minimise -mean Q(s, pi(s, g), g) + c mean pi^2. The ensemble bootstraps with the current noise-free
actor (Zhang et al. 2020). At a reset observation s0 it gives, for every candidate goal,

    D(g) = -mean_j Q_j(s0, pi(s0, g), g)   and   E(g) = std_j Q_j(s0, pi(s0, g), g),

D in steps: a goal reached after n steps costs (1 - gamma^n) / (1 - gamma). With ``value_action="min"`` the
action is the cheapest of the policy's and random ones, the paper's min_a.

Functions act on one run; :func:`compile_cycle` and :func:`compile_values` map them over S runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from adagoal.deep import networks, normaliser, replay
from adagoal.deep.config import CONTACT_DISTANCE, Config
from adagoal.deep.envs import Dimensions
from adagoal.deep.normaliser import Moments
from adagoal.deep.replay import Batch, Replay

RANDOM_ACTIONS = 16
"""Actions tried beside the policy's where ``value_action="min"``."""
NEIGHBOURS = 512
"""Achieved goals from which the density at a candidate is estimated."""


class Learnt(NamedTuple):
    """Networks with their targets and optimiser states."""

    online: Any
    target: Any
    adam: Any


class State(NamedTuple):
    """All that a run has learnt or seen."""

    actor: Learnt
    critic: Learnt
    ensemble: Learnt
    observations: Moments
    goals: Moments
    replay: Replay
    key: Array


class Knobs(NamedTuple):
    """What may differ between the runs of one program, as arrays."""

    relabel: Array
    contact: Array
    action_l2: Array
    ensemble_relabel: Array
    see_achieved: Array
    see_desired: Array


def knobs(configs: Sequence[Config]) -> Knobs:
    """Knobs ``[S]`` of S runs."""
    share = [c.relabel if c.normaliser == "relabelled" else 1.0 for c in configs]
    running = [c.normaliser != "fixed" for c in configs]
    return Knobs(
        jnp.array([c.relabel for c in configs]),
        jnp.array([c.contact for c in configs]),
        jnp.array([c.action_l2 for c in configs]),
        jnp.array([c.ensemble_relabel for c in configs]),
        jnp.array([s * r for s, r in zip(share, running, strict=True)]),
        jnp.array([(1.0 - s) * r for s, r in zip(share, running, strict=True)]),
    )


def capacity(config: Config, horizon: int) -> int:
    """Episodes in the ring: at least one cycle, and a multiple of a cycle."""
    return max(config.buffer // (horizon * config.episodes), 1) * config.episodes


def initial(config: Config, sizes: Dimensions, test_goals: np.ndarray) -> State:
    """Fresh state of one run; ``test_goals [n, goal]`` set the fixed goal normaliser."""
    actor_key, critic_key, ensemble_key, key = jax.random.split(jax.random.key(config.seed), 4)
    og = sizes.observation + sizes.goal
    adam = optax.adam(config.learning_rate)

    def learnt(key: Array, shape: Sequence[int]) -> Learnt:
        online = networks.init(key, shape)
        return Learnt(online, jax.tree.map(jnp.copy, online), adam.init(online))

    critic_shape = (og + sizes.action, *config.hidden, 1)
    goals = normaliser.empty(sizes.goal)
    if config.normaliser == "fixed":
        goals = normaliser.merge(goals, jnp.asarray(test_goals, jnp.float32), jnp.ones(len(test_goals)))
    members = [learnt(k, critic_shape) for k in jax.random.split(ensemble_key, config.members)]
    return State(
        learnt(actor_key, (og, *config.hidden, sizes.action)),
        learnt(critic_key, critic_shape),
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *members),
        normaliser.empty(sizes.observation),
        goals,
        replay.empty(capacity(config, sizes.horizon), sizes.horizon, sizes.observation, sizes.goal, sizes.action),
        jax.random.key_data(key),
    )


def inputs(state: State, observation: Array, goal: Array) -> Array:
    """Normalised network input ``[..., O + G]``."""
    o = normaliser.normalise(state.observations, observation)
    return jnp.concatenate([o, normaliser.normalise(state.goals, goal)], -1)


def toward(learnt: Learnt, step: float) -> Learnt:
    """Move the target network by ``step`` towards the online one."""
    return learnt._replace(target=jax.tree.map(lambda t, p: t + step * (p - t), learnt.target, learnt.online))


def repeat(config: Config, update: Callable[[Any, Array], tuple[Any, Any]], nets: Any, count: int) -> tuple[Any, Any]:
    """``count`` updates (nets, number) -> (nets, losses); targets move after every ``target_every``; mean losses."""

    def block(nets: Any, first: Array) -> tuple[Any, Any]:
        nets, losses = jax.lax.scan(update, nets, first + jnp.arange(config.target_every))
        follow = lambda learnt: toward(learnt, config.target_step)  # noqa: E731
        return jax.tree.map(follow, nets, is_leaf=lambda leaf: isinstance(leaf, Learnt)), losses

    whole, rest = divmod(count, config.target_every)
    parts = []
    if whole:
        nets, losses = jax.lax.scan(block, nets, config.target_every * jnp.arange(whole))
        parts.append(jax.tree.map(jnp.ravel, losses))
    if rest:
        nets, losses = jax.lax.scan(update, nets, count - rest + jnp.arange(rest))
        parts.append(losses)
    return nets, jax.tree.map(lambda *loss: jnp.concatenate(loss).mean(), *parts)


def cycle(config: Config, sizes: Dimensions, with_ensemble: bool, state: State, knob: Knobs, new: Any) -> Any:
    """Add a cycle's episodes and learn from the whole memory; returns the state and a dict of means."""
    adam = optax.adam(config.learning_rate)
    floor = -1.0 / (1.0 - config.gamma)
    memory = replay.add(state.replay, CONTACT_DISTANCE * sizes.success, *new)
    contacts = replay.moved_first(memory)
    key, ddpg_key, ensemble_key = jax.random.split(jax.random.wrap_key_data(state.key), 3)
    state = _see(state, knob, *new)._replace(replay=memory, key=jax.random.key_data(key))

    def descend(learnt: Learnt, loss: Callable[[Any], Array]) -> tuple[Learnt, Array]:
        value, gradient = jax.value_and_grad(loss)(learnt.online)
        change, moments = adam.update(gradient, learnt.adam)
        return learnt._replace(online=optax.apply_updates(learnt.online, change), adam=moments), value

    def fit(critic: Learnt, actor: Any, batch: Batch) -> tuple[Learnt, Array]:
        og, following = inputs(state, batch.observation, batch.goal), inputs(state, batch.following, batch.goal)
        ahead = networks.q(critic.target, following, networks.pi(actor, following))
        y = jnp.clip(batch.reward + config.gamma * ahead, floor, 0.0)
        return descend(critic, lambda p: jnp.mean((networks.q(p, og, batch.action) - y) ** 2))

    def ddpg(nets: tuple[Learnt, Learnt], i: Array) -> tuple[tuple[Learnt, Learnt], tuple[Array, Array]]:
        actor, critic = nets
        key = jax.random.fold_in(ddpg_key, i)
        batch = replay.sample(memory, contacts, key, config.batch, knob.relabel, knob.contact, sizes.success)
        og = inputs(state, batch.observation, batch.goal)

        def actor_loss(p: Any) -> Array:
            action = networks.pi(p, og)
            return -jnp.mean(networks.q(critic.online, og, action)) + knob.action_l2 * jnp.mean(action**2)

        improved, value = descend(actor, actor_loss)
        fitted, error = fit(critic, actor.target, batch)
        return (improved, fitted), (value, error)

    (actor, critic), (value, error) = repeat(config, ddpg, (state.actor, state.critic), config.updates)
    state = state._replace(actor=actor, critic=critic)
    report = {"actor_loss": value, "critic_loss": error}

    def disagree(members: Learnt, i: Array) -> tuple[Learnt, Array]:
        key = jax.random.fold_in(ensemble_key, i)
        count = config.members * config.ensemble_batch
        batch = replay.sample(memory, contacts, key, count, knob.ensemble_relabel, knob.contact, sizes.success)
        batches = jax.tree.map(lambda x: x.reshape(config.members, config.ensemble_batch, *x.shape[1:]), batch)
        fitted, error = jax.vmap(fit, (0, None, 0))(members, actor.online, batches)
        return fitted, error.mean()

    if with_ensemble:
        members, error = repeat(config, disagree, state.ensemble, config.ensemble_updates)
        state = state._replace(ensemble=members)
        report["ensemble_loss"] = error
    return state, report


def _see(state: State, knob: Knobs, observation: Array, achieved: Array, action: Array, goal: Array,
         length: Array) -> State:  # fmt: skip
    """Feed the normalisers with a cycle's episodes ``[B, T + 1, ...]``."""
    real = (jnp.arange(observation.shape[1]) <= length[:, None]).astype(jnp.float32)
    flat = real.reshape(-1)
    seen = normaliser.merge(state.observations, observation.reshape(-1, observation.shape[-1]), flat)
    goals = normaliser.merge(state.goals, achieved.reshape(-1, goal.shape[-1]), flat * knob.see_achieved)
    goals = normaliser.merge(goals, goal, real.sum(1) * knob.see_desired)
    return state._replace(observations=seen, goals=goals)


def values(config: Config, with_density: bool, state: State, start: Array, goal: Array, key: Array) -> Any:
    """D in steps, E, and the density of achieved goals, each ``[B, N]``, for starts ``[B, O]``, goals ``[B, N, G]``."""
    og = inputs(state, jnp.broadcast_to(start[:, None], (*goal.shape[:2], start.shape[-1])), goal)
    action = networks.pi(state.actor.online, og)
    of_members = jax.vmap(networks.q, (0, None, None))
    best = of_members(state.ensemble.online, og, action)
    if config.value_action == "min":
        for k in jax.random.split(key, RANDOM_ACTIONS):
            other = jax.random.uniform(k, action.shape, minval=-1.0, maxval=1.0)
            best = jnp.maximum(best, of_members(state.ensemble.online, og, other))
    cost = jnp.clip(-best.mean(0), 0.0, (1.0 - 1e-6) / (1.0 - config.gamma))
    steps = jnp.log1p(-(1.0 - config.gamma) * cost) / np.log(config.gamma)
    density = _density(state, goal, key) if with_density else jnp.zeros(goal.shape[:2])
    return steps, best.std(0), density


def _density(state: State, goal: Array, key: Array) -> Array:
    """Kernel estimate of how many episodes of the memory achieved something near each goal ``[B, N]``."""
    memory = state.replay
    held = jnp.minimum(memory.added, memory.goal.shape[0])
    for_episode, for_time = jax.random.split(key)
    episode = jax.random.randint(for_episode, (NEIGHBOURS,), 0, jnp.maximum(held, 1))
    time = jax.random.randint(for_time, (NEIGHBOURS,), 0, memory.achieved.shape[1])
    near = normaliser.normalise(state.goals, memory.achieved[episode, time])
    apart = ((normaliser.normalise(state.goals, goal)[..., None, :] - near) ** 2).sum(-1)
    return held * jnp.exp(-apart / (2 * 0.3**2)).mean(-1)


def compile_cycle(configs: Sequence[Config], sizes: Dimensions) -> Callable[[State, Knobs, Any], tuple[State, Any]]:
    """:func:`cycle` over S runs: state and episodes with a leading axis S; the old state's memory is reused."""
    config = _shape_of(configs[0])
    with_ensemble = any(c.needs_ensemble for c in configs)

    def one(state: State, knob: Knobs, new: Any) -> Any:
        return cycle(config, sizes, with_ensemble, state, knob, new)

    return jax.jit(over_runs(one, len(configs)), donate_argnums=0)


def over_runs(function: Callable[..., Any], runs: int) -> Callable[..., Any]:
    """``function`` mapped over a leading axis of S runs; a single run is spared the batched matrix products."""
    if runs > 1:
        return jax.vmap(function)

    def alone(*arguments: Any) -> Any:
        found = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], found)

    return alone


def compile_values(configs: Sequence[Config]) -> Callable[[State, Any, Any, Array], tuple[Array, Array, Array]]:
    """:func:`values` over S runs: starts ``[S, B, O]``, goals ``[S, B, N, G]``, keys ``[S]``."""
    config = _shape_of(configs[0])
    with_density = any(c.needs_density for c in configs)

    def one(state: State, start: Array, goal: Array, key: Array) -> Any:
        return values(config, with_density, state, start, goal, key)

    return jax.jit(over_runs(one, len(configs)))


def _shape_of(config: Config) -> Config:
    return dataclasses.replace(config, seed=0)
