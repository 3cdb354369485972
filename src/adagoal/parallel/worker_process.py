"""Workers: objects in other processes whose methods are called by name.

Copies of an environment, rollouts of training and the runs of an experiment all use :class:`WorkerProcess`.
:class:`adagoal.parallel.ray_engine.RayWorker` has the same interface for processes on a Ray cluster.

A call is two steps, :meth:`Worker.send` and :meth:`Worker.receive`, so one process can keep many workers busy. There
are three ways to lose a worker. Certificates tell the last one from the others:

    a call takes longer than its timeout   the worker is killed: EnvironmentFailure
    the process ends by itself             a crash or an exit: WorkerDied
    something else kills the process       its end does not depend on what the call did: WorkerKilled
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from adagoal.core.errors import EnvironmentFailure
from adagoal.parallel import safe_start
from adagoal.parallel.exceptions import WorkerDied, WorkerFailure, WorkerKilled, call_or_capture, unwrap_reply


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
        safe_start.check_script_importable()
        # Not fork: a forked child of a process with threads (Numba, JAX) may find locks that are never released.
        context = multiprocessing.get_context("spawn")
        own_end, worker_end = context.Pipe()
        process = context.Process(
            target=_run_worker,
            name=safe_start.WORKER_PROCESS_NAME,
            args=(worker_end, pickle.dumps(self._make), self._ignored_signals),
            daemon=self._daemon,
        )
        with safe_start.starting_processes(self._environment):
            process.start()
            # Before SIGINT is unblocked, so an interrupt finds a process that it can stop.
            self.process, self.pipe, self._has_replied = process, own_end, False
        worker_end.close()

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
        if code == safe_start.EXIT_MISSING_GUARD and not self._has_replied:
            return safe_start.missing_guard_error()
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


def _run_worker(pipe: Connection, pickled_make: bytes, ignored_signals: Iterable[signal.Signals]) -> None:
    safe_start.ignore_signals(ignored_signals)
    os.dup2(2, 1)  # standard output belongs to the run; environments print
    serve_calls(pipe, pickled_make)
