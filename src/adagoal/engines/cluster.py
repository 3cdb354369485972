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

from adagoal.core import failures
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.engines import Interrupted, Losses, Needs, Tell
from adagoal.worlds.process import Killed, make_with_facts


def _ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # a task without a GPU leaves CUDA's settings alone
    try:
        import ray
    except ImportError:
        raise InputError("needs ray: pip install 'adagoal[ray]'", name="engine") from None
    return ray


def _reach(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise InputError(
            f"nobody answers at {address!r} ({error}); give HOST:PORT of a cluster", name="address"
        ) from None


class RayCluster:
    """Tasks on Ray; ``jobs`` at a time, by default as many as the cluster has room for."""

    def __init__(self, jobs: int | None, address: str | None, tell: Tell) -> None:
        self._ray, self._jobs, self._tell = _ray(), jobs, tell
        self._own = not self._ray.is_initialized()
        if not self._own:
            return
        options: dict[str, Any] = {"address": address}
        if address is None:
            options = {"address": "local", "num_cpus": jobs, "include_dashboard": False}
        elif address != "auto":
            _reach(address)
        try:
            self._ray.init(**options, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:  # nobody there, or other versions
            raise InputError(f"no Ray cluster can be used there ({error})", name="address") from None

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], needs: Needs
    ) -> Iterator[tuple[str, Any]]:
        """See :class:`adagoal.engines.Engine`."""
        ray = self._ray
        errors = ray.exceptions
        remote = ray.remote(**self._share(needs))(failures.attempt)
        waiting, losses = deque(tasks), Losses(self._tell)
        flying: dict[Any, str] = {}
        try:
            while waiting or flying:
                while waiting and len(flying) < (self._jobs or len(tasks)):
                    name = waiting.popleft()
                    flying[remote.options(name=name).remote(function, *tasks[name])] = name
                (ended, *_), _ = ray.wait(list(flying), num_returns=1)
                name = flying.pop(ended)
                try:
                    outcome = failures.result(ray.get(ended))
                except Interrupted as interrupted:
                    reason = str(interrupted)
                except errors.RayTaskError:  # Ray could not call the task; the text has the worker's traceback
                    raise
                except errors.RayError as error:  # the worker, its machine, or the answer on it is gone
                    reason = type(error).__name__
                else:
                    yield name, outcome
                    continue
                if losses.again(name, reason):
                    waiting.append(name)
        finally:
            for task in flying:
                ray.cancel(task, force=True)
        losses.check()

    def _share(self, needs: Needs) -> dict[str, Any]:
        """Ray's words for what a task takes: no more cores than the largest machine has, a GPU where there are any."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cores = min(needs.cores, max((machine.get("CPU", 0) for machine in machines), default=0) or 1)
        gpus = int(needs.gpu and any(machine.get("GPU", 0) for machine in machines))
        return {"num_cpus": cores, "num_gpus": gpus, "max_retries": 0, "max_calls": int(needs.fresh)}

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        if self._own:
            self._ray.shutdown()


class Host:
    """What an actor runs: an object whose methods are called by their names, as in a process."""

    def __init__(self, make: bytes) -> None:
        made = failures.attempt(make_with_facts, make)
        self._there: Any
        self._facts: Any
        self._there, self._facts = (None, made) if isinstance(made, failures.Failure) else made

    def facts(self) -> tuple[Any, str]:
        """The facts of the object, or the failure to make it; and the node."""
        return self._facts, _ray().get_runtime_context().get_node_id()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and return its answer, or its failure."""
        return failures.attempt(getattr(self._there, method), *arguments)


class Actor:
    """A :class:`adagoal.worlds.roster.Member` that is a Ray actor, spread over the machines of the cluster.

    An actor whose machine is gone was killed. One that ends on a machine that is still there ended by itself, as far as
    anybody can tell.
    """

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._ray, self._make, self._name = _ray(), make, name
        self._actor: Any = None
        self._answer: Any = None
        self._node: str | None = None

    @property
    def alive(self) -> bool:
        """See :class:`adagoal.worlds.roster.Member`."""
        return self._actor is not None

    def begin(self) -> None:
        """See :class:`adagoal.worlds.roster.Member`."""
        host = self._ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(Host)
        self._actor, self._node = host.remote(pickle.dumps(self._make)), None
        self._answer = self._actor.facts.remote()

    def send(self, method: str, *arguments: Any) -> None:
        """See :class:`adagoal.worlds.roster.Member`."""
        self._answer = self._actor.call.remote(method, *arguments)

    def receive(self, seconds: float | None = None) -> Any:
        """See :class:`adagoal.worlds.roster.Member`."""
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(self._answer, timeout=seconds)
        except errors.GetTimeoutError:
            self.end()
            raise EnvironmentFailure(f"the environment {self._name} took longer than {seconds:g} s") from None
        except errors.RayTaskError:  # Ray could not call the worker; the text has the worker's traceback
            raise
        except errors.RayError:  # the worker, its machine, or the answer on it is gone
            raise self._gone() from None
        if self._node is None:
            answer, self._node = answer
        return failures.result(answer)

    def _gone(self) -> EnvironmentFailure:
        there = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        self._actor = None
        if self._node not in there:
            return Killed(f"the machine of the environment {self._name} is gone")
        return EnvironmentFailure(f"the worker of the environment {self._name} ended by itself")

    def end(self) -> None:
        """See :class:`adagoal.worlds.roster.Member`."""
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None
