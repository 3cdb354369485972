"""Workers and tasks on a Ray cluster: the one at an address, else one that is started here and ends with the engine.

A task whose worker or machine dies is tried again on another machine. Every machine needs the same versions of adagoal,
Python and Ray. Tasks that write files (checkpoints) need a folder that all machines share.

**Security.** By default Ray does not authenticate: anyone who reaches a port of the cluster can run code there. This
holds also for a cluster that the engine starts, which listens on all network interfaces (docs/large.md).
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.installation import install_command
from adagoal.parallel.task_engine import LineWriter, TaskInterrupted, TaskResources, run_tasks
from adagoal.parallel.worker_process import ObjectHost, WorkerDied, WorkerKilled, call_or_capture, unwrap_reply


def _import_ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # a task without a GPU leaves CUDA's settings alone
    try:
        import ray
    except ImportError:
        raise InputError(f"needs ray: {install_command('ray')}", name="engine") from None
    return ray


class RayEngine:
    """An :class:`adagoal.parallel.Engine` on Ray; ``jobs`` None runs as many tasks as the cluster has room for."""

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
        """See :meth:`adagoal.parallel.Engine.map`."""
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
    """A :class:`adagoal.parallel.task_engine.TaskQueue` on Ray; the handle is Ray's reference to the reply."""

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
