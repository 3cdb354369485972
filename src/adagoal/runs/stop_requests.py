"""Signals as a request: a run ends after the piece of work at hand, with everything kept.

The handler never raises while compiled code may be running, however many signals come: see
:class:`adagoal.core.user_code.UserCodeSection`.

Another process that has no business with signals asks with a file in the run's folder (:func:`request_stop`). The run
looks for it about once a second, and removes it when it begins and when it ends.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from adagoal.core.file_io import report_write_errors
from adagoal.core.user_code import USER_CODE_SECTION

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a request to end, a terminal that was closed."""


ALWAYS_CAUGHT_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Caught even where they were ignored, as shells have it for what they run in the background."""


STOP_REQUEST_FILE = "stop.request"
FILE_CHECK_SECONDS = 1.0


class StopRequest:
    """Whether a signal, or a file in the folder, has asked the run to end."""

    def __init__(self, folder: Path | None) -> None:
        self.is_received = False
        self.is_saving = False
        """Whether the last save has begun, which no signal interrupts"""
        self._request_file = None if folder is None else folder / STOP_REQUEST_FILE
        self._next_file_check = 0.0

    @property
    def is_requested(self) -> bool:
        """Looks for the file now and then."""
        now = time.monotonic()
        if self._request_file is not None and now >= self._next_file_check:
            self._next_file_check = now + FILE_CHECK_SECONDS
            self.is_received = self.is_received or self._request_file.exists()
        return self.is_received

    def begin_saving(self) -> None:
        """Let no signal interrupt the run from now on."""
        self.is_saving = True
        USER_CODE_SECTION.discard_interrupt()

    def remove_request_file(self) -> None:
        """Remove the file."""
        if self._request_file is not None:
            with contextlib.suppress(OSError):
                self._request_file.unlink(missing_ok=True)


def request_stop(folder: Path) -> None:
    """Ask the run that is writing in a folder to end, with everything kept."""
    with report_write_errors(folder / STOP_REQUEST_FILE):
        (folder / STOP_REQUEST_FILE).touch()


@contextlib.contextmanager
def stop_on_signals(folder: Path | None = None, at_once: bool = False) -> Iterator[StopRequest]:
    """Catch :data:`STOP_SIGNALS` meanwhile: the first one asks, a second Ctrl-C raises ``KeyboardInterrupt``.

    It is raised in code of the user's only, or anywhere with ``at_once``, and never while the run saves for the last
    time.

    A hang-up that is ignored stays ignored, so that ``nohup`` means what it says. Outside the main thread nothing is
    caught, as Python allows no handler there.
    """
    stop = StopRequest(folder)
    stop.remove_request_file()
    USER_CODE_SECTION.discard_interrupt()

    def ask(number: int, frame: FrameType | None) -> None:
        again, stop.is_received = stop.is_received, True
        if not again or number != signal.SIGINT or stop.is_saving:
            return
        if at_once:
            raise KeyboardInterrupt
        USER_CODE_SECTION.request_interrupt()

    caught = STOP_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in caught}
    before = {
        n: handler for n, handler in before.items() if n in ALWAYS_CAUGHT_SIGNALS or handler is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        stop.remove_request_file()
        USER_CODE_SECTION.discard_interrupt()
        for number, handler in before.items():
            signal.signal(number, handler)
