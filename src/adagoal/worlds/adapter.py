"""A Gymnasium environment as numbered states: observations get numbers, resets keep their generators apart."""

from __future__ import annotations

import ast
import copy
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from adagoal.core.errors import InputError
from adagoal.worlds.keys import Key, continuous, is_minigrid, minigrid_key, minigrid_label, observation_key

MAX_STATES = 10_000
"""Default bound on the number of states of an environment that does not declare it."""
MOST_ACTIONS = 32_766
"""Policies are tables of 16-bit numbers, and the reset is one more action."""
FIRST_STATES = 64
"""States allocated at first, where the number is not declared."""
STARTS = 16
"""Resets that must agree for the start to count as fixed."""
CHECKS = (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker)
"""Wrappers that do not change what an environment does, apart from its time limit."""


class Adapter:
    """Numbers the states of an environment and resets it; :mod:`adagoal.worlds.gym` says by which conventions."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, start_seed: int | None, max_states: int | None) -> None:
        actions: Any = getattr(env, "action_space", None)
        space: Any = getattr(env, "observation_space", None)
        if not isinstance(actions, spaces.Discrete):
            raise InputError(f"env: {name} has actions of type {type(actions).__name__}; they must be Discrete")
        if actions.n > MOST_ACTIONS:
            raise InputError(f"env: {name} has {actions.n} actions; at most {MOST_ACTIONS} are possible")
        if continuous(space) and max_states is None:
            raise InputError(
                f"env: {name} has continuous observations; if they take few values, say how many with --max-states"
            )
        self.name, self.n_actions, self.first_action = name, int(actions.n), int(actions.start)
        self.env = without_limits(env)
        self.actions: list[int] = []
        """What was done since the last reset of the environment."""
        self._start_seed = start_seed
        self._base: Any = env.unwrapped
        self._minigrid = is_minigrid(self._base)
        self.read = (lambda observation: minigrid_key(self._base)) if self._minigrid else observation_key(space)
        """The key of the current state, from its observation."""
        self._before: dict[str, Any] = {}  # the generator before the last reset
        try:
            keys = self._find_starts()
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"env: {name} cannot be reset ({type(error).__name__}: {error})") from error
        self.virtual = len(keys) > 1
        """Whether the start is a state of its own, before the random first observation."""
        self.labels: tuple[str, ...] = ()
        self.index: dict[Key, int] = {}
        """The numbers of the states met so far (of all, where they are declared)."""
        self._declared = isinstance(space, spaces.Discrete) and space.n <= MAX_STATES and not self._minigrid
        if isinstance(space, spaces.Discrete) and self._declared:
            self.index = {int(space.start) + s: s for s in range(int(space.n))}
            for key in keys - self.index.keys():
                self.number(key, key)
            self.start = len(self.index) if self.virtual else self.index[keys.pop()]
            self.state_bound = self.initial_states = len(self.index) + self.virtual
        else:
            self.start, self.state_bound = 0, max_states or MAX_STATES
            self.initial_states = min(FIRST_STATES, self.state_bound)
            self.index = {} if self.virtual else {keys.pop(): 0}
            self.labels = ("start",)

    def _find_starts(self) -> set[Key]:
        """The keys of several first observations; one means that the start is fixed."""
        if self._start_seed is None:
            return {self.read(self.env.reset(seed=seed)[0]) for seed in range(STARTS)}
        if not self._generator():
            raise InputError(f"--start-seed: {self.name} does not use Gymnasium's random generator (np_random)")
        keys = {self.read(self.env.reset(seed=self._start_seed)[0]) for _ in range(2)}
        if len(keys) > 1:
            raise InputError(f"--start-seed: the start of {self.name} does not follow from the seed")
        return keys

    def end(self, key: Key) -> Key:
        """The key of a terminated state."""
        return key if self._declared else (key, "end")

    def number(self, key: Key, observation: Any) -> int:
        """A number for a state that has none."""
        if self._declared:
            raise InputError(f"env: {self.name} gave the observation {observation}, which is not in its space")
        state = len(self.labels)
        if state >= self.state_bound:
            raise InputError(
                f"--max-states: {self.name} has more than {self.state_bound} states; give a larger number "
                "(if they never end, the observations are not discrete)"
            )
        self.index[key] = state
        self.labels += (minigrid_label(self._base) if self._minigrid else str(observation)[:60],)
        return state

    def seed(self, seed: int) -> None:
        """Seed all randomness of the environment, and go to the start."""
        self.env.reset(seed=seed)
        if not self.virtual:
            self.enter()

    def enter(self) -> Any:
        """Reset the environment; the first observation."""
        self.actions.clear()
        self._before = self._generator()
        if self._start_seed is None:
            return self.env.reset()[0]
        observation = self.env.reset(seed=self._start_seed)[0]
        self._base.np_random.bit_generator.state = self._before
        return observation

    def _generator(self) -> dict[str, Any]:
        """The state of the environment's random generator; empty where it does not use Gymnasium's."""
        generator = getattr(self._base, "np_random", None)
        return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else {}

    def snapshot(self, waiting: bool) -> dict[str, Any]:
        """How the environment got where it is; ``waiting``: at the virtual start, nowhere yet."""
        return {
            "generator": self._generator() if waiting else self._before,
            "actions": None if waiting else list(self.actions),
            "keys": [] if self._declared else [repr(key) for key in self.index],
            "labels": [] if self._declared else list(self.labels),
        }

    def restore(self, snapshot: dict[str, Any]) -> tuple[int, bool]:
        """Replay the episode under way; where it led (-1: to a state without number), and whether it was truncated."""
        if not self._declared:
            self.index = {ast.literal_eval(key): s + self.virtual for s, key in enumerate(snapshot["keys"])}
            self.labels = tuple(snapshot["labels"])
        if snapshot["generator"]:
            self._base.np_random.bit_generator.state = snapshot["generator"]
        if snapshot["actions"] is None:
            return self.start, False
        observation, terminated, truncated = self.enter(), False, False
        for action in snapshot["actions"]:
            observation, _, terminated, truncated, _ = self.env.step(action + self.first_action)
        self.actions = list(snapshot["actions"])
        key = self.read(observation)
        return self.index.get(self.end(key) if terminated else key, -1), truncated and not terminated


def without_limits(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment without time limits and checks.

    Wrappers around them are copied, not changed; MiniGrid's own limit, an attribute, is raised out of reach.
    """
    if isinstance(env, gymnasium.Wrapper):
        inner = without_limits(env.env)
        if isinstance(env, CHECKS):
            return inner
        if inner is not env.env:
            outer = copy.copy(env)
            outer.env = inner
            return outer
        return env
    if is_minigrid(env):
        env.max_steps = sys.maxsize  # type: ignore[attr-defined]
    return env
