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

from adagoal.core import processes
from adagoal.core.processes import block_sigint, ignore_sigint, safe_import_path
from adagoal.parallel import LineWriter, RetryTracker, TaskInterrupted, TaskResources

_SPAWN_CONTEXT = multiprocessing.get_context("spawn")


class LocalEngine:
    """``jobs`` processes; a single job runs in this process, unless it needs a fresh one."""

    def __init__(self, jobs: int | None, tell: LineWriter) -> None:
        self._jobs, self._write_line = jobs or os.cpu_count() or 1, tell

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], needs: TaskResources
    ) -> Iterator[tuple[str, Any]]:
        """See :class:`adagoal.parallel.Engine`."""
        jobs = min(self._jobs, len(tasks))
        return (
            self._map_in_processes(function, tasks, needs, jobs)
            if jobs > 1 or needs.fresh_process
            else _map_in_this_process(function, tasks)
        )

    def close(self) -> None:
        """Nothing is held between two maps."""

    def _map_in_processes(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], needs: TaskResources, jobs: int
    ) -> Iterator[tuple[str, Any]]:
        waiting, losses = deque(tasks), RetryTracker(self._write_line)
        idle: list[_TaskProcess] = []
        busy: dict[object, tuple[_TaskProcess, str]] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < jobs:
                    worker, name = idle.pop() if idle else _TaskProcess(), waiting.popleft()
                    busy[worker.pipe] = worker, name
                    worker.send_task((function, tasks[name]))
                for pipe in wait([worker.pipe for worker, _ in busy.values()]):
                    worker, name = busy.pop(pipe)
                    try:
                        answer = worker.pipe.recv()
                    except (EOFError, OSError):
                        answer = processes.WorkerFailure.from_exception(TaskInterrupted(worker.describe_exit()))
                    if needs.fresh_process or not worker.process.is_alive():
                        worker.close()
                    else:
                        idle.append(worker)
                    try:
                        outcome = processes.unwrap_reply(answer)
                    except TaskInterrupted as interrupted:
                        if losses.should_retry(name, str(interrupted)):
                            waiting.append(name)
                    else:
                        yield name, outcome
        finally:
            _stop_processes([*idle, *(worker for worker, _ in busy.values())])
        losses.raise_if_abandoned()


def _map_in_this_process(
    function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]]
) -> Iterator[tuple[str, Any]]:
    for name, arguments in tasks.items():
        try:
            outcome = function(*arguments)
        except TaskInterrupted:
            raise KeyboardInterrupt from None
        yield name, outcome


class _TaskProcess:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, there = _SPAWN_CONTEXT.Pipe()
        self.process = _SPAWN_CONTEXT.Process(
            target=_serve_tasks, args=(there,)
        )  # no daemon: a training has workers of its own
        with safe_import_path(), block_sigint():
            self.process.start()
        there.close()

    def send_task(self, task: object) -> None:
        """A process that is dead already is found out when it is read from."""
        with contextlib.suppress(OSError):
            self.pipe.send(task)

    def describe_exit(self) -> str:
        """How the process ended."""
        self.process.join()
        code = self.process.exitcode or 0
        return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """Without a pipe it ends by itself."""
        self.pipe.close()
        self.process.join()


def _stop_processes(workers: list[_TaskProcess]) -> None:
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


def _serve_tasks(pipe: Connection[Any, Any]) -> None:
    """The life of a process."""
    ignore_sigint()  # the parent decides
    processes.serve_requests(pipe, lambda task: task[0](*task[1]))
