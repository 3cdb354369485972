"""The page of a certification, and the panel with its cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adagoal.certification.certificate import Certification, Verdict
from adagoal.report.html_page import Panel, PanelContent, ReportPage, render_macro
from adagoal.runs.result_text import Headline


def certificate_page(certification: Certification) -> ReportPage:
    """Return the page: the outcome, the cells, and the settings."""
    title = f"adagoal: {certification.about.get('policy_name', 'policy')} in {certification.about.get('env', '?')}"
    return ReportPage.collect(title, PANELS, certification)


def summary_panel(certification: Certification) -> PanelContent:
    """Return the headline."""
    subject = certification.question.subject
    shares = [f"{certification.share(verdict):.0%} {verdict}" for verdict in Verdict]
    text = f"Of the {subject}s: {', '.join(shares)}, after {certification.rollouts:,} rollouts."
    kind = "good" if certification.status.finished else "partial"
    head = Headline(kind, f"Certification {certification.status}", (text,))
    return PanelContent(html=render_macro("shared.html", "summary", head, "", []))


def cells_panel(certificate: Mapping[str, Any]) -> PanelContent | None:
    """Return the cells of a certificate in its JSON form."""
    if not certificate["cells"]:
        return None
    html = render_macro("training.html", "certificate", certificate["statement"])
    names = [f"goal coordinate {i}" for i in range(len(certificate["cells"][0]["low"]))]
    given = certificate.get("variables")
    # the file may be forged
    if isinstance(given, list) and len(given) == len(names) and all(isinstance(name, str) for name in given):
        names = given
    return PanelContent({"cells": certificate["cells"], "variables": names}, {}, html)


def settings_panel(certification: Certification) -> PanelContent:
    """Return what was asked."""
    values = {**certification.about, **vars(certification.claim)}
    return PanelContent(html=render_macro("shared.html", "settings", "Settings", values))


PANELS: tuple[Panel[Certification], ...] = (
    Panel("words", "", summary_panel),
    Panel("cells", "Cells", lambda found: cells_panel(found.to_dict()), ("cells.js",), "pair wide"),
    Panel("settings", "", settings_panel),
)
"""The page from top to bottom."""
