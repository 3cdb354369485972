"""Detect scripts that would start their work again in every worker process.

A new process imports the script that started it. If the script explores or trains outside of
``if __name__ == "__main__":``, the import reaches the same call again. The worker then exits with a code of its own,
and the run raises an error that names the fix.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import spawn

from adagoal.core.errors import InputError

WORKER_PROCESS_NAME = "adagoal-worker"  # tells workers from processes that the user starts
EXIT_MISSING_GUARD = 79  # a code that neither Python nor a shell uses


def exit_if_reimported() -> None:
    """End this process if it is a worker that is still importing the script: the script lacks the guard."""
    process = multiprocessing.current_process()
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
