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

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.text import describe_exception


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
