"""What a run shows while it goes on, on standard error: a display on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from adagoal.core.usercode import call_observer

ObservedT = TypeVar("ObservedT")
ObserverFunction = Callable[[ObservedT], bool | None]


class ProgressDisplay:
    """A few lines and a bar that are rewritten; a context manager. Without a terminal, or quiet, nothing is live."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        terminal = self._console.is_terminal and not quiet
        self._live_display = (
            Live(Text("starting"), console=self._console, auto_refresh=False, transient=True) if terminal else None
        )

    @property
    def is_live(self) -> bool:
        """Whether there is a display to update; else :meth:`print_line` a line now and then."""
        return self._live_display is not None

    def __enter__(self) -> ProgressDisplay:
        if self._live_display is not None:
            self._live_display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live_display is not None:
            self._live_display.stop()

    def show_lines(self, lines: list[str], share: float | None) -> None:
        """Show the lines and the share of the run that is done, None where nobody knows."""
        if self._live_display is not None:
            bar = ProgressBar(total=1.0, completed=share or 0.0, width=60, pulse=share is None)
            self._live_display.update(
                Group(*(Text(line, overflow="crop", no_wrap=True) for line in lines), bar), refresh=True
            )

    def print_line(self, line: str) -> None:
        """A plain line."""
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def observe_with_display(
    shown: Any, observe: ObserverFunction[ObservedT] | None
) -> Iterator[ObserverFunction[ObservedT] | None]:
    """The observer of a run; ``shown`` is a display that is told before it, or None."""
    if shown is None:
        yield observe
        return
    with shown:

        def both(told: ObservedT) -> bool:
            shown(told)
            return call_observer(observe, told)

        yield both
