"""Where work runs: an engine calls a function on many tasks and hands the outcomes on as they come.

    local   in this process for one job, else in processes of this machine (:mod:`adagoal.engines.local`)
    ray     on a Ray cluster, of one machine or many (:mod:`adagoal.engines.cluster`)

Tasks do not know where they run. One whose worker dies is tried again, :data:`TRIES` times in all; what it raises
itself ends everything, as it would in a loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from adagoal.core.errors import InputError

if TYPE_CHECKING:  # imported where they are used: --help should not wait for Numba
    from adagoal.worlds.roster import Hire

TRIES = 3
"""How often a task is begun, at most, where its workers die."""
NAMES = ("local", "ray")

Tell = Callable[[str], None]
"""Where to say what happens on the way, a line at a time."""


@dataclass(frozen=True)
class Needs:
    """What one task takes."""

    cores: int = 1
    gpu: bool = False
    """One to itself, where the machines have any."""
    fresh: bool = False
    """A process that has done nothing else, so that its memory and its time are its own."""


class Engine(Protocol):
    """Runs tasks."""

    def map(
        self, function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], needs: Needs
    ) -> Iterator[tuple[str, Any]]:
        """Call ``function(*arguments)`` for every named task; (name, outcome) of each, in the order of their ends.

        Raises :class:`WorkerLost` in the end if some tasks were given up. Leaving the iterator ends what still runs.
        """
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...


class Interrupted(Exception):
    """Raised by a task that was told to stop before it had an outcome: nobody's mistake, and it can be run again."""


class WorkerLost(RuntimeError):
    """Some tasks were given up, because their workers died again and again."""


class Losses:
    """Counts the workers that every task has lost, and decides whether to try it again."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lost: dict[str, int] = {}
        self._given_up: dict[str, str] = {}

    def again(self, name: str, reason: str) -> bool:
        """Whether to run the task once more, after its worker was lost for ``reason``."""
        self._lost[name] = self._lost.get(name, 0) + 1
        again = self._lost[name] < TRIES
        if not again:
            self._given_up[name] = reason
        self._tell(f"{name}: its worker was lost ({reason}); " + ("it is tried again" if again else "it is given up"))
        return again

    def check(self) -> None:
        """Raise if a task was given up."""
        if self._given_up:
            name, reason = next(iter(self._given_up.items()))
            others = f" and {len(self._given_up) - 1} more" if len(self._given_up) > 1 else ""
            raise WorkerLost(f"{name}{others} lost {TRIES} workers ({reason}), perhaps for want of memory")


@contextlib.contextmanager
def hiring(name: str = "local", address: str | None = None) -> Iterator[Hire]:
    """Where the workers of a run live (:mod:`adagoal.worlds.roster`)."""
    _check(name, address)
    if name == "local":
        from adagoal.worlds.process import Process

        yield Process
        return
    from adagoal.engines.cluster import Actor, RayCluster

    with contextlib.closing(RayCluster(None, address, print)):
        yield Actor


def make(name: str = "local", jobs: int | None = None, address: str | None = None, tell: Tell = print) -> Engine:
    """An engine by its name; ``jobs`` tasks at a time, by default as many as there are cores."""
    _check(name, address)
    if name == "ray":
        from adagoal.engines.cluster import RayCluster

        return RayCluster(jobs, address, tell)
    from adagoal.engines.local import Local

    return Local(jobs, tell)


def _check(name: str, address: str | None) -> None:
    if name not in NAMES:
        raise InputError(f"must be one of {', '.join(NAMES)}, got {name!r}", name="engine")
    if name != "ray" and address is not None:
        raise InputError("is for engine='ray'", name="address")
