"""The run of a cell: :func:`adagoal.explore`, except that a run which somebody else cut short is no outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adagoal.api import explore as api
from adagoal.core.run import ExplorationRun
from adagoal.core.status import Status
from adagoal.engines import TaskInterrupted
from adagoal.runs.asked import to_goals_argument
from adagoal.runs.result import Result
from adagoal.runs.setting import ExplorationSettings
from adagoal.worlds import registry
from adagoal.worlds.model import TabularMDP


class _StopTracker:
    """An observer, and whether it was the one who ended the run."""

    def __init__(self, observe: Callable[[ExplorationRun], bool | None]) -> None:
        self.observe, self.has_stopped_run = observe, False

    def __call__(self, run: ExplorationRun) -> bool:
        self.has_stopped_run = self.observe(run) is False
        return not self.has_stopped_run


def explore_uninterrupted(
    env: Any, *arguments: Any, observe: Callable[[ExplorationRun], bool | None] = lambda run: None, **options: Any
) -> Result:
    """:func:`adagoal.explore`; a signal that ended the run, not ``observe``, is raised as Interrupted."""
    watch = _StopTracker(observe)
    return _require_complete(api.explore(env, *arguments, observe=watch, **options), watch)


def run_settings(setting: ExplorationSettings, observe: Callable[[ExplorationRun], bool | None]) -> Result:
    """The run of a setting."""
    given = {name: value for name, value in vars(setting).items() if name not in ("goal_space", "goal_sets")}
    return explore_uninterrupted(**given, goals=to_goals_argument(setting), observe=observe)


def resume_uninterrupted(folder: Any, observe: Callable[[ExplorationRun], bool | None]) -> Result:
    """:func:`adagoal.resume`, likewise."""
    watch = _StopTracker(observe)
    return _require_complete(api.resume(folder, observe=watch), watch)


def _require_complete(result: Result, watch: _StopTracker) -> Result:
    if result.status is Status.INTERRUPTED and not watch.has_stopped_run:
        raise TaskInterrupted("the run was told to stop")
    return result


def make_known_model(setting: ExplorationSettings) -> TabularMDP:
    """The exact model of a setting's world, which has one."""
    found = registry.make_exact_model(setting.env, setting.env_args, setting.start_seed)
    assert found is not None, f"{setting.env} has no model"
    return found
