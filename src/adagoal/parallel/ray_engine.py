"""A Ray cluster: without an address one that is started here and ends with the engine, else the one at the address.

A task whose worker or machine dies is tried again on another. Every machine needs the same versions of adagoal, Python
and Ray; tasks that keep files of their own (checkpoints) want a folder that all machines share.

**Who can connect.** By default Ray does not ask who is there: whoever reaches a port of the cluster can run any code on
its machines, as the user who started it. That holds for a cluster that the engine starts itself too, which listens on
all network interfaces of this machine while it runs. Use Ray where everybody on the network is trusted or kept out by a
firewall, or have it ask for a token (``RAY_AUTH_MODE=token``, see Ray's documentation on token authentication).
Usage reports are switched off, and no dashboard is started.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from adagoal.core import processes
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.envs.env_backends import WorkerKilled, make_with_facts
from adagoal.parallel import LineWriter, RetryTracker, TaskInterrupted, TaskResources


def _import_ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # a task without a GPU leaves CUDA's settings alone
    try:
        import ray
    except ImportError:
        raise InputError("needs ray: pip install 'adagoal[ray]'", name="engine") from None
    return ray


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise InputError(
            f"nobody answers at {address!r} ({error}); give HOST:PORT of a cluster", name="address"
        ) from None


class RayEngine:
    """Tasks on Ray; ``jobs`` at a time, by default as many as the cluster has room for."""

    def __init__(self, jobs: int | None, address: str | None, tell: LineWriter) -> None:
        self._ray, self._jobs, self._write_line = _import_ray(), jobs, tell
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
        except (OSError, RuntimeError, ValueError) as error:  # nobody there, or other versions
            raise InputError(f"no Ray cluster can be used there ({error})", name="address") from None

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], needs: TaskResources
    ) -> Iterator[tuple[str, Any]]:
        """See :class:`adagoal.parallel.Engine`."""
        ray = self._ray
        errors = ray.exceptions
        remote = ray.remote(**self._task_options(needs))(processes.call_or_capture)
        waiting, losses = deque(tasks), RetryTracker(self._write_line)
        flying: dict[Any, str] = {}
        try:
            while waiting or flying:
                while waiting and len(flying) < (self._jobs or len(tasks)):
                    name = waiting.popleft()
                    flying[remote.options(name=name).remote(function, *tasks[name])] = name
                (ended, *_), _ = ray.wait(list(flying), num_returns=1)
                name = flying.pop(ended)
                try:
                    outcome = processes.unwrap_reply(ray.get(ended))
                except TaskInterrupted as interrupted:
                    reason = str(interrupted)
                except errors.RayTaskError:  # Ray could not call the task; the text has the worker's traceback
                    raise
                except errors.RayError as error:  # the worker, its machine, or the answer on it is gone
                    reason = type(error).__name__
                else:
                    yield name, outcome
                    continue
                if losses.should_retry(name, reason):
                    waiting.append(name)
        finally:
            for task in flying:
                ray.cancel(task, force=True)
        losses.raise_if_abandoned()

    def _task_options(self, needs: TaskResources) -> dict[str, Any]:
        """Ray's words for what a task takes: no more cores than the largest machine has, a GPU where there are any."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cores = min(needs.cores, max((machine.get("CPU", 0) for machine in machines), default=0) or 1)
        gpus = int(needs.gpu and any(machine.get("GPU", 0) for machine in machines))
        return {"num_cpus": cores, "num_gpus": gpus, "max_retries": 0, "max_calls": int(needs.fresh_process)}

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        if self._started_here:
            self._ray.shutdown()


class RayActorHost:
    """What an actor runs: an object whose methods are called by their names, as in a process."""

    def __init__(self, make: bytes) -> None:
        made = processes.call_or_capture(make_with_facts, make)
        self._target: Any
        self._facts: Any
        self._target, self._facts = (None, made) if isinstance(made, processes.WorkerFailure) else made

    def facts(self) -> tuple[Any, str]:
        """The facts of the object, or the failure to make it; and the node."""
        return self._facts, _import_ray().get_runtime_context().get_node_id()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and return its answer, or its failure."""
        return processes.call_or_capture(getattr(self._target, method), *arguments)


class RayWorker:
    """A :class:`adagoal.envs.env_workers.Worker` that is a Ray actor, spread over the machines of the cluster.

    An actor whose machine is gone was killed. One that ends on a machine that is still there ended by itself, as far as
    anybody can tell.
    """

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._ray, self._make_target, self._env_name = _import_ray(), make, name
        self._actor: Any = None
        self._pending_reply: Any = None
        self._node_id: str | None = None

    @property
    def is_alive(self) -> bool:
        """See :class:`adagoal.envs.env_workers.Worker`."""
        return self._actor is not None

    def start_worker(self) -> None:
        """See :class:`adagoal.envs.env_workers.Worker`."""
        host = self._ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(RayActorHost)
        self._actor, self._node_id = host.remote(pickle.dumps(self._make_target)), None
        self._pending_reply = self._actor.facts.remote()

    def send_call(self, method: str, *arguments: Any) -> None:
        """See :class:`adagoal.envs.env_workers.Worker`."""
        self._pending_reply = self._actor.call.remote(method, *arguments)

    def receive_reply(self, seconds: float | None = None) -> Any:
        """See :class:`adagoal.envs.env_workers.Worker`."""
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(self._pending_reply, timeout=seconds)
        except errors.GetTimeoutError:
            self.stop_worker()
            raise EnvironmentFailure(f"the environment {self._env_name} took longer than {seconds:g} s") from None
        except errors.RayTaskError:  # Ray could not call the worker; the text has the worker's traceback
            raise
        except errors.RayError:  # the worker, its machine, or the answer on it is gone
            raise self._explain_exit() from None
        if self._node_id is None:
            answer, self._node_id = answer
        return processes.unwrap_reply(answer)

    def _explain_exit(self) -> EnvironmentFailure:
        there = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        self._actor = None
        if self._node_id not in there:
            return WorkerKilled(f"the machine of the environment {self._env_name} is gone")
        return EnvironmentFailure(f"the worker of the environment {self._env_name} ended by itself")

    def stop_worker(self) -> None:
        """See :class:`adagoal.envs.env_workers.Worker`."""
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None
