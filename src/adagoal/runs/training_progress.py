"""Live progress of a training on standard error: a display on a terminal, one line per test elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from adagoal.deep.history import History


class TrainingProgress:
    """An observer of a training; use it as a context manager around it."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._first: tuple[float, int] | None = None
        """When the first cycle was seen, and its steps: what came before is start-up."""
        self._tested = ""

    def __enter__(self) -> TrainingProgress:
        if self._console.is_terminal:
            self._live = Live(Text("starting"), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, history: History) -> None:
        """Called after every cycle."""
        last = history.rows[-len(history.configs) :]
        done, planned = history.steps(last[0]["cycle"] + 1), history.configs[0].steps
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
        then, before = self._first
        speed = (done - before) / max(now - then, 1e-9)
        if "success" in last[0]:
            self._tested = " ".join(f"{row['success']:.2f}" for row in last)
        line = f"{done} / {planned} steps  {speed:.0f} steps/s a run  success {self._tested}"
        if self._live is not None:
            bar = ProgressBar(total=planned, completed=min(done, planned), width=60)
            self._live.update(Group(Text(line, overflow="crop", no_wrap=True), bar), refresh=True)
        elif "success" in last[0]:
            self._console.print(line, soft_wrap=True, highlight=False)
