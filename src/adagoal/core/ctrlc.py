"""Ctrl-C: where it may interrupt a run, and how the processes of a run ignore it.

A terminal sends Ctrl-C to all processes of a run, but it is for the run alone. In the run itself ``KeyboardInterrupt``
is raised only while code of the user's runs (:class:`UserCode`).
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator
from multiprocessing import resource_tracker


class UserCode:
    """A block that runs an environment, a goal rule or a goal function: the only place that Ctrl-C interrupts.

    Anywhere else ``KeyboardInterrupt`` could be raised while compiled code is entered, which Numba answers with a
    ``SystemError`` or a crash, or between two tables that belong together. An interrupt that comes there is raised when
    the next block begins.
    """

    def __init__(self) -> None:
        self._inside = self._due = self._raised = False

    def __enter__(self) -> None:
        if self._due:
            self._due = False
            raise KeyboardInterrupt
        self._raised = False
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._inside = False
        if self._raised:  # whatever the code made of it: its outcome does not count
            self._raised = False
            raise KeyboardInterrupt

    def interrupt(self) -> None:
        """Raise ``KeyboardInterrupt``, now or when the next block begins; for a signal handler."""
        if self._inside:
            self._inside, self._raised = False, True
            raise KeyboardInterrupt
        self._due = True

    def forget(self) -> None:
        """Drop an interrupt that was not raised yet."""
        self._due = self._raised = False


USER_CODE = UserCode()
"""The block of this process; it can be entered again and again, and costs as little as a null context."""


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Processes started in this block ignore SIGINT until they call :func:`deaf`, also while they import.

    The run itself gets a SIGINT at the end of the block. The resource tracker is an interpreter too, so it must be
    started on a safe path (:mod:`adagoal.core.isolation`).
    """
    resource_tracker.ensure_running()  # it lifts the mask where it has to be begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def deaf(signals: Iterable[signal.Signals] = (signal.SIGINT,)) -> None:
    """In such a process: leave these signals to the run."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
