"""Jobs side by side: compiled functions, which let go of the interpreter, in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait


def run_jobs_in_threads(jobs: Sequence[Callable[[], None]], threads: Executor | None) -> None:
    """Do all jobs, in these threads or without any. None of them is left running, whatever is raised."""
    if threads is None:
        for job in jobs:
            job()
        return
    begun = [threads.submit(job) for job in jobs]
    try:
        for one in begun:
            one.result()
    finally:
        wait(begun)
