"""The command that goes on with an unfinished run or training, ready to be copied."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from adagoal.core.status import Status
from adagoal.core.text import OBJECT_ENV_PREFIX
from adagoal.core.usercode import is_file_spec
from adagoal.runs.progress import extrapolate_total_steps

if TYPE_CHECKING:
    from adagoal.deep.config import Config
    from adagoal.runs.result import Result


def resume_command(result: Result, folder: Path) -> str:
    """Return the command, with the code that a folder may name but not run.

    If the budget is spent, the new one is twice the old one, or more if the run is expected to need more.
    """
    setting = result.setting
    goals = (setting.goal_sets or {}).get("file")
    own = setting.env if result.model is None else ""
    budget = None
    if result.status is Status.BUDGET:
        budget = max(2 * result.steps, _round_up_two_digits(result.steps + (estimate_steps_left(result) or 0)))
    return _format_resume_command("adagoal.resume", folder, own, setting.goal_rule, goals, budget)


def estimate_steps_left(result: Result) -> int | None:
    """Steps that an unfinished run may still need, at its recent pace; None if it is too early to say."""
    trace = [(int(s), int(e), float(m), int(o)) for s, e, m, o in result.arrays["trace"]]
    total = extrapolate_total_steps(trace, result.setting.epsilon)
    return None if total is None else _round_up_two_digits(max(total - result.steps, 0.0))


def _round_up_two_digits(steps: float) -> int:
    """Round up to two digits: it is a guess."""
    unit: int = 10 ** max(len(str(math.ceil(steps))) - 2, 0)
    return unit * math.ceil(steps / unit)


def resume_training_command(config: Config, folder: Path, steps: int) -> str:
    """The same for a training, after so many steps."""
    budget = 2 * steps if steps >= config.steps else None
    return _format_resume_command("adagoal.deep.resume", folder, config.env, config.goal_rule, None, budget)


def _format_resume_command(
    function: str, folder: Path, env: str, rule: str, goals: str | None, budget: int | None
) -> str:
    if env.startswith(OBJECT_ENV_PREFIX):
        return f"{function}({str(folder)!r}, env=...)"
    words = ["adagoal", "resume", str(folder)]
    words += ["--env", env] if ":" in env else []
    words += ["--goal-rule", rule] if is_file_spec(rule) else []
    words += ["--goals", goals] if goals is not None else []
    words += ["--budget", str(budget)] if budget is not None else []
    return join(words)
