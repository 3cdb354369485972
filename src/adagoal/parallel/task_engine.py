"""Run many independent tasks: the interface of engines, their common loop with retries, and the local engine.

An engine calls a function for every task and yields the outcomes in the order in which they finish. A task does not
know where it runs. If a worker dies, its task is tried again. An exception of a task ends everything, as in a loop.

Ctrl-C ends the local processes. A run with a folder catches the signal and saves first.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Protocol

from adagoal.core.errors import UnfinishedError
from adagoal.parallel.worker_process import FunctionCaller, WorkerDied, WorkerProcess, unwrap_reply

# Per task. A task that loses this many workers probably needs more memory than there is.
MAX_ATTEMPTS = 3

LineWriter = Callable[[str], None]  # prints a message


@dataclass(frozen=True)
class TaskResources:
    """What one task needs."""

    cores: int = 1
    gpu: bool = False  # one for itself, if the machines have any
    fresh_process: bool = False  # a process that ran nothing before, so time and memory can be measured


class TaskInterrupted(Exception):
    """Raised by a task that was stopped from outside before it had an outcome; the task can be run again."""


class WorkerLost(UnfinishedError):
    """Some tasks were given up, because they lost :data:`MAX_ATTEMPTS` workers each."""


class Engine(Protocol):
    """A place where tasks run."""

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], resources: TaskResources
    ) -> Iterator[tuple[str, Any]]:
        """Call ``function(*arguments)`` for every named task and yield (name, outcome) as they finish.

        Raises :class:`WorkerLost` at the end if some tasks were given up. Closing the iterator ends running tasks.
        """

    def close(self) -> None:
        """Release what the engine holds."""


class TaskQueue(Protocol):
    """How an engine starts tasks and waits for them; a handle stands for a task that runs."""

    def submit(self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Start a task and return its handle."""

    def wait_any(self, handles: Sequence[Any]) -> Any:
        """Return the handle of a task that has ended."""

    def reply(self, handle: Any) -> Any:
        """Return the reply of a task that has ended; :class:`TaskInterrupted` if its worker was lost."""

    def cancel(self, handles: Sequence[Any]) -> None:
        """End the tasks that still run, and the queue."""


def run_tasks(
    queue: TaskQueue,
    function: Callable[..., Any],
    tasks: Mapping[str, tuple[Any, ...]],
    max_running: int,
    print_line: LineWriter,
) -> Iterator[tuple[str, Any]]:
    """Keep ``max_running`` tasks running and try lost ones again; see :meth:`Engine.map`."""
    waiting, running = deque(tasks), dict[Any, str]()
    n_losses, given_up = Counter[str](), dict[str, str]()
    try:
        while waiting or running:
            while waiting and len(running) < max_running:
                name = waiting.popleft()
                running[queue.submit(name, function, tasks[name])] = name
            handle = queue.wait_any(list(running))
            name = running.pop(handle)
            try:
                outcome = unwrap_reply(queue.reply(handle))
            except TaskInterrupted as interrupted:
                n_losses[name] += 1
                if n_losses[name] < MAX_ATTEMPTS:
                    waiting.append(name)
                    print_line(f"{name}: {interrupted}; trying again")
                else:
                    given_up[name] = str(interrupted)
                    print_line(f"{name}: {interrupted}; giving up")
            else:
                yield name, outcome
    finally:
        # Also when the caller closes the iterator or a task raises: no process may outlive the map.
        queue.cancel(list(running))
    # Only at the end, so the outcomes of all other tasks are not lost.
    if given_up:
        name, reason = next(iter(given_up.items()))
        others = f" and {len(given_up) - 1} more" if len(given_up) > 1 else ""
        text = f"{name}{others} failed {MAX_ATTEMPTS} times: {reason}, perhaps because the machine ran out of memory"
        raise WorkerLost(text)


class LocalEngine:
    """Runs ``jobs`` tasks at a time on this machine; a single job runs in this process, unless it needs a fresh one."""

    def __init__(self, jobs: int | None, print_line: LineWriter) -> None:
        self._jobs, self._print_line = jobs or os.cpu_count() or 1, print_line

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], resources: TaskResources
    ) -> Iterator[tuple[str, Any]]:
        """See :meth:`Engine.map`."""
        jobs = min(self._jobs, len(tasks))
        if jobs > 1 or resources.fresh_process:
            yield from run_tasks(_LocalTasks(resources.fresh_process), function, tasks, jobs, self._print_line)
            return
        for name, arguments in tasks.items():
            try:
                outcome = function(*arguments)
            # The signal was for this process, so it ends the whole map.
            except TaskInterrupted:
                raise KeyboardInterrupt from None
            yield name, outcome

    def close(self) -> None:
        """Do nothing: processes end with their map."""


class _LocalTasks:
    """A :class:`TaskQueue` of processes, each of which takes one task after the other; the handle is the process."""

    def __init__(self, fresh_process: bool) -> None:
        self._fresh_process, self._idle = fresh_process, list[WorkerProcess]()

    def submit(self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> WorkerProcess:
        if self._idle:
            worker = self._idle.pop()
        else:
            # Training runs start workers of their own, which Python forbids to daemons.
            worker = WorkerProcess(FunctionCaller, "its process", daemon=False)
            worker.start()
        worker.send("call", function, *arguments)
        return worker

    def wait_any(self, handles: Sequence[WorkerProcess]) -> WorkerProcess:
        ready = wait([worker.pipe for worker in handles if worker.pipe is not None])
        return next(worker for worker in handles if worker.pipe in ready)

    def reply(self, handle: WorkerProcess) -> Any:
        # Only the death of this process is retried. A WorkerDied that the task itself raised is inside the reply.
        try:
            reply = handle.receive_reply()
        except WorkerDied as error:
            raise TaskInterrupted(error.reason) from None
        if self._fresh_process:
            handle.stop(grace_seconds=None)
        else:
            self._idle.append(handle)
        return reply

    def cancel(self, handles: Sequence[WorkerProcess]) -> None:
        workers = [*self._idle, *handles]
        processes = [worker.process for worker in workers if worker.process is not None]
        try:
            # All signals before the first wait, so runs save at the same time. SIGTERM lets a run save and end.
            for process in processes:
                process.terminate()
            for worker in workers:
                worker.stop(grace_seconds=None)
        # A second Ctrl-C does not wait for the saves.
        except KeyboardInterrupt:
            for process in processes:
                process.kill()
            raise
