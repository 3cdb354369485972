"""The command that goes on with an unfinished run, ready to be copied."""

from __future__ import annotations

from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from adagoal.core.status import Status
from adagoal.core.text import OBJECT
from adagoal.core.usercode import names_file

if TYPE_CHECKING:
    from adagoal.runs.result import Result


def command(result: Result, folder: Path) -> str:
    """With twice the budget where that is spent, and with the code that a folder may name but not run."""
    setting, words = result.setting, ["adagoal", "resume", str(folder)]
    if setting.env.startswith(OBJECT) and result.model is None:
        return f"adagoal.resume({str(folder)!r}, env=...)"
    file = (setting.goal_sets or {}).get("file")
    if ":" in setting.env and result.model is None:
        words += ["--env", setting.env]
    if names_file(setting.goal_rule):
        words += ["--goal-rule", setting.goal_rule]
    if file is not None:
        words += ["--goals", file]
    if result.status is Status.BUDGET and setting.budget is not None:
        words += ["--budget", str(2 * setting.budget)]
    return join(words)
