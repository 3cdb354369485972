"""Experiments on an environment before a run: does the seed decide, what draws its randomness, how fast is it?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from adagoal.core.environment import ExplorationPlan
from adagoal.core.errors import EnvironmentFailure, to_single_line
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Longs
from adagoal.envs.env_backends import EnvBackend
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.observation_keys import StateKey, is_minigrid_env

WALK = 300
"""Steps of a walk that is repeated."""
ROLLOUT, EPISODE, RESETS = 200, 50, 20
"""Steps with one random policy, steps of an episode, and one action of so many is a reset."""
NEVER = 2**60


@dataclass
class EnvFindings:
    """What a watched environment showed beside its states."""

    invalid_observation: str | None = None
    """The first observation that does not lie in its space."""
    has_action_mask: bool = False
    """Whether ``info`` holds an ``action_mask``."""


class InspectionWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes everything on, and takes notes."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.findings = EnvFindings()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Pass on, with the arguments that were given."""
        given = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self._inspect_return(given, 2)
        return given

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Pass on."""
        given = self.env.step(action)
        self._inspect_return(given, 5)
        return given

    def _inspect_return(self, given: Any, length: int) -> None:
        if isinstance(given, tuple) and len(given) == length:
            observation, info = given[0], given[-1]
            self.findings.has_action_mask |= isinstance(info, Mapping) and "action_mask" in info
            if self.findings.invalid_observation is None and not self.env.observation_space.contains(observation):
                self.findings.invalid_observation = to_single_line(observation)


def find_time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Steps after which the environment truncates an episode; None where it says nothing of the kind."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, wrappers.TimeLimit):
            return int(layer._max_episode_steps)
        layer = layer.env
    return int(layer.max_steps) if is_minigrid_env(layer) else None


def is_seed_reproducible(body: EnvBackend) -> bool:
    """Whether the same seed gives the same walk twice."""
    actions = _fixed_action_sequence(body)
    return _collect_walk_keys(body, 1, actions) == _collect_walk_keys(body, 1, actions)


def uses_only_np_random(body: EnvBackend) -> bool:
    """Whether all randomness is that of ``np_random``: put back, it gives the same walk again."""
    actions, kept = _fixed_action_sequence(body), body.generator_state()
    if not kept:
        return False
    first = _collect_walk_keys(body, None, actions)
    body.set_generator_state(kept)
    return first == _collect_walk_keys(body, None, actions)


def _fixed_action_sequence(body: EnvBackend) -> Longs:
    return np.random.default_rng(0).integers(body.spaces.n_actions, size=WALK)


def _collect_walk_keys(body: EnvBackend, seed: int | None, actions: Longs) -> list[StateKey]:
    key, mask, _ = body.reset(seed)
    keys = [key]
    for action in actions.tolist():
        usable = np.arange(body.spaces.n_actions) if mask is None else np.flatnonzero(np.frombuffer(mask, np.uint8))
        terminated = truncated = not len(usable)
        if len(usable):
            key, mask, terminated, truncated = body.step(int(usable[action % len(usable)]))
            keys.append(key)
        if terminated or truncated:
            key, mask, _ = body.reset()
            keys.append(key)
    return keys


@dataclass
class RandomWalkStats:
    """Some steps with random policies, taken as a run takes them."""

    steps: int = 0
    seconds: float = 0.0
    n_states: int = 0
    n_terminal_states: int = 0
    """States met, and those of them that end an episode."""
    failure: EnvironmentFailure | None = None


def run_random_walk(world: GymAdapter, steps: int, seed: int) -> RandomWalkStats:
    """Try the environment; what it raises ends the tour."""
    found, rng = RandomWalkStats(), np.random.default_rng(seed)
    counts = TransitionCounts(world.initial_states, world.n_actions, world.start)
    began = time.perf_counter()
    while found.steps < steps:
        S, A = counts.n_states, world.n_actions
        policy = rng.integers(A, size=(EPISODE, S, 1))  # an action per step of the episode: a random walk
        policy[rng.integers(RESETS, size=policy.shape) == 0] = A
        plan = ExplorationPlan(policy.astype(np.int16), np.array([NEVER]), EPISODE, np.full(S * A, NEVER))
        most = min(ROLLOUT, steps - found.steps)
        try:
            found.steps += world.rollout(plan, np.ones(1), counts, rng, most, most).steps
        except EnvironmentFailure as error:
            found.failure = error
            break
    found.seconds = time.perf_counter() - began
    found.n_states, found.n_terminal_states = int(counts.seen.sum()), int(counts.terminal.sum())
    return found
