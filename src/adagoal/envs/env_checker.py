"""Checks of an environment before a run or certification: randomness, starts, observations, time limit, and speed."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.utils.env_checker import data_equivalence

from adagoal.core.environment import ExplorationPlan
from adagoal.core.errors import EnvironmentFailure, InputError, to_single_line
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.user_code import USER_CODE_SECTION
from adagoal.envs.env_backends import ActionMask, EnvBackend, InProcessEnv
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.observation_keys import StateKey, is_minigrid_env

StartSetter = Callable[[Any, int, Any], Any]
"""``set_start(env, seed, value)``: reset the environment, put it there, and return the first observation."""


class InspectedEnv(InProcessEnv):
    """An environment that steps as in a run, and that looks at its observations and masks."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, max_states: int | None) -> None:
        super().__init__(env, name, max_states)
        self._call_context = USER_CODE_SECTION  # MiniGrid computes its view, which is in the observation space
        self.invalid_observation: str | None = None  # the first observation that does not lie in its space
        self.has_action_mask = False  # whether ``info`` contains an ``action_mask``

    def _read_state_key(self, observation: Any) -> StateKey:
        if self.invalid_observation is None and not self.env.observation_space.contains(observation):
            self.invalid_observation = to_single_line(observation)
        return super()._read_state_key(observation)

    def _read_action_mask(self, info: Any) -> ActionMask:
        self.has_action_mask |= isinstance(info, Mapping) and "action_mask" in info
        return super()._read_action_mask(info)


def find_time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the number of steps after which the environment truncates an episode, None if it does not declare one."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, wrappers.TimeLimit):
            return int(layer._max_episode_steps)
        layer = layer.env
    return int(layer.max_steps) if is_minigrid_env(layer) else None


def is_seed_reproducible(backend: EnvBackend) -> bool:
    """Return whether a walk with the same seed visits the same states twice."""
    return _visited_keys(backend, 1) == _visited_keys(backend, 1)


def uses_only_np_random(backend: EnvBackend) -> bool:
    """Return whether all randomness comes from ``np_random``: with its state restored, a walk repeats."""
    # Without seeds: a seed in the reset would also fix generators that are not np_random.
    generator = backend.generator_state()
    if not generator:
        return False
    first = _visited_keys(backend, None)
    backend.set_generator_state(generator)
    return first == _visited_keys(backend, None)


def _visited_keys(backend: EnvBackend, seed: int | None) -> list[StateKey]:
    """Return the keys of the states on a walk with a fixed sequence of actions."""
    n_actions, n_steps = backend.spaces.n_actions, 300
    key, mask, _ = backend.reset(seed)
    keys = [key]
    for action in np.random.default_rng(0).integers(n_actions, size=n_steps).tolist():
        usable = np.arange(n_actions) if mask is None else np.flatnonzero(np.frombuffer(mask, np.uint8))
        terminated = truncated = not len(usable)
        if len(usable):
            key, mask, terminated, truncated = backend.step(int(usable[action % len(usable)]))
            keys.append(key)
        if terminated or truncated:
            key, mask, _ = backend.reset()
            keys.append(key)
    return keys


def is_start_ignored(env: Any, start: StartSetter, probes: Sequence[Any], steps: int) -> bool:
    """Return whether two starts lead to the same first steps."""
    first, last = (_play_first_steps(env, start, probe, steps) for probe in probes)
    return data_equivalence(first, last, exact=True)


def refuse_own_numbers(name: str, make: Callable[[], tuple[Any, StartSetter]], probe: Any, steps: int) -> None:
    """Raise an InputError if copies of an environment play the same episodes, although these differ with one seed."""
    copies = [make() for _ in range(2)]

    def play_pairs(n: int) -> list[list[Any]]:
        return [[_play_first_steps(env, start, probe, steps) for env, start in copies] for _ in range(n)]

    # without the first one: the first reset of an environment may differ from the later ones
    pairs = play_pairs(16)[1:]
    is_random = not all(data_equivalence(pairs[0][0], ours) for ours, _ in pairs)
    is_shared = is_random and all(data_equivalence(*pair) for pair in pairs)
    # If only the successes are random, copies that draw other numbers may have agreed by chance.
    is_shared = is_shared and all(data_equivalence(*pair) for pair in play_pairs(48))
    for env, _ in copies:
        env.close()
    if is_shared:
        problem = f"{name} plays other episodes with the same seed, but its copies play the same ones"
        raise InputError(
            f"{problem}; draw random numbers from self.np_random, and remember nothing over a reset", "env"
        )


def _play_first_steps(env: Any, start: StartSetter, probe: Any, steps: int) -> list[Any]:
    """Return the observations of the first steps of an episode with the seed 0 and fixed actions."""
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(min(steps, 16))]
    seen = [copy.deepcopy(start(env, 0, probe))]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        success = info.get("is_success", info.get("success"))
        seen.append(copy.deepcopy((observation, np.array(reward, float), terminated, success)))
        if terminated or truncated:
            break
    return seen


@dataclass
class RandomWalkStats:
    """Outcome of :func:`run_random_walk`."""

    steps: int = 0
    seconds: float = 0.0
    n_states: int = 0  # states met
    n_terminal_states: int = 0  # those of them that end an episode
    failure: EnvironmentFailure | None = None


def run_random_walk(env: GymAdapter, steps: int, seed: int) -> RandomWalkStats:
    """Step the environment with random policies, as a run would; stop if it fails."""
    stats, rng, never = RandomWalkStats(), np.random.default_rng(seed), 2**60
    episode_steps, policy_steps = 50, 200  # of one episode, and with one random policy
    counts = TransitionCounts(env.initial_states, env.n_actions, env.start)
    start_time = time.perf_counter()
    while stats.steps < steps:
        S, A = counts.n_states, env.n_actions
        # An action per step of the episode is a random walk; one in twenty is a reset, so resets are tested too.
        policy = rng.integers(A, size=(episode_steps, S, 1))
        policy[rng.integers(20, size=policy.shape) == 0] = A
        plan = ExplorationPlan(policy.astype(np.int16), np.array([never]), episode_steps, np.full(S * A, never))
        max_steps = min(policy_steps, steps - stats.steps)
        try:
            stats.steps += env.rollout(plan, np.ones(1), counts, rng, (max_steps, max_steps)).steps
        except EnvironmentFailure as error:
            stats.failure = error
            break
    stats.seconds = time.perf_counter() - start_time
    stats.n_states, stats.n_terminal_states = int(counts.seen.sum()), int(counts.terminal.sum())
    return stats
