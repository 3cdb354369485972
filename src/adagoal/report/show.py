"""``adagoal.show`` (interactive pages), ``adagoal.plot`` (Matplotlib figures), and the page of a certification."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagoal.certification.certificate import Certification, Claim, ComparisonClaim
from adagoal.core.errors import InputError
from adagoal.core.file_io import write_text
from adagoal.report.exploration_page import ExplorationSource, exploration_page
from adagoal.report.html_page import (
    CurvePlot,
    Panel,
    PanelContent,
    ReportPage,
    curves_by_seed,
    render_macro,
    require_figures_extra,
)
from adagoal.runs.load_result import load_result
from adagoal.runs.result import Result
from adagoal.runs.result_text import Headline
from adagoal.runs.run_folder import is_training_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from adagoal.runs.train_result import TrainResult


def certificate_page(certification: Certification) -> ReportPage:
    """Return the page: the outcome, the cells, and the settings."""
    about = certification.about
    policies = " versus ".join(about[key] for key in ("policy_name", "versus_name") if key in about) or "policy"
    title = f"adagoal: {policies} in {about.get('env', '?')}"
    return ReportPage.collect(title, PANELS, certification)


def summary_panel(certification: Certification) -> PanelContent:
    """Return the headline."""
    subject = certification.question.subject
    shares = [f"{certification.share(verdict):.0%} {verdict}" for verdict in certification.claim.verdicts]
    text = f"Of the {subject}s: {', '.join(shares)}, after {certification.rollouts:,} rollouts."
    kind = "good" if certification.status.finished else "partial"
    head = Headline(kind, certification.outcome.capitalize(), (text,))
    return PanelContent(html=render_macro("shared.html", "summary", head, "", []))


def cells_panel(certificate: Mapping[str, Any], claim: type[Claim] = Claim) -> PanelContent | None:
    """Return the cells of a certificate in its JSON form."""
    if not certificate["cells"]:
        return None
    html = render_macro("training.html", "certificate", certificate["statement"])
    names = [f"goal coordinate {i}" for i in range(len(certificate["cells"][0]["low"]))]
    given = certificate.get("variables")
    # the file may be forged
    if isinstance(given, list) and len(given) == len(names) and all(isinstance(name, str) for name in given):
        names = given
    claims = {"verdicts": claim.verdicts, "measure": claim.measure, "least": claim.least}
    return PanelContent({"cells": certificate["cells"], "variables": names, **claims}, {}, html)


def settings_panel(certification: Certification) -> PanelContent:
    """Return what was asked."""
    values = {**certification.about, **vars(certification.claim)}
    if isinstance(certification.claim, ComparisonClaim):
        del values["success"]  # a comparison does not use it
    return PanelContent(html=render_macro("shared.html", "settings", "Settings", values))


PANELS: tuple[Panel[Certification], ...] = (
    Panel("words", "", summary_panel),
    Panel("cells", "Cells", lambda found: cells_panel(found.to_dict(), type(found.claim)), ("cells.js",), "pair wide"),
    Panel("settings", "", settings_panel),
)
"""The page from top to bottom."""


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
        # mkstemp only reserves the name; the page then replaces that file atomically.
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
        page = exploration_page(ExplorationSource(run, None))
    elif isinstance(run, Certification):
        page = certificate_page(run)
    elif not isinstance(run, str | os.PathLike):
        raise InputError(
            f"must be the result of explore or certify, or the folder of a run (result.save makes one), got {run!r}",
            "run",
        )
    elif is_training_folder(folder := Path(run)):
        from adagoal.report.training_page import read_training_folder, training_page

        page = training_page(read_training_folder(folder))
    else:
        page = exploration_page(ExplorationSource(load_result(folder), folder))
    return Page(page.title, page.render())


def plot(run: Result | TrainResult) -> Figure:
    """Return a Matplotlib figure: the bounds of every goal, or the success of trained policies over the steps.

    A notebook shows the figure below the cell; ``plot(run).savefig("figure.png")`` writes it.

    Parameters
    ----------
    run: the result of an exploration or of training.

    Examples
    --------
    >>> len(adagoal.plot(result).axes)
    1
    """
    require_figures_extra()
    if isinstance(run, Result):
        from adagoal.report.figures import exploration_figures

        return show_in_notebooks(exploration_figures(run)["goals.png"])
    # Here, because explorations need none of the packages of training.
    from adagoal.runs.train_result import TrainResult

    if not isinstance(run, TrainResult):
        raise InputError(f"must be the result of an exploration or of training, got {type(run).__name__}", "run")
    return plot_curves([learning_curves(run)])


def learning_curves(trained: TrainResult) -> CurvePlot:
    """Return the success in the tests of training runs, over the steps."""
    runs = enumerate(trained.history.configs)
    points = [(config.seed, row["steps"], row["success"]) for run, config in runs for row in trained.curve(run)]
    first = trained.history.configs[0]
    lines = curves_by_seed(first.goal_rule, points)
    return CurvePlot(first.env, "steps", "share of test goals reached", lines, log_axes=False)


def plot_curves(plots: list[CurvePlot]) -> Figure:
    """Return the figure of some curves."""
    from adagoal.report.figures import draw_curve_plots

    return show_in_notebooks(draw_curve_plots(plots))


def show_in_notebooks(figure: Figure) -> Figure:
    """Return the figure, which a notebook then shows also if pyplot was never imported."""
    from adagoal.report.figures import figure_to_png

    vars(figure)["_repr_png_"] = partial(figure_to_png, figure)
    return figure
