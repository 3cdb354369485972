"""Start and resume training runs (a job around :class:`adagoal.deep.training.Training`), and log to TensorBoard.

Imports JAX. A folder is touched only once its lock is held and the settings, the environment and the goal rule are
known to be right. Every save commits a checkpoint with the result files that belong to it, so a killed training run can
be resumed, tested and looked at as it was at its last save.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adagoal import goal_rules
from adagoal.core.errors import InputError, Status
from adagoal.core.file_io import arrays_content
from adagoal.core.installation import require_package
from adagoal.core.run_settings import ExecutionOptions, TrainingOptions
from adagoal.core.validation import (
    check_arguments,
    check_field_values,
    check_folder_path,
    check_integer,
    declared_settings,
)
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvSource, SetGoalFunction
from adagoal.deep.rollouts import RolloutFactory, RolloutWorkers
from adagoal.deep.training import Training, TrainingObserver, read_configs
from adagoal.deep.training_history import TrainingHistory
from adagoal.parallel.worker_process import exit_if_reimported
from adagoal.runs import train_result
from adagoal.runs.job import JobMonitor, SaveFiles, run_job
from adagoal.runs.run_folder import (
    RunFolder,
    RunKind,
    SavedRun,
    missing_run_error,
    open_locked_folder,
    require_run_folder,
)
from adagoal.runs.train_result import TrainResult


class TensorBoardObserver:
    """Writes the numbers of training runs for TensorBoard, one series per run and number. Use as a context manager.

    ``folder`` gets one folder per run, named by goal rule and seed. This needs ``pip install 'adagoal[tensorboard]'``.
    """

    def __init__(self, folder: Path) -> None:
        require_package("tensorboardX", "tensorboard", argument="tensorboard")
        self._folder = folder
        self._writers: dict[int, Any] = {}
        self._last_logged_steps: dict[tuple[int, str], int] = {}  # by run and number

    def __enter__(self) -> TensorBoardObserver:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def __call__(self, history: TrainingHistory) -> None:
        """Write the last row of each run, without numbers that were written before."""
        for row in history.rows[-len(history.configs) :]:
            run, steps = row["run"], row["steps"]
            if run not in self._writers:
                name = f"{history.configs[run].rule_name}-seed{row['seed']}"
                self._writers[run] = importlib.import_module("tensorboardX").SummaryWriter(str(self._folder / name))
            for tag in row.keys() - {"run", "seed", "goal_rule", "cycle", "steps"}:
                # The last row comes twice: after its cycle, and once more when the run ends.
                if self._last_logged_steps.get((run, tag), -1) < steps:
                    self._writers[run].add_scalar(tag, row[tag], steps)
                    self._last_logged_steps[run, tag] = steps
            self._writers[run].flush()


@dataclass(frozen=True)
class TrainingLimits(TrainingOptions):
    """How training is executed; no part of its settings, and free to change when it is resumed."""

    pause: int = 0  # steps after which it ends with a test, to be resumed later; 0: all
    step_timeout: float | None = None  # seconds after which a step of the environment counts as hanging
    make_rollouts: RolloutFactory = RolloutWorkers  # makes the backend that plays

    def __post_init__(self) -> None:
        check_field_values(self)
        check_arguments(ExecutionOptions, step_timeout=self.step_timeout)
        check_integer("pause", self.pause, 0, 10**12)
        if not callable(self.make_rollouts):
            raise InputError(
                f"must be a function that makes a RolloutBackend, got {self.make_rollouts!r}", "make_rollouts"
            )
        # Absolute, because the environment may change the current folder.
        if self.tensorboard is not None:
            object.__setattr__(self, "tensorboard", check_folder_path("tensorboard", self.tensorboard))


class TrainingJob:
    """Training as :func:`adagoal.runs.job.run_job` sees it."""

    checkpoint_file = "checkpoint.npz"
    saves_at_start = False  # there is no state before the first cycle
    # An update of the networks is one long compiled call. Waiting for it would make a second Ctrl-C useless.
    interrupt_anywhere = True

    def __init__(self, training: Training, limits: TrainingLimits, folder: Path | None) -> None:
        self._training, self._limits, self._folder = training, limits, folder
        self._has_final_test = False
        training.pause_after_steps = limits.pause or training.pause_after_steps
        self._tensorboard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext(lambda history: None)
        if limits.tensorboard is not None:
            self._tensorboard = TensorBoardObserver(Path(limits.tensorboard))

    @property
    def has_progress(self) -> bool:
        """Whether a cycle is done. A failed cycle is played again on resuming, after what was learnt while it ran: as
        good as the uninterrupted run, but not bit for bit the same."""
        return self._training.cycle > 0

    def execute(self, monitor: JobMonitor) -> Status:
        """Train to the end or the pause, with a test there."""
        training = self._training
        with self._tensorboard as log:
            # The final checkpoint is saved before the test at the pause: from there a run can still be made longer.
            def after_cycle(history: TrainingHistory) -> bool:
                log(history)
                proceed = monitor.after_step(history)
                if proceed and training.has_reached_pause:
                    monitor.save_checkpoint(final=True)
                return proceed

            self._has_final_test = training.run_until_pause(after_cycle) is Status.DONE
            log(training.history)
        return Status.DONE if self._has_final_test and training.has_played_all_steps else Status.INTERRUPTED

    def is_save_due(self, folder: RunFolder) -> bool:
        """Return True if it is time for a checkpoint; :meth:`execute` saves the one at the pause."""
        if self._training.has_reached_pause:
            return False
        every = self._limits.checkpoint_every
        return self._training.cycle % every == 0 if every else folder.is_save_due()

    def checkpoint_files(self) -> SaveFiles:
        """Return a checkpoint and an interim result with the status "interrupted".

        After the last test there is no checkpoint: that from before it lets the run be made longer.
        """
        if self._has_final_test:
            return SaveFiles({}, {})
        history, policies = self._training.history, self._training.current_policies()
        return SaveFiles(
            {self.checkpoint_file: arrays_content(*self._training.state(), compress=False)},
            train_result.training_file_contents(Status.INTERRUPTED, history, policies, {}),
        )

    def result(self, status: Status) -> TrainResult:
        """Return the policies and the history so far."""
        training = self._training
        policies, maps = training.current_policies(), training.final_value_maps()
        return TrainResult(status, training.history, policies, maps, self._folder, training.source)

    def describe_result(self, result: TrainResult) -> str:
        return "the policy"


def start_training(
    configs: Sequence[Config],
    out: str | Path | None,
    source: EnvSource,
    rule: goal_rules.GoalRule | None = None,
    *,
    overwrite: bool = False,
    observe: TrainingObserver | None = None,
    **limits: Any,
) -> TrainResult:
    """Train S runs side by side, and keep everything in the folder ``out`` (:func:`adagoal.train`).

    ``rule`` is the function behind a goal rule ``function:NAME``, ``limits`` are the fields of
    :class:`TrainingLimits`.
    """
    # Before the lock: a worker that runs the user's script again would find it held by its parent.
    exit_if_reimported()
    checked = TrainingLimits(**limits)

    def run_new(folder: RunFolder | None) -> TrainResult:
        with_timeout = replace(source, step_timeout=checked.step_timeout)
        training = Training(configs, checked.workers, None, with_timeout, rule, checked.make_rollouts)
        job = TrainingJob(training, checked, None if folder is None else folder.path)
        return run_job(job, folder, observe, checked.minutes)

    if out is None:
        return run_new(None)
    path = check_folder_path("out", out)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is not a folder; give another name", name="out")
    with open_locked_folder(path, RunKind.TRAINING) as folder:
        if overwrite:
            folder.start_new_run()
        elif folder.saved_run is not None:
            text = f"{folder.path} already holds a run; resume it, overwrite it, or choose another folder"
            raise InputError(text, name="out")
        return run_new(folder)


def resume_training(
    path: str | Path,
    steps: int = 0,
    *,
    env: Any = None,
    goal_rule: str | goal_rules.GoalRule | None = None,
    set_goal: SetGoalFunction | None = None,
    trust: bool = False,
    observe: TrainingObserver | None = None,
    **limits: Any,
) -> TrainResult:
    """Resume the training run in a folder (:func:`adagoal.resume`); ``steps`` 0 keeps the planned length."""
    exit_if_reimported()
    checked = TrainingLimits(**limits)
    with open_locked_folder(require_run_folder(path), RunKind.TRAINING) as folder:
        if folder.saved_run is None:
            raise missing_run_error(folder.path, "folder")
        saved = train_result.require_training(folder.saved_run)
        training = restore_training(saved, steps, env, goal_rule, set_goal, trust, checked)
        saved.warn_about_damage()
        return run_job(TrainingJob(training, checked, folder.path), folder, observe, checked.minutes)


def restore_training(
    saved: SavedRun,
    steps: int,
    env: Any,
    goal_rule: str | goal_rules.GoalRule | None,
    set_goal: SetGoalFunction | None,
    trust: bool,
    limits: TrainingLimits,
) -> Training:
    """Return the training of a checkpoint. Code that the folder names is refused before any of it runs."""
    checkpoint = saved.checkpoint_files()
    path = checkpoint.candidate_paths[TrainingJob.checkpoint_file][0]
    with checkpoint.report_errors(TrainingJob.checkpoint_file):
        arrays, facts = checkpoint.load_arrays(TrainingJob.checkpoint_file)
        configs = read_configs(facts)
    # Environment and goal rules are resolved before anything is built: only these two name code.
    source = train_result.resolve_training_env(
        saved.path, configs[0], env, trust, "adagoal.resume({}, env=...)", set_goal
    )
    source = replace(source, step_timeout=limits.step_timeout)
    rule = goal_rule if callable(goal_rule) else None
    rules = _resolve_goal_rules(configs, None if callable(goal_rule) else goal_rule, trust)
    first = configs[0]
    # A run cannot become shorter than what was played: all of it stays in the replay buffer.
    played = min(first.steps, facts["cycle"] * first.episodes * first.horizon)
    length = max(steps, played) if steps else first.steps
    configs = [replace(c, goal_rule=own, steps=length) for c, own in zip(configs, rules, strict=True)]
    try:
        return Training(configs, limits.workers, (arrays, facts), source, rule, limits.make_rollouts)
    except ValueError as error:
        # A wrong setting that the caller could not give is an error of the file.
        of_folder = {"configs", *declared_settings(Config)} - {"env", "goal_rule", "steps"}
        if isinstance(error, InputError) and error.name not in of_folder:
            raise
        raise InputError(f"{path}: damaged or not readable ({error})") from None


def _resolve_goal_rules(configs: Sequence[Config], goal_rule: str | None, trust: bool) -> list[str]:
    """Return the goal rules; one that the caller names replaces rules that are files."""
    if goal_rule is None:
        return [goal_rules.require_trusted_rule(config.goal_rule, trust) for config in configs]
    if not any(config.rule_is_a_file or config.goal_rule == goal_rule for config in configs):
        raise InputError(
            f"the run has the rule {configs[0].goal_rule!r}, not {goal_rule!r}; leave it out", name="goal_rule"
        )
    return [goal_rule if config.rule_is_a_file else config.goal_rule for config in configs]
