"""The report of a run: figures and one self-contained page."""

from adagoal.report.page import write_report
from adagoal.runs.view import StateMetadata
from adagoal.runs.words import make_headline

__all__ = ["StateMetadata", "make_headline", "write_report"]
