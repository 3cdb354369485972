"""Pages of runs, and figures of them as PNG files."""

from adagoal.report.exploration_page import write_report
from adagoal.runs.result_text import make_headline
from adagoal.runs.state_metadata import StateMetadata

__all__ = ["StateMetadata", "make_headline", "write_report"]
