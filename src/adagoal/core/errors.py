"""Exceptions and warnings that users see, their text in one line, the status of a run, and exit codes."""

from __future__ import annotations

import sysconfig
import traceback
import unicodedata
from enum import IntEnum, StrEnum
from pathlib import Path

OBJECT_ENV_PREFIX = "object:"  # in results, marks an environment that was passed as an object and has no spec


class InputError(ValueError):
    """Bad input, in one line that says what is accepted.

    ``name`` is the wrong argument as a Python caller spells it (``radius``, ``goal_rule``, ``env_args``); the message
    begins with it. The command line shows the option instead (``--radius``) and exits with code 2.
    """

    def __init__(self, message: str, name: str | None = None) -> None:
        self.name = name
        # A message may quote another exception, whose text has several lines or escape sequences.
        self.reason = to_single_line(message, 2000)
        super().__init__(self.reason if name is None else f"{name}: {self.reason}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str | None]]:
        # Worker processes send it as a pickle, which by default calls the class with the whole message. A long one
        # would be cut a second time.
        return type(self), (self.reason, self.name)


class RunWarning(UserWarning):
    """A problem that the user should see during the run, not only in its result."""


class FolderWarning(RunWarning):
    """A file of a run folder is damaged or cannot be written; the text names the fallback."""


class EnvironmentFailure(InputError):
    """User code (environment, goal rule, goal function, observer) raised an exception, kept as ``__cause__``.

    Raised only where that code is called. Exceptions of adagoal's own code are never converted.
    """


class Failure(str):
    """The observation of a state machine after an exception ("crash:TYPE") or a failed invariant ("fails:NAME")."""


class UnfinishedError(RuntimeError):
    """Some of several runs could not be made; the others are saved."""


def to_single_line(text: object, max_length: int = 60) -> str:
    """Return text from outside as one printable line."""
    try:
        line = " ".join(str(text)[: 4 * max_length].split())
    except Exception:  # the __str__ of a foreign class failed
        line = type(text).__name__
    # A terminal or a browser would obey control characters, escape sequences and direction marks.
    unprintable = ("Cc", "Cf", "Cs", "Co", "Cn")
    shown = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in unprintable else c for c in line)
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception in one line."""
    return f"{type(error).__name__}: {to_single_line(error, 500)}"


def describe_user_exception(error: BaseException) -> str:
    """Return the type and message of an exception of user code in one line, and the line that raised it.

    The line is in the user's own file if possible, and not in a library that this file calls.
    """
    ours = str(Path(__file__).parents[1]), "<frozen"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    frames = [frame for frame in frames if not frame.filename.startswith(libraries)] or frames
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return describe_exception(error) + where


class ExitCode(IntEnum):
    """Exit codes of the command line other than 0."""

    CONTRADICTED = 1  # a check contradicts the result
    BAD_INPUT = 2
    UNFINISHED = 3  # can be resumed
    VOID = 4  # takes precedence over UNFINISHED
    INTERRUPTED = 130  # Ctrl-C before there was anything to save


class Status(StrEnum):
    """How a run ended. Members equal their text: ``result.status == "certified"``."""

    CERTIFIED = "certified"  # stopped by the rule of a method with a guarantee
    STOPPED = "stopped"  # stopped by the rule of a method without a guarantee
    DECIDED = "decided"  # a certification has a verdict for every cell of the goal space and refuted some
    DONE = "done"  # training took all its steps
    BUDGET = "budget"  # the given steps or minutes are spent; the run can be resumed
    INTERRUPTED = "interrupted"  # ended by a signal, an observer or an error; the run can be resumed
    VOID = "void"  # a check that the certificate rests on has failed, so nothing is certified

    @property
    def finished(self) -> bool:
        """Whether the run ended by itself."""
        return self in (Status.CERTIFIED, Status.STOPPED, Status.DECIDED, Status.DONE)

    @property
    def exit_code(self) -> int:
        """Exit code of the command that ran or resumed it."""
        if self is Status.DECIDED:
            return ExitCode.CONTRADICTED
        return ExitCode.VOID if self is Status.VOID else 0 if self.finished else ExitCode.UNFINISHED
