"""Ctrl-C and the processes that a run begins: a terminal sends it to all of them, and it is for the run alone."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator
from multiprocessing import resource_tracker

MASKS = hasattr(signal, "pthread_sigmask")
"""Not on Windows."""


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Processes started in this block ignore SIGINT until they call :func:`deaf`, also while they import.

    The run itself gets a SIGINT at the end of the block. The resource tracker is an interpreter too, so it must be
    started on a safe path (:mod:`adagoal.core.isolation`).
    """
    if not MASKS:
        yield
        return
    resource_tracker.ensure_running()  # it lifts the mask where it has to be begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def deaf(names: Iterable[str] = ("SIGINT",)) -> None:
    """In such a process: leave these signals, as far as the system has them, to the run."""
    for name in names:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
