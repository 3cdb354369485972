"""The run of a cell: :func:`adagoal.explore`, except that a run which somebody else cut short is no outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adagoal.api import explore as api
from adagoal.core.run import Run
from adagoal.core.status import Status
from adagoal.engines import Interrupted
from adagoal.runs.asked import as_given
from adagoal.runs.result import Result
from adagoal.runs.setting import Setting
from adagoal.worlds import registry
from adagoal.worlds.model import TabularMDP


class _Watched:
    """An observer, and whether it was the one who ended the run."""

    def __init__(self, observe: Callable[[Run], bool | None]) -> None:
        self.observe, self.ended = observe, False

    def __call__(self, run: Run) -> bool:
        self.ended = self.observe(run) is False
        return not self.ended


def explore(
    env: Any, *arguments: Any, observe: Callable[[Run], bool | None] = lambda run: None, **options: Any
) -> Result:
    """:func:`adagoal.explore`; a signal that ended the run, not ``observe``, is raised as Interrupted."""
    watch = _Watched(observe)
    return _whole(api.explore(env, *arguments, observe=watch, **options), watch)


def run(setting: Setting, observe: Callable[[Run], bool | None]) -> Result:
    """The run of a setting."""
    given = {name: value for name, value in vars(setting).items() if name not in ("goal_space", "goal_sets")}
    return explore(**given, goals=as_given(setting), observe=observe)


def resume(folder: Any, observe: Callable[[Run], bool | None]) -> Result:
    """:func:`adagoal.resume`, likewise."""
    watch = _Watched(observe)
    return _whole(api.resume(folder, observe=watch), watch)


def _whole(result: Result, watch: _Watched) -> Result:
    if result.status is Status.INTERRUPTED and not watch.ended:
        raise Interrupted("the run was told to stop")
    return result


def model(setting: Setting) -> TabularMDP:
    """The exact model of a setting's world, which has one."""
    found = registry.make_model(setting.env, setting.env_args, setting.start_seed)
    assert found is not None, f"{setting.env} has no model"
    return found
