"""Requests to stop a run: signals, and a file in its folder. The run ends after the current step, and is saved.

The signal handler never raises while compiled code may be running, however many signals come: see
:class:`adagoal.core.user_code.UserCodeSection`.

Another process that cannot send signals writes a file into the run's folder (:func:`request_stop`). The run looks for
it about once a second, and removes it at its beginning and its end.
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

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, a terminal that was closed
STOP_REQUEST_FILE = "stop.request"


class StopRequest:
    """Whether a signal, or a file in the folder, has asked the run to end."""

    def __init__(self, folder: Path | None) -> None:
        self.is_received = False
        self.is_saving = False  # the last save has begun; signals no longer interrupt
        self._request_file = None if folder is None else folder / STOP_REQUEST_FILE
        self._next_file_check = 0.0

    @property
    def is_requested(self) -> bool:
        """Whether the run must end; looks for the file once a second, because a run may ask after every step."""
        now = time.monotonic()
        if self._request_file is not None and now >= self._next_file_check:
            self._next_file_check = now + 1.0
            self.is_received = self.is_received or self._request_file.exists()
        return self.is_received

    def begin_saving(self) -> None:
        """Let no signal interrupt the run from now on."""
        # The flag first: a signal between these two lines must not request another interrupt.
        self.is_saving = True
        USER_CODE_SECTION.discard_interrupt()

    def remove_request_file(self) -> None:
        """Remove the file; a folder that cannot be written is reported by the save."""
        if self._request_file is not None:
            with contextlib.suppress(OSError):
                self._request_file.unlink(missing_ok=True)


def request_stop(folder: Path) -> None:
    """Ask the run that is writing in a folder to save everything and end."""
    with report_write_errors(folder / STOP_REQUEST_FILE):
        (folder / STOP_REQUEST_FILE).touch()


@contextlib.contextmanager
def stop_on_signals(folder: Path | None = None, at_once: bool = False) -> Iterator[StopRequest]:
    """Catch :data:`STOP_SIGNALS` in the block: the first one asks, a second Ctrl-C raises ``KeyboardInterrupt``.

    The exception is raised in user code only, or anywhere with ``at_once``, and never during the last save.
    """
    stop = StopRequest(folder)
    # A request is for one run: one that a killed run left behind must not stop the next.
    stop.remove_request_file()
    USER_CODE_SECTION.discard_interrupt()

    def handle_signal(number: int, frame: FrameType | None) -> None:
        # Normally only a flag is set, so the run ends between two steps, when its state is whole.
        repeated, stop.is_received = stop.is_received, True
        if not repeated or number != signal.SIGINT or stop.is_saving:
            return
        if at_once:
            raise KeyboardInterrupt
        USER_CODE_SECTION.request_interrupt()

    before = {}
    # Python allows signal handlers in the main thread only.
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:
        # nohup asked for that. Shells also ignore SIGINT for background jobs; that is no wish of the user.
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, handle_signal)
    try:
        yield stop
    finally:
        stop.remove_request_file()
        USER_CODE_SECTION.discard_interrupt()
        for number, handler in before.items():
            signal.signal(number, handler)
