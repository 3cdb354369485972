"""What a live page of a comparison shows: the runs that are finished so far, from their files."""

from __future__ import annotations

from pathlib import Path

from adagoal.compare import comparison
from adagoal.compare.experiment import ExperimentOptions, ExperimentReport
from adagoal.core.errors import InputError
from adagoal.core.files import is_folder_locked, read_json
from adagoal.report import curves

RUNS_FOLDER = "cells"
"""Where a comparison, and the arena, keep their runs."""


class FolderComparison:
    """A folder of ``compare`` or of the arena."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def version_stamp(self) -> str:
        """Which runs there are, when the last one came, and whether more are on their way."""
        times = [file.stat().st_mtime_ns for file in self._list_outcome_files()]
        return f"{len(times)} {max(times, default=0)} {is_folder_locked(self._folder)}"

    def render_page(self) -> str:
        """The page of the runs so far."""
        report = self._build_report()
        return curves.render_curve_page(f"adagoal: {self._folder.name}", report.text, report.panels, live=True)

    def pack_data(self) -> bytes:
        """Its data."""
        report = self._build_report()
        return curves.pack_curve_data(report.text, report.panels, running=is_folder_locked(self._folder), stops=False)

    def pack_policy(self, goal: int) -> bytes:
        """A comparison has none."""
        raise InputError("a comparison shows no policies", "goal")

    def request_stop(self) -> None:
        """A comparison is stopped where it runs."""
        raise InputError("a comparison is stopped by Ctrl-C, and goes on with the same command")

    def _list_outcome_files(self) -> list[Path]:
        return sorted((self._folder / RUNS_FOLDER).glob("*.json"))

    def _build_report(self) -> ExperimentReport:
        outcomes = [read_json(file) for file in self._list_outcome_files()]
        if not outcomes:
            raise InputError(f"{self._folder}: no run is finished yet")
        try:
            return comparison.comparison_report(outcomes, ExperimentOptions())
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            raise InputError(
                f"{self._folder / RUNS_FOLDER}: holds a file that is damaged, or no run of compare"
            ) from None
