"""The copies of an environment and where they live: calls to all of them at once, and new ones for those that are lost.

A :class:`Worker` is a copy in a process of this machine (:class:`adagoal.worlds.process.WorkerProcess`) or somewhere else.
Every life of a copy has a seed of its own, which follows from the seed of the run, the number of the copy and that of
the life: samples that repeat themselves would be counted as new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from adagoal.core.ctrlc import USER_CODE_SECTION
from adagoal.core.errors import InputError
from adagoal.core.random import StreamPurpose, stream_seed_sequence
from adagoal.worlds.copies import EnvProperties, EnvWorker, LabelledStates
from adagoal.worlds.process import START_TIMEOUT_SECONDS, WorkerProcess


class Worker(Protocol):
    """A copy, wherever it lives."""

    @property
    def is_alive(self) -> bool:
        """Whether it was begun and has not been found dead."""
        ...

    def start_worker(self) -> None:
        """Make it; its traits are the first answer."""
        ...

    def send_call(self, method: str, *arguments: Any) -> None:
        """Ask for something; the answer is received later."""
        ...

    def receive_reply(self, seconds: float | None = None) -> Any:
        """The answer. Raises :class:`~adagoal.worlds.process.WorkerKilled` where somebody else ended it."""
        ...

    def stop_worker(self) -> Any:
        """End it, if it has not ended yet."""
        ...


WorkerFactory = Callable[[Callable[[], EnvWorker], str], Worker]
"""From a function that makes a copy, and a name for messages."""
FailureHandler = Callable[[int, BaseException], None]
"""Told which copy answered with an exception, or not at all."""


class WorkerPool:
    """N copies, called by their numbers."""

    def __init__(
        self, makers: Sequence[Callable[[], EnvWorker]], name: str, hire: WorkerFactory = WorkerProcess
    ) -> None:
        self._workers = [hire(make, name) for make in makers]
        self.state_unknown = [False] * len(makers)
        """Whether nobody knows where a copy stands"""
        self.properties: EnvProperties = self._start_workers(name)
        self.seed: int | None = None
        """Of the run's copies; None before the first rollout"""
        self.restart_counts = [0] * len(makers)
        self.n_synced = [len(self.properties.first_states or ())] * len(makers)
        """How many of the states that have been met a copy knows"""

    def _start_workers(self, name: str) -> EnvProperties:
        try:
            for member in self._workers:
                member.start_worker()
            found = [member.receive_reply(START_TIMEOUT_SECONDS) for member in self._workers]
        except BaseException:
            self.close()
            raise
        first: EnvProperties = found[0]
        if not all(_properties_agree(traits, first) for traits in found):
            self.close()
            raise InputError(f"the copies of {name} are not alike: they start in different states", "workers")
        return first

    def __len__(self) -> int:
        return len(self._workers)

    def call_workers(self, calls: dict[int, tuple[Any, ...]], lost: FailureHandler) -> dict[int, Any]:
        """Call methods of copies, all at once: the answers, in their order."""
        answers: dict[int, Any] = {}

        def trying(i: int, action: Callable[..., Any], *arguments: Any) -> None:
            try:
                answers[i] = action(*arguments)
            except InputError as error:
                self.state_unknown[i] = True
                answers.pop(i, None)
                lost(i, error)

        try:
            with USER_CODE_SECTION:  # which runs elsewhere, perhaps for ever
                for i, call in calls.items():
                    trying(i, self._workers[i].send_call, *call)
                for i in list(answers):
                    trying(i, self._workers[i].receive_reply)
        except BaseException:
            self.close()  # nobody will wait for the answers
            raise
        return answers

    def close(self) -> None:
        """End all copies."""
        for member in self._workers:
            member.stop_worker()
        self.state_unknown = [True] * len(self)

    def take_new_states(self, i: int, met: LabelledStates) -> LabelledStates:
        """States that copy i has not been told about; it is told now."""
        news, self.n_synced[i] = met[self.n_synced[i] :], len(met)
        return news

    def restart_lost_workers(self, lost: FailureHandler) -> dict[int, int]:
        """Copies that are adrift begin a new life with a reset: where that led each of them."""
        gone = [i for i, adrift in enumerate(self.state_unknown) if adrift]
        for i in gone:
            if not self._workers[i].is_alive:
                self._workers[i].start_worker()
                self._workers[i].receive_reply(START_TIMEOUT_SECONDS)
                self.n_synced[i] = len(self.properties.first_states or ())
        landed = self.call_workers({i: ("begin", self.next_worker_seed(i)) for i in gone}, lost)
        for i in landed:
            self.state_unknown[i] = False
        return landed

    def next_worker_seed(self, i: int) -> int:
        """The seed of another life of copy i."""
        self.restart_counts[i] += 1
        source = stream_seed_sequence(self.seed or 0, StreamPurpose.COPY_LIFE, i, self.restart_counts[i])
        return int(source.generate_state(1, np.uint64)[0] >> 1)

    def healthy_workers(self) -> Iterable[int]:
        """The copies of which it is known where they stand."""
        return [i for i, adrift in enumerate(self.state_unknown) if not adrift]


def _properties_agree(one: EnvProperties, other: EnvProperties) -> bool:
    """Whether two copies agree; arrays are compared on their own, because they have no single truth value."""
    mine, theirs = one.observed_states, other.observed_states
    same = mine.key_format == theirs.key_format and np.array_equal(mine.digests, theirs.digests)
    return same and one._replace(observed_states=theirs) == other
