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
from adagoal.core.ctrlc import USER_CODE_SECTION, block_sigint, ignore_sigint
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.isolation import safe_import_path
from adagoal.worlds.body import ActionMask, EnvSpaces, InProcessEnv
from adagoal.worlds.keys import StateKey

START_TIMEOUT_SECONDS = 120.0
"""Seconds in which an environment must be made, imports included."""
EXTERNAL_KILL_CODES = tuple(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
"""Exit codes of a process that somebody else ended."""
GUARDED_ACTIVITY = "explores with workers or a step_timeout"
"""What a script with such processes does (:mod:`adagoal.core.guard`)."""


class WorkerKilled(EnvironmentFailure):
    """Somebody else killed the process of an environment."""


class WorkerProcess:
    """An object in a process of its own: ``make`` makes it there, and its methods are called by their names."""

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._make_target, self._env_name = make, name
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._has_replied = False

    @property
    def is_alive(self) -> bool:
        """Whether it was begun and has not been found dead."""
        return self._process is not None

    def start_worker(self) -> None:
        """Make the object; its ``facts`` are the first answer."""
        guard.check_script_importable(GUARDED_ACTIVITY)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=serve_method_calls,
            name=guard.WORKER_PROCESS_NAME,
            args=(theirs, pickle.dumps(self._make_target)),
            daemon=True,
        )
        with safe_import_path(), block_sigint():
            process.start()
            self._process, self._pipe, self._has_replied = process, ours, False  # one that cannot start is not there
        theirs.close()

    def send_call(self, method: str, *arguments: Any) -> None:
        """Ask for something; the answer is received later."""
        assert self._pipe is not None
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise self._explain_exit() from None

    def receive_reply(self, seconds: float | None = None) -> Any:
        """What the process says, within so many seconds; it does not survive an answer that nobody waits for."""
        assert self._pipe is not None
        try:
            if not self._pipe.poll(seconds):
                self.stop_worker()
                raise EnvironmentFailure(f"the environment {self._env_name} took longer than {seconds:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._explain_exit() from None
        except BaseException:
            self.stop_worker()
            raise
        self._has_replied = True
        return failures.unwrap_reply(answer)

    def _explain_exit(self) -> InputError:
        """The process is no more; why."""
        if self._process is not None:
            self._process.join(1.0)  # so that it can tell its own exit code
        code = self.stop_worker()
        if code in EXTERNAL_KILL_CODES:
            return WorkerKilled(
                f"the process of the environment {self._env_name} was killed ({signal.Signals(-code).name})"
            )
        if code == guard.EXIT_MISSING_GUARD and not self._has_replied:
            return guard.missing_guard_error(GUARDED_ACTIVITY)
        return EnvironmentFailure(f"the process of the environment {self._env_name} ended by itself (exit code {code})")

    def stop_worker(self) -> int:
        """End the process, if it has not ended yet; its exit code."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is None or pipe is None:
            return 0
        process.kill()
        process.join()
        pipe.close()
        return process.exitcode or 0


class SubprocessEnv:
    """A :class:`~adagoal.worlds.body.EnvBackend` in another process; ``make`` makes it there."""

    def __init__(self, make: Callable[[], InProcessEnv], name: str, seconds: float) -> None:
        self._worker, self._step_timeout = WorkerProcess(make, name), seconds
        self.facts: EnvSpaces = self._start_worker()

    def reset(self, seed: int | None = None, keep: bool = False) -> tuple[StateKey, ActionMask, dict[str, Any]]:
        """See :class:`~adagoal.worlds.body.EnvBackend`."""
        answer: tuple[StateKey, ActionMask, dict[str, Any]] = self._call_worker("reset", seed, keep)
        return answer

    def step(self, action: int) -> tuple[StateKey, ActionMask, bool, bool]:
        """See :class:`~adagoal.worlds.body.EnvBackend`."""
        answer: tuple[StateKey, ActionMask, bool, bool] = self._call_worker("step", action)
        return answer

    def label(self) -> str:
        """See :class:`~adagoal.worlds.body.EnvBackend`."""
        return str(self._call_worker("label"))

    def observation(self) -> Any:
        """See :class:`~adagoal.worlds.body.EnvBackend`."""
        return self._call_worker("observation")

    def generator(self) -> dict[str, Any]:
        """See :class:`~adagoal.worlds.body.EnvBackend`."""
        return dict(self._call_worker("generator"))

    def put_back(self, generator: dict[str, Any]) -> None:
        """See :class:`~adagoal.worlds.body.EnvBackend`."""
        self._call_worker("put_back", generator)

    def reseeded(self) -> tuple[tuple[str, ...], set[StateKey]]:
        """See :class:`~adagoal.worlds.body.EnvBackend`."""
        answer: tuple[tuple[str, ...], set[StateKey]] = self._call_worker("reseeded")
        return answer

    def _start_worker(self) -> EnvSpaces:
        self._worker.start_worker()
        facts: EnvSpaces = self._worker.receive_reply(START_TIMEOUT_SECONDS)
        return facts

    def _call_worker(self, method: str, *arguments: Any) -> Any:
        if not self._worker.is_alive:
            self._start_worker()
        with USER_CODE_SECTION:  # which runs elsewhere, perhaps for ever
            self._worker.send_call(method, *arguments)
            return self._worker.receive_reply(self._step_timeout)


def serve_method_calls(pipe: Connection, make: bytes) -> None:
    """Run in the other process: make the object, then call its methods on request."""
    ignore_sigint()  # the run ends this process in its own time
    os.dup2(2, 1)  # standard output belongs to the run
    made = failures.call_or_capture(make_with_facts, make)
    if isinstance(made, failures.WorkerFailure):
        failures.send_reply(pipe, made)
        return
    there, facts = made
    failures.send_reply(pipe, facts)
    failures.serve_requests(pipe, lambda request: getattr(there, request[0])(*request[1]))
    there.close()


def make_with_facts(make: bytes) -> tuple[Any, Any]:
    """Unpickle a maker, call it, and return the object and its ``facts``."""
    there = pickle.loads(make)()
    return there, there.facts
