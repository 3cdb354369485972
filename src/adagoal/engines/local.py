"""Processes of this machine, each of which takes one task after the other.

A process that dies is noticed at once and costs its own task only. Ctrl-C ends the processes; those that catch the
signal (a run with a folder, a training) save what they have first, and a second Ctrl-C does not wait for that.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from adagoal.core import failures
from adagoal.core.ctrlc import deaf, unheard
from adagoal.core.isolation import safe_path
from adagoal.engines import Interrupted, Losses, Needs, Tell

_CONTEXT = multiprocessing.get_context("spawn")


class Local:
    """``jobs`` processes; a single job runs in this process, unless it needs a fresh one."""

    def __init__(self, jobs: int | None, tell: Tell) -> None:
        self._jobs, self._tell = jobs or os.cpu_count() or 1, tell

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], needs: Needs
    ) -> Iterator[tuple[str, Any]]:
        """See :class:`adagoal.engines.Engine`."""
        jobs = min(self._jobs, len(tasks))
        return self._spread(function, tasks, needs, jobs) if jobs > 1 or needs.fresh else _here(function, tasks)

    def close(self) -> None:
        """Nothing is held between two maps."""

    def _spread(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], needs: Needs, jobs: int
    ) -> Iterator[tuple[str, Any]]:
        waiting, losses = deque(tasks), Losses(self._tell)
        idle: list[_Worker] = []
        busy: dict[object, tuple[_Worker, str]] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < jobs:
                    worker, name = idle.pop() if idle else _Worker(), waiting.popleft()
                    busy[worker.pipe] = worker, name
                    worker.send((function, tasks[name]))
                for pipe in wait([worker.pipe for worker, _ in busy.values()]):
                    worker, name = busy.pop(pipe)
                    try:
                        answer = worker.pipe.recv()
                    except (EOFError, OSError):
                        answer = failures.Failure.of(Interrupted(worker.death()))
                    if needs.fresh or not worker.process.is_alive():
                        worker.close()
                    else:
                        idle.append(worker)
                    try:
                        outcome = failures.result(answer)
                    except Interrupted as interrupted:
                        if losses.again(name, str(interrupted)):
                            waiting.append(name)
                    else:
                        yield name, outcome
        finally:
            _end([*idle, *(worker for worker, _ in busy.values())])
        losses.check()


def _here(function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Any]]:
    for name, arguments in tasks.items():
        try:
            outcome = function(*arguments)
        except Interrupted:
            raise KeyboardInterrupt from None
        yield name, outcome


class _Worker:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, there = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(there,))  # no daemon: a training has workers of its own
        with safe_path(), unheard():
            self.process.start()
        there.close()

    def send(self, task: object) -> None:
        """A process that is dead already is found out when it is read from."""
        with contextlib.suppress(OSError):
            self.pipe.send(task)

    def death(self) -> str:
        """How the process ended."""
        self.process.join()
        code = self.process.exitcode or 0
        return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """Without a pipe it ends by itself."""
        self.pipe.close()
        self.process.join()


def _end(workers: list[_Worker]) -> None:
    """Idle workers end when their pipe does, busy ones by a signal."""
    try:
        for worker in workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.process.kill()
        raise


def _serve(pipe: Connection[Any, Any]) -> None:
    """The life of a process."""
    deaf()  # the parent decides
    failures.serve(pipe, lambda task: task[0](*task[1]))
