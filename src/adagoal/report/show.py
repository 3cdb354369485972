"""The page of a run for people who work in Python: below the cell of a notebook, in a browser, or in a file."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from adagoal.core.errors import InputError
from adagoal.core.file_io import write_text
from adagoal.report.exploration_page import render_exploration_page
from adagoal.runs.folder_reader import is_training_folder
from adagoal.runs.result import Result, load_result

NOTEBOOK_HEIGHT_PIXELS = 900
"""Pixels of the page in a notebook."""


@dataclass(frozen=True)
class Page:
    """A page with everything in it, which needs no network and no program."""

    title: str
    html: str = field(repr=False)

    def save(self, path: str | Path) -> Path:
        """Write it into a file."""
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"must be the path of a file, got {path!r}", "path")
        file = Path(path)
        write_text(file, self.html)
        return file

    def open(self) -> Path:
        """Show it in a browser, from a temporary file that stays."""
        number, name = tempfile.mkstemp(prefix="adagoal-", suffix=".html")
        os.close(number)
        file = self.save(name)
        webbrowser.open(file.as_uri())
        return file

    def _repr_html_(self) -> str:
        """What a notebook shows: a frame, so that neither page changes the other."""
        frame = f'style="width:100%;height:{NOTEBOOK_HEIGHT_PIXELS}px;border:0" title="{escape(self.title)}"'
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'


def show(run: Result | str | Path) -> Page:
    """The interactive page of a result, or of the folder of an exploration or a training.

    A notebook draws it below the cell. Elsewhere ``show(result).open()`` shows it in a browser, and
    ``show(result).save("page.html")`` keeps it.
    """
    if isinstance(run, Result):
        return _exploration_page(run, None)
    if not isinstance(run, str | os.PathLike):
        raise InputError(f"must be a result, or the path of a run's folder, got {run!r}", "run")
    folder = Path(run)
    if is_training_folder(folder):
        from adagoal.report import training_page

        found = training_page.read_training_folder(folder)
        return Page(f"adagoal: {found[0].configs[0].env}", training_page.render_training_page(*found))
    return _exploration_page(load_result(folder), folder)


def _exploration_page(result: Result, folder: Path | None) -> Page:
    return Page(f"adagoal: {result.setting.env}", render_exploration_page(result, result.view, folder, {}))
