"""Exceptions of workers: carried to the process that waits, and raised there again.

A worker answers a call with its result or with a :class:`WorkerFailure`. The waiting process raises the exception:

    EnvironmentFailure   the user's code raised; its own exception is the ``__cause__``
    InputError           bad input
    anything else        a bug in adagoal

The traceback of the worker is the last ``__cause__`` of the chain, as in :mod:`concurrent.futures`. An exception that
cannot be pickled becomes the nearest of EnvironmentFailure, InputError and RuntimeError, with its type and message.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception


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
