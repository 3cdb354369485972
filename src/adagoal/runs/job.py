"""Life cycle of a run: start, checkpoints, interrupts, time limit, the last save, and rescue after a failure.

Explorations and training runs share it. What differs between them is in the two classes that implement :class:`Job`:
:class:`adagoal.runs.exploration_session.ExplorationSession` and :class:`adagoal.runs.training_session.TrainingJob`.

A request to stop ends a run after the current step, and the run is saved. It comes as a signal, or as a file in the
folder from a process that cannot send signals (:func:`request_stop`). The signal handler never raises while compiled
code may be running, however many signals come (:class:`adagoal.core.user_code.UserCodeSection`).
"""

from __future__ import annotations

import contextlib
import math
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol, TypeVar

from adagoal.core.errors import FolderWarning, InputError, Status
from adagoal.core.file_io import FileContents, report_write_errors
from adagoal.core.user_code import USER_CODE_SECTION, call_observer
from adagoal.runs.run_folder import RunFolder, open_locked_folder

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, a terminal that was closed
STOP_REQUEST_FILE = "stop.request"

ResultT = TypeVar("ResultT")


class SaveFiles(NamedTuple):
    """Files of one save."""

    checkpoint: FileContents
    results: FileContents


class Job(Protocol[ResultT]):
    """What the life cycle needs to know about a run; ``ResultT`` is the type of its result."""

    # Whether a checkpoint can be saved before the first step. Then it reports at once a folder that it cannot write.
    saves_at_start: bool
    # Whether a second Ctrl-C ends the run at once, without a save. Otherwise it interrupts user code only.
    interrupt_anywhere: bool

    @property
    def has_progress(self) -> bool:
        """Whether there is anything to save yet."""

    def execute(self, monitor: JobMonitor) -> Status:
        """Run to the end, or until ``monitor.after_step`` returns False."""

    def is_save_due(self, folder: RunFolder) -> bool:
        """Return True if it is time for a checkpoint."""

    def checkpoint_files(self) -> SaveFiles:
        """Return the files of a checkpoint, empty if the run has ended and its last checkpoint stands."""

    def result(self, status: Status) -> ResultT:
        """Return what the run has found so far. Its ``contents()`` are files that need no checkpoint."""

    def describe_result(self, result: ResultT) -> str:
        """Return what a message calls the result: "the policy"."""


class JobMonitor:
    """What a job calls while it runs: the observer, requests to stop, the time limit, and checkpoints."""

    def __init__(
        self,
        job: Job[Any],
        folder: RunFolder | None,
        observe: Callable[[Any], bool | None] | None,
        stop: StopRequest,
        minutes: float,
    ) -> None:
        self._job, self._folder, self._observe, self._stop = job, folder, observe, stop
        self._deadline = time.monotonic() + 60.0 * minutes
        self.first_save_failed = False
        self._final_checkpoint_is_saved = False
        self.is_out_of_time = False

    def after_step(self, progress: Any) -> bool:
        """Call the observer, save a checkpoint if one is due, and return False if the run must end."""
        # The observer comes first, so it also sees the step after which the run is stopped.
        proceed = call_observer(self._observe, progress) and not self._stop.is_requested
        # A request to stop wins over the time limit: the status is then "interrupted", not "budget".
        self.is_out_of_time = proceed and time.monotonic() >= self._deadline
        proceed = proceed and not self.is_out_of_time
        if proceed and self._folder is not None and self._job.is_save_due(self._folder):
            self.save_checkpoint()
        return proceed

    def save_checkpoint(self, final: bool = False, required: bool = False) -> bool:
        """Save a checkpoint if there is a folder; return False if that failed, or raise if it is ``required``.

        ``final`` is the checkpoint before the last work of a run (a plan, a test), which changes the state in a way
        that a resumed run must not see. It stays the last checkpoint.
        """
        if self._folder is None:
            return True
        try:
            self._folder.save_files(*self._job.checkpoint_files())
        except InputError as error:
            # A run that could never be saved should end early. Later failures cost less: a full disk may have room
            # again, and the steps so far may have taken hours.
            if required or not (self._folder.has_saved_files or final):
                self.first_save_failed = True
                raise
            warnings.warn(f"{error}; the run goes on, and tries again later", FolderWarning, stacklevel=2)
            return False
        self._final_checkpoint_is_saved = final
        return True

    def save_result(self, result: Any) -> None:
        """Commit the result, with a checkpoint unless the last one stands."""
        if self._folder is None:
            return
        results = result.contents()
        files = SaveFiles({}, {}) if self._final_checkpoint_is_saved else self._job.checkpoint_files()
        files = files._replace(results=files.results | results)
        save_or_rescue(self._folder, files, results, self._job.describe_result(result))


def run_job(
    job: Job[ResultT],
    folder: RunFolder | None,
    observe: Callable[[Any], bool | None] | None = None,
    minutes: float = math.inf,
) -> ResultT:
    """Run a job to its end, a budget, the time limit or an interrupt; save and return the result.

    If the run fails, everything learnt so far is saved first. Then the exception is raised: an :class:`InputError`
    with the folder in its line, any other one unchanged, with the folder in a note.
    """
    status, failure = Status.INTERRUPTED, None
    with stop_on_signals(None if folder is None else folder.path, at_once=job.interrupt_anywhere) as stop:
        monitor = JobMonitor(job, folder, observe, stop, minutes)
        if job.saves_at_start:
            monitor.save_checkpoint(required=True)
        try:
            status = job.execute(monitor)
            if monitor.is_out_of_time:
                status = Status.BUDGET
        except KeyboardInterrupt:
            # It may have come in the middle of an update, so the state cannot be trusted.
            if job.interrupt_anywhere:
                raise
        except Exception as error:
            # Nothing was learnt, or there is no place for it.
            if folder is None or not job.has_progress or monitor.first_save_failed:
                raise
            failure = error
        # From here on a signal could only cut off the save that it asks for.
        stop.begin_saving()
        try:
            result = job.result(status)
            monitor.save_result(result)
        except Exception as error:
            if failure is None:
                raise
            failure.add_note(f"what had been learnt could not be saved: {type(error).__name__}: {error}")
            # "from" suppresses the context: the traceback shows the failure of the run, not that of the save.
            raise failure from failure.__cause__
    if failure is None:
        return result
    assert folder is not None
    saved = f"what had been learnt is in {folder.path}"
    failure.add_note(saved)
    if not isinstance(failure, InputError):
        raise failure
    # The command prints an InputError as one line, without its notes. So the line itself must name the folder.
    longer = type(failure)(f"{failure.reason}; {saved}", failure.name)
    for note in failure.__notes__:
        longer.add_note(note)
    raise longer from failure.__cause__


def save_or_rescue(folder: RunFolder, files: SaveFiles, results: FileContents, name: str) -> None:
    """Commit the end of a run; if there is no room, save at least its result and raise an error that says where.

    ``results`` are the files that can be read without the others, and ``name`` is what the message calls them. They go
    into the folder itself or, if that fails too, into a new temporary folder.
    """
    try:
        folder.save_files(*files)
    except InputError as error:
        # Before the rescue, which saves into the folder too and so changes has_saved_files.
        earlier = f"; {folder.path} holds an earlier checkpoint, from which the run can go on"
        earlier = earlier if folder.has_saved_files else ""
        raise InputError(f"{error.reason}; {name} {_save_elsewhere(folder, results)}{earlier}", error.name) from error


def _save_elsewhere(folder: RunFolder, results: FileContents) -> str:
    with contextlib.suppress(InputError):
        folder.save_files({}, results)
        return f"is in {folder.path}"
    try:
        with open_locked_folder(Path(tempfile.mkdtemp(prefix="adagoal-")), folder.kind) as other:
            other.save_files({}, results)
            return f"is in {other.path}"
    except (InputError, OSError):
        return "could not be saved elsewhere either"


class StopRequest:
    """Whether a signal, or a file in the folder, has asked the run to end."""

    def __init__(self, folder: Path | None) -> None:
        self.is_received = False
        self.is_saving = False  # the last save has begun; signals no longer interrupt
        self._request_file = None if folder is None else folder / STOP_REQUEST_FILE
        self._next_file_check = 0.0

    @property
    def is_requested(self) -> bool:
        """Whether the run must end; looks for the file once a second, because a run may ask after every step."""
        now = time.monotonic()
        if self._request_file is not None and now >= self._next_file_check:
            self._next_file_check = now + 1.0
            self.is_received = self.is_received or self._request_file.exists()
        return self.is_received

    def begin_saving(self) -> None:
        """Let no signal interrupt the run from now on."""
        # The flag first: a signal between these two lines must not request another interrupt.
        self.is_saving = True
        USER_CODE_SECTION.discard_interrupt()

    def remove_request_file(self) -> None:
        """Remove the file; the save reports a folder that cannot be written."""
        if self._request_file is not None:
            with contextlib.suppress(OSError):
                self._request_file.unlink(missing_ok=True)


def request_stop(folder: Path) -> None:
    """Ask the run that is writing in a folder to save everything and end."""
    with report_write_errors(folder / STOP_REQUEST_FILE):
        (folder / STOP_REQUEST_FILE).touch()


@contextlib.contextmanager
def stop_on_signals(folder: Path | None = None, at_once: bool = False) -> Iterator[StopRequest]:
    """Catch :data:`STOP_SIGNALS` in the block: the first one asks, a second Ctrl-C raises ``KeyboardInterrupt``.

    The exception is raised in user code only, or anywhere with ``at_once``, and never during the last save.
    """
    stop = StopRequest(folder)
    # A request is for one run: one that a killed run left behind must not stop the next.
    stop.remove_request_file()
    USER_CODE_SECTION.discard_interrupt()

    def handle_signal(number: int, frame: FrameType | None) -> None:
        # Normally only a flag is set, so the run ends between two steps, when its state is whole.
        repeated, stop.is_received = stop.is_received, True
        if not repeated or number != signal.SIGINT or stop.is_saving:
            return
        if at_once:
            raise KeyboardInterrupt
        USER_CODE_SECTION.request_interrupt()

    before = {}
    # Python allows signal handlers in the main thread only.
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:
        # nohup asked for that. Shells also ignore SIGINT for background jobs; that is no wish of the user.
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, handle_signal)
    try:
        yield stop
    finally:
        stop.remove_request_file()
        USER_CODE_SECTION.discard_interrupt()
        for number, handler in before.items():
            signal.signal(number, handler)
