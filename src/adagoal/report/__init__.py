"""Pages of runs, and figures of them as PNG files."""

from adagoal.report.exploration_page import write_report
from adagoal.runs.result import StateMetadata
from adagoal.runs.result_text import make_headline

__all__ = ["StateMetadata", "make_headline", "write_report"]
