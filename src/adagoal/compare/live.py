"""What a live page of a comparison shows: the runs that are finished so far, from their files."""

from __future__ import annotations

from pathlib import Path

from adagoal.compare import comparison
from adagoal.compare.experiment import Options, Report
from adagoal.core.errors import InputError
from adagoal.core.files import busy, read_json
from adagoal.report import curves

CELLS = "cells"
"""Where a comparison, and the arena, keep their runs."""


class FolderComparison:
    """A folder of ``compare`` or of the arena."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stamp(self) -> str:
        """Which runs there are, when the last one came, and whether more are on their way."""
        times = [file.stat().st_mtime_ns for file in self._files()]
        return f"{len(times)} {max(times, default=0)} {busy(self._folder)}"

    def page(self) -> str:
        """The page of the runs so far."""
        report = self._report()
        return curves.page(f"adagoal: {self._folder.name}", report.text, report.panels, live=True)

    def block(self) -> bytes:
        """Its data."""
        report = self._report()
        return curves.block(report.text, report.panels, running=busy(self._folder), stops=False)

    def policy(self, goal: int) -> bytes:
        """A comparison has none."""
        raise InputError("a comparison shows no policies", "goal")

    def stop(self) -> None:
        """A comparison is stopped where it runs."""
        raise InputError("a comparison is stopped by Ctrl-C, and goes on with the same command")

    def _files(self) -> list[Path]:
        return sorted((self._folder / CELLS).glob("*.json"))

    def _report(self) -> Report:
        outcomes = [read_json(file) for file in self._files()]
        if not outcomes:
            raise InputError(f"{self._folder}: no run is finished yet")
        try:
            return comparison.report(outcomes, Options())
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            raise InputError(f"{self._folder / CELLS}: holds a file that is damaged, or no run of compare") from None
