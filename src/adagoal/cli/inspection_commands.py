"""``adagoal show``, ``watch``, ``export`` and ``check``, and the live report of ``explore --live``."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from adagoal.cli import options
from adagoal.cli.main import parameter_spelling
from adagoal.cli.options import setting_options
from adagoal.core.errors import InputError, Status
from adagoal.runs.folder_reader import find_saved_run, is_training_folder, no_run, read_saved_run
from adagoal.settings.exploration import ExecutionOptions, ExplorationSettings

if TYPE_CHECKING:
    from adagoal.core.exploration_run import ExplorationRun, RunObserver
    from adagoal.report.live_server import ReportSource


@click.command(epilog="Example: adagoal show runs/two-room --top 50")
@options.run_argument
@click.option("--top", type=click.IntRange(1), default=30, show_default=True, help="Number of goals, nearest first.")
@click.option("--open", "open_page", is_flag=True, help="Open report.html in the browser.")
def show(folder: Path, top: int, open_page: bool) -> None:
    """Show the goals of the run in DIR as bars, from the lower to the upper bound on their distance.

    For training runs, show the success in every test.
    """
    # a pipe has no width; 80 columns suit a file or a pager
    width = shutil.get_terminal_size((80, 24)).columns
    lines = _training_lines(folder, width) if is_training_folder(folder) else _exploration_lines(folder, top, width)
    for line in lines:
        click.echo(line)
    if open_page:
        page = folder / "report.html"
        if not page.is_file():
            raise InputError(f"{page} does not exist; adagoal report {quote(str(folder))} writes it")
        webbrowser.open(page.absolute().as_uri())


def _exploration_lines(folder: Path, top: int, width: int) -> Iterator[str]:
    from adagoal.runs.result import load_result
    from adagoal.runs.result_text import make_headline

    result = load_result(folder)
    yield click.wrap_text(str(make_headline(result)), width)
    # the intervals of a void run mean nothing
    rows = [row for row in result.table() if row["within"] and result.status is not Status.VOID]
    bars = []
    for row in rows[:top]:
        lower, upper = row["lower"], row["upper"]
        numbers = f"{lower:.2f} to {upper:.2f}" if math.isfinite(upper) else f"{lower:.2f} or more"
        bars.append((row["label"], numbers + " open" * row["open"], lower, upper))
    yield from _draw_bars(bars, width, result.radius, f"radius {result.radius:g}")
    if len(rows) > top:
        yield click.wrap_text(f"{len(rows) - top} more: adagoal show {quote(str(folder))} --top {len(rows)}", width)


def _training_lines(folder: Path, width: int) -> Iterator[str]:
    from adagoal.runs.training_files import read_training_record

    record = read_saved_run(folder, read_training_record)
    for config, curve in zip(record.configs, record.learning_curves, strict=True):
        title = f"{record.data['status']}: {config.env}, goal rule {config.goal_rule}, seed {config.seed}"
        yield click.wrap_text(title, width)
        # at most ten tests, evenly spaced, and always the last one
        points = curve[::-1][:: math.ceil(len(curve) / 10)][::-1]
        bars = [(f"{p['steps']:,} steps", f"{p['success']:.2f}", 0.0, p["success"]) for p in points]
        yield from _draw_bars(bars, width, 1.0, "all test goals reached")


def _draw_bars(rows: Sequence[tuple[str, str, float, float]], width: int, mark: float, mark_text: str) -> Iterator[str]:
    """Draw (label, numbers, lower, upper) as one line each, at most ``width`` columns wide, with a line at ``mark``."""
    from rich.cells import cell_len, set_cell_size

    # an old Windows console or a pipe may have an encoding without lines
    solid, dashed, line = "━┄│" if "utf" in (sys.stdout.encoding or "").lower() else "=-|"
    longest = max([mark, *(upper for *_, upper in rows if math.isfinite(upper))])
    # cells, not characters: a label may have wide characters
    label_width = min(max((cell_len(label) for label, *_ in rows), default=0), width // 3)
    number_width = max((len(numbers) for _, numbers, *_ in rows), default=0)
    columns = max(width - label_width - number_width - 4, 1)

    def column(value: float) -> int:
        # min, because round(inf) raises
        return round(min(value / longest, 1.0) * (columns - 1))

    for label, numbers, lower, upper in rows:
        shade = solid if math.isfinite(upper) else dashed
        bar = (" " * column(lower) + shade * (column(upper) - column(lower) + 1)).ljust(columns)
        bar = bar[: column(mark)] + line + bar[column(mark) + 1 :]
        text = f"{set_cell_size(label, label_width)}  {numbers:>{number_width}}  {bar}".rstrip()
        yield set_cell_size(text, min(cell_len(text), width))
    if rows:
        yield click.wrap_text(f"{line} {mark_text}", width)


@click.command(epilog="Example: adagoal watch runs/two-room")
@options.run_argument
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the report.  [default: any free port]")
@options.env_override_option
@options.trust_option
def watch(folder: Path, port: int, env: str | None, trust: bool) -> None:
    """Serve a report of the run in DIR on this machine, and update it while the run continues; Ctrl-C ends.

    DIR is the folder of an exploration, training run or comparison, which another terminal may be running. The page can
    ask the run to stop after the current rollout; nothing else is written or changed.
    """
    from adagoal.report.live_server import serve_report

    with serve_report(_find_page_source(folder, env, trust), port) as address:
        click.echo(address)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _find_page_source(folder: Path, env: str | None, trust: bool) -> ReportSource:
    # absolute: the page reads the folder later, and an environment may change the current folder
    folder = folder.absolute()
    saved = find_saved_run(folder)
    if saved is not None and saved.kind == "training":
        from adagoal.report.training_page import TrainingFolderSource

        return TrainingFolderSource(folder)
    if saved is not None:
        from adagoal.report.exploration_page import RunFolderSource

        return RunFolderSource(folder, env, trust)
    if (folder / "cells").is_dir():
        from adagoal.compare.method_comparison import ComparisonFolderSource

        return ComparisonFolderSource(folder)
    raise no_run(folder)


class LivePublisher:
    """Observer that publishes interim results to a live page, and then calls the observer ``inner``."""

    refresh_seconds = 2.0  # between two interim results
    max_time_share = 0.03  # of the run time that interim results may take

    def __init__(self, folder: Path, inner: RunObserver) -> None:
        from adagoal.report.exploration_page import LiveRunSource

        self.page_source = LiveRunSource(folder)
        self._inner_observer, self._next_publish_time = inner, 0.0

    def __call__(self, run: ExplorationRun) -> bool | None:
        """Publish an interim result if one is due; the loop calls this after every rollout."""
        from adagoal.report import StateMetadata
        from adagoal.runs.exploration_session import build_result

        began = time.monotonic()
        if began >= self._next_publish_time:
            self.page_source.publish_result(
                build_result(run.setting, run, Status.INTERRUPTED), StateMetadata.from_env(run.env)
            )
            took = time.monotonic() - began
            self._next_publish_time = began + max(self.refresh_seconds, took / self.max_time_share)
        return self._inner_observer(run)


@contextlib.contextmanager
def observe_with_live_page(live: bool, folder: Path, inner: RunObserver) -> Iterator[RunObserver]:
    """Yield the observer of a run; if ``live``, serve its page during the block and publish results to it."""
    if not live:
        yield inner
        return
    from adagoal.report.live_server import serve_report

    observer = LivePublisher(folder, inner)
    with serve_report(observer.page_source) as address:
        click.echo(f"live: {address}", err=True)
        yield observer


@click.command(epilog="Example: adagoal export runs/two-room --format drn")
@click.argument("run", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--format", default="drn", show_default=True, metavar="drn|umb|csv", help="Format of the files.")
@click.option("--out", "-o", type=options.FOLDER, help="Folder of the files.  [default: DIR/export]")
@options.env_override_option
@options.trust_option
def export(run: Path, format: str, out: Path | None, env: str | None, trust: bool) -> None:
    """Write the results of the run in DIR for other programs.

    csv: certificates.csv, the table of certificates of any run. drn and umb, for model checkers: the interval MDP of a
    certified run, in these files:

    certified: every true transition probability lies in its interval, with probability 1 - delta. graph-preserving:
    the same for tools that need positive lower ends, under the assumption that the file states. empirical:
    frequencies. policies.json: goals, certificates and policies.
    """
    from adagoal.api.export import export as write_export

    for path in write_export(run, format, out, env=env, trust=trust):
        click.echo(path)


@click.command(epilog="Example: adagoal check MiniGrid-Empty-5x5-v0")
@options.env_argument
@setting_options(ExplorationSettings, "env_args")
@options.start_option
@setting_options(ExplorationSettings, "start_seed", "max_states")
@setting_options(ExecutionOptions, "step_timeout")
@click.option("--steps", type=options.INTEGER, default=2000, show_default=True, help="Number of random steps.")
@options.seed_option
@options.json_option
def check(env: str, as_json: bool, **given: Any) -> None:
    """Try ENV before a run: can adagoal use it, would something void a certificate, and how would a run treat it?

    Exit code 0: no problem; 1: something would void a certificate; 2: adagoal cannot use it.
    """
    from adagoal.api.env_check import check_env

    outcome = check_env(env, **given)
    outcome.errors = [_spell_as_option(line) for line in outcome.errors]
    outcome.void = [_spell_as_option(line) for line in outcome.void]
    click.echo(json.dumps(outcome.to_dict(), indent=1) if as_json else str(outcome))
    if outcome.exit_code:
        raise click.exceptions.Exit(outcome.exit_code)


def _spell_as_option(line: str) -> str:
    """Replace the argument at the beginning of a message (``env_args``) by its option (``--env-arg``)."""
    name, colon, rest = line.partition(": ")
    spelled = {
        parameter.name: parameter_spelling(parameter) for parameter in click.get_current_context().command.params
    }
    return f"{spelled[name]}{colon}{rest}" if name in spelled else line
