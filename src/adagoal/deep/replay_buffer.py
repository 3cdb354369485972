"""Replay by episode, with hindsight ('future') relabelling inside the compiled program.

A transition is an episode e, a time t and a goal. With probability ``relabel`` the goal is one achieved
later in the same episode, at a time uniform in (t, length]; otherwise it is the episode's own. The reward is
-1 until the goal is reached and 0 there (Andrychowicz et al. 2017).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class ReplayBuffer(NamedTuple):
    """Ring of C episodes of T steps."""

    observation: Array
    """``[C, T + 1, observation]``"""
    achieved: Array
    """``[C, T + 1, goal]``"""
    action: Array
    """``[C, T, action]``"""
    goal: Array
    """``[C, goal]``"""
    length: Array
    """``[C]``"""
    terminated: Array
    """``[C]``: whether nothing follows the last state of the episode."""
    moved: Array
    """``[C]``: whether the achieved goal moved by more than the contact distance."""
    added: Array
    """``[]``: episodes ever added; the ring holds the last C."""


class ReplayBatch(NamedTuple):
    """Transitions ``[B, ...]``, goals already relabelled."""

    observation: Array
    action: Array
    next_observation: Array
    goal: Array
    reward: Array
    terminal: Array
    """Whether nothing follows; False where the episode was cut off."""


def empty_replay_buffer(room: tuple[int, int], horizon: int, observation: int, goal: int, action: int) -> ReplayBuffer:
    """The memories of S runs, for so many episodes each; ``room`` is (S, episodes)."""
    return ReplayBuffer(
        jnp.zeros((*room, horizon + 1, observation)),
        jnp.zeros((*room, horizon + 1, goal)),
        jnp.zeros((*room, horizon, action)),
        jnp.zeros((*room, goal)),
        jnp.zeros(room, jnp.int32),
        jnp.zeros(room, bool),
        jnp.zeros(room, bool),
        jnp.zeros(room[0], jnp.int32),
    )


def add_episodes(
    replay: ReplayBuffer,
    contact_distance: float,
    observation: Array,
    achieved: Array,
    action: Array,
    goal: Array,
    length: Array,
    terminated: Array,
) -> ReplayBuffer:
    """Put a cycle's episodes ``[B, ...]`` into the ring (C must be a multiple of B)."""
    at = replay.added % replay.goal.shape[0]
    moved = jnp.linalg.norm(achieved - achieved[:, :1], axis=-1).max(-1) > contact_distance

    def put(ring: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(ring, new.astype(ring.dtype), at, 0)

    return ReplayBuffer(
        put(replay.observation, observation),
        put(replay.achieved, achieved),
        put(replay.action, action),
        put(replay.goal, goal),
        put(replay.length, length),
        put(replay.terminated, terminated),
        put(replay.moved, moved),
        replay.added + goal.shape[0],
    )


def contact_episodes_first(replay: ReplayBuffer) -> tuple[Array, Array]:
    """Episode numbers ``[C]`` with those that moved the object in front, and how many they are."""
    return jnp.argsort(~replay.moved), replay.moved.sum()


def sample_transitions(
    replay: ReplayBuffer,
    contacts: tuple[Array, Array],
    key: Array,
    count: int,
    relabel: Array,
    contact: Array,
    success: float,
) -> ReplayBatch:
    """Draw ``count`` transitions; a share ``contact`` of them from episodes that moved the object."""
    order, movers = contacts
    keys = jax.random.split(key, 6)
    held = jnp.minimum(replay.added, replay.goal.shape[0])
    episode = _random_below(keys[0], count, held)
    from_movers = (jax.random.uniform(keys[1], (count,)) < contact) & (movers > 0)
    episode = jnp.where(from_movers, order[_random_below(keys[5], count, jnp.maximum(movers, 1))], episode)
    length = replay.length[episode]
    t = _random_below(keys[2], count, length)
    later = t + 1 + _random_below(keys[3], count, length - t)
    hindsight = jax.random.uniform(keys[4], (count,)) < relabel
    goal = jnp.where(hindsight[:, None], replay.achieved[episode, later], replay.goal[episode])
    away = jnp.linalg.norm(replay.achieved[episode, t + 1] - goal, axis=-1)
    return ReplayBatch(
        replay.observation[episode, t],
        replay.action[episode, t],
        replay.observation[episode, t + 1],
        goal,
        -(away > success).astype(jnp.float32),
        replay.terminated[episode] & (t + 1 == length),
    )


def _random_below(key: Array, count: int, bound: Array) -> Array:
    """Integers uniform in [0, bound), bound a scalar or ``[count]``."""
    return jnp.minimum((jax.random.uniform(key, (count,)) * bound).astype(jnp.int32), bound - 1)
