"""Live progress of a training on standard error: a display on a terminal, one line per test elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from adagoal.core.errors import InputError
from adagoal.deep.training_history import TrainingHistory
from adagoal.runs.progress_display import ProgressDisplay


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


# The numbers of a training for TensorBoard, written after every cycle: one series per run and number.
#
# Needs the extra: ``pip install 'adagoal[tensorboard]'``. Nothing of it is imported before a training asks for it.


UNLOGGED_COLUMNS = {"run", "seed", "goal_rule", "cycle", "steps"}


class TensorBoardObserver:
    """An observer of a training; a context manager. ``folder`` gets a folder for each run, named by rule and seed."""

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("tensorboardX") is None:
            raise InputError("this needs tensorboardX: pip install 'adagoal[tensorboard]'", name="tensorboard")
        self._folder = folder
        self._writers: dict[int, Any] = {}
        self._last_logged_steps: dict[tuple[int, str], int] = {}
        """Steps at which a number of a run was written last."""

    def __enter__(self) -> TensorBoardObserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def __call__(self, history: TrainingHistory) -> None:
        """Write the last row of each run; what was written before is left out."""
        for row in history.rows[-len(history.configs) :]:
            run, steps = row["run"], row["steps"]
            if run not in self._writers:
                name = f"{history.configs[run].rule_name}-seed{row['seed']}"
                self._writers[run] = importlib.import_module("tensorboardX").SummaryWriter(str(self._folder / name))
            for tag in row.keys() - UNLOGGED_COLUMNS:
                if self._last_logged_steps.get((run, tag), -1) < steps:
                    self._writers[run].add_scalar(tag, row[tag], steps)
                    self._last_logged_steps[run, tag] = steps
            self._writers[run].flush()
