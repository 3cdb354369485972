"""One of several copies of an environment: what a worker does.

A copy plays a part of a plan with :func:`adagoal.worlds.episode.play`, as a single environment would, and sends back
what it saw: one message a round, not a step. It counts nothing: :mod:`adagoal.worlds.crew` merges what all have seen.

States that are numbered as they are met have the same numbers in all copies: a state that a copy meets first has a
number beyond all others until the copy is told the one that it got in the merge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adagoal.core import generator
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.failures import Failure
from adagoal.core.names import Observed
from adagoal.core.types import Longs
from adagoal.worlds import episode
from adagoal.worlds.adapter import Adapter, StartSeed
from adagoal.worlds.body import Local, Mask
from adagoal.worlds.keys import Key
from adagoal.worlds.masks import Masks

Met = list[tuple[Key, str]]
"""States with their labels, in the order of their numbers."""


class Traits(NamedTuple):
    """What all copies must agree on."""

    n_actions: int
    start: int
    state_bound: int
    initial_states: int
    virtual: bool
    """Whether the start is a state of its own, before the random first observation"""
    met: Met | None
    """States known at first, after the virtual start; None where their numbers are declared"""
    observed: Observed
    """How the states are known by their observations; the digests are those of the beginning"""
    reseeded: tuple[str, ...]
    """Random generators that every reset puts into the same state"""


class Part(NamedTuple):
    """The part of a plan that is played: its columns of positive weight."""

    orders: episode.Orders
    """For these columns"""
    columns: list[int]
    """Their numbers in the plan"""
    seen: list[int]
    """The states that are not new"""
    terminal: list[int]
    """Those of them in which nothing but a reset is allowed"""
    absent: list[int]
    """The pairs s * A + a that do not exist"""
    masked: bool
    """Whether masks are used"""
    fresh: bool
    """Whether nobody has moved yet, so that the mask of the start is news"""


class Seen(NamedTuple):
    """What a copy saw."""

    trail: Longs
    """[steps, 3] the pair s * A + a, or -1 - s for a reset in s; the state after it; whether that one terminated"""
    log: Longs
    """[episodes, 2] the goal of each episode that ended, and whether it was reached"""
    met: Met
    """States that it met first"""
    masks: dict[int, Mask]
    """Of the states that were new to it"""
    torn: list[int]
    """States that had another mask than before"""
    truncates: bool
    age: int
    """Steps since the last reset of the environment"""
    drew: bool
    """Whether Gymnasium's generator was ever used"""
    failure: Failure | None
    """The exception that ended the round, if any"""


class Copy:
    """An environment that plays parts of plans. It is its own :class:`~adagoal.worlds.episode.Stage`."""

    def __init__(self, body: Local, name: str, start_seed: StartSeed, max_states: int | None) -> None:
        self._body = body
        self._adapter = adapter = Adapter(body, name, start_seed, max_states)
        declared = body.facts.states is not None
        met = None if declared else list(zip(adapter.index, adapter.labels[adapter.virtual :], strict=True))
        bounds = adapter.state_bound, adapter.initial_states
        self.facts = Traits(
            adapter.n_actions, adapter.start, *bounds, adapter.virtual, met, adapter.observed(), adapter.reseeded
        )
        self._place = [adapter.start, -1, 0]
        self._rng = np.random.default_rng()
        self._known: set[int] = set()
        self._terminal: set[int] = set()
        self._masks, self._torn = Masks(adapter.n_actions, (), used=False), list[int]()
        self._told = len(adapter.labels)  # labels that all copies share
        self._sown: dict[str, Any] = {}  # the generator of the environment after the last seed
        self._trail: list[int] = []
        self._failure: Failure | None = None

    # --- playing ----------------------------------------------------------------------------------------------

    def begin(self, seed: int) -> int:
        """Seed all randomness, and go to the start; the state after the reset."""
        mine, theirs = np.random.SeedSequence(seed).spawn(2)
        self._rng = np.random.default_rng(mine)
        landed = self._adapter.seed(int(theirs.generate_state(1)[0] >> 1))
        self._place, self._sown = [self._adapter.start, -1, 0], self._body.generator()
        return landed

    def play(self, part: Part, news: Met, steps: int, episodes: int) -> Seen:
        """Play so many steps and episodes, at most."""
        self._learn(news)
        orders, columns = episode.in_python(part.orders), part.columns
        self._known, self._terminal = set(part.seen), set(part.terminal)
        self._masks, self._torn = Masks(self._adapter.n_actions, part.absent, part.masked), []
        if part.fresh:
            self._masks.enter(self._adapter.start, self._adapter.mask)
        self._trail, self._failure = [], None
        state, aim, clock = self._place
        place = [state, columns.index(aim) if aim in columns else -1, clock]
        log = np.zeros((min(episodes, episode.EPISODES), 2), np.int64)
        _, ended = episode.play(self, orders, place, self._rng, steps, log)
        self._place = [int(place[0]), columns[place[1]] if place[1] >= 0 else -1, int(place[2])]
        trail = np.array(self._trail, np.int64).reshape(-1, 3)
        drew = not generator.same(self._body.generator(), self._sown)
        facts = self._adapter.truncates, len(self._adapter.actions), drew, self._failure
        return Seen(trail, log[:ended], self._first_met(), self._masks.entered, self._torn, *facts)

    def _first_met(self) -> Met:
        labels = self._adapter.labels[self._told :]
        return list(zip(list(self._adapter.index)[len(self._adapter.index) - len(labels) :], labels, strict=True))

    def _learn(self, news: Met) -> None:
        """The numbers of states met since; the copy's own guesses are forgotten."""
        adapter = self._adapter
        guesses = self._first_met()
        here = next((key for key, _ in guesses if adapter.index[key] == self._place[0]), None)
        for key, _ in guesses:
            del adapter.index[key]
        adapter.labels = adapter.labels[: self._told]
        for key, label in news:
            adapter.index[key] = len(adapter.labels)
            adapter.labels += (label,)
        self._told = len(adapter.labels)
        if here is not None:
            self._place[0] = adapter.index[here]

    def forced(self, state: int) -> bool:
        """See :class:`~adagoal.worlds.episode.Stage`."""
        return self._adapter.overdue or state in self._terminal

    def home(self, state: int) -> int:
        """See :class:`~adagoal.worlds.episode.Stage`."""
        try:
            landed = self._adapter.home()
        except InputError as error:
            self._failure = Failure.of(error)
            return episode.FAILED
        if landed == self._adapter.start:
            self._compare(landed)
        self._trail += (-1 - state, landed, 0)
        return landed

    def move(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        """See :class:`~adagoal.worlds.episode.Stage`."""
        if state * self._adapter.n_actions + action in self._masks.absent:
            return self.home(state), episode.NOTHING
        try:
            landed, terminated = self._adapter.step(state, action)
        except InputError as error:
            self._failure = Failure.of(error)
            return episode.FAILED, episode.NOTHING
        if terminated:
            self._terminal.add(landed)
        new = landed not in self._known
        self._known.add(landed)
        if new:
            self._masks.enter(landed, self._adapter.mask)
        elif not terminated:
            self._compare(landed)
        self._trail += (state * self._adapter.n_actions + action, landed, terminated)
        return landed, episode.NEW if new else episode.NOTHING

    def _compare(self, state: int) -> None:
        """The mask of a state must not change."""
        if self._masks.differs(state, self._adapter.mask):
            self._torn.append(state)

    # --- saving -----------------------------------------------------------------------------------------------

    def snapshot(self, news: Met) -> dict[str, Any]:
        """Where it stands, and how it got there from the last reset."""
        self._learn(news)
        waiting = self._adapter.virtual and self._place[0] == self._adapter.start
        adapter = self._adapter.snapshot(waiting, adrift=False)
        return {
            "place": list(self._place),
            "rng": self._rng.bit_generator.state,
            "generator": adapter["generator"],
            "actions": adapter["actions"],
        }

    def restore(self, snapshot: dict[str, Any], news: Met, seed: int) -> bool:
        """Back to a snapshot; whether the episode under way could be replayed. What cannot be put back is seeded."""
        self._learn(news)
        self.begin(seed)
        generator.put_back(self._rng, snapshot["rng"])
        self._place = list(snapshot["place"])
        try:
            there = self._adapter.replay(snapshot) == self._place[0]
            self._sown = self._body.generator()
            return there
        except EnvironmentFailure:
            return False

    def close(self) -> None:
        """Close the environment."""
        self._body.close()
