"""A Gymnasium environment as numbered states: observations get numbers, resets keep their generators apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from adagoal.core import generator
from adagoal.core.errors import InputError
from adagoal.core.goalspace import GoalSpace
from adagoal.core.names import DIGEST_BYTES, ObservedStates
from adagoal.core.text import to_single_line
from adagoal.worlds import keys
from adagoal.worlds.body import DEFAULT_MAX_STATES, ActionMask, EnvBackend
from adagoal.worlds.keys import StateKey

INITIAL_STATE_CAPACITY = 64
"""States allocated at first, where the number is not declared."""
TERMINAL_LABEL_SUFFIX = " (end)"
"""Ends the label of a state that ended the episode: the same observation may be one that does not."""
N_START_RESETS = 16
"""Resets that must agree for the start to count as fixed."""
RANDOM_START = "random"
"""In place of a start seed: the user declares that the start is random, whatever the first resets show."""
StartSeed = int | str | None
"""How the first observation is drawn: with this seed, at random by declaration, or as the first resets show."""


class IndexedEnv:
    """Numbers the states of an environment and resets it; :mod:`adagoal.worlds.gym` says by which conventions."""

    def __init__(self, body: EnvBackend, name: str, start_seed: StartSeed, max_states: int | None) -> None:
        self.name, self.backend, self.n_actions = name, body, body.facts.n_actions
        self.actions_since_reset: list[int] = []
        """What was done since the last reset of the environment."""
        self.needs_reset = False
        """Whether the environment ended the episode by itself, so that nothing but a reset is left."""
        self.ever_truncated = False
        """Whether it ever did."""
        self.action_mask: ActionMask = None
        """The actions of the state that was entered last."""
        self._start_seed = start_seed if isinstance(start_seed, int) else None
        self._rng_before_reset: dict[str, Any] = {}  # the generator before the last reset
        self._goal_space: GoalSpace | None = None  # to which states that are found belong
        self.reseeded: tuple[str, ...] = ()
        """Random generators that every reset puts into the same state."""
        starts = self._sample_start_keys()
        self._start_observation = body.observation()  # of the start, unless that is virtual
        self.has_virtual_start = start_seed == RANDOM_START or len(starts) > 1
        """Whether the start is a state of its own, before the random first observation."""
        self.labels: tuple[str, ...] = ()
        self.state_numbers: dict[StateKey, int] = {}
        """The numbers of the states met so far (of all, where they are declared)."""
        states = body.facts.declared_states
        self._states_declared = states is not None
        if states is not None:
            self.state_numbers = {key: s for s, key in enumerate(states)}
            self.start = len(self.state_numbers) if self.has_virtual_start else self.state_numbers[starts.pop()]
            self.state_bound = self.initial_states = len(self.state_numbers) + self.has_virtual_start
        else:
            self.start, self.state_bound = 0, max_states or DEFAULT_MAX_STATES
            self.initial_states = min(INITIAL_STATE_CAPACITY, self.state_bound)
            self.state_numbers = {} if self.has_virtual_start else {starts.pop(): 0}
            self.labels = ("start",)

    def _sample_start_keys(self) -> set[StateKey]:
        """The keys of several first observations; one means that the start is fixed."""
        if self._start_seed is None:
            seeded = {self.backend.reset(seed)[0] for seed in range(N_START_RESETS)}
            self.reseeded, unseeded = self.backend.reseeded()
            return seeded | unseeded
        if not self.backend.generator():
            raise InputError(f"{self.name} does not use Gymnasium's random generator (np_random)", "start_seed")
        starts = {self.backend.reset(self._start_seed)[0] for _ in range(2)}
        if len(starts) > 1:
            raise InputError(f"the start of {self.name} does not follow from the seed", "start_seed")
        return starts

    def terminal_key(self, key: StateKey) -> StateKey:
        """The key of a terminated state."""
        return key if self._states_declared else (key, "end")

    def add_new_state(self, key: StateKey, label: str) -> int:
        """A number for a state that has none."""
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
        """Add all states to the goal space, those that are not known yet when they get their numbers."""
        if self._states_declared:
            for key, state in self.state_numbers.items():
                space.add_state(state, key, labels[state] if labels else str(key))
            return True
        self._goal_space = space
        if not self.has_virtual_start:
            space.add_state(self.start, self._start_observation, labels[self.start])
        return False

    def observed_states(self) -> ObservedStates:
        """How the states are known by their observations."""
        if self._states_declared:
            return ObservedStates({"kind": "states", "first": next(iter(self.state_numbers))})
        digests = np.zeros((len(self.labels), DIGEST_BYTES), np.uint8)
        for key, state in self.state_numbers.items():
            digests[state] = np.frombuffer(keys.hash_state_key(key), np.uint8)
        return ObservedStates(self.backend.facts.key_format, digests)

    @property
    def n_known_states(self) -> int:
        """States that have a number."""
        return len(self.labels) or self.initial_states

    # --- moving -----------------------------------------------------------------------------------------------

    def seed_and_reset(self, seed: int) -> int:
        """Seed all randomness of the environment, and go to the start: the state after it, as for :meth:`reset_to_start`."""
        self.backend.reset(seed)
        return self.reset_to_start()

    def reset_backend(self) -> StateKey:
        """Reset the environment; the key of its first observation."""
        key, self.action_mask, self._rng_before_reset = self.backend.reset(
            self._start_seed, keep=self._start_seed is not None
        )
        self.actions_since_reset.clear()  # after the reset: an interrupted one leaves the episode as it is
        self.needs_reset = False
        return key

    def reset_to_start(self) -> int:
        """The reset action: the state after it, which is the start unless something is wrong."""
        if self.has_virtual_start:
            self.actions_since_reset.clear()
            self.needs_reset, self.action_mask = False, None
            return self.start
        return self._find_or_add_state(self.reset_backend())

    def step(self, state: int, action: int) -> tuple[int, bool]:
        """Take an action in a state: the state after it, and whether that one is terminated."""
        if self.has_virtual_start and state == self.start:
            return self._find_or_add_state(self.reset_backend()), False
        key, self.action_mask, terminated, truncated = self.backend.step(action)
        landed = self._find_or_add_state(key, terminated)
        self.actions_since_reset.append(action)
        self.needs_reset = truncated and not terminated
        self.ever_truncated |= self.needs_reset
        return landed, terminated

    def _find_or_add_state(self, key: StateKey, terminated: bool = False) -> int:
        key = self.terminal_key(key) if terminated else key
        state = self.state_numbers.get(key)
        if state is None:
            return self.add_new_state(key, self.backend.label() + (TERMINAL_LABEL_SUFFIX if terminated else ""))
        return state

    # --- saving -----------------------------------------------------------------------------------------------

    def episode_snapshot(self, waiting: bool, adrift: bool) -> dict[str, Any]:
        """How the environment got where it is; ``waiting``: at the virtual start, nowhere yet; ``adrift``: unknown."""
        return {
            "generator": {} if adrift else self.backend.generator() if waiting else self._rng_before_reset,
            "actions": None if waiting or adrift else list(self.actions_since_reset),
            "states": [] if self._states_declared else [keys.key_to_json(key) for key in self.state_numbers],
            "labels": [] if self._states_declared else list(self.labels),
        }

    def restore_state_numbers(self, snapshot: dict[str, Any]) -> None:
        """The numbers and names that states have in a snapshot; what is no snapshot of it is a ``ValueError``."""
        if snapshot["generator"]:
            generator.check_rng_state(snapshot["generator"])
        if any(action >= self.n_actions for action in snapshot["actions"] or ()):
            raise ValueError("there is no such action")
        if self._states_declared:
            return
        given = snapshot["states"]
        index = {keys.key_from_json(key): s + self.has_virtual_start for s, key in enumerate(given)}
        labels = tuple(to_single_line(label) for label in snapshot["labels"])
        if not len(labels) - self.has_virtual_start == len(index) == len(given):
            raise ValueError("the states do not have one number and one label each")
        if len(labels) > self.state_bound or not (
            self.has_virtual_start or list(index)[:1] == list(self.state_numbers)[:1]
        ):
            raise ValueError("the states are not those of this environment")
        self.state_numbers, self.labels = index, labels

    def replay_episode(self, snapshot: dict[str, Any]) -> int:
        """Replay the episode under way; the state to which it led, -1 for one without a number."""
        if snapshot["generator"]:
            self.backend.put_back(snapshot["generator"])
        if snapshot["actions"] is None:
            return self.start
        key, terminated, truncated = self.reset_backend(), False, False
        for action in snapshot["actions"]:
            key, self.action_mask, terminated, truncated = self.backend.step(action)
        self.actions_since_reset = list(snapshot["actions"])
        self.needs_reset = truncated and not terminated
        return self.state_numbers.get(self.terminal_key(key) if terminated else key, -1)
