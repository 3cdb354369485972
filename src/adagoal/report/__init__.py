"""Pages of runs, and figures of them as PNG files."""

from adagoal.report.exploration_page import write_report

__all__ = ["write_report"]
