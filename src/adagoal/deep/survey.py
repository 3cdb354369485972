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
from adagoal.core.ctrlc import block_sigint, ignore_sigint
from adagoal.core.isolation import safe_import_path
from adagoal.core.types import Floats
from adagoal.deep import goalspace, measure
from adagoal.deep.envs import EnvDimensions, EnvSource, kill_after_timeout
from adagoal.deep.fleet import TRAINING_ACTIVITY, explain_worker_exit, limit_blas_threads
from adagoal.deep.goalspace import GoalSampler
from adagoal.deep.worker import IGNORED_SIGNALS


class EnvInspection(NamedTuple):
    """What was found."""

    sizes: EnvDimensions
    goal_samplers: list[GoalSampler]
    """As they were asked for."""
    table_box: Floats | None
    """That of Fetch (:func:`adagoal.deep.goalspace.fetch_table_box`)."""


def inspect_env(source: EnvSource, horizon: int, spaces: Sequence[tuple[str, str]]) -> EnvInspection:
    """Look at an environment; ``spaces`` are settings and their texts, as for :func:`goalspace.goal_space`."""
    if source.step_timeout is None:
        return _inspect_here(source, horizon, spaces)
    guard.check_script_importable(TRAINING_ACTIVITY)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    given = there, source, horizon, spaces
    process = context.Process(target=_inspect_in_worker, name=guard.WORKER_PROCESS_NAME, args=given, daemon=True)
    try:
        with limit_blas_threads(), safe_import_path(), block_sigint():
            process.start()
        there.close()
        with explain_worker_exit(process, source):
            answer = here.recv()
    finally:
        here.close()
        process.kill()
        process.join()
    found: EnvInspection = cloudpickle.loads(failures.unwrap_reply(answer))
    return found


def _inspect_in_worker(link: Connection, source: EnvSource, horizon: int, spaces: Sequence[tuple[str, str]]) -> None:
    """The other process; goal spaces are functions, which plain pickle does not take."""
    ignore_sigint(IGNORED_SIGNALS)
    failures.send_reply(
        link, failures.call_or_capture(lambda: cloudpickle.dumps(_inspect_here(source, horizon, spaces)))
    )


def _inspect_here(source: EnvSource, horizon: int, spaces: Sequence[tuple[str, str]]) -> EnvInspection:
    env = source.make_env()
    if source.step_timeout is not None:
        for name in ("reset", "step"):
            setattr(env, name, functools.partial(_call_with_timeout, source.step_timeout, getattr(env, name)))
    sizes = measure.measure_dimensions(env, source, horizon)
    found = EnvInspection(
        sizes, [goalspace.make_goal_sampler(env, *space) for space in spaces], goalspace.fetch_table_box(env)
    )
    env.close()
    return found


def _call_with_timeout(seconds: float, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with kill_after_timeout(seconds):
        return call(*args, **kwargs)
