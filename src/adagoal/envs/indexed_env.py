"""A Gymnasium environment with numbered states: maps observations to numbers, resets, and replays episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from adagoal.core import random_streams
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.goal_space import GoalSpace
from adagoal.core.types import DIGEST_BYTES, ObservedStates
from adagoal.envs import observation_keys
from adagoal.envs.env_backends import DEFAULT_MAX_STATES, ActionMask, EnvBackend
from adagoal.envs.observation_keys import StateKey

INITIAL_STATE_CAPACITY = 64  # states allocated at first, if the environment does not declare their number
N_START_RESETS = 16  # the start counts as fixed if this number of resets agrees
TERMINAL_LABEL_SUFFIX = " (end)"  # distinguishes a terminal state from a state with the same observation
RANDOM_START = "random"
StartSeed = int | str | None
"""How the first observation is drawn: with a seed, at random (RANDOM_START), or (None) inferred from a few resets."""


class IndexedEnv:
    """Numbers the states of an environment and resets it, with the conventions of :mod:`adagoal.envs.gym_adapter`."""

    def __init__(self, backend: EnvBackend, name: str, start_seed: StartSeed, max_states: int | None) -> None:
        self.name, self.backend, self.n_actions = name, backend, backend.spaces.n_actions
        self.actions_since_reset: list[int] = []
        self.needs_reset = False  # whether the environment truncated the episode, so a reset must follow
        self.ever_truncated = False
        self.action_mask: ActionMask = None  # of the current state
        self._start_seed = start_seed if isinstance(start_seed, int) else None
        self._rng_before_reset: dict[str, Any] = {}  # state of the generator before the last reset
        self._goal_space: GoalSpace | None = None  # receives every new state
        self.reseeded: tuple[str, ...] = ()  # random generators that every reset puts into the same state
        start_keys = self._sample_start_keys()
        self._start_observation = backend.observation()  # unused if the start is virtual
        self.has_virtual_start = start_seed == RANDOM_START or len(start_keys) > 1
        self.labels: tuple[str, ...] = ()
        self.state_numbers: dict[StateKey, int] = {}  # of the states met so far, or of all declared states
        declared_states = backend.spaces.declared_states
        self._states_declared = declared_states is not None
        if declared_states is not None:
            self.state_numbers = {key: s for s, key in enumerate(declared_states)}
            self.start = len(self.state_numbers) if self.has_virtual_start else self.state_numbers[start_keys.pop()]
            self.state_bound = self.initial_states = len(self.state_numbers) + self.has_virtual_start
        else:
            self.start, self.state_bound = 0, max_states or DEFAULT_MAX_STATES
            self.initial_states = min(INITIAL_STATE_CAPACITY, self.state_bound)
            self.state_numbers = {} if self.has_virtual_start else {start_keys.pop(): 0}
            self.labels = ("start",)

    def _sample_start_keys(self) -> set[StateKey]:
        """Return the keys of several first observations; a single key means a fixed start."""
        if self._start_seed is None:
            seeded = {self.backend.reset(seed)[0] for seed in range(N_START_RESETS)}
            self.reseeded, unseeded = self.backend.find_reseeded_generators()
            return seeded | unseeded
        if not self.backend.generator_state():
            raise InputError(
                f"needs Gymnasium's random generator (np_random), which {self.name} does not use; leave start_seed out",
                "start_seed",
            )
        start_keys = {self.backend.reset(self._start_seed)[0] for _ in range(2)}
        if len(start_keys) > 1:
            raise InputError(
                f"must fix the start, but {self.name} started in two states with seed {self._start_seed}; "
                "leave start_seed out",
                "start_seed",
            )
        return start_keys

    def terminal_key(self, key: StateKey) -> StateKey:
        """Return the key of a terminal state with this observation."""
        return key if self._states_declared else (key, "end")

    def add_new_state(self, key: StateKey, label: str) -> int:
        """Give a new state the next number."""
        state = len(self.labels)
        if state >= self.state_bound:
            raise InputError(
                f"{self.name} has more than {self.state_bound} states; give a larger number "
                "(if they never end, the observations are not discrete)",
                "max_states",
            )
        if self._goal_space is not None:
            self._goal_space.add_state(state, self.backend.observation(), label)
        self.state_numbers[key] = state
        self.labels += (label,)
        return state

    def assign_states_to_goals(self, space: GoalSpace, labels: tuple[str, ...]) -> bool:
        """Add all known states to the goal space, and new states later; return whether all states are known."""
        if self._states_declared:
            for key, state in self.state_numbers.items():
                space.add_state(state, key, labels[state] if labels else str(key))
            return True
        self._goal_space = space
        if not self.has_virtual_start:
            space.add_state(self.start, self._start_observation, labels[self.start])
        return False

    def observed_states(self) -> ObservedStates:
        """Return the table from observations to states."""
        if self._states_declared:
            return ObservedStates({"kind": "states", "first": next(iter(self.state_numbers))})
        digests = np.zeros((len(self.labels), DIGEST_BYTES), np.uint8)
        for key, state in self.state_numbers.items():
            digests[state] = np.frombuffer(observation_keys.hash_state_key(key), np.uint8)
        return ObservedStates(self.backend.spaces.key_format, digests)

    @property
    def n_known_states(self) -> int:
        """Number of states that have a number."""
        return len(self.labels) or self.initial_states

    def seed_and_reset(self, seed: int) -> int:
        """Seed all randomness of the environment and reset; return the next state."""
        self.backend.reset(seed)
        return self.reset_to_start()

    def reset_backend(self) -> StateKey:
        """Reset the environment; return the key of its first observation."""
        key, self.action_mask, self._rng_before_reset = self.backend.reset(
            self._start_seed, self._start_seed is not None
        )
        self.actions_since_reset.clear()  # after the reset: if that is interrupted, the old episode can be replayed
        self.needs_reset = False
        return key

    def reset_to_start(self) -> int:
        """Take the reset action; return the next state, which is the start unless the environment is at fault."""
        if self.has_virtual_start:
            self.actions_since_reset.clear()
            self.needs_reset, self.action_mask = False, None
            return self.start
        return self._find_or_add_state(self.reset_backend())

    def step(self, state: int, action: int) -> tuple[int, bool]:
        """Take an action in a state; return the next state and whether it is terminal."""
        if self.has_virtual_start and state == self.start:
            return self._find_or_add_state(self.reset_backend()), False
        key, self.action_mask, terminated, truncated = self.backend.step(action)
        next_state = self._find_or_add_state(key, terminated)
        self.actions_since_reset.append(action)
        self.needs_reset = truncated and not terminated
        self.ever_truncated |= self.needs_reset
        return next_state, terminated

    def _find_or_add_state(self, key: StateKey, terminated: bool = False) -> int:
        key = self.terminal_key(key) if terminated else key
        state = self.state_numbers.get(key)
        if state is None:
            return self.add_new_state(key, self.backend.label() + (TERMINAL_LABEL_SUFFIX if terminated else ""))
        return state

    def episode_snapshot(self, at_virtual_start: bool, state_unknown: bool) -> dict[str, Any]:
        """Return the state numbers, and the generator and actions from which the current episode can be replayed."""
        # Do not ask the backend if the state is unknown: its process may be gone.
        generator: dict[str, Any] = {}
        if not state_unknown:
            generator = self.backend.generator_state() if at_virtual_start else self._rng_before_reset
        keys = [] if self._states_declared else [observation_keys.key_to_json(key) for key in self.state_numbers]
        return {
            "generator": generator,
            "actions": None if at_virtual_start or state_unknown else list(self.actions_since_reset),
            "states": keys,
            "labels": [] if self._states_declared else list(self.labels),
        }

    def restore_state_numbers(self, snapshot: dict[str, Any]) -> None:
        """Restore the numbers and labels of states; raise ``ValueError`` if the snapshot is of another environment."""
        if snapshot["generator"]:
            random_streams.check_rng_state(snapshot["generator"])
        if any(action >= self.n_actions for action in snapshot["actions"] or ()):
            raise ValueError(f"there is no such action; the environment has {self.n_actions}")
        if self._states_declared:
            return
        saved = snapshot["states"]
        numbers = {observation_keys.key_from_json(key): s + self.has_virtual_start for s, key in enumerate(saved)}
        labels = tuple(to_single_line(label) for label in snapshot["labels"])
        if not len(labels) - self.has_virtual_start == len(numbers) == len(saved):
            raise ValueError("the states do not have one number and one label each")
        same_start = self.has_virtual_start or list(numbers)[:1] == list(self.state_numbers)[:1]
        if len(labels) > self.state_bound or not same_start:
            raise ValueError("the states are not those of this environment")
        self.state_numbers, self.labels = numbers, labels

    def replay_episode(self, snapshot: dict[str, Any]) -> int:
        """Replay the episode of a snapshot; return the state that it ends in, or -1 if that state is unknown."""
        if snapshot["generator"]:
            self.backend.set_generator_state(snapshot["generator"])
        if snapshot["actions"] is None:
            return self.start
        key, terminated, truncated = self.reset_backend(), False, False
        for action in snapshot["actions"]:
            key, self.action_mask, terminated, truncated = self.backend.step(action)
        self.actions_since_reset = list(snapshot["actions"])
        self.needs_reset = truncated and not terminated
        return self.state_numbers.get(self.terminal_key(key) if terminated else key, -1)
