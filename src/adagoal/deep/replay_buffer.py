"""The replay buffer in JAX: add episodes, and draw batches of transitions with hindsight ('future') goals.

A transition is an episode, a time t and a goal. With probability ``swap_goals`` the goal is that of another episode.
Otherwise, with probability ``relabel``, it is one achieved later in the same episode, at a time uniform in (t, length];
else it is the episode's own. The reward is -1 until the goal is reached and 0 there (Andrychowicz et al. 2017).

Goals of other episodes show the critics goals that were never achieved (the 'actual' goals of Pitis et al. 2020).
Without them D is small where nothing was reached.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.networks import RunningMoments, TransitionBatch, normalise_vectors
from adagoal.deep.rollouts import EpisodeBatch

EPISODE_FIELDS = [field.name for field in fields(EpisodeBatch)]
# the workers, which make the episodes, do not import JAX, so the class becomes a tree of arrays here
jax.tree_util.register_dataclass(EpisodeBatch, data_fields=EPISODE_FIELDS, meta_fields=[])


class ReplayBuffer(NamedTuple):
    """Ring of C episodes of T steps."""

    observation: Array  # [C, T + 1, O]
    achieved: Array  # [C, T + 1, G]
    action: Array  # [C, T, A]
    goal: Array  # [C, G]
    length: Array  # [C]
    terminated: Array  # [C], whether the last state was terminal; False if the episode was cut off
    moved: Array  # [C], whether the achieved goal moved by more than the contact distance
    added: Array  # [], episodes ever added; the ring holds the last C


class ReplayBatch(NamedTuple):
    """Transitions ``[B, ...]``, goals already relabelled."""

    observation: Array
    action: Array
    next_observation: Array
    goal: Array
    reward: Array
    terminal: Array  # False if the episode was cut off


class BatchShares(NamedTuple):
    """Which transitions a batch holds; settings of the same names."""

    relabel: Array
    swap_goals: Array
    contact: Array  # from episodes that moved the object


class Normalisers(NamedTuple):
    """Moments of what the networks of a run see."""

    observations: RunningMoments
    goals: RunningMoments

    def network_inputs(self, observation: Array, goal: Array) -> Array:
        """Normalised (observation, goal) ``[..., O + G]``."""
        o, g = normalise_vectors(self.observations, observation), normalise_vectors(self.goals, goal)
        return jnp.concatenate([o, g], -1)


class Experience(NamedTuple):
    """All that an algorithm may learn from in one cycle of one run."""

    replay: ReplayBuffer
    contact_order: Array  # [C], episode indices, those that moved the object first
    n_contacts: Array  # [], number of episodes that moved the object
    normalisers: Normalisers
    success: float  # radius around a goal in which it counts as reached
    hyperparameters: dict[str, Array]  # settings that may differ between runs, by name

    def sample_batches(self, key: Array, indices: Array, count: int, relabel: Array) -> TransitionBatch:
        """Batches ``[n, count, ...]``, one for each of the indices ``[n]``; a share ``relabel`` has hindsight goals."""
        contacts = self.contact_order, self.n_contacts
        shares = BatchShares(relabel, self.hyperparameters["swap_goals"], self.hyperparameters["contact"])

        def sample(index: Array) -> ReplayBatch:
            # a key from the index: a batch is the same however many are drawn at once
            own_key = jax.random.fold_in(key, index)
            return sample_transitions(self.replay, contacts, own_key, count, shares, self.success)

        batch = jax.vmap(sample)(indices)
        inputs = self.normalisers.network_inputs
        obs_goal, next_obs_goal = inputs(batch.observation, batch.goal), inputs(batch.next_observation, batch.goal)
        return TransitionBatch(obs_goal, batch.action, next_obs_goal, batch.reward, batch.terminal)


def empty_replay_buffer(shape: tuple[int, int], sizes: EnvDimensions) -> ReplayBuffer:
    """Buffers with a leading axis S; ``shape`` is (S runs, C episodes)."""
    T = sizes.horizon
    return ReplayBuffer(
        observation=jnp.zeros((*shape, T + 1, sizes.observation)),
        achieved=jnp.zeros((*shape, T + 1, sizes.goal)),
        action=jnp.zeros((*shape, T, sizes.action)),
        goal=jnp.zeros((*shape, sizes.goal)),
        length=jnp.zeros(shape, jnp.int32),
        terminated=jnp.zeros(shape, bool),
        moved=jnp.zeros(shape, bool),
        added=jnp.zeros(shape[0], jnp.int32),
    )


def add_episodes(replay: ReplayBuffer, episodes: EpisodeBatch, contact_distance: float) -> ReplayBuffer:
    """Write a cycle's episodes ``[B, ...]`` into the ring of C episodes."""
    # C is a multiple of B, so a slice never wraps around the end of the ring
    start = replay.added % replay.goal.shape[0]
    distance = jnp.linalg.norm(episodes.achieved - episodes.achieved[:, :1], axis=-1)

    def write(ring: Array, new: Any) -> Array:
        # one slice, which XLA overwrites in place if the caller donates the buffer
        return jax.lax.dynamic_update_slice_in_dim(ring, new.astype(ring.dtype), start, 0)

    written = {name: write(getattr(replay, name), getattr(episodes, name)) for name in EPISODE_FIELDS}
    moved = write(replay.moved, distance.max(-1) > contact_distance)
    return ReplayBuffer(**written, moved=moved, added=replay.added + len(episodes.goal))


def contact_episodes_first(replay: ReplayBuffer) -> tuple[Array, Array]:
    """Episode indices ``[C]``, those that moved the object first, and the number of these."""
    # once per cycle: a draw among the first n entries is then a draw among the n contacts, without a loop
    return jnp.argsort(~replay.moved), replay.moved.sum()


def sample_transitions(
    replay: ReplayBuffer,
    contacts: tuple[Array, Array],
    key: Array,
    count: int,
    shares: BatchShares,
    success: float,
) -> ReplayBatch:
    """Draw ``count`` transitions.

    ``contacts`` are the episodes, those that moved the object first, and the number of these.
    """
    order, n_contacts = contacts
    keys = jax.random.split(key, 8)
    held = jnp.minimum(replay.added, replay.goal.shape[0])
    # Both choices are drawn for every transition, because shapes are fixed in a compiled program. The maximum keeps the
    # unused one in range before the first contact.
    episode = _random_below(keys[0], count, held)
    with_contact = (jax.random.uniform(keys[1], (count,)) < shares.contact) & (n_contacts > 0)
    episode = jnp.where(with_contact, order[_random_below(keys[5], count, jnp.maximum(n_contacts, 1))], episode)
    length = replay.length[episode]
    t = _random_below(keys[2], count, length)
    # from t + 1 to the end, the state just reached included: then the relabelled goal is achieved by this step
    later = t + 1 + _random_below(keys[3], count, length - t)
    hindsight = jax.random.uniform(keys[4], (count,)) < shares.relabel
    own_goal, achieved = replay.goal[episode], replay.achieved[episode, t + 1]
    goal = jnp.where(hindsight[:, None], replay.achieved[episode, later], own_goal)
    swapped = jax.random.uniform(keys[6], (count,)) < shares.swap_goals
    goal = jnp.where(swapped[:, None], replay.goal[_random_below(keys[7], count, held)], goal)

    def is_reached(goal: Array) -> Array:
        return jnp.linalg.norm(achieved - goal, axis=-1) <= success

    # an environment that ends an episode at its goal would not have ended it for another goal
    reached = is_reached(goal)
    terminated = replay.terminated[episode] & (reached | ~is_reached(own_goal))
    return ReplayBatch(
        replay.observation[episode, t],
        replay.action[episode, t],
        replay.observation[episode, t + 1],
        goal,
        reached.astype(jnp.float32) - 1.0,
        terminated & (t + 1 == length),
    )


def _random_below(key: Array, count: int, bound: Array) -> Array:
    """Integers ``[count]`` uniform in [0, bound); bound is a scalar or ``[count]``."""
    # the minimum is needed: in single precision u * bound may round up to bound
    return jnp.minimum((jax.random.uniform(key, (count,)) * bound).astype(jnp.int32), bound - 1)
