"""Worker processes: objects in other processes whose methods are called by name, and how failures come back.

Copies of an environment, rollouts of training and the runs of an experiment all use :class:`WorkerProcess`.
:class:`adagoal.parallel.engines.RayWorker` has the same interface for processes on a Ray cluster.

A call is two steps, :meth:`Worker.send` and :meth:`Worker.receive`, so one process can keep many workers busy. There
are three ways to lose a worker. Certificates tell the last one from the others:

    a call takes longer than its timeout   the worker is killed: EnvironmentFailure
    the process ends by itself             a crash or an exit: WorkerDied
    something else kills the process       its end does not depend on what the call did: WorkerKilled

A worker answers a call with its result or with a :class:`WorkerFailure`. The waiting process raises the exception:

    EnvironmentFailure   the user's code raised; its own exception is the ``__cause__``
    InputError           bad input
    anything else        a bug in adagoal

The traceback of the worker is the last ``__cause__`` of the chain, as in :mod:`concurrent.futures`. An exception that
cannot be pickled becomes the nearest of EnvironmentFailure, InputError and RuntimeError, with its type and message.

Ctrl-C reaches all processes of a terminal but is for the run alone, so workers ignore it from their first instruction.
A new process imports the script that started it. If the script explores or trains outside of
``if __name__ == "__main__":``, the import reaches the same call again. The worker then exits with a code of its own,
and the run raises an error that names the fix.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker, spawn
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception
from adagoal.core.user_code import safe_path_variables

WORKER_PROCESS_NAME = "adagoal-worker"  # tells workers from processes that the user starts
EXIT_MISSING_GUARD = 79  # a code that neither Python nor a shell uses


class WorkerDied(EnvironmentFailure):
    """The process of a worker ended before it answered."""

    exit_code: int | None = None  # None if unknown


class WorkerKilled(WorkerDied):
    """Something outside the run ended the process, so its end says nothing about the environment."""


class WorkerTraceback(Exception):
    """The traceback of a worker as text; Python prints it above the exception that it belongs to."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True)
class _PortableException:
    """An exception in a form that can always be sent."""

    pickled: bytes | None
    substitute: Exception  # raised if the exception cannot be pickled or unpickled

    @classmethod
    def from_exception(cls, error: BaseException) -> _PortableException:
        # Exceptions of user code may hold anything: open files, locks, lambdas.
        pickled = None
        with contextlib.suppress(Exception):
            pickled = pickle.dumps(error)
        if isinstance(error, InputError):
            kind = EnvironmentFailure if isinstance(error, EnvironmentFailure) else InputError
            return cls(pickled, kind(error.reason, error.name))
        return cls(pickled, RuntimeError(describe_exception(error)))

    def restore_exception(self) -> BaseException:
        # The class may be unknown here, or its __init__ may take other arguments than pickle stores.
        try:
            error = None if self.pickled is None else pickle.loads(self.pickled)
        except Exception:
            error = None
        return error if isinstance(error, BaseException) else self.substitute


@dataclass(frozen=True)
class WorkerFailure:
    """An exception of a worker, its cause and its traceback."""

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
        # pickle drops __cause__, so the cause travels apart.
        error = last = self.error.restore_exception()
        if self.cause is not None:
            error.__cause__ = last = self.cause.restore_exception()
        last.__cause__ = WorkerTraceback(self.traceback_text)
        return error


def call_or_capture(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or the :class:`WorkerFailure` if it raises."""
    try:
        return function(*arguments)
    # Not BaseException: SystemExit must end the worker, because user code that exits is taken for a crash.
    except Exception as error:
        return WorkerFailure.from_exception(error)


def unwrap_reply(reply: Any) -> Any:
    """Return the result in a reply; raise what the worker raised."""
    if isinstance(reply, WorkerFailure):
        raise reply.to_exception()
    return reply


class Worker(Protocol):
    """An object in another process, on this machine or another."""

    @property
    def is_alive(self) -> bool:
        """Whether the worker was started and has not been found dead."""

    def start(self) -> None:
        """Start the process and make the object there, without waiting for it."""

    def send(self, method: str, *arguments: Any) -> None:
        """Call a method of the object; :meth:`receive` returns the result."""

    def receive(self, timeout: float | None = None) -> Any:
        """Wait for the result of the last call; raise what the method raised, or say how the worker was lost.

        If the object could not be made, every call raises that exception.
        """

    def stop(self) -> None:
        """End the process, if it has not ended yet."""


# Arguments: a function that makes the object, and a description of the worker for messages.
WorkerFactory = Callable[[Callable[[], Any], str], Worker]


class WorkerProcess:
    """A :class:`Worker` in a process of this machine.

    Parameters
    ----------
    make: picklable function that makes the object in the new process.
    description: noun phrase for messages, such as "the process of the environment Taxi-v4".
    ignored_signals: signals that may reach a group of processes but are for the run alone.
    environment: environment variables of the process, beside those of the run.
    daemon: False if the object starts processes of its own, which Python forbids to daemons.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        description: str,
        *,
        ignored_signals: Iterable[signal.Signals] = (signal.SIGINT,),
        environment: Mapping[str, str] | None = None,
        daemon: bool = True,
    ) -> None:
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self._make, self._description, self._daemon = make, description, daemon
        self._ignored_signals, self._environment = tuple(ignored_signals), dict(environment or {})
        self._has_replied = False

    @property
    def is_alive(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        check_script_importable()
        # Not fork: a forked child of a process with threads (Numba, JAX) may find locks that are never released.
        context = multiprocessing.get_context("spawn")
        own_end, worker_end = context.Pipe()
        process = context.Process(
            target=_run_worker,
            name=WORKER_PROCESS_NAME,
            args=(worker_end, self._ignored_signals),
            daemon=self._daemon,
        )
        pickled_make = pickle.dumps(self._make)
        with starting_processes(self._environment):
            process.start()
            # Before SIGINT is unblocked, so an interrupt finds a process that it can stop.
            self.process, self.pipe, self._has_replied = process, own_end, False
        worker_end.close()
        # Not an argument of the process: if that ends while it imports the script, multiprocessing would wait forever
        # to write more than a pipe holds.
        with contextlib.suppress(OSError):
            own_end.send_bytes(pickled_make)

    def send(self, method: str, *arguments: Any) -> None:
        assert self.pipe is not None
        with contextlib.suppress(OSError):  # receive finds a dead process and says how it ended
            self.pipe.send((method, arguments))

    def receive(self, timeout: float | None = None) -> Any:
        return unwrap_reply(self.receive_reply(timeout))

    def receive_reply(self, timeout: float | None = None) -> Any:
        """Return the next reply, which is a :class:`WorkerFailure` if the call raised."""
        assert self.pipe is not None
        try:
            if not self.pipe.poll(timeout):
                raise EnvironmentFailure(f"{self._description} took longer than {timeout:g} s")
            reply = self.pipe.recv()
        except (EOFError, OSError):
            raise self._explain_exit() from None
        # After a timeout or Ctrl-C the late reply would be taken for that of the next call.
        except BaseException:
            self.stop()
            raise
        self._has_replied = True
        return reply

    def stop(self, grace_seconds: float | None = 0.0) -> None:
        """Close the pipe, at which an idle worker ends, and kill the process if it lives on; None waits for its end."""
        process, pipe = self.process, self.pipe
        self.process = self.pipe = None
        if process is None or pipe is None:
            return
        pipe.close()
        process.join(grace_seconds)
        process.kill()
        process.join()

    def _explain_exit(self) -> Exception:
        assert self.process is not None
        # The exit code is known a moment after the pipe has closed. It is read before stop, whose own kill must not
        # count as one from outside.
        self.process.join(10.0)
        code = self.process.exitcode
        self.stop()
        if code == EXIT_MISSING_GUARD and not self._has_replied:
            return InputError(
                "worker processes import the script, which starts the run again; put the call under "
                'if __name__ == "__main__":'
            )
        error: WorkerDied
        if code is None:
            error = WorkerDied(f"{self._description} closed its connection")
        # Signals from outside. SIGSEGV and the like come from a crash, which may depend on what the call did.
        elif -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            error = WorkerKilled(f"{self._description} was killed ({signal.Signals(-code).name})")
        else:
            error = WorkerDied(f"{self._description} ended by itself (exit code {code})")
        error.exit_code = code
        return error


def make_rollout_process(make: Callable[[], Any]) -> WorkerProcess:
    """Return a worker process that plays environments."""
    # The process that waits for it answers these signals and closes the workers. The workers are the parallelism, so
    # each has one BLAS thread.
    stop_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return WorkerProcess(make, "a rollout worker", ignored_signals=stop_signals, environment=one_thread)


def stop_rollout_processes(workers: Sequence[WorkerProcess]) -> None:
    """End the processes of :func:`make_rollout_process`; those that still play after ten seconds are killed."""
    # All pipes before the first wait, so the processes end at the same time.
    for worker in workers:
        if worker.pipe is not None:
            worker.pipe.close()
    for worker in workers:
        worker.stop(grace_seconds=10.0)


class FunctionCaller:
    """The object of a worker that calls functions."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function in the worker."""
        return function(*arguments)


class ObjectHost:
    """The object of a worker, inside the worker: calls methods and captures exceptions."""

    def __init__(self, pickled_make: bytes) -> None:
        self._object = call_or_capture(lambda: pickle.loads(pickled_make)())

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method or its failure; if the object could not be made, return that failure."""
        if isinstance(self._object, WorkerFailure):
            return self._object
        return call_or_capture(lambda: getattr(self._object, method)(*arguments))

    def close(self) -> None:
        """Close the object, if it can be closed."""
        if hasattr(self._object, "close"):
            self._object.close()


def serve_calls(pipe: Connection, pickled_make: bytes) -> None:
    """In the worker: make the object, then answer calls until the other end of the pipe closes."""
    host = ObjectHost(pickled_make)
    with contextlib.suppress(EOFError, OSError):
        while True:
            # Unpickled in _call_host, so a call that cannot be unpickled is answered too.
            call = pipe.recv_bytes()
            reply = call_or_capture(_call_host, host, call)
            del call  # it may be large
            try:
                pickled = pickle.dumps(reply)
            except Exception as error:
                pickled = pickle.dumps(WorkerFailure.from_exception(error))
            pipe.send_bytes(pickled)
    host.close()


def _call_host(host: ObjectHost, pickled_call: bytes) -> Any:
    method, arguments = pickle.loads(pickled_call)
    return host.call(method, *arguments)


def _run_worker(pipe: Connection, ignored_signals: Iterable[signal.Signals]) -> None:
    # In this order: a SIGINT that came during the start is dropped, not raised, when it is unblocked.
    for number in ignored_signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.dup2(2, 1)  # standard output belongs to the run; environments print
    # The run may end before it has sent everything.
    with contextlib.suppress(EOFError, OSError):
        serve_calls(pipe, pipe.recv_bytes())


@contextlib.contextmanager
def starting_processes(variables: Mapping[str, str]) -> Iterator[None]:
    """Start processes in this block; they get these environment variables, and SIGINT waits until the block ends."""
    # A spawned process takes the environment of this one; multiprocessing has no argument for it.
    variables = {**variables, **safe_path_variables()}
    old_values = {name: os.environ.get(name) for name in variables}
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        os.environ.update(variables)
        # Starting the resource tracker would lift the mask. It is an interpreter, so it needs the safe path as well.
        resource_tracker.ensure_running()
        # New processes inherit the mask. Without it, Ctrl-C would end a worker that has not yet imported anything.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        # Environment first: a pending SIGINT is raised when the mask is restored, and would skip what follows.
        for name, value in old_values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def exit_if_reimported() -> None:
    """End this process if it is a worker that is still importing the script: the script lacks the guard."""
    process = multiprocessing.current_process()
    # multiprocessing sets this attribute while a new process imports the main script.
    if getattr(process, "_inheriting", False) and process.name == WORKER_PROCESS_NAME:
        sys.exit(EXIT_MISSING_GUARD)


def check_script_importable() -> None:
    """Raise :class:`InputError` if workers could not import the script, for example because it is standard input."""
    exit_if_reimported()
    script = spawn.get_preparation_data(WORKER_PROCESS_NAME).get("init_main_from_path")
    if script is not None and not os.path.exists(script):
        name = os.path.basename(script)
        raise InputError(f"worker processes import the script, but {name} is not a file; save the script as a file")
