"""Carry exceptions from a worker to the process that waits for it.

Worker processes of environments, of engines and of trainings all use this module, and so do Ray workers. A worker
answers a request with its result or with a :class:`WorkerFailure`. The waiting process raises the exception again:

    EnvironmentFailure   the user's code raised; its own exception is the ``__cause__``
    InputError           bad input
    anything else        a bug in adagoal

The traceback of the worker is the last ``__cause__`` of the chain, as in :mod:`concurrent.futures`. An exception that
cannot be pickled becomes the nearest of EnvironmentFailure, InputError and RuntimeError, with its type and message.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker, spawn
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception


class WorkerTraceback(Exception):
    """The traceback of a worker as text; Python prints it above the exception that it belongs to."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True)
class _PortableException:
    """An exception in a form that can always be sent."""

    pickled: bytes | None
    substitute: Exception
    """Raised where the exception itself cannot be pickled, or not be unpickled."""

    @classmethod
    def from_exception(cls, error: BaseException) -> _PortableException:
        try:
            pickled = pickle.dumps(error)
        except Exception:
            pickled = None
        if isinstance(error, InputError):
            kind = EnvironmentFailure if isinstance(error, EnvironmentFailure) else InputError
            return cls(pickled, kind(error.reason, error.name))
        return cls(pickled, RuntimeError(describe_exception(error)))

    def restore_exception(self) -> BaseException:
        if self.pickled is not None:
            try:  # the class may be unknown here, or its __init__ may want other arguments than it keeps
                error = pickle.loads(self.pickled)
            except Exception:
                return self.substitute
            if isinstance(error, BaseException):
                return error
        return self.substitute


@dataclass(frozen=True)
class WorkerFailure:
    """An exception of a worker and its traceback."""

    error: _PortableException
    cause: _PortableException | None
    traceback_text: str

    @classmethod
    def from_exception(cls, error: BaseException) -> WorkerFailure:
        """Prepare an exception for another process."""
        cause = None if error.__cause__ is None else _PortableException.from_exception(error.__cause__)
        return cls(_PortableException.from_exception(error), cause, "".join(traceback.format_exception(error)))

    def to_exception(self) -> BaseException:
        """Return the exception to raise."""
        error = last = self.error.restore_exception()
        if self.cause is not None:
            error.__cause__ = last = self.cause.restore_exception()
        last.__cause__ = WorkerTraceback(self.traceback_text)
        return error


def call_or_capture(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or the :class:`WorkerFailure` if it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return WorkerFailure.from_exception(error)


def unwrap_reply(answer: Any) -> Any:
    """Return the answer of a worker; raise what the worker raised."""
    if isinstance(answer, WorkerFailure):
        raise answer.to_exception()
    return answer


def serve_requests(pipe: Connection, function: Callable[[Any], Any]) -> None:
    """Answer requests with ``function(request)`` until the other end of the pipe closes."""
    while True:
        try:
            request = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        answer = call_or_capture(_handle_request, function, request)
        del request
        try:
            send_reply(pipe, answer)
        except OSError:
            return


def send_reply(pipe: Connection, answer: Any) -> None:
    """Send an answer; if it cannot be pickled, send the exception that says so."""
    try:
        pickled = pickle.dumps(answer)
    except Exception as error:
        pickled = pickle.dumps(WorkerFailure.from_exception(error))
    pipe.send_bytes(pickled)


def _handle_request(function: Callable[[Any], Any], request: bytes) -> Any:
    return function(pickle.loads(request))


# Keep files of the current directory from being executed or read as configuration.
#
# The current directory may be a run folder that somebody else made (docs/folder.md). Two things would use its files:
#
# - A new interpreter: ``python -c``, with which :mod:`multiprocessing` starts a process, and ``python -m`` put the
#   current directory first on ``sys.path``. So workers start with ``PYTHONSAFEPATH``. A spawned process then takes over
#   the ``sys.path`` of the command, which ends with the current directory if the user named a module there.
# - Libraries that look there while they are imported (:data:`FILES_READ_ON_IMPORT`). The command line and its workers
# import them   with another current directory. A Python program that uses adagoal imports them as it likes.


FILES_READ_ON_IMPORT = {"numba": ".numba_config.yaml", "matplotlib": "matplotlibrc", "glfw": "libglfw.so"}
"""Libraries, and the file of the current directory that they read or load while they are imported."""
SAFE_PATH_VARIABLE, SAFE_PATH_MARKER = "PYTHONSAFEPATH", "adagoal-worker"
"""Environment variable of Python, and the value by which a worker recognises that adagoal started it."""


def worker_environment() -> dict[str, str]:
    """Return the variables to add to the environment of a worker."""
    return {SAFE_PATH_VARIABLE: SAFE_PATH_MARKER + os.environ.get(SAFE_PATH_VARIABLE, "")}


@contextlib.contextmanager
def safe_import_path() -> Iterator[None]:
    """Interpreters started in this block do not import modules of the current directory."""
    before = os.environ.get(SAFE_PATH_VARIABLE)
    os.environ.update(worker_environment())
    try:
        yield
    finally:
        _set_safe_path(before or "")


def prepare_worker() -> None:
    """In a worker: ignore files of the current directory, and hide the safe path from processes of the environment."""
    found = os.environ.get(SAFE_PATH_VARIABLE, "")
    if found.startswith(SAFE_PATH_MARKER):
        _set_safe_path(found.removeprefix(SAFE_PATH_MARKER))
        ignore_local_files()


def ignore_local_files() -> None:
    """From now on, import the libraries of :data:`FILES_READ_ON_IMPORT` with another current directory."""
    if not any(isinstance(finder, _SafeImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SafeImportFinder())


class _SafeImportFinder(importlib.machinery.PathFinder):
    """Finds the libraries as usual, and changes how they are executed."""

    def find_spec(  # type: ignore[override]
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in FILES_READ_ON_IMPORT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def elsewhere(module: ModuleType) -> None:
                with _neutral_directory():
                    execute(module)
                if fullname == "numba":  # it looks again whenever it compiles
                    sys.modules["numba.core.config"]._config_fname = os.devnull  # type: ignore[attr-defined]

            spec.loader.exec_module = elsewhere  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _neutral_directory() -> Iterator[None]:
    here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))  # also one that was removed, or that may not be read
    os.chdir("/")  # glfw starts an interpreter that imports modules from there, so it must not be a package
    try:
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def _set_safe_path(value: str) -> None:
    if value:
        os.environ[SAFE_PATH_VARIABLE] = value
    else:
        os.environ.pop(SAFE_PATH_VARIABLE, None)


# The guard of scripts: a new process imports the script that began it, which must not do its work once more there.
#
# Where a script explores or trains outside ``if __name__ == "__main__":``, every process that it begins comes back to
# the same call while it imports the script. It leaves with an exit code of its own, and the script is told why.


WORKER_PROCESS_NAME = "adagoal-worker"
"""The name of processes that import a script because of us. Those of the user's own are none of our business."""
EXIT_MISSING_GUARD = 79
"""Exit code of a process that found itself running the script that began it."""


def exit_if_reimported() -> None:
    """End a process of ours whose import of the script has come back to a run: the script lacks its guard."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False) and process.name == WORKER_PROCESS_NAME:
        sys.exit(EXIT_MISSING_GUARD)


def check_script_importable(doing: str) -> None:
    """Before processes are begun: whether they can import the script; ``doing`` is what the script does."""
    exit_if_reimported()
    script = spawn.get_preparation_data(WORKER_PROCESS_NAME).get("init_main_from_path")
    if script is not None and not os.path.exists(script):
        name = os.path.basename(script)
        raise InputError(f"a script that {doing} must be a file, as its workers import it; {name} is none")


def missing_guard_error(doing: str) -> InputError:
    """What a script without its guard is told."""
    return InputError(f'a script that {doing} must do so under if __name__ == "__main__":, as its workers import it')


# Ctrl-C: where it may interrupt a run, and how the processes of a run ignore it.
#
# A terminal sends Ctrl-C to all processes of a run, but it is for the run alone. In the run itself
# ``KeyboardInterrupt`` is raised only while code of the user's runs (:class:`UserCodeSection`).


class UserCodeSection:
    """A block that runs an environment, a goal rule or a goal function: the only place that Ctrl-C interrupts.

    Anywhere else ``KeyboardInterrupt`` could be raised while compiled code is entered, which Numba answers with a
    ``SystemError`` or a crash, or between two tables that belong together. An interrupt that comes there is raised when
    the next block begins.
    """

    def __init__(self) -> None:
        self._is_inside = self._is_pending = self._was_raised = False

    def __enter__(self) -> None:
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt
        self._was_raised = False
        self._is_inside = True

    def __exit__(self, *_: object) -> None:
        self._is_inside = False
        if self._was_raised:  # whatever the code made of it: its outcome does not count
            self._was_raised = False
            raise KeyboardInterrupt

    def request_interrupt(self) -> None:
        """Raise ``KeyboardInterrupt``, now or when the next block begins; for a signal handler."""
        if self._is_inside:
            self._is_inside, self._was_raised = False, True
            raise KeyboardInterrupt
        self._is_pending = True

    def discard_interrupt(self) -> None:
        """Drop an interrupt that was not raised yet."""
        self._is_pending = self._was_raised = False


USER_CODE_SECTION = UserCodeSection()
"""The block of this process; it can be entered again and again, and costs as little as a null context."""


@contextlib.contextmanager
def block_sigint() -> Iterator[None]:
    """Processes started in this block ignore SIGINT until they call :func:`ignore_sigint`, also while they import.

    The run itself gets a SIGINT at the end of the block. The resource tracker is an interpreter too, so it must be
    started on a safe path (:mod:`adagoal.core.processes`).
    """
    resource_tracker.ensure_running()  # it lifts the mask where it has to be begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_sigint(signals: Iterable[signal.Signals] = (signal.SIGINT,)) -> None:
    """In such a process: leave these signals to the run."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
