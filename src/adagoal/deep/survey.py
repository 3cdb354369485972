"""What must be known of an environment before it is played for long: its sizes, and where goals are drawn from.

It is found out here; where resets and steps are timed, in a process of its own, which one that takes longer ends.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle

from adagoal.core import failures, guard
from adagoal.core.ctrlc import deaf, unheard
from adagoal.core.isolation import safe_path
from adagoal.core.types import Floats
from adagoal.deep import goalspace, measure
from adagoal.deep.envs import Dimensions, Source, within
from adagoal.deep.fleet import TRAINS, alive, one_thread
from adagoal.deep.goalspace import GoalSpace
from adagoal.deep.worker import OF_THE_GROUP


class Survey(NamedTuple):
    """What was found."""

    sizes: Dimensions
    spaces: list[GoalSpace]
    """As they were asked for."""
    table: Floats | None
    """That of Fetch (:func:`adagoal.deep.goalspace.table`)."""


def survey(source: Source, horizon: int, spaces: Sequence[tuple[str, str]]) -> Survey:
    """Look at an environment; ``spaces`` are settings and their texts, as for :func:`goalspace.goal_space`."""
    if source.step_timeout is None:
        return _look(source, horizon, spaces)
    guard.check(TRAINS)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    given = there, source, horizon, spaces
    process = context.Process(target=_elsewhere, name=guard.OURS, args=given, daemon=True)
    try:
        with one_thread(), safe_path(), unheard():
            process.start()
        there.close()
        with alive(process, source):
            answer = here.recv()
    finally:
        here.close()
        process.kill()
        process.join()
    found: Survey = cloudpickle.loads(failures.result(answer))
    return found


def _elsewhere(link: Connection, source: Source, horizon: int, spaces: Sequence[tuple[str, str]]) -> None:
    """The other process; goal spaces are functions, which plain pickle does not take."""
    deaf(OF_THE_GROUP)
    failures.send(link, failures.attempt(lambda: cloudpickle.dumps(_look(source, horizon, spaces))))


def _look(source: Source, horizon: int, spaces: Sequence[tuple[str, str]]) -> Survey:
    env = source.make()
    if source.step_timeout is not None:
        for name in ("reset", "step"):
            setattr(env, name, functools.partial(_timed, source.step_timeout, getattr(env, name)))
    sizes = measure.dimensions(env, source, horizon)
    found = Survey(sizes, [goalspace.goal_space(env, *space) for space in spaces], goalspace.table(env))
    env.close()
    return found


def _timed(seconds: float, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with within(seconds):
        return call(*args, **kwargs)
