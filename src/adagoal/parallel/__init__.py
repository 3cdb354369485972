"""Where work runs: an engine calls a function on many tasks and hands the outcomes on as they come.

    local   in this process for one job, else in processes of this machine (:mod:`adagoal.parallel.local_engine`)
    ray     on a Ray cluster, of one machine or many (:mod:`adagoal.parallel.ray_engine`)

Tasks do not know where they run. If a worker dies, its task is retried, up to :data:`MAX_ATTEMPTS` attempts in all. An
exception that a task raises ends everything, as it would in a loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from adagoal.core.errors import InputError

if TYPE_CHECKING:  # imported where they are used: --help should not wait for Numba
    from adagoal.envs.env_workers import WorkerFactory

MAX_ATTEMPTS = 3
"""How often a task is begun, at most, where its workers die."""
ENGINE_NAMES = ("local", "ray")

LineWriter = Callable[[str], None]
"""Where to say what happens on the way, a line at a time."""


@dataclass(frozen=True)
class TaskResources:
    """What one task takes."""

    cores: int = 1
    gpu: bool = False
    """One to itself, where the machines have any."""
    fresh_process: bool = False
    """A process that has done nothing else, so that its memory and its time are its own."""


class Engine(Protocol):
    """Runs tasks."""

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], needs: TaskResources
    ) -> Iterator[tuple[str, Any]]:
        """Call ``function(*arguments)`` for every named task; (name, outcome) of each, in the order of their ends.

        Raises :class:`WorkerLost` in the end if some tasks were given up. Leaving the iterator ends what still runs.
        """
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...


class TaskInterrupted(Exception):
    """Raised by a task that was told to stop before it had an outcome: nobody's mistake, and it can be run again."""


class WorkerLost(RuntimeError):
    """Some tasks were given up, because their workers died again and again."""


class RetryTracker:
    """Counts the workers that every task has lost, and decides whether to try it again."""

    def __init__(self, tell: LineWriter) -> None:
        self._write_line = tell
        self._n_losses: dict[str, int] = {}
        self._abandoned: dict[str, str] = {}

    def should_retry(self, name: str, reason: str) -> bool:
        """Whether to run the task once more, after its worker was lost for ``reason``."""
        self._n_losses[name] = self._n_losses.get(name, 0) + 1
        again = self._n_losses[name] < MAX_ATTEMPTS
        if not again:
            self._abandoned[name] = reason
        self._write_line(
            f"{name}: its worker was lost ({reason}); " + ("it is tried again" if again else "it is given up")
        )
        return again

    def raise_if_abandoned(self) -> None:
        """Raise if a task was given up."""
        if self._abandoned:
            name, reason = next(iter(self._abandoned.items()))
            others = f" and {len(self._abandoned) - 1} more" if len(self._abandoned) > 1 else ""
            raise WorkerLost(f"{name}{others} lost {MAX_ATTEMPTS} workers ({reason}), perhaps for want of memory")


@contextlib.contextmanager
def open_worker_factory(name: str = "local", address: str | None = None) -> Iterator[WorkerFactory]:
    """Where the workers of a run live (:mod:`adagoal.envs.env_workers`)."""
    _check_engine_name(name, address)
    if name == "local":
        from adagoal.envs.env_backends import WorkerProcess

        yield WorkerProcess
        return
    from adagoal.parallel.ray_engine import RayEngine, RayWorker

    with contextlib.closing(RayEngine(None, address, print)):
        yield RayWorker


def make_engine(
    name: str = "local", jobs: int | None = None, address: str | None = None, tell: LineWriter = print
) -> Engine:
    """An engine by its name; ``jobs`` tasks at a time, by default as many as there are cores."""
    _check_engine_name(name, address)
    if name == "ray":
        from adagoal.parallel.ray_engine import RayEngine

        return RayEngine(jobs, address, tell)
    from adagoal.parallel.local_engine import LocalEngine

    return LocalEngine(jobs, tell)


def _check_engine_name(name: str, address: str | None) -> None:
    if name not in ENGINE_NAMES:
        raise InputError(f"must be one of {', '.join(ENGINE_NAMES)}, got {name!r}", name="engine")
    if name != "ray" and address is not None:
        raise InputError("is for engine='ray'", name="address")
