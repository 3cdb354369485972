"""A Gymnasium environment as numbered states: observations get numbers, resets keep their generators apart."""

from __future__ import annotations

import copy
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.generator import put_back
from adagoal.worlds import keys
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
            raise InputError(f"{name} has actions of type {type(actions).__name__}; they must be Discrete", "env")
        if actions.n > MOST_ACTIONS:
            raise InputError(f"{name} has {actions.n} actions; at most {MOST_ACTIONS} are possible", "env")
        if continuous(space) and max_states is None:
            raise InputError(
                f"{name} has continuous observations; if they take few values, say how many with max_states", "env"
            )
        self.name, self.n_actions, self.first_action = name, int(actions.n), int(actions.start)
        self.env = without_limits(env)
        self.actions: list[int] = []
        """What was done since the last reset of the environment."""
        self.overdue = False
        """Whether the environment ended the episode by itself, so that nothing but a reset is left."""
        self.truncates = False
        """Whether it ever did."""
        self._start_seed = start_seed
        self._base: Any = env.unwrapped
        self._minigrid = is_minigrid(self._base)
        self.read = (lambda observation: minigrid_key(self._base)) if self._minigrid else observation_key(space)
        """The key of the current state, from its observation."""
        self._before: dict[str, Any] = {}  # the generator before the last reset
        starts = self._find_starts()
        self.virtual = len(starts) > 1
        """Whether the start is a state of its own, before the random first observation."""
        self.labels: tuple[str, ...] = ()
        self.index: dict[Key, int] = {}
        """The numbers of the states met so far (of all, where they are declared)."""
        self._declared = isinstance(space, spaces.Discrete) and space.n <= MAX_STATES and not self._minigrid
        if isinstance(space, spaces.Discrete) and self._declared:
            self.index = {int(space.start) + s: s for s in range(int(space.n))}
            for key in starts - self.index.keys():
                self.number(key, key)
            self.start = len(self.index) if self.virtual else self.index[starts.pop()]
            self.state_bound = self.initial_states = len(self.index) + self.virtual
        else:
            self.start, self.state_bound = 0, max_states or MAX_STATES
            self.initial_states = min(FIRST_STATES, self.state_bound)
            self.index = {} if self.virtual else {starts.pop(): 0}
            self.labels = ("start",)

    def _find_starts(self) -> set[Key]:
        """The keys of several first observations; one means that the start is fixed."""
        if self._start_seed is None:
            return {self._key(self._reset(seed)) for seed in range(STARTS)}
        if not self._generator():
            raise InputError(f"{self.name} does not use Gymnasium's random generator (np_random)", "start_seed")
        starts = {self._key(self._reset(self._start_seed)) for _ in range(2)}
        if len(starts) > 1:
            raise InputError(f"the start of {self.name} does not follow from the seed", "start_seed")
        return starts

    def end(self, key: Key) -> Key:
        """The key of a terminated state."""
        return key if self._declared else (key, "end")

    def number(self, key: Key, observation: Any) -> int:
        """A number for a state that has none."""
        if self._declared:
            raise InputError(f"{self.name} gave the observation {observation}, which is not in its space", "env")
        state = len(self.labels)
        if state >= self.state_bound:
            raise InputError(
                f"{self.name} has more than {self.state_bound} states; give a larger number "
                "(if they never end, the observations are not discrete)",
                "max_states",
            )
        self.index[key] = state
        self.labels += (minigrid_label(self._base) if self._minigrid else str(observation)[:60],)
        return state

    @property
    def met(self) -> int:
        """States that have a number."""
        return len(self.labels) or self.initial_states

    # --- the only places where code of the environment is called ----------------------------------------------

    def _reset(self, seed: int | None = None) -> Any:
        """``env.reset``: the first observation."""
        try:
            observation, _ = self.env.reset() if seed is None else self.env.reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"{self.name} cannot be reset ({type(error).__name__}: {error})", "env") from error
        return observation

    def _step(self, action: int) -> tuple[Any, bool, bool]:
        """``env.step``: observation, terminated, truncated."""
        try:
            observation, _, terminated, truncated, _ = self.env.step(action + self.first_action)
        except (Exception, SystemExit) as error:
            text = f"the environment {self.name} raised {type(error).__name__}: {error}"
            raise EnvironmentFailure(text) from error
        return observation, bool(terminated), bool(truncated)

    def _key(self, observation: Any) -> Key:
        """The key of the current state."""
        try:
            return self.read(observation)
        except InputError:
            raise
        except Exception as error:
            shown = f"{str(observation)[:60]!r}, which is not in its space ({type(error).__name__})"
            raise EnvironmentFailure(f"{self.name} gave the observation {shown}", "env") from error

    # --- moving -----------------------------------------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Seed all randomness of the environment, and go to the start."""
        self._reset(seed)
        self.overdue = False
        if not self.virtual:
            self.enter()

    def enter(self) -> Any:
        """Reset the environment; the first observation."""
        self.actions.clear()
        self.overdue = False
        self._before = self._generator()
        observation = self._reset(self._start_seed)
        if self._start_seed is not None:
            self._base.np_random.bit_generator.state = self._before
        return observation

    def home(self) -> int:
        """The reset action: the state after it, which is the start unless something is wrong."""
        if self.virtual:
            self.actions.clear()
            self.overdue = False
            return self.start
        return self._numbered(self.enter(), False)

    def step(self, state: int, action: int) -> tuple[int, bool]:
        """Take an action in a state: the state after it, and whether that one is terminated."""
        if self.virtual and state == self.start:
            return self._numbered(self.enter(), False), False
        observation, terminated, truncated = self._step(action)
        landed = self._numbered(observation, terminated)
        self.actions.append(action)
        self.overdue = truncated and not terminated
        self.truncates |= self.overdue
        return landed, terminated

    def _numbered(self, observation: Any, terminated: bool) -> int:
        key = self._key(observation)
        key = self.end(key) if terminated else key
        state = self.index.get(key)
        return self.number(key, observation) if state is None else state

    def _generator(self) -> dict[str, Any]:
        """The state of the environment's random generator; empty where it does not use Gymnasium's."""
        generator = getattr(self._base, "np_random", None)
        return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else {}

    def snapshot(self, waiting: bool) -> dict[str, Any]:
        """How the environment got where it is; ``waiting``: at the virtual start, nowhere yet."""
        return {
            "generator": self._generator() if waiting else self._before,
            "actions": None if waiting else list(self.actions),
            "states": [] if self._declared else [keys.to_json(key) for key in self.index],
            "labels": [] if self._declared else list(self.labels),
        }

    def restore(self, snapshot: dict[str, Any]) -> int:
        """Replay the episode under way; the state to which it led, -1 for one without a number."""
        if any(action >= self.n_actions for action in snapshot["actions"] or ()):
            raise ValueError("there is no such action")
        if not self._declared:
            self._renumber(snapshot)
        if snapshot["generator"]:
            if not self._generator():
                raise ValueError("the environment has no random generator")
            put_back(self._base.np_random, snapshot["generator"])
        if snapshot["actions"] is None:
            return self.start
        observation, terminated, truncated = self.enter(), False, False
        for action in snapshot["actions"]:
            observation, terminated, truncated = self._step(action)
        self.actions = list(snapshot["actions"])
        self.overdue = truncated and not terminated
        key = self._key(observation)
        return self.index.get(self.end(key) if terminated else key, -1)

    def _renumber(self, snapshot: dict[str, Any]) -> None:
        """The states as they were numbered."""
        old = "keys" in snapshot  # format 1
        found = [keys.from_repr(key) for key in snapshot["keys"]] if old else map(keys.from_json, snapshot["states"])
        index = {key: s + self.virtual for s, key in enumerate(found)}
        labels = tuple(snapshot["labels"])
        if not len(labels) - self.virtual == len(index) == len(snapshot["keys" if old else "states"]):
            raise ValueError("the states do not have one number and one label each")
        if len(labels) > self.state_bound or not (self.virtual or list(index)[:1] == list(self.index)[:1]):
            raise ValueError("the states are not those of this environment")
        self.index, self.labels = index, labels


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
