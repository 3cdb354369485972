"""Live progress of a training on standard error: a display on a terminal, one line per test elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from adagoal.deep.history import TrainingHistory
from adagoal.runs.display import ProgressDisplay


class TrainingProgress:
    """An observer of a training; use it as a context manager around it. ``opening`` is a line that comes first."""

    def __init__(self, quiet: bool = False, opening: str = "") -> None:
        self._display = ProgressDisplay(quiet)
        self._opening = opening
        self._first_cycle: tuple[float, int] | None = None
        """When the first cycle was seen, and its steps: what came before is start-up."""
        self._test_text = ""

    def __enter__(self) -> TrainingProgress:
        self._display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def __call__(self, history: TrainingHistory) -> None:
        """Called after every cycle."""
        last = history.rows[-len(history.configs) :]
        done, planned = history.steps_before_cycle(last[0]["cycle"] + 1), history.configs[0].steps
        now = time.monotonic()
        if self._first_cycle is None:
            self._first_cycle = now, done
            if self._opening:
                self._display.print_line(self._opening)
        then, before = self._first_cycle
        speed = (done - before) / max(now - then, 1e-9)
        if "success" in last[0]:
            found = " ".join(f"{row['success']:.2f}" for row in last)
            self._test_text = (
                f"  success {found} (at {last[0]['steps']})"  # the test comes before the cycle's own steps
            )
        line = f"{done} / {planned} steps  {speed:.0f} steps/s a run{self._test_text}"
        if self._display.is_live:
            self._display.show_lines([line], min(done / planned, 1.0))
        elif "success" in last[0]:
            self._display.print_line(line)
