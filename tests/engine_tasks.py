"""Tasks for the engines, in a module that new processes import quickly."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def square(x: int) -> tuple[int, int]:
    return x * x, os.getpid()


def die(counter: Path, deaths: int) -> str:
    """Kill this process in the first ``deaths`` calls, counted in a file; return in later calls."""
    counter.write_text(counter.read_text() + "." if counter.exists() else ".")
    if len(counter.read_text()) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def refuse(error: Exception) -> None:
    raise error


class Unpicklable(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.link = lambda: None


class OneWayPickle(Exception):
    """Can be pickled but not unpickled: its __init__ takes more arguments than Exception stores."""

    def __init__(self, text: str, more: int) -> None:
        super().__init__(text)


def fail(kind: str) -> Any:
    """Raise or return an object that a pipe cannot carry, or close the pipe."""
    if kind == "close":
        os.closerange(3, 256)
        time.sleep(600)
    if kind == "answer":
        return lambda: None
    errors = {"unpicklable": Unpicklable("odd"), "particular": OneWayPickle("odd", 1)}
    raise errors.get(kind, KeyError(1))


class Buggy:
    """An object for a worker process, with a bug in its method."""

    def step(self, kind: str) -> Any:
        return fail(kind)

    def close(self) -> None:
        pass


def slowly(cell: Any, options: Any) -> Any:
    """Run one cell of a comparison on Ray; on the node that will be killed, mark the start and wait for the kill."""
    import ray

    from adagoal.comparison import method_comparison

    place = begun(options.out, ray.get_runtime_context().get_node_id())
    if place.exists():
        place.write_text("begun")
        time.sleep(600)
    return method_comparison.measure_audited_run(cell)


def begun(folder: Path, node: str) -> Path:
    """Return the file that marks the node that will be killed."""
    return folder / f"doomed-{node}"
