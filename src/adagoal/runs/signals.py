"""Signals as a request: a run ends after the piece of work at hand, with everything kept.

The handler never raises while compiled code may be running, however many signals come: see
:class:`adagoal.core.ctrlc.UserCode`.

Another process that has no business with signals asks with a file in the run's folder (:func:`ask_to_stop`). The run
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

from adagoal.core.ctrlc import USER_CODE
from adagoal.core.files import writing

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a request to end, a terminal that was closed."""


ALWAYS = (signal.SIGINT, signal.SIGTERM)
"""Caught even where they were ignored, as shells have it for what they run in the background."""


FILE = "stop.request"
LOOK_SECONDS = 1.0


class Stop:
    """Whether a signal, or a file in the folder, has asked the run to end."""

    def __init__(self, folder: Path | None) -> None:
        self.signalled = False
        self.saving = False
        """Whether the last save has begun, which no signal interrupts"""
        self._file = None if folder is None else folder / FILE
        self._next = 0.0

    @property
    def asked(self) -> bool:
        """Looks for the file now and then."""
        now = time.monotonic()
        if self._file is not None and now >= self._next:
            self._next = now + LOOK_SECONDS
            self.signalled = self.signalled or self._file.exists()
        return self.signalled

    def begin_saving(self) -> None:
        """Let no signal interrupt the run from now on."""
        self.saving = True
        USER_CODE.forget()

    def forget(self) -> None:
        """Remove the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)


def ask_to_stop(folder: Path) -> None:
    """Ask the run that is writing in a folder to end, with everything kept."""
    with writing(folder / FILE):
        (folder / FILE).touch()


@contextlib.contextmanager
def stop_on_signals(folder: Path | None = None, at_once: bool = False) -> Iterator[Stop]:
    """Catch :data:`ENDING` meanwhile: the first one asks, a second Ctrl-C raises ``KeyboardInterrupt``.

    It is raised in code of the user's only, or anywhere with ``at_once``, and never while the run saves for the last
    time.

    A hang-up that is ignored stays ignored, so that ``nohup`` means what it says. Outside the main thread nothing is
    caught, as Python allows no handler there.
    """
    stop = Stop(folder)
    stop.forget()
    USER_CODE.forget()

    def ask(number: int, frame: FrameType | None) -> None:
        again, stop.signalled = stop.signalled, True
        if not again or number != signal.SIGINT or stop.saving:
            return
        if at_once:
            raise KeyboardInterrupt
        USER_CODE.interrupt()

    caught = ENDING if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in caught}
    before = {n: handler for n, handler in before.items() if n in ALWAYS or handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        stop.forget()
        USER_CODE.forget()
        for number, handler in before.items():
            signal.signal(number, handler)
