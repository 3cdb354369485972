"""Carry exceptions from a worker to the process that waits for it.

Worker processes of environments, of engines and of trainings all use this module, and so do Ray workers. A worker
answers a request with its result or with a :class:`Failure`. The waiting process raises the exception again:

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
from adagoal.core.text import told


class WorkerTraceback(Exception):
    """The traceback of a worker as text; Python prints it above the exception that it belongs to."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True)
class _Portable:
    """An exception in a form that can always be sent."""

    pickled: bytes | None
    substitute: Exception
    """Raised where the exception itself cannot be pickled, or not be unpickled."""

    @classmethod
    def of(cls, error: BaseException) -> _Portable:
        try:
            pickled = pickle.dumps(error)
        except Exception:
            pickled = None
        if isinstance(error, InputError):
            kind = EnvironmentFailure if isinstance(error, EnvironmentFailure) else InputError
            return cls(pickled, kind(error.reason, error.name))
        return cls(pickled, RuntimeError(told(error)))

    def restore(self) -> BaseException:
        if self.pickled is not None:
            try:  # the class may be unknown here, or its __init__ may want other arguments than it keeps
                error = pickle.loads(self.pickled)
            except Exception:
                return self.substitute
            if isinstance(error, BaseException):
                return error
        return self.substitute


@dataclass(frozen=True)
class Failure:
    """An exception of a worker and its traceback."""

    error: _Portable
    cause: _Portable | None
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Prepare an exception for another process."""
        cause = None if error.__cause__ is None else _Portable.of(error.__cause__)
        return cls(_Portable.of(error), cause, "".join(traceback.format_exception(error)))

    def exception(self) -> BaseException:
        """Return the exception to raise."""
        error = last = self.error.restore()
        if self.cause is not None:
            error.__cause__ = last = self.cause.restore()
        last.__cause__ = WorkerTraceback(self.text)
        return error


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or the :class:`Failure` if it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return Failure.of(error)


def result(answer: Any) -> Any:
    """Return the answer of a worker; raise what the worker raised."""
    if isinstance(answer, Failure):
        raise answer.exception()
    return answer


def serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    """Answer requests with ``function(request)`` until the other end of the pipe closes."""
    while True:
        try:
            request = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        answer = attempt(_answer, function, request)
        del request
        try:
            send(pipe, answer)
        except OSError:
            return


def send(pipe: Connection, answer: Any) -> None:
    """Send an answer; if it cannot be pickled, send the exception that says so."""
    try:
        pickled = pickle.dumps(answer)
    except Exception as error:
        pickled = pickle.dumps(Failure.of(error))
    pipe.send_bytes(pickled)


def _answer(function: Callable[[Any], Any], request: bytes) -> Any:
    return function(pickle.loads(request))
