"""The guard of scripts: a new process imports the script that began it, which must not do its work once more there.

Where a script explores or trains outside ``if __name__ == "__main__":``, every process that it begins comes back to the
same call while it imports the script. It leaves with an exit code of its own, and the script is told why.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import spawn

from adagoal.core.errors import InputError

WORKER_PROCESS_NAME = "adagoal-worker"
"""The name of processes that import a script because of us. Those of the user's own are none of our business."""
EXIT_MISSING_GUARD = 79
"""Exit code of a process that found itself running the script that began it."""


def exit_if_reimported() -> None:
    """End a process of ours whose import of the script has come back to a run: the script lacks its guard."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False) and process.name == WORKER_PROCESS_NAME:
        sys.exit(EXIT_MISSING_GUARD)


def check_script_importable(doing: str) -> None:
    """Before processes are begun: whether they can import the script; ``doing`` is what the script does."""
    exit_if_reimported()
    script = spawn.get_preparation_data(WORKER_PROCESS_NAME).get("init_main_from_path")
    if script is not None and not os.path.exists(script):
        name = os.path.basename(script)
        raise InputError(f"a script that {doing} must be a file, as its workers import it; {name} is none")


def missing_guard_error(doing: str) -> InputError:
    """What a script without its guard is told."""
    return InputError(f'a script that {doing} must do so under if __name__ == "__main__":, as its workers import it')
