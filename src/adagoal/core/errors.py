"""The exceptions that users meet."""

from __future__ import annotations

import unicodedata
from enum import StrEnum

MAX_MESSAGE_LENGTH = 2000
"""Characters of a message, at most."""


class InputError(ValueError):
    """Bad input, in one line that says what is accepted.

    ``name`` is the argument that is wrong, as a Python caller spells it (``radius``, ``goal_rule``, ``env_args``); the
    message begins with it. The command line shows its own name of the option instead (``--radius``), and exits with 2.
    """

    def __init__(self, message: str, name: str | None = None) -> None:
        self.name = name
        self.reason = to_single_line(
            message, MAX_MESSAGE_LENGTH
        )  # what others raised, and is quoted, may have several lines
        super().__init__(self.reason if name is None else f"{name}: {self.reason}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str | None]]:
        return type(self), (self.reason, self.name)  # so that it can come from another process


class RunWarning(UserWarning):
    """A run goes on, but somebody should know this now and not at its end. The command line shows one line."""


class FolderWarning(RunWarning):
    """Something in a run folder was found damaged, and something else is used instead, or cannot be written now; the
    text says what."""


class EnvironmentFailure(InputError):
    """Code that the user brought (environment, goal rule, observer) raised; the cause is kept as ``__cause__``.

    Raised only where that code is called. An exception of our own code is never turned into this.
    """


# Text from outside (labels of environments, messages of exceptions) as plain data.


MAX_LABEL_LENGTH = 60
"""Characters of a label, at most."""
OBJECT_ENV_PREFIX = "object:"
"""Begins the name, in results, of an environment that was given as an object."""
UNPRINTABLE_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode categories that a terminal or a browser obeys instead of showing: control characters and escape sequences,
changes of direction, half characters."""


def to_single_line(text: object, most: int = MAX_LABEL_LENGTH) -> str:
    """One line of at most ``most`` characters, with a replacement character for everything that cannot be seen."""
    try:
        line = " ".join(str(text)[: 4 * most].split())
    except Exception:  # text that cannot be told, of a class from outside
        line = type(text).__name__
    shown = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in UNPRINTABLE_CATEGORIES else c for c in line
    )
    return shown if len(shown) <= most else shown[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def describe_exception(error: BaseException) -> str:
    """An exception in one line: its kind and what it says."""
    return f"{type(error).__name__}: {to_single_line(error, 500)}"


# How a run stands, and the exit codes of the command line that follow from it.


class Status(StrEnum):
    """How a run stands; equal to its own text, so that ``result.status == "certified"`` reads well."""

    CERTIFIED = "certified"
    """Stopped by the rule of a method that proves its answer."""
    STOPPED = "stopped"
    """Stopped by the rule of a method without a guarantee."""
    DECIDED = "decided"
    """A certification has a verdict for every cell of the goal space, and refuted some."""
    DONE = "done"
    """A training took all the steps it was to take."""
    BUDGET = "budget"
    """The steps or minutes given are spent; everything learnt is kept and the run can be resumed."""
    INTERRUPTED = "interrupted"
    """Ended early, by a signal, an observer or an error; everything learnt is kept and the run can be resumed."""
    VOID = "void"
    """A check that the certificate rests on has failed: nothing is certified, whatever the bounds say."""

    @property
    def finished(self) -> bool:
        """Whether the run came to its own end."""
        return self in (Status.CERTIFIED, Status.STOPPED, Status.DECIDED, Status.DONE)

    @property
    def exit_code(self) -> int:
        """Exit code of a command that ran or resumed it."""
        if self is Status.DECIDED:
            return EXIT_CONTRADICTED
        return EXIT_VOID if self is Status.VOID else 0 if self.finished else EXIT_UNFINISHED


EXIT_CONTRADICTED, EXIT_BAD_INPUT, EXIT_UNFINISHED, EXIT_VOID, EXIT_INTERRUPTED = 1, 2, 3, 4, 130
"""Exit codes beside 0: a check contradicts; bad input; not finished, resumable; void (wins over unfinished); Ctrl-C
before there was anything to keep."""
