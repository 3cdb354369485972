"""The command that goes on with an unfinished run or training, ready to be copied."""

from __future__ import annotations

from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from adagoal.core.status import Status
from adagoal.core.text import OBJECT
from adagoal.core.usercode import names_file

if TYPE_CHECKING:
    from adagoal.deep.config import Config
    from adagoal.runs.result import Result


def command(result: Result, folder: Path) -> str:
    """With twice the steps where a budget is spent, and with the code that a folder may name but not run."""
    setting = result.setting
    spent = result.steps if result.status is Status.BUDGET else None
    goals = (setting.goal_sets or {}).get("file")
    own = setting.env if result.model is None else ""
    return _words("adagoal.resume", folder, own, setting.goal_rule, goals, spent)


def training(config: Config, folder: Path, steps: int) -> str:
    """The same for a training, after so many steps."""
    spent = steps if steps >= config.steps else None
    return _words("adagoal.deep.resume", folder, config.env, config.goal_rule, None, spent)


def _words(function: str, folder: Path, env: str, rule: str, goals: str | None, spent: int | None) -> str:
    """``spent`` are the steps that a budget has allowed, where it is spent."""
    if env.startswith(OBJECT):
        return f"{function}({str(folder)!r}, env=...)"
    words = ["adagoal", "resume", str(folder)]
    words += ["--env", env] if ":" in env else []
    words += ["--goal-rule", rule] if names_file(rule) else []
    words += ["--goals", goals] if goals is not None else []
    words += ["--budget", str(2 * spent)] if spent is not None else []
    return join(words)
