"""Experiments on an environment before a run: does the seed decide, what draws its randomness, how fast is it?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from adagoal.core.counts import Counts
from adagoal.core.errors import EnvironmentFailure
from adagoal.core.text import plain
from adagoal.core.types import Longs
from adagoal.core.world import Plan
from adagoal.worlds.body import Body
from adagoal.worlds.gym import GymWorld
from adagoal.worlds.keys import Key, is_minigrid

WALK = 300
"""Steps of a walk that is repeated."""
ROLLOUT, EPISODE, RESETS = 200, 50, 20
"""Steps with one random policy, steps of an episode, and one action of so many is a reset."""
NEVER = 2**60


@dataclass
class Seen:
    """What a watched environment showed beside its states."""

    outside: str | None = None
    """The first observation that does not lie in its space."""
    masks: bool = False
    """Whether ``info`` holds an ``action_mask``."""


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes everything on, and takes notes."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.seen = Seen()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Pass on, with the arguments that were given."""
        given = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self._note(given, 2)
        return given

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Pass on."""
        given = self.env.step(action)
        self._note(given, 5)
        return given

    def _note(self, given: Any, length: int) -> None:
        if isinstance(given, tuple) and len(given) == length:
            observation, info = given[0], given[-1]
            self.seen.masks |= isinstance(info, Mapping) and "action_mask" in info
            if self.seen.outside is None and not self.env.observation_space.contains(observation):
                self.seen.outside = plain(observation)


def time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Steps after which the environment truncates an episode; None where it says nothing of the kind."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, wrappers.TimeLimit):
            return int(layer._max_episode_steps)
        layer = layer.env
    return int(layer.max_steps) if is_minigrid(layer) else None


def seed_decides(body: Body) -> bool:
    """Whether the same seed gives the same walk twice."""
    actions = _actions(body)
    return _walk(body, 1, actions) == _walk(body, 1, actions)


def one_generator(body: Body) -> bool:
    """Whether all randomness is that of ``np_random``: put back, it gives the same walk again."""
    actions, kept = _actions(body), body.generator()
    if not kept:
        return False
    first = _walk(body, None, actions)
    body.put_back(kept)
    return first == _walk(body, None, actions)


def _actions(body: Body) -> Longs:
    return np.random.default_rng(0).integers(body.facts.n_actions, size=WALK)


def _walk(body: Body, seed: int | None, actions: Longs) -> list[Key]:
    key, mask, _ = body.reset(seed)
    keys = [key]
    for action in actions.tolist():
        usable = np.arange(body.facts.n_actions) if mask is None else np.flatnonzero(np.frombuffer(mask, np.uint8))
        terminated = truncated = not len(usable)
        if len(usable):
            key, mask, terminated, truncated = body.step(int(usable[action % len(usable)]))
            keys.append(key)
        if terminated or truncated:
            key, mask, _ = body.reset()
            keys.append(key)
    return keys


@dataclass
class Tour:
    """Some steps with random policies, taken as a run takes them."""

    steps: int = 0
    seconds: float = 0.0
    states: int = 0
    ends: int = 0
    """States met, and those of them that end an episode."""
    failure: EnvironmentFailure | None = None


def tour(world: GymWorld, steps: int, seed: int) -> Tour:
    """Try the environment; what it raises ends the tour."""
    found, rng = Tour(), np.random.default_rng(seed)
    counts = Counts(world.initial_states, world.n_actions, world.start)
    began = time.perf_counter()
    while found.steps < steps:
        S, A = counts.n_states, world.n_actions
        policy = rng.integers(A, size=(EPISODE, S, 1))  # an action per step of the episode: a random walk
        policy[rng.integers(RESETS, size=policy.shape) == 0] = A
        plan = Plan(policy.astype(np.int16), np.array([NEVER]), EPISODE, np.full(S * A, NEVER))
        most = min(ROLLOUT, steps - found.steps)
        try:
            found.steps += world.rollout(plan, np.ones(1), counts, rng, most, most).steps
        except EnvironmentFailure as error:
            found.failure = error
            break
    found.seconds = time.perf_counter() - began
    found.states, found.ends = int(counts.seen.sum()), int(counts.terminal.sum())
    return found
