"""How a run stands, and the exit codes of the command line that follow from it."""

from __future__ import annotations

from enum import StrEnum


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
