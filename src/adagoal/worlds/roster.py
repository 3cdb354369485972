"""The copies of an environment and where they live: calls to all of them at once, and new ones for those that are lost.

A :class:`Member` is a copy in a process of this machine (:class:`adagoal.worlds.process.Process`) or somewhere else.
Every life of a copy has a seed of its own, which follows from the seed of the run, the number of the copy and that of
the life: samples that repeat themselves would be counted as new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from adagoal.core.ctrlc import USER_CODE
from adagoal.core.errors import InputError
from adagoal.core.random import Purpose, sequence
from adagoal.worlds.copies import Copy, Met, Traits
from adagoal.worlds.process import MAKING, Process


class Member(Protocol):
    """A copy, wherever it lives."""

    @property
    def alive(self) -> bool:
        """Whether it was begun and has not been found dead."""
        ...

    def begin(self) -> None:
        """Make it; its traits are the first answer."""
        ...

    def send(self, method: str, *arguments: Any) -> None:
        """Ask for something; the answer is received later."""
        ...

    def receive(self, seconds: float | None = None) -> Any:
        """The answer. Raises :class:`~adagoal.worlds.process.Killed` where somebody else ended it."""
        ...

    def end(self) -> Any:
        """End it, if it has not ended yet."""
        ...


Hire = Callable[[Callable[[], Copy], str], Member]
"""From a function that makes a copy, and a name for messages."""
Lost = Callable[[int, BaseException], None]
"""Told which copy answered with an exception, or not at all."""


class Roster:
    """N copies, called by their numbers."""

    def __init__(self, makers: Sequence[Callable[[], Copy]], name: str, hire: Hire = Process) -> None:
        self._members = [hire(make, name) for make in makers]
        self.adrift = [False] * len(makers)
        """Whether nobody knows where a copy stands"""
        self.traits: Traits = self._first_traits(name)
        self.seed: int | None = None
        """Of the run's copies; None before the first rollout"""
        self.lives = [0] * len(makers)
        self.told = [len(self.traits.met or ())] * len(makers)
        """How many of the states that have been met a copy knows"""

    def _first_traits(self, name: str) -> Traits:
        try:
            for member in self._members:
                member.begin()
            found = [member.receive(MAKING) for member in self._members]
        except BaseException:
            self.close()
            raise
        first: Traits = found[0]
        if not all(_alike(traits, first) for traits in found):
            self.close()
            raise InputError(f"the copies of {name} are not alike: they start in different states", "workers")
        return first

    def __len__(self) -> int:
        return len(self._members)

    def ask(self, calls: dict[int, tuple[Any, ...]], lost: Lost) -> dict[int, Any]:
        """Call methods of copies, all at once: the answers, in their order."""
        answers: dict[int, Any] = {}

        def trying(i: int, action: Callable[..., Any], *arguments: Any) -> None:
            try:
                answers[i] = action(*arguments)
            except InputError as error:
                self.adrift[i] = True
                answers.pop(i, None)
                lost(i, error)

        try:
            with USER_CODE:  # which runs elsewhere, perhaps for ever
                for i, call in calls.items():
                    trying(i, self._members[i].send, *call)
                for i in list(answers):
                    trying(i, self._members[i].receive)
        except BaseException:
            self.close()  # nobody will wait for the answers
            raise
        return answers

    def close(self) -> None:
        """End all copies."""
        for member in self._members:
            member.end()
        self.adrift = [True] * len(self)

    def news(self, i: int, met: Met) -> Met:
        """States that copy i has not been told about; it is told now."""
        news, self.told[i] = met[self.told[i] :], len(met)
        return news

    def revive(self, lost: Lost) -> dict[int, int]:
        """Copies that are adrift begin a new life with a reset: where that led each of them."""
        gone = [i for i, adrift in enumerate(self.adrift) if adrift]
        for i in gone:
            if not self._members[i].alive:
                self._members[i].begin()
                self._members[i].receive(MAKING)
                self.told[i] = len(self.traits.met or ())
        landed = self.ask({i: ("begin", self.new_life(i)) for i in gone}, lost)
        for i in landed:
            self.adrift[i] = False
        return landed

    def new_life(self, i: int) -> int:
        """The seed of another life of copy i."""
        self.lives[i] += 1
        source = sequence(self.seed or 0, Purpose.COPY_LIFE, i, self.lives[i])
        return int(source.generate_state(1, np.uint64)[0] >> 1)

    def steady(self) -> Iterable[int]:
        """The copies of which it is known where they stand."""
        return [i for i, adrift in enumerate(self.adrift) if not adrift]


def _alike(one: Traits, other: Traits) -> bool:
    """Whether two copies agree; arrays are compared on their own, because they have no single truth value."""
    mine, theirs = one.observed, other.observed
    same = mine.space == theirs.space and np.array_equal(mine.digests, theirs.digests)
    return same and one._replace(observed=theirs) == other
