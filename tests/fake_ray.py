"""A stand-in for Ray: tasks run in this process, in order, and chosen tasks are lost with their machine."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cloudpickle


class RayError(Exception):
    pass


class NodeDiedError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class GetTimeoutError(RayError):
    pass


class Actor:
    """An actor whose methods run when their results are requested, unless it is dead or hangs."""

    def __init__(self, target: Any) -> None:
        self.target, self.is_dead, self.hangs = target, False, False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: (self, name, arguments))


class FakeRayActors:
    """Replaces the module ``ray`` for actors, all of them on one machine."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError)
    machine_is_alive = True

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        return lambda kind: SimpleNamespace(remote=lambda *arguments: Actor(kind(*arguments)))

    def get(self, call: tuple[Actor, str, tuple[Any, ...]], timeout: float | None = None) -> Any:
        actor, method, arguments = call
        if actor.is_dead:
            raise RayError
        if actor.hangs:
            raise GetTimeoutError
        return pickle.loads(pickle.dumps(getattr(actor.target, method)(*pickle.loads(pickle.dumps(arguments)))))

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "one", "Alive": self.machine_is_alive}]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "one")

    def kill(self, actor: Actor) -> None:
        actor.is_dead = True


class FakeRay:
    """Replaces the module ``ray`` for tasks; ``lost`` has the indices of the tasks that are lost, by order of start."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, lost: set[int], machines: list[dict[str, float]]) -> None:
        self.lost, self.machines = lost, machines
        self.begun: list[tuple[str, bytes]] = []
        self.cancelled: list[int] = []
        self.options: dict[str, Any] = {}
        self.share: dict[str, Any] = {}
        self.up = False

    def is_initialized(self) -> bool:
        return self.up

    def init(self, **options: Any) -> None:
        self.options, self.up = options, True

    def shutdown(self) -> None:
        self.up = False

    def nodes(self) -> list[dict[str, Any]]:
        gone = {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 9.0}}
        return [gone, *({"Alive": True, "Resources": machine} for machine in self.machines)]

    def remote(self, **share: Any) -> Callable[[Any], Any]:
        self.share = share

        def made(function: Any) -> Any:
            def named(name: str) -> Any:
                def begin(*arguments: Any) -> int:
                    self.begun.append((name, cloudpickle.dumps((function, arguments))))
                    return len(self.begun) - 1

                return SimpleNamespace(remote=begin)

            return SimpleNamespace(options=named)

        return made

    def wait(self, tasks: list[int], num_returns: int) -> tuple[list[int], list[int]]:
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task: int) -> Any:
        if task in self.lost:
            raise NodeDiedError
        function, arguments = cloudpickle.loads(self.begun[task][1])
        try:
            return cloudpickle.loads(pickle.dumps(function(*arguments)))
        except Exception as error:
            raise RayTaskError(error) from error

    def cancel(self, task: int, force: bool) -> None:
        assert force
        self.cancelled.append(task)
