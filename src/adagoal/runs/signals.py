"""Signals as a request: a run ends after the piece of work at hand, with everything kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C, a request to end, a terminal that was closed (not on Windows)."""


ALWAYS = (signal.SIGINT, signal.SIGTERM)
"""Caught even where they were ignored, as shells have it for what they run in the background."""


class Stop:
    """Whether a signal has asked the run to end."""

    def __init__(self) -> None:
        self.asked = False


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Catch :data:`ENDING` meanwhile: the first one asks, a second Ctrl-C ends at once (KeyboardInterrupt).

    A hang-up that is ignored stays ignored, so that ``nohup`` means what it says. Outside the main thread nothing is
    caught, as Python allows no handler there.
    """
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    caught = ENDING if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in caught}
    before = {n: handler for n, handler in before.items() if n in ALWAYS or handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
