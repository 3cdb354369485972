"""The report of a run: figures and one self-contained page."""

from adagoal.report.page import write_report
from adagoal.report.words import headline
from adagoal.runs.view import View

__all__ = ["View", "headline", "write_report"]
