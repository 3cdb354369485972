"""Ctrl-C: where it may interrupt a run, and how the processes of a run ignore it.

A terminal sends Ctrl-C to all processes of a run, but it is for the run alone. In the run itself ``KeyboardInterrupt``
is raised only while code of the user's runs (:class:`UserCodeSection`).
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator
from multiprocessing import resource_tracker


class UserCodeSection:
    """A block that runs an environment, a goal rule or a goal function: the only place that Ctrl-C interrupts.

    Anywhere else ``KeyboardInterrupt`` could be raised while compiled code is entered, which Numba answers with a
    ``SystemError`` or a crash, or between two tables that belong together. An interrupt that comes there is raised when
    the next block begins.
    """

    def __init__(self) -> None:
        self._is_inside = self._is_pending = self._was_raised = False

    def __enter__(self) -> None:
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt
        self._was_raised = False
        self._is_inside = True

    def __exit__(self, *_: object) -> None:
        self._is_inside = False
        if self._was_raised:  # whatever the code made of it: its outcome does not count
            self._was_raised = False
            raise KeyboardInterrupt

    def request_interrupt(self) -> None:
        """Raise ``KeyboardInterrupt``, now or when the next block begins; for a signal handler."""
        if self._is_inside:
            self._is_inside, self._was_raised = False, True
            raise KeyboardInterrupt
        self._is_pending = True

    def discard_interrupt(self) -> None:
        """Drop an interrupt that was not raised yet."""
        self._is_pending = self._was_raised = False


USER_CODE_SECTION = UserCodeSection()
"""The block of this process; it can be entered again and again, and costs as little as a null context."""


@contextlib.contextmanager
def block_sigint() -> Iterator[None]:
    """Processes started in this block ignore SIGINT until they call :func:`ignore_sigint`, also while they import.

    The run itself gets a SIGINT at the end of the block. The resource tracker is an interpreter too, so it must be
    started on a safe path (:mod:`adagoal.core.isolation`).
    """
    resource_tracker.ensure_running()  # it lifts the mask where it has to be begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_sigint(signals: Iterable[signal.Signals] = (signal.SIGINT,)) -> None:
    """In such a process: leave these signals to the run."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
