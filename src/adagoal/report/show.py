"""``adagoal.show``: the page of a run in a notebook, in a browser, or as a file."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from adagoal.certification.certificate import Certification
from adagoal.core.errors import InputError
from adagoal.core.file_io import write_text
from adagoal.report.certificate_page import certificate_page
from adagoal.report.exploration_page import exploration_page
from adagoal.report.exploration_panels import ExplorationSource
from adagoal.runs.folder_reader import is_training_folder
from adagoal.runs.result import Result, load_result


@dataclass(frozen=True)
class Page:
    """A page as one HTML text that needs no network."""

    title: str
    html: str = field(repr=False)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file and return its path."""
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"must be the path of a file, got {path!r}", "path")
        file = Path(path)
        write_text(file, self.html)
        return file

    def open(self) -> Path:
        """Show the page in a browser. It is written to a temporary file, which is not removed."""
        number, name = tempfile.mkstemp(prefix="adagoal-", suffix=".html")
        # The page is written by name, atomically; mkstemp only reserves the name.
        os.close(number)
        file = self.save(name)
        webbrowser.open(file.as_uri())
        return file

    def _repr_html_(self) -> str:
        # A frame keeps the styles and scripts of the page apart from those of the notebook.
        frame = f'style="width:100%;height:900px;border:0" title="{escape(self.title)}"'
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'


def show(run: Result | Certification | str | Path) -> Page:
    """Return the interactive page of a result or certification, or of the folder of an exploration or training.

    A notebook shows the page below the cell. Elsewhere, ``show(result).open()`` opens it in a browser and
    ``show(result).save("page.html")`` writes it to a file.

    Parameters
    ----------
    run: a result, a certification of :func:`adagoal.certify`, or the folder of a run.

    Examples
    --------
    >>> adagoal.show(result).title
    'adagoal: grid'
    >>> adagoal.show(result).open()  # doctest: +SKIP
    """
    if isinstance(run, Result):
        page = exploration_page(ExplorationSource(run, run.view, None))
    elif isinstance(run, Certification):
        page = certificate_page(run)
    elif not isinstance(run, str | os.PathLike):
        raise InputError(f"must be a result, or the path of a run's folder, got {run!r}", "run")
    elif is_training_folder(folder := Path(run)):
        from adagoal.report.training_page import read_training_folder, training_page

        page = training_page(read_training_folder(folder))
    else:
        result = load_result(folder)
        page = exploration_page(ExplorationSource(result, result.view, folder))
    return Page(page.title, page.render())
