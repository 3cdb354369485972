"""The numbers of a training for TensorBoard, written after every cycle: one series per run and number.

Needs the extra: ``pip install 'adagoal[tensorboard]'``. Nothing of it is imported before a training asks for it.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import TracebackType
from typing import Any

from adagoal.core.errors import InputError
from adagoal.deep.history import TrainingHistory

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
