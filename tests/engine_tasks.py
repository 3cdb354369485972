"""Tasks for the engines, in a module that a new process imports at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def square(x: int) -> tuple[int, int]:
    return x * x, os.getpid()


def die(place: Path, deaths: int) -> str:
    """Dies so often, then has an outcome."""
    place.write_text(place.read_text() + "." if place.exists() else ".")
    if len(place.read_text()) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def refuse(error: Exception) -> None:
    raise error


def slowly(cell: Any, options: Any) -> Any:
    """A cell of a comparison on Ray that takes its time, and says on which node it has begun."""
    import ray

    from adagoal.experiments import compare

    with begun(options.out, ray.get_runtime_context().get_node_id()).open("a") as file:
        file.write(".")
    time.sleep(0.5)
    return compare.measure(cell, options)


def begun(folder: Path, node: str) -> Path:
    return folder / f"begun-{node}"
