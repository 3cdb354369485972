"""Pages of runs, and figures of them as PNG files."""

import importlib.util

from adagoal.core.errors import InputError
from adagoal.core.installation import install_command
from adagoal.report.exploration_page import write_report
from adagoal.runs.exploration_files import StateMetadata
from adagoal.runs.result_text import make_headline

__all__ = ["StateMetadata", "make_headline", "write_report"]


def require_figures_extra() -> None:
    """Raise an :class:`InputError` if Matplotlib, the extra ``figures``, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"figures need matplotlib: {install_command('figures')}")
