"""The exceptions that users meet."""

from __future__ import annotations

from adagoal.core.text import to_single_line

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
