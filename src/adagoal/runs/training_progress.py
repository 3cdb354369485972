"""Live progress of a training on standard error: a display on a terminal, one line per test elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from adagoal.deep.history import History
from adagoal.runs.display import Display


class TrainingProgress:
    """An observer of a training; use it as a context manager around it. ``opening`` is a line that comes first."""

    def __init__(self, quiet: bool = False, opening: str = "") -> None:
        self._display = Display(quiet)
        self._opening = opening
        self._first: tuple[float, int] | None = None
        """When the first cycle was seen, and its steps: what came before is start-up."""
        self._tested = ""

    def __enter__(self) -> TrainingProgress:
        self._display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def __call__(self, history: History) -> None:
        """Called after every cycle."""
        last = history.rows[-len(history.configs) :]
        done, planned = history.steps(last[0]["cycle"] + 1), history.configs[0].steps
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
            if self._opening:
                self._display.say(self._opening)
        then, before = self._first
        speed = (done - before) / max(now - then, 1e-9)
        if "success" in last[0]:
            found = " ".join(f"{row['success']:.2f}" for row in last)
            self._tested = f"  success {found} (at {last[0]['steps']})"  # the test comes before the cycle's own steps
        line = f"{done} / {planned} steps  {speed:.0f} steps/s a run{self._tested}"
        if self._display.live:
            self._display.update([line], min(done / planned, 1.0))
        elif "success" in last[0]:
            self._display.say(line)
