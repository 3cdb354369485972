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
    from adagoal.core.run import Observer, Run
    from adagoal.report.server import Source

REFRESH, SHARE = 2.0, 0.03
"""Seconds between two answers of a live run, and the share of its time that they may take."""


@click.command(epilog="Example: adagoal watch runs/two-room")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@options.PORT
@options.ENV_AGAIN
@options.TRUST
def watch(folder: Path, port: int, env: str | None, trust: bool) -> None:
    """Serve the page of the run in DIR on this machine, and follow the run if it is going on; Ctrl-C ends.

    DIR is an exploration, a training or a comparison, also one that another terminal is running. The page can ask the
    run to stop after the rollout at hand; nothing else is written or changed.
    """
    from adagoal.report.server import serving

    with serving(_source(folder, env, trust), port) as address:
        click.echo(address)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _source(folder: Path, env: str | None, trust: bool) -> Source:
    """By what the folder holds."""
    from adagoal.api.explore import must_exist
    from adagoal.runs.saved import find, no_run

    folder = must_exist(folder)
    found = find(folder)
    if found is not None and found.kind == "training":
        from adagoal.report.deep import FolderTraining

        return FolderTraining(folder)
    if found is not None:
        from adagoal.report.watched import FolderRun

        return FolderRun(folder, env, trust)
    if (folder / "cells").is_dir():
        from adagoal.compare.live import FolderComparison

        return FolderComparison(folder)
    raise no_run(folder)


class Live:
    """An observer that shows the answer of the run now and then; see :func:`showing`."""

    def __init__(self, folder: Path, inner: Observer) -> None:
        from adagoal.report.watched import LiveRun

        self.source = LiveRun(folder)
        self._inner, self._next = inner, 0.0

    def __call__(self, run: Run) -> bool | None:
        """Called after every rollout."""
        from adagoal.core.status import Status
        from adagoal.report import View
        from adagoal.runs.answer import answer

        began = time.monotonic()
        if began >= self._next:
            self.source.publish(answer(run.setting, run, Status.INTERRUPTED), View.of(run.world))
            took = time.monotonic() - began
            self._next = began + max(REFRESH, took / SHARE)
        return self._inner(run)


@contextlib.contextmanager
def showing(wanted: bool, folder: Path, inner: Observer) -> Iterator[Observer]:
    """Around a run: the observer itself or, if a page is wanted, one that passes on to it and shows the run."""
    if not wanted:
        yield inner
        return
    from adagoal.report.server import serving

    observer = Live(folder, inner)
    with serving(observer.source) as address:
        click.echo(f"live: {address}", err=True)
        yield observer
