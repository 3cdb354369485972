"""Runs in processes of their own, each of which becomes a file: what is finished is never run again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from adagoal.core.files import write_json


def finish(
    function: Callable[..., Any], missing: Mapping[Path, tuple[Any, ...]], jobs: int, fresh: bool = False
) -> Iterator[tuple[Path, Any]]:
    """Run ``function(*arguments)`` for every missing file, ``jobs`` at a time; write each as it ends, and hand it on.

    ``fresh`` gives every run a new process. None as an answer says that the run was interrupted: that ends all.
    """
    if not missing:
        return
    context, tasks = multiprocessing.get_context("spawn"), 1 if fresh else None
    with ProcessPoolExecutor(min(jobs, len(missing)), context, max_tasks_per_child=tasks) as pool:
        futures = {pool.submit(function, *arguments): file for file, arguments in missing.items()}
        try:
            for future in as_completed(futures):
                file, found = futures[future], future.result()
                if found is None:
                    raise KeyboardInterrupt
                write_json(file, found)
                yield file, found
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
