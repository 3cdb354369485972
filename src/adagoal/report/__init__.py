"""The report of a run: figures and one self-contained page."""

from adagoal.report.page import write_report
from adagoal.runs.view import View
from adagoal.runs.words import headline

__all__ = ["View", "headline", "write_report"]
