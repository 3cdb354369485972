"""The life of a training: its folder, checkpoints, signals, time limit, and how it goes on. Imports JAX.

Nothing in a folder is touched before the lock is held and the settings, the environment and the goal rule are known to
be right. Every save is one commit of the checkpoint and of the result files that belong to it
(:mod:`adagoal.runs.run_folder`), so that a killed training can be resumed, tested and looked at as it was at its last
save.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adagoal import goal_rules
from adagoal.core import processes
from adagoal.core.argument_checks import check_folder_path, check_integer
from adagoal.core.errors import FolderWarning, InputError, Status
from adagoal.core.file_io import FileContent, arrays_content
from adagoal.core.user_code import call_observer
from adagoal.deep import training_checkpoint
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvSource, SetGoalFunction
from adagoal.deep.training import Training, TrainingObserver
from adagoal.deep.training_history import TrainingHistory
from adagoal.runs import run_folder as folders
from adagoal.runs import training_files as files
from adagoal.runs.folder_reader import SavedRun, no_run
from adagoal.runs.run_folder import RunFolder, open_locked_folder
from adagoal.runs.stop_requests import stop_on_signals
from adagoal.runs.train_result import TrainResult
from adagoal.runs.training_files import TRAINING_KIND
from adagoal.runs.training_observers import TensorBoardObserver
from adagoal.settings.exploration import ExecutionOptions
from adagoal.settings.fields import check_arguments, declared_settings
from adagoal.settings.training import TrainingOptions

_SETTINGS_OF_THE_FOLDER = {"configs", *declared_settings(Config)} - {"env", "goal_rule", "steps"}
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
    observe: TrainingObserver | None = None,
    tensorboard: str | Path | None = None,
    source: EnvSource | None = None,
    rule: goal_rules.GoalRule | None = None,
) -> TrainResult:
    """Train one run, or S runs side by side, and keep everything in the folder ``out``.

    ``source`` makes the environments where their name does not; ``rule`` is the function behind a goal rule
    ``function:NAME``. Both are for :func:`adagoal.train`, which takes environments and functions as they are.

    With ``overwrite`` the run that is in the folder is replaced when this one has its first checkpoint. ``workers`` 0
    takes one process per core. With ``pause`` the training ends after so many steps, with a test as at its end, and is
    ``interrupted``: :func:`resume` goes on as if there had been no pause. A checkpoint is written every so many cycles;
    0 follows from how long one takes. Where a step takes longer than ``step_timeout`` seconds the training ends with an
    error, and what was learnt is kept. ``observe(history)`` is called after every cycle, and ends the training by
    returning False. ``tensorboard`` is a folder for the numbers of every cycle
    (:mod:`adagoal.runs.training_observers`). A script needs the guard ``if __name__ == "__main__":`` around the call,
    because every worker imports it.
    """
    processes.exit_if_reimported()
    check_training_limits(workers, minutes, pause, checkpoint_every, step_timeout)
    tensorboard = None if tensorboard is None else check_folder_path("tensorboard", tensorboard)
    configs = [configs] if isinstance(configs, Config) else configs

    def begin() -> Training:
        patient = replace(source or EnvSource(configs[0].env), step_timeout=step_timeout)
        return Training(configs, workers, source=patient, rule=rule)

    if out is None:
        return _run_training_to_end(begin(), None, minutes, pause, checkpoint_every, observe, tensorboard)
    with _open_training_folder(out, "out") as folder:
        if overwrite:
            folder.start_new_run()
        elif folder.saved_run is not None:
            text = f"{folder.path} already holds a run; resume it, overwrite it, or choose another folder"
            raise InputError(text, name="out")
        return _run_training_to_end(begin(), folder, minutes, pause, checkpoint_every, observe, tensorboard)


def resume(
    folder: str | Path,
    *,
    steps: int = 0,
    env: Any = None,
    goal_rule: str | goal_rules.GoalRule | None = None,
    set_goal: SetGoalFunction | None = None,
    trust: bool = False,
    workers: int = 0,
    minutes: float = math.inf,
    pause: int = 0,
    checkpoint_every: int = 0,
    step_timeout: float | None = None,
    observe: TrainingObserver | None = None,
    tensorboard: str | Path | None = None,
) -> TrainResult:
    """Go on where a folder's last checkpoint stopped; ``steps`` 0 keeps the planned length.

    Code that only the folder names (an environment ``module:Id``, a goal rule ``FILE.py:FUNCTION``) runs where ``env``
    or ``goal_rule`` names it again, or ``trust`` allows it. What Python gave as an object or a function (environment,
    goal rule, ``set_goal``) is needed again.
    """
    processes.exit_if_reimported()
    check_training_limits(workers, minutes, pause, checkpoint_every, step_timeout)
    path = check_folder_path("folder", folder)
    tensorboard = None if tensorboard is None else check_folder_path("tensorboard", tensorboard)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder", name="folder")
    with _open_training_folder(path, "folder") as held:
        if held.saved_run is None:
            raise no_run(path, "folder")
        saved = files.require_training(held.saved_run)
        training = _restore_training(saved, steps, env, goal_rule, set_goal, trust, workers, step_timeout)
        finished = _run_training_to_end(training, held, minutes, pause, checkpoint_every, observe, tensorboard)
        return replace(finished, notes=saved.damage_notes)


@contextlib.contextmanager
def _open_training_folder(given: str | Path, name: str) -> Iterator[RunFolder]:
    """The folder, with the lock; a path that cannot be one is told as the argument ``name``."""
    path = check_folder_path(name, given)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is not a folder", name=name)
    with open_locked_folder(path, TRAINING_KIND) as folder:
        yield folder


def check_training_limits(
    workers: int, minutes: float, pause: int, checkpoint_every: int, step_timeout: float | None
) -> None:
    """Whether the limits of a training are ones; they are no part of its settings."""
    check_arguments(TrainingOptions, workers=workers, minutes=minutes, checkpoint_every=checkpoint_every)
    check_arguments(ExecutionOptions, step_timeout=step_timeout)
    check_integer("pause", pause, 0, 10**12)


# --- going on ---


def _restore_training(
    saved: SavedRun,
    steps: int,
    env: Any,
    goal_rule: str | goal_rules.GoalRule | None,
    set_goal: SetGoalFunction | None,
    trust: bool,
    workers: int,
    step_timeout: float | None,
) -> Training:
    """The training of a checkpoint; what the folder may not decide alone is asked before anything of it is run."""
    state = saved.checkpoint_files()
    place = state.candidate_paths[TRAINING_CHECKPOINT_FILE][0]
    with files.name_file_in_errors(state, TRAINING_CHECKPOINT_FILE):
        arrays, facts = state.load_arrays(TRAINING_CHECKPOINT_FILE)
        configs = training_checkpoint.read_configs(facts)
    source = files.resolve_training_env(saved.path, configs[0], env, trust, "adagoal.deep.resume", set_goal)
    source = replace(source, step_timeout=step_timeout)
    rule = goal_rule if callable(goal_rule) else None
    rules = _resolve_goal_rules(configs, None if callable(goal_rule) else goal_rule, trust)
    first = configs[0]
    played = min(first.steps, facts["cycle"] * first.episodes * first.horizon)  # all of it stays in the replay buffer
    length = max(steps, played) if steps else first.steps
    configs = [replace(c, goal_rule=own, steps=length) for c, own in zip(configs, rules, strict=True)]
    try:
        return Training(configs, workers, (arrays, facts), source, rule)
    except ValueError as error:
        if isinstance(error, InputError) and error.name not in _SETTINGS_OF_THE_FOLDER:
            raise
        raise InputError(f"{place}: damaged or not readable ({error})") from None


def _resolve_goal_rules(configs: Sequence[Config], goal_rule: str | None, trust: bool) -> list[str]:
    """The goal rules to ask: where a run has a file for a rule, the one that the caller names stands for it."""
    if goal_rule is None:
        return [goal_rules.require_trusted_rule(config.goal_rule, trust) for config in configs]
    if not any(config.rule_is_a_file or config.goal_rule == goal_rule for config in configs):
        raise InputError(f"the run has the rule {configs[0].goal_rule!r}, not {goal_rule!r}", name="goal_rule")
    return [goal_rule if config.rule_is_a_file else config.goal_rule for config in configs]


# --- running ---


def _run_training_to_end(
    training: Training,
    folder: RunFolder | None,
    minutes: float,
    pause: int,
    checkpoint_every: int,
    observe: TrainingObserver | None,
    tensorboard: Path | None,
) -> TrainResult:
    """Run to the end, the pause, the time limit or an interrupt; save and return the result."""
    began = time.monotonic()
    out_of_time = False
    training.pause_after_steps = pause or training.pause_after_steps
    showing = contextlib.nullcontext(_show_nothing) if tensorboard is None else TensorBoardObserver(tensorboard)
    with showing as show, stop_on_signals(None if folder is None else folder.path, at_once=True) as stop:

        def after_cycle(history: TrainingHistory) -> bool:
            nonlocal out_of_time
            show(history)
            going = call_observer(observe, history) and not stop.is_requested
            out_of_time = going and time.monotonic() - began >= 60.0 * minutes
            going = going and not out_of_time
            if (
                folder is not None
                and going
                and (training.has_reached_pause or _is_checkpoint_due(training, folder, checkpoint_every))
            ):
                save_training_or_warn(training, folder)
            return going

        try:
            tested = training.run_until_pause(after_cycle) is Status.DONE
        except Exception as error:
            if folder is not None and save_after_failure(training, folder, error) and isinstance(error, InputError):
                raise add_folder_to_error(error, folder.path) from error.__cause__
            raise
        show(training.history)
        done = tested and training.has_played_all_steps
        status = Status.BUDGET if out_of_time else Status.DONE if done else Status.INTERRUPTED
        path = None if folder is None else folder.path
        result = TrainResult(
            status, training.history, training.current_policies(), training.final_value_maps(), path, training.source
        )
        if folder is not None:
            ended = files.training_file_contents(status, result.history, result.policies, result.maps)
            # The checkpoint of a training with a last test is from before it, so that it can be made longer.
            save_final_training(folder, {} if tested else checkpoint_contents(training), ended)
    return result


def _show_nothing(history: TrainingHistory) -> None:
    """Show nothing."""


def _is_checkpoint_due(training: Training, folder: RunFolder, checkpoint_every: int) -> bool:
    return training.cycle % checkpoint_every == 0 if checkpoint_every else folder.is_save_due()


# How a training is saved: on the way, at its end, and where something fails, also a disk that is full.


TRAINING_CHECKPOINT_FILE = "checkpoint.npz"


def checkpoint_contents(training: Training) -> dict[str, FileContent]:
    """A checkpoint."""
    return {TRAINING_CHECKPOINT_FILE: arrays_content(*training.state(), compress=False)}


def save_training(training: Training, folder: RunFolder) -> None:
    """A checkpoint and the result so far: interrupted, which is what it is should nobody save again."""
    folder.save_files(
        checkpoint_contents(training),
        files.training_file_contents(Status.INTERRUPTED, training.history, training.current_policies(), {}),
    )


def save_training_or_warn(training: Training, folder: RunFolder) -> None:
    """A save on the way. A full disk may have room again later; an early error is that nothing could be saved yet."""
    try:
        save_training(training, folder)
    except InputError as error:
        if not folder.has_saved_files and not training.has_reached_pause:
            raise
        warnings.warn(f"{error}; the training goes on, and tries again later", FolderWarning, stacklevel=2)


def save_final_training(folder: RunFolder, state: dict[str, FileContent], ended: dict[str, FileContent]) -> None:
    """Commit the end of a training, or save at least its policy (:func:`adagoal.runs.run_folder.save_final_files`)."""
    folders.save_final_files(folder, state, ended, ended, "the policy")


def save_after_failure(training: Training, folder: RunFolder, error: Exception) -> bool:
    """Keep what was learnt before something failed; whether there was anything, and it could be kept.

    A cycle that failed is played again on resuming, with what was learnt while it ran: as good, but not bit for bit
    the training that had not failed.
    """
    if training.cycle == 0:
        return False
    try:
        save_training(training, folder)
    except Exception as second:
        error.add_note(f"what had been learnt could not be saved: {type(second).__name__}: {second}")
        return False
    error.add_note(f"what had been learnt is in {folder.path}")
    return True


def add_folder_to_error(error: InputError, folder: Path) -> InputError:
    """The same line, which also says where the training can go on."""
    longer = type(error)(f"{error.reason}; what had been learnt is in {folder}", error.name)
    for note in error.__notes__:
        longer.add_note(note)
    return longer
