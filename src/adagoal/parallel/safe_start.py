"""Start processes safely: Ctrl-C, files of the current directory, and scripts without a main guard.

Ctrl-C reaches all processes of a terminal but is for the run alone, so workers ignore it from their first instruction.

A new process imports the script that started it. If the script explores or trains outside of
``if __name__ == "__main__":``, the import reaches the same call again. The worker then exits with a code of its own,
and the run raises an error that names the fix.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import resource_tracker, spawn

from adagoal.core.errors import InputError
from adagoal.core.safe_imports import safe_path_variables

WORKER_PROCESS_NAME = "adagoal-worker"  # tells workers from processes that the user starts
EXIT_MISSING_GUARD = 79  # a code that neither Python nor a shell uses


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


def ignore_signals(signals: Iterable[signal.Signals]) -> None:
    """In a worker: leave these signals to the run, and unblock SIGINT, which :func:`starting_processes` blocked."""
    # In this order: a SIGINT that came during the start is dropped, not raised, when it is unblocked.
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


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


def missing_guard_error() -> InputError:
    """Return the error for a script without the guard."""
    return InputError(
        'worker processes import the script, which starts the run again; put the call under if __name__ == "__main__":'
    )
