"""Engines, on which workers and independent tasks run: "local" for this machine, and "ray" for a Ray cluster.

An engine calls a function for every task and yields the outcomes in the order in which they finish. A task does not
know where it runs. If a worker dies, its task is tried again. An exception of a task ends everything, as in a loop.

A worker is an object in another process, which a run keeps and calls by name (:mod:`adagoal.parallel.worker_process`).
:func:`open_workers` chooses where workers live.

Ctrl-C ends the local processes. A run with a folder catches the signal and saves first.

*Ray.* The cluster is the one at an address, else one that is started here and ends with the engine. A task whose worker
or machine dies is tried again on another machine. Every machine needs the same versions of adagoal, Python and Ray.
Tasks that write files (checkpoints) need a folder that all machines share.

**Security.** By default Ray does not authenticate: anyone who reaches a port of the cluster can run code there. This
holds also for a cluster that the engine starts, which listens on all network interfaces (docs/large.md).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Protocol

from adagoal.core.errors import EnvironmentFailure, InputError, UnfinishedError
from adagoal.core.installation import install_command
from adagoal.parallel.worker_process import (
    FunctionCaller,
    ObjectHost,
    WorkerDied,
    WorkerFactory,
    WorkerKilled,
    WorkerProcess,
    call_or_capture,
    unwrap_reply,
)

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


def _import_ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # a task without a GPU leaves CUDA's settings alone
    try:
        import ray
    except ImportError:
        raise InputError(f"needs ray: {install_command('ray')}", name="engine") from None
    return ray


class RayEngine:
    """An :class:`Engine` on Ray; ``jobs`` None runs as many tasks as the cluster has room for."""

    def __init__(self, jobs: int | None, address: str | None, print_line: LineWriter) -> None:
        self._ray, self._jobs, self._print_line = _import_ray(), jobs, print_line
        self._started_here = not self._ray.is_initialized()
        if not self._started_here:
            return
        options: dict[str, Any] = {"address": address}
        if address is None:
            options = {"address": "local", "num_cpus": jobs, "include_dashboard": False}
        elif address != "auto":
            _check_reachable(address)
        try:
            self._ray.init(**options, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:  # no cluster there, or one of other versions
            raise InputError(f"no Ray cluster can be used there ({error})", name="address") from None

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], resources: TaskResources
    ) -> Iterator[tuple[str, Any]]:
        """See :meth:`Engine.map`."""
        queue = _RayTasks(self._ray, self._task_options(resources))
        return run_tasks(queue, function, tasks, self._jobs or len(tasks), self._print_line)

    def _task_options(self, resources: TaskResources) -> dict[str, Any]:
        """Ray's options of a task: no more cores than the largest machine has, and a GPU if a machine has one."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cores = min(resources.cores, max((machine.get("CPU", 0) for machine in machines), default=0) or 1)
        gpus = int(resources.gpu and any(machine.get("GPU", 0) for machine in machines))
        # No retries by Ray: run_tasks counts the lost workers of a task, on every engine in the same way.
        return {"num_cpus": cores, "num_gpus": gpus, "max_retries": 0, "max_calls": int(resources.fresh_process)}

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        if self._started_here:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    # Ray itself would try for minutes.
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise InputError(f"no answer from {address!r} ({error}); give HOST:PORT of a cluster", name="address") from None


class _RayTasks:
    """A :class:`TaskQueue` on Ray; the handle is Ray's reference to the reply."""

    def __init__(self, ray: Any, options: dict[str, Any]) -> None:
        self._ray, self._remote = ray, ray.remote(**options)(call_or_capture)

    def submit(self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return self._remote.options(name=name).remote(function, *arguments)

    def wait_any(self, handles: Sequence[Any]) -> Any:
        (ended, *_), _ = self._ray.wait(handles, num_returns=1)
        return ended

    def reply(self, handle: Any) -> Any:
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError:  # Ray could not call the task; the text has the worker's traceback
            raise
        except self._ray.exceptions.RayError as error:  # the worker, its machine, or the reply on it is gone
            raise TaskInterrupted(f"its worker was lost ({type(error).__name__})") from None

    def cancel(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self._ray.cancel(handle, force=True)


class RayHost(ObjectHost):
    """The actor of a :class:`RayWorker`."""

    def node_id(self) -> str:
        """Return the machine of the actor."""
        return str(_import_ray().get_runtime_context().get_node_id())


class RayWorker:
    """A :class:`adagoal.parallel.worker_process.Worker` on Ray, spread over the machines of the cluster.

    If the machine is gone, the worker was killed. If the machine is still there, the worker ended by itself.
    """

    def __init__(self, make: Callable[[], Any], description: str) -> None:
        self._ray, self._make, self._description = _import_ray(), make, description
        self._actor: Any = None

    @property
    def is_alive(self) -> bool:
        return self._actor is not None

    def start(self) -> None:
        # No restarts: a new actor would lack the state of the old one, and certificates must know of the loss.
        host = self._ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(RayHost)
        self._actor = host.remote(pickle.dumps(self._make))
        self._node_id: str | None = None
        self._node_id_reply = self._actor.node_id.remote()

    def send(self, method: str, *arguments: Any) -> None:
        self._reply = self._actor.call.remote(method, *arguments)

    def receive(self, timeout: float | None = None) -> Any:
        errors = self._ray.exceptions
        try:
            reply = self._ray.get(self._reply, timeout=timeout)
            # An actor answers in order, so this reply is there already.
            if self._node_id is None:
                self._node_id = self._ray.get(self._node_id_reply)
        except errors.GetTimeoutError:
            self.stop()
            raise EnvironmentFailure(f"{self._description} took longer than {timeout:g} s") from None
        except errors.RayTaskError:  # Ray could not call the worker; the text has the worker's traceback
            raise
        except errors.RayError:  # the worker, its machine, or the reply on it is gone
            raise self._explain_exit() from None
        return unwrap_reply(reply)

    def _explain_exit(self) -> WorkerDied:
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        self._actor = None
        if self._node_id not in alive:
            return WorkerKilled(f"{self._description} was killed (its machine is gone)")
        return WorkerDied(f"{self._description} ended by itself")

    def stop(self) -> None:
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None


@contextlib.contextmanager
def open_workers(engine: str, address: str | None) -> Iterator[WorkerFactory]:
    """Yield the function that makes workers of an engine; a Ray cluster started here ends with the block."""
    _check_engine_name(engine, address)
    if engine == "local":
        yield WorkerProcess
        return
    with contextlib.closing(RayEngine(None, address, print)):
        yield RayWorker


def make_engine(
    name: str = "local", jobs: int | None = None, address: str | None = None, print_line: LineWriter = print
) -> Engine:
    """Return the engine of that name, for ``jobs`` tasks at a time (None: one per core)."""
    _check_engine_name(name, address)
    return LocalEngine(jobs, print_line) if name == "local" else RayEngine(jobs, address, print_line)


def _check_engine_name(name: str, address: str | None) -> None:
    if name not in ("local", "ray"):
        raise InputError(f"must be one of local, ray, got {name!r}", name="engine")
    # Ignored, the address would let a run on one machine pass for a run on the cluster.
    if name != "ray" and address is not None:
        raise InputError("works with the engine ray only; leave it out", name="address")
