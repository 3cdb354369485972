"""``adagoal watch`` and ``explore --live``: the page of a run, served while it goes on."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from adagoal.cli import options
from adagoal.cli.main import parameter_spelling

if TYPE_CHECKING:
    from adagoal.core.exploration_run import ExplorationRun, RunObserver
    from adagoal.report.live_server import ReportSource

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
    from adagoal.report.live_server import serve_report

    with serve_report(_find_page_source(folder, env, trust), port) as address:
        click.echo(address)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _find_page_source(folder: Path, env: str | None, trust: bool) -> ReportSource:
    """By what the folder holds."""
    from adagoal.runs.folder_reader import find_saved_run, no_run, require_run_folder

    folder = require_run_folder(folder)
    found = find_saved_run(folder)
    if found is not None and found.kind == "training":
        from adagoal.report.training_page import TrainingFolderSource

        return TrainingFolderSource(folder)
    if found is not None:
        from adagoal.report.exploration_page import RunFolderSource

        return RunFolderSource(folder, env, trust)
    if (folder / "cells").is_dir():
        from adagoal.compare.method_comparison import ComparisonFolderSource

        return ComparisonFolderSource(folder)
    raise no_run(folder)


class LivePublisher:
    """An observer that shows the answer of the run now and then; see :func:`observe_with_live_page`."""

    def __init__(self, folder: Path, inner: RunObserver) -> None:
        from adagoal.report.exploration_page import LiveRunSource

        self.page_source = LiveRunSource(folder)
        self._inner_observer, self._next_publish_time = inner, 0.0

    def __call__(self, run: ExplorationRun) -> bool | None:
        """Called after every rollout."""
        from adagoal.core.errors import Status
        from adagoal.report import StateMetadata
        from adagoal.runs.exploration_session import build_result

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
    from adagoal.report.live_server import serve_report

    observer = LivePublisher(folder, inner)
    with serve_report(observer.page_source) as address:
        click.echo(f"live: {address}", err=True)
        yield observer


# The command that writes what a run knows for other tools.


@click.command(epilog="Example: adagoal export runs/two-room --format drn")
@click.argument("run", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", "format", default="drn", show_default=True, metavar="drn|umb|csv", help="Which format to write."
)
@click.option("--out", type=options.OutputFolderParam(), help="Folder of the files.  [default: DIR/export]")
@options.env_override_option
@options.trust_option
def export(run: Path, format: str, out: Path | None, env: str | None, trust: bool) -> None:
    """Write what the run in DIR knows, for other programs.

    csv: certificates.csv, the table of certificates of any run. drn and umb, for model checkers: the interval MDP of a
    certified run, in these files:

    certified: every true transition probability lies in its interval, with probability 1 - delta. graph-preserving:
    the same for tools that want lower ends above zero, under the assumption that it states. empirical: frequencies.
    policies.json: goals, certificates and policies.
    """
    from adagoal.api.export import export as write

    for path in write(run, format, out, env=env, trust=trust):
        click.echo(path)


# The command that tries an environment before a run.


@click.command(epilog="Example: adagoal check MiniGrid-Empty-5x5-v0")
@click.argument("env", metavar="ENV", type=options.EnvParam())
@options.env_args_option
@options.start_option
@options.start_seed_option
@click.option("--max-states", type=int, help="Bound on the number of states, where the environment has none.")
@options.step_timeout_option
@click.option("--steps", type=options.StepCountParam(), default=2000, show_default=True, help="Steps to try.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything random.")
@options.json_option
def check(env: str, as_json: bool, **given: Any) -> None:
    """Try ENV: can it be used, would something void a certificate, and what would a run do with it?

    Exit code 0: fine; 1: something would void a certificate; 2: it cannot be used.
    """
    from adagoal.api.env_check import check_env

    found = check_env(env, **given)
    found.errors = [_spell_as_options(line) for line in found.errors]
    found.void = [_spell_as_options(line) for line in found.void]
    click.echo(json.dumps(found.to_dict(), indent=1) if as_json else str(found))
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)


def _spell_as_options(line: str) -> str:
    """Replace the name of an argument at the beginning of a message (``env_args``) by its option (``--env-arg``)."""
    name, colon, rest = line.partition(": ")
    named = [parameter for parameter in click.get_current_context().command.params if parameter.name == name]
    return f"{parameter_spelling(named[0])}{colon}{rest}" if named else line
