"""``adagoal watch`` and ``explore --live``: the page of a run, served while it goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adagoal.cli import options

if TYPE_CHECKING:
    from adagoal.core.run import ExplorationRun, RunObserver
    from adagoal.report.server import ReportSource

LIVE_REFRESH_SECONDS, MAX_LIVE_TIME_SHARE = 2.0, 0.03
"""Seconds between two answers of a live run, and the share of its time that they may take."""


@click.command(epilog="Example: adagoal watch runs/two-room")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@options.port_option
@options.env_override_option
@options.trust_option
def watch(folder: Path, port: int, env: str | None, trust: bool) -> None:
    """Serve the page of the run in DIR on this machine, and follow the run if it is going on; Ctrl-C ends.

    DIR is an exploration, a training or a comparison, also one that another terminal is running. The page can ask the
    run to stop after the rollout at hand; nothing else is written or changed.
    """
    from adagoal.report.server import serve_report

    with serve_report(_find_page_source(folder, env, trust), port) as address:
        click.echo(address)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _find_page_source(folder: Path, env: str | None, trust: bool) -> ReportSource:
    """By what the folder holds."""
    from adagoal.api.explore import require_run_folder
    from adagoal.runs.saved import find_saved_run, no_run

    folder = require_run_folder(folder)
    found = find_saved_run(folder)
    if found is not None and found.kind == "training":
        from adagoal.report.deep import TrainingFolderSource

        return TrainingFolderSource(folder)
    if found is not None:
        from adagoal.report.watched import RunFolderSource

        return RunFolderSource(folder, env, trust)
    if (folder / "cells").is_dir():
        from adagoal.compare.live import FolderComparison

        return FolderComparison(folder)
    raise no_run(folder)


class LivePublisher:
    """An observer that shows the answer of the run now and then; see :func:`observe_with_live_page`."""

    def __init__(self, folder: Path, inner: RunObserver) -> None:
        from adagoal.report.watched import LiveRunSource

        self.page_source = LiveRunSource(folder)
        self._inner_observer, self._next_publish_time = inner, 0.0

    def __call__(self, run: ExplorationRun) -> bool | None:
        """Called after every rollout."""
        from adagoal.core.status import Status
        from adagoal.report import StateMetadata
        from adagoal.runs.answer import build_result

        began = time.monotonic()
        if began >= self._next_publish_time:
            self.page_source.publish_result(
                build_result(run.setting, run, Status.INTERRUPTED), StateMetadata.from_env(run.env)
            )
            took = time.monotonic() - began
            self._next_publish_time = began + max(LIVE_REFRESH_SECONDS, took / MAX_LIVE_TIME_SHARE)
        return self._inner_observer(run)


@contextlib.contextmanager
def observe_with_live_page(wanted: bool, folder: Path, inner: RunObserver) -> Iterator[RunObserver]:
    """Around a run: the observer itself or, if a page is wanted, one that passes on to it and shows the run."""
    if not wanted:
        yield inner
        return
    from adagoal.report.server import serve_report

    observer = LivePublisher(folder, inner)
    with serve_report(observer.page_source) as address:
        click.echo(f"live: {address}", err=True)
        yield observer
