"""The life of a training: its folder, checkpoints, signals, time limit, and how it goes on. Imports JAX.

Nothing in a folder is touched before the lock is held and the settings, the environment and the goal rule are known to
be right. Every save is one commit of the checkpoint and of the result files that belong to it
(:mod:`adagoal.runs.folder`), so that a killed training can be resumed, tested and looked at as it was at its last save.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adagoal import goals
from adagoal.core import guard
from adagoal.core.checks import folder_path, integer, number
from adagoal.core.errors import InputError
from adagoal.core.status import Status
from adagoal.core.usercode import wanted
from adagoal.deep import checkpoint, settings
from adagoal.deep.aiming import Hook
from adagoal.deep.config import Config
from adagoal.deep.envs import Source
from adagoal.deep.history import History
from adagoal.deep.training import Observer, Training
from adagoal.runs import keeping
from adagoal.runs import training_files as files
from adagoal.runs.folder import Folder, hold
from adagoal.runs.keeping import CHECKPOINT
from adagoal.runs.saved import Saved, no_run
from adagoal.runs.signals import stop_on_signals
from adagoal.runs.tensorboard import TensorBoard
from adagoal.runs.trained import TrainResult
from adagoal.runs.training_schema import KIND

_DECIDED_BY_THE_FOLDER = {"configs", *settings.declared(Config)} - {"env", "goal_rule", "steps"}
"""Arguments that no caller has given, so that what is wrong with them is wrong with the file."""


def train(
    configs: Config | Sequence[Config],
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    workers: int = 0,
    minutes: float = math.inf,
    pause: int = 0,
    checkpoint_every: int = 0,
    step_timeout: float | None = None,
    observe: Observer | None = None,
    tensorboard: str | Path | None = None,
    source: Source | None = None,
    rule: goals.Rule | None = None,
) -> TrainResult:
    """Train one run, or S runs side by side, and keep everything in the folder ``out``.

    ``source`` makes the environments where their name does not; ``rule`` is the function behind a goal rule
    ``function:NAME``. Both are for :func:`adagoal.train`, which takes environments and functions as they are.

    With ``overwrite`` the run that is in the folder is replaced when this one has its first checkpoint. ``workers`` 0
    takes one process per core. With ``pause`` the training ends after so many steps, with a test as at its end, and is
    ``interrupted``: :func:`resume` goes on as if there had been no pause. A checkpoint is written every so many cycles;
    0 follows from how long one takes. Where a step takes longer than ``step_timeout`` seconds the training ends with an
    error, and what was learnt is kept. ``observe(history)`` is called after every cycle, and ends the training by
    returning False. ``tensorboard`` is a folder for the numbers of every cycle (:mod:`adagoal.runs.tensorboard`). A
    script needs the guard ``if __name__ == "__main__":`` around the call, because every worker imports it.
    """
    guard.stop_if_imported()
    check_limits(workers, minutes, pause, checkpoint_every, step_timeout)
    tensorboard = None if tensorboard is None else folder_path("tensorboard", tensorboard)
    configs = [configs] if isinstance(configs, Config) else configs

    def begin() -> Training:
        patient = replace(source or Source(configs[0].env), step_timeout=step_timeout)
        return Training(configs, workers, source=patient, rule=rule)

    if out is None:
        return _finish(begin(), None, minutes, pause, checkpoint_every, observe, tensorboard)
    with _held(out, "out") as folder:
        if overwrite:
            folder.fresh()
        elif folder.saved is not None:
            text = f"{folder.path} already holds a run; resume it, overwrite it, or choose another folder"
            raise InputError(text, name="out")
        return _finish(begin(), folder, minutes, pause, checkpoint_every, observe, tensorboard)


def resume(
    folder: str | Path,
    *,
    steps: int = 0,
    env: Any = None,
    goal_rule: str | goals.Rule | None = None,
    set_goal: Hook | None = None,
    trust: bool = False,
    workers: int = 0,
    minutes: float = math.inf,
    pause: int = 0,
    checkpoint_every: int = 0,
    step_timeout: float | None = None,
    observe: Observer | None = None,
    tensorboard: str | Path | None = None,
) -> TrainResult:
    """Go on where a folder's last checkpoint stopped; ``steps`` 0 keeps the planned length.

    Code that only the folder names (an environment ``module:Id``, a goal rule ``FILE.py:FUNCTION``) runs where ``env``
    or ``goal_rule`` names it again, or ``trust`` allows it. What Python gave as an object or a function (environment,
    goal rule, ``set_goal``) is needed again.
    """
    guard.stop_if_imported()
    check_limits(workers, minutes, pause, checkpoint_every, step_timeout)
    path = folder_path("folder", folder)
    tensorboard = None if tensorboard is None else folder_path("tensorboard", tensorboard)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder", name="folder")
    with _held(path, "folder") as held:
        if held.saved is None:
            raise no_run(path, "folder")
        saved = files.of_training(held.saved)
        training = _restored(saved, steps, env, goal_rule, set_goal, trust, workers, step_timeout)
        finished = _finish(training, held, minutes, pause, checkpoint_every, observe, tensorboard)
        return replace(finished, notes=saved.notes)


@contextlib.contextmanager
def _held(given: str | Path, name: str) -> Iterator[Folder]:
    """The folder, with the lock; a path that cannot be one is told as the argument ``name``."""
    path = folder_path(name, given)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is not a folder", name=name)
    with hold(path, KIND) as folder:
        yield folder


def check_limits(workers: int, minutes: float, pause: int, checkpoint_every: int, step_timeout: float | None) -> None:
    """Whether the limits of a training are ones; they are no part of its settings."""
    integer("workers", workers, 0, 1024)
    number("minutes", minutes, 0.0, math.inf, closed="(]")
    integer("pause", pause, 0, 10**12)
    integer("checkpoint_every", checkpoint_every, 0, 10**9)
    if step_timeout is not None:
        number("step_timeout", step_timeout, 0, 1e6, closed="(]")


# --- going on ---


def _restored(
    saved: Saved,
    steps: int,
    env: Any,
    goal_rule: str | goals.Rule | None,
    set_goal: Hook | None,
    trust: bool,
    workers: int,
    step_timeout: float | None,
) -> Training:
    """The training of a checkpoint; what the folder may not decide alone is asked before anything of it is run."""
    state = saved.state()
    place = state.places[CHECKPOINT][0]
    with files.naming(state, CHECKPOINT):
        arrays, facts = state.arrays(CHECKPOINT)
        configs = checkpoint.configs(facts)
    source = files.environment(saved.path, configs[0], env, trust, "adagoal.deep.resume", set_goal)
    source = replace(source, step_timeout=step_timeout)
    rule = goal_rule if callable(goal_rule) else None
    rules = _rules(configs, None if callable(goal_rule) else goal_rule, trust)
    first = configs[0]
    played = min(first.steps, facts["cycle"] * first.episodes * first.horizon)  # all of it stays in the replay buffer
    length = max(steps, played) if steps else first.steps
    configs = [replace(c, goal_rule=own, steps=length) for c, own in zip(configs, rules, strict=True)]
    try:
        return Training(configs, workers, (arrays, facts), source, rule)
    except ValueError as error:
        if isinstance(error, InputError) and error.name not in _DECIDED_BY_THE_FOLDER:
            raise
        raise InputError(f"{place}: damaged or not readable ({error})") from None


def _rules(configs: Sequence[Config], goal_rule: str | None, trust: bool) -> list[str]:
    """The goal rules to ask: where a run has a file for a rule, the one that the caller names stands for it."""
    if goal_rule is None:
        return [goals.installed(config.goal_rule, trust) for config in configs]
    if not any(config.rule_is_a_file or config.goal_rule == goal_rule for config in configs):
        raise InputError(f"the run has the rule {configs[0].goal_rule!r}, not {goal_rule!r}", name="goal_rule")
    return [goal_rule if config.rule_is_a_file else config.goal_rule for config in configs]


# --- running ---


def _finish(
    training: Training,
    folder: Folder | None,
    minutes: float,
    pause: int,
    checkpoint_every: int,
    observe: Observer | None,
    tensorboard: Path | None,
) -> TrainResult:
    """Run to the end, the pause, the time limit or an interrupt; save and return the result."""
    began = time.monotonic()
    out_of_time = False
    training.pause = pause or training.pause
    showing = contextlib.nullcontext(_nothing) if tensorboard is None else TensorBoard(tensorboard)
    with showing as show, stop_on_signals(None if folder is None else folder.path, at_once=True) as stop:

        def after_cycle(history: History) -> bool:
            nonlocal out_of_time
            show(history)
            going = wanted(observe, history) and not stop.asked
            out_of_time = going and time.monotonic() - began >= 60.0 * minutes
            going = going and not out_of_time
            if folder is not None and going and (training.played or _due(training, folder, checkpoint_every)):
                keeping.save_meanwhile(training, folder)
            return going

        try:
            tested = training.run(after_cycle) is Status.DONE
        except Exception as error:
            if folder is not None and keeping.rescued(training, folder, error) and isinstance(error, InputError):
                raise keeping.with_folder(error, folder.path) from error.__cause__
            raise
        show(training.history)
        done = tested and training.complete
        status = Status.BUDGET if out_of_time else Status.DONE if done else Status.INTERRUPTED
        path = None if folder is None else folder.path
        result = TrainResult(status, training.history, training.policies(), training.maps(), path, training.source)
        if folder is not None:
            ended = files.contents(status, result.history, result.policies, result.maps)
            # The checkpoint of a training with a last test is from before it, so that it can be made longer.
            keeping.save_last(folder, {} if tested else keeping.state(training), ended)
    return result


def _nothing(history: History) -> None:
    """Show nothing."""


def _due(training: Training, folder: Folder, checkpoint_every: int) -> bool:
    return training.cycle % checkpoint_every == 0 if checkpoint_every else folder.due()
