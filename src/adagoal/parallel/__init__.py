"""Work in other processes, on this machine or on a Ray cluster.

    worker_process   an object in another process whose methods are called by name; its exceptions; a safe start
    task_engine      run many independent tasks; the engine for this machine
    ray_engine       the same workers and tasks on Ray

The functions of this module choose between this machine ("local") and Ray ("ray").
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from adagoal.core.errors import InputError
from adagoal.parallel.task_engine import Engine, LineWriter, LocalEngine, TaskInterrupted, TaskResources, WorkerLost
from adagoal.parallel.worker_process import WorkerFactory, WorkerProcess

__all__ = ["Engine", "TaskInterrupted", "TaskResources", "WorkerLost", "make_engine", "open_workers"]


@contextlib.contextmanager
def open_workers(engine: str, address: str | None) -> Iterator[WorkerFactory]:
    """Yield the function that makes workers of an engine; a Ray cluster started here ends with the block."""
    _check_engine_name(engine, address)
    if engine == "local":
        yield WorkerProcess
        return
    # Imported here, because Ray is an optional extra.
    from adagoal.parallel.ray_engine import RayEngine, RayWorker

    with contextlib.closing(RayEngine(None, address, print)):
        yield RayWorker


def make_engine(
    name: str = "local", jobs: int | None = None, address: str | None = None, print_line: LineWriter = print
) -> Engine:
    """Return the engine of that name, for ``jobs`` tasks at a time (None: one per core)."""
    _check_engine_name(name, address)
    if name == "local":
        return LocalEngine(jobs, print_line)
    from adagoal.parallel.ray_engine import RayEngine

    return RayEngine(jobs, address, print_line)


def _check_engine_name(name: str, address: str | None) -> None:
    if name not in ("local", "ray"):
        raise InputError(f"must be one of local, ray, got {name!r}", name="engine")
    # Ignored, the address would let a run on one machine pass for a run on the cluster.
    if name != "ray" and address is not None:
        raise InputError("works with the engine ray only; leave it out", name="address")
