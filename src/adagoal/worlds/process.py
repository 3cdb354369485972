"""An environment in a process of its own, so that a step that hangs can be ended.

The process is begun anew when it is needed and gone. Three ways to lose it, which certificates tell apart:

    a step took too long    it was killed because of what happened in it: the samples lack an outcome
    it ended by itself      (a crash, an exit) the same
    it was killed           by somebody else, whatever it was doing: nothing is missing but time
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from adagoal.core import failures, guard
from adagoal.core.ctrlc import deaf, unheard
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.isolation import safe_path
from adagoal.worlds.body import Facts, Local, Mask
from adagoal.worlds.keys import Key

MAKING = 120.0
"""Seconds in which an environment must be made, imports included."""
OUTSIDE = tuple(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
"""Exit codes of a process that somebody else ended."""
EXPLORES = "explores with workers or a step_timeout"
"""What a script with such processes does (:mod:`adagoal.core.guard`)."""


class Killed(EnvironmentFailure):
    """Somebody else killed the process of an environment."""


class Process:
    """An object in a process of its own: ``make`` makes it there, and its methods are called by their names."""

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._make, self._name = make, name
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._answered = False

    @property
    def alive(self) -> bool:
        """Whether it was begun and has not been found dead."""
        return self._process is not None

    def begin(self) -> None:
        """Make the object; its ``facts`` are the first answer."""
        guard.check(EXPLORES)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, name=guard.OURS, args=(theirs, pickle.dumps(self._make)), daemon=True)
        with safe_path(), unheard():
            process.start()
            self._process, self._pipe, self._answered = process, ours, False  # one that cannot start is not there
        theirs.close()

    def send(self, method: str, *arguments: Any) -> None:
        """Ask for something; the answer is received later."""
        assert self._pipe is not None
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise self._gone() from None

    def receive(self, seconds: float | None = None) -> Any:
        """What the process says, within so many seconds; it does not survive an answer that nobody waits for."""
        assert self._pipe is not None
        try:
            if not self._pipe.poll(seconds):
                self.end()
                raise EnvironmentFailure(f"the environment {self._name} took longer than {seconds:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        except BaseException:
            self.end()
            raise
        self._answered = True
        return failures.result(answer)

    def _gone(self) -> InputError:
        """The process is no more; why."""
        if self._process is not None:
            self._process.join(1.0)  # so that it can tell its own exit code
        code = self.end()
        if code in OUTSIDE:
            return Killed(f"the process of the environment {self._name} was killed ({signal.Signals(-code).name})")
        if code == guard.NO_GUARD and not self._answered:
            return guard.missing(EXPLORES)
        return EnvironmentFailure(f"the process of the environment {self._name} ended by itself (exit code {code})")

    def end(self) -> int:
        """End the process, if it has not ended yet; its exit code."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is None or pipe is None:
            return 0
        process.kill()
        process.join()
        pipe.close()
        return process.exitcode or 0


class Remote:
    """A :class:`~adagoal.worlds.body.Body` in another process; ``make`` makes it there."""

    def __init__(self, make: Callable[[], Local], name: str, seconds: float) -> None:
        self._there, self._seconds = Process(make, name), seconds
        self.facts: Facts = self._begin()

    def reset(self, seed: int | None = None, keep: bool = False) -> tuple[Key, Mask, dict[str, Any]]:
        """See :class:`~adagoal.worlds.body.Body`."""
        answer: tuple[Key, Mask, dict[str, Any]] = self._ask("reset", seed, keep)
        return answer

    def step(self, action: int) -> tuple[Key, Mask, bool, bool]:
        """See :class:`~adagoal.worlds.body.Body`."""
        answer: tuple[Key, Mask, bool, bool] = self._ask("step", action)
        return answer

    def label(self) -> str:
        """See :class:`~adagoal.worlds.body.Body`."""
        return str(self._ask("label"))

    def observation(self) -> Any:
        """See :class:`~adagoal.worlds.body.Body`."""
        return self._ask("observation")

    def generator(self) -> dict[str, Any]:
        """See :class:`~adagoal.worlds.body.Body`."""
        return dict(self._ask("generator"))

    def put_back(self, generator: dict[str, Any]) -> None:
        """See :class:`~adagoal.worlds.body.Body`."""
        self._ask("put_back", generator)

    def reseeded(self) -> tuple[tuple[str, ...], set[Key]]:
        """See :class:`~adagoal.worlds.body.Body`."""
        answer: tuple[tuple[str, ...], set[Key]] = self._ask("reseeded")
        return answer

    def _begin(self) -> Facts:
        self._there.begin()
        facts: Facts = self._there.receive(MAKING)
        return facts

    def _ask(self, method: str, *arguments: Any) -> Any:
        if not self._there.alive:
            self._begin()
        self._there.send(method, *arguments)
        return self._there.receive(self._seconds)


def serve(pipe: Connection, make: bytes) -> None:
    """Run in the other process: make the object, then call its methods on request."""
    deaf()  # the run ends this process in its own time
    os.dup2(2, 1)  # standard output belongs to the run
    made = failures.attempt(make_with_facts, make)
    if isinstance(made, failures.Failure):
        failures.send(pipe, made)
        return
    there, facts = made
    failures.send(pipe, facts)
    failures.serve(pipe, lambda request: getattr(there, request[0])(*request[1]))
    there.close()


def make_with_facts(make: bytes) -> tuple[Any, Any]:
    """Unpickle a maker, call it, and return the object and its ``facts``."""
    there = pickle.loads(make)()
    return there, there.facts
