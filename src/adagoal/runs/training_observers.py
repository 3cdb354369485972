"""Observers of training: the progress display, and the writer for TensorBoard."""

from __future__ import annotations

import importlib
import importlib.util
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from adagoal.core.errors import InputError
from adagoal.deep.training_history import TrainingHistory
from adagoal.runs.progress_display import Progress, ProgressDisplay


class TrainingProgress(ProgressDisplay):
    """Progress of training: one plain line per test if the display is not live. ``opening`` is printed first."""

    throttled = False

    def __init__(self, quiet: bool = False, opening: str = "") -> None:
        super().__init__(quiet)
        self._opening = opening
        self._first_cycle: tuple[float, int] | None = None  # time and steps: everything before is start-up
        self._test_text = ""

    def describe(self, history: TrainingHistory) -> Progress:
        """Return the steps, the speed and the last test result."""
        rows = history.rows[-len(history.configs) :]
        done, planned = history.steps_before_cycle(rows[0]["cycle"] + 1), history.configs[0].steps
        now = time.monotonic()
        if self._first_cycle is None:
            # Compilation and the start of workers would make the speed look too low for a long time.
            self._first_cycle = now, done
            if self._opening:
                self.print_line(self._opening)
        then, before = self._first_cycle
        speed = (done - before) / max(now - then, 1e-9)
        is_tested = "success" in rows[0]
        if is_tested:
            success = " ".join(f"{row['success']:.2f}" for row in rows)
            self._test_text = f"  success {success} (at {rows[0]['steps']})"  # a cycle begins with its test
        line = f"{done} / {planned} steps  {speed:.0f} steps/s a run{self._test_text}"
        return Progress([line], min(done / planned, 1.0), line if is_tested else "")


class TensorBoardObserver:
    """Writes the numbers of training runs for TensorBoard, one series per run and number. Use as a context manager.

    ``folder`` gets one folder per run, named by goal rule and seed. This needs ``pip install 'adagoal[tensorboard]'``.
    """

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("tensorboardX") is None:
            raise InputError("this needs tensorboardX: pip install 'adagoal[tensorboard]'", name="tensorboard")
        self._folder = folder
        self._writers: dict[int, Any] = {}
        self._last_logged_steps: dict[tuple[int, str], int] = {}  # by run and number

    def __enter__(self) -> TensorBoardObserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def __call__(self, history: TrainingHistory) -> None:
        """Write the last row of each run, without numbers that were written before."""
        for row in history.rows[-len(history.configs) :]:
            run, steps = row["run"], row["steps"]
            if run not in self._writers:
                name = f"{history.configs[run].rule_name}-seed{row['seed']}"
                self._writers[run] = importlib.import_module("tensorboardX").SummaryWriter(str(self._folder / name))
            for tag in row.keys() - {"run", "seed", "goal_rule", "cycle", "steps"}:
                # The last row comes twice: after its cycle, and once more when the run ends.
                if self._last_logged_steps.get((run, tag), -1) < steps:
                    self._writers[run].add_scalar(tag, row[tag], steps)
                    self._last_logged_steps[run, tag] = steps
            # TensorBoard reads the files while the run goes on.
            self._writers[run].flush()
