"""A Gymnasium environment as numbered states: observations get numbers, resets keep their generators apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from adagoal.core import generator
from adagoal.core.errors import InputError
from adagoal.core.goalspace import GoalSpace
from adagoal.core.names import DIGEST, Observed
from adagoal.core.text import plain
from adagoal.worlds import keys
from adagoal.worlds.body import MAX_STATES, Body, Mask
from adagoal.worlds.keys import Key

FIRST_STATES = 64
"""States allocated at first, where the number is not declared."""
TERMINATED = " (end)"
"""Ends the label of a state that ended the episode: the same observation may be one that does not."""
STARTS = 16
"""Resets that must agree for the start to count as fixed."""
RANDOM = "random"
"""In place of a start seed: the user declares that the start is random, whatever the first resets show."""
StartSeed = int | str | None
"""How the first observation is drawn: with this seed, at random by declaration, or as the first resets show."""


class Adapter:
    """Numbers the states of an environment and resets it; :mod:`adagoal.worlds.gym` says by which conventions."""

    def __init__(self, body: Body, name: str, start_seed: StartSeed, max_states: int | None) -> None:
        self.name, self.body, self.n_actions = name, body, body.facts.n_actions
        self.actions: list[int] = []
        """What was done since the last reset of the environment."""
        self.overdue = False
        """Whether the environment ended the episode by itself, so that nothing but a reset is left."""
        self.truncates = False
        """Whether it ever did."""
        self.mask: Mask = None
        """The actions of the state that was entered last."""
        self._start_seed = start_seed if isinstance(start_seed, int) else None
        self._before: dict[str, Any] = {}  # the generator before the last reset
        self._space: GoalSpace | None = None  # to which states that are found belong
        self.reseeded: tuple[str, ...] = ()
        """Random generators that every reset puts into the same state."""
        starts = self._find_starts()
        self._first = body.observation()  # of the start, unless that is virtual
        self.virtual = start_seed == RANDOM or len(starts) > 1
        """Whether the start is a state of its own, before the random first observation."""
        self.labels: tuple[str, ...] = ()
        self.index: dict[Key, int] = {}
        """The numbers of the states met so far (of all, where they are declared)."""
        states = body.facts.states
        self._declared = states is not None
        if states is not None:
            self.index = {key: s for s, key in enumerate(states)}
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
            seeded = {self.body.reset(seed)[0] for seed in range(STARTS)}
            self.reseeded, unseeded = self.body.reseeded()
            return seeded | unseeded
        if not self.body.generator():
            raise InputError(f"{self.name} does not use Gymnasium's random generator (np_random)", "start_seed")
        starts = {self.body.reset(self._start_seed)[0] for _ in range(2)}
        if len(starts) > 1:
            raise InputError(f"the start of {self.name} does not follow from the seed", "start_seed")
        return starts

    def end(self, key: Key) -> Key:
        """The key of a terminated state."""
        return key if self._declared else (key, "end")

    def number(self, key: Key, label: str) -> int:
        """A number for a state that has none."""
        state = len(self.labels)
        if state >= self.state_bound:
            raise InputError(
                f"{self.name} has more than {self.state_bound} states; give a larger number "
                "(if they never end, the observations are not discrete)",
                "max_states",
            )
        if self._space is not None:
            self._space.add(state, self.body.observation(), label)
        self.index[key] = state
        self.labels += (label,)
        return state

    def classify(self, space: GoalSpace, labels: tuple[str, ...]) -> bool:
        """Add all states to the goal space, those that are not known yet when they get their numbers."""
        if self._declared:
            for key, state in self.index.items():
                space.add(state, key, labels[state] if labels else str(key))
            return True
        self._space = space
        if not self.virtual:
            space.add(self.start, self._first, labels[self.start])
        return False

    def observed(self) -> Observed:
        """How the states are known by their observations."""
        if self._declared:
            return Observed({"kind": "states", "first": next(iter(self.index))})
        digests = np.zeros((len(self.labels), DIGEST), np.uint8)
        for key, state in self.index.items():
            digests[state] = np.frombuffer(keys.digest(key), np.uint8)
        return Observed(self.body.facts.space, digests)

    @property
    def met(self) -> int:
        """States that have a number."""
        return len(self.labels) or self.initial_states

    # --- moving -----------------------------------------------------------------------------------------------

    def seed(self, seed: int) -> int:
        """Seed all randomness of the environment, and go to the start: the state after it, as for :meth:`home`."""
        self.body.reset(seed)
        return self.home()

    def enter(self) -> Key:
        """Reset the environment; the key of its first observation."""
        key, self.mask, self._before = self.body.reset(self._start_seed, keep=self._start_seed is not None)
        self.actions.clear()  # after the reset: an interrupted one leaves the episode as it is
        self.overdue = False
        return key

    def home(self) -> int:
        """The reset action: the state after it, which is the start unless something is wrong."""
        if self.virtual:
            self.actions.clear()
            self.overdue, self.mask = False, None
            return self.start
        return self._numbered(self.enter())

    def step(self, state: int, action: int) -> tuple[int, bool]:
        """Take an action in a state: the state after it, and whether that one is terminated."""
        if self.virtual and state == self.start:
            return self._numbered(self.enter()), False
        key, self.mask, terminated, truncated = self.body.step(action)
        landed = self._numbered(key, terminated)
        self.actions.append(action)
        self.overdue = truncated and not terminated
        self.truncates |= self.overdue
        return landed, terminated

    def _numbered(self, key: Key, terminated: bool = False) -> int:
        key = self.end(key) if terminated else key
        state = self.index.get(key)
        if state is None:
            return self.number(key, self.body.label() + (TERMINATED if terminated else ""))
        return state

    # --- saving -----------------------------------------------------------------------------------------------

    def snapshot(self, waiting: bool, adrift: bool) -> dict[str, Any]:
        """How the environment got where it is; ``waiting``: at the virtual start, nowhere yet; ``adrift``: unknown."""
        return {
            "generator": {} if adrift else self.body.generator() if waiting else self._before,
            "actions": None if waiting or adrift else list(self.actions),
            "states": [] if self._declared else [keys.to_json(key) for key in self.index],
            "labels": [] if self._declared else list(self.labels),
        }

    def recall(self, snapshot: dict[str, Any]) -> None:
        """The numbers and names that states have in a snapshot; what is no snapshot of it is a ``ValueError``."""
        if snapshot["generator"]:
            generator.check(snapshot["generator"])
        if any(action >= self.n_actions for action in snapshot["actions"] or ()):
            raise ValueError("there is no such action")
        if self._declared:
            return
        given = snapshot["states"]
        index = {keys.from_json(key): s + self.virtual for s, key in enumerate(given)}
        labels = tuple(plain(label) for label in snapshot["labels"])
        if not len(labels) - self.virtual == len(index) == len(given):
            raise ValueError("the states do not have one number and one label each")
        if len(labels) > self.state_bound or not (self.virtual or list(index)[:1] == list(self.index)[:1]):
            raise ValueError("the states are not those of this environment")
        self.index, self.labels = index, labels

    def replay(self, snapshot: dict[str, Any]) -> int:
        """Replay the episode under way; the state to which it led, -1 for one without a number."""
        if snapshot["generator"]:
            self.body.put_back(snapshot["generator"])
        if snapshot["actions"] is None:
            return self.start
        key, terminated, truncated = self.enter(), False, False
        for action in snapshot["actions"]:
            key, self.mask, terminated, truncated = self.body.step(action)
        self.actions = list(snapshot["actions"])
        self.overdue = truncated and not terminated
        return self.index.get(self.end(key) if terminated else key, -1)
