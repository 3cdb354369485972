"""What the engine asks of Ray, without Ray: tasks run here, one after the other, and machines are lost as told."""

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


class NoRay:
    """Put in the place of the module; ``lost`` are the numbers of the tasks, as they were begun, that are lost."""

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
