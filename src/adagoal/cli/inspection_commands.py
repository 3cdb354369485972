"""``adagoal show``, ``watch``, ``export``, ``check`` an environment, ``warm`` (compile), ``explore --live``."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Any

import click

from adagoal.cli import options
from adagoal.cli.main import parameter_spelling, spell_options
from adagoal.cli.options import draw_bars, echo_headline, echo_wrapped, exploration_lines, setting_options
from adagoal.core.errors import InputError, Status
from adagoal.core.run_settings import ExecutionOptions, ExplorationSettings
from adagoal.runs.run_folder import find_saved_run, is_training_folder, missing_run_error, read_saved_run

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
    if is_training_folder(folder):
        _show_training(folder)
    else:
        from adagoal.runs.load_result import load_result

        result = load_result(folder)
        echo_headline(result)
        for line in exploration_lines(result, folder, top):
            click.echo(line)
    if open_page:
        page = folder / "report.html"
        if not page.is_file():
            raise InputError(f"{page} does not exist; adagoal report {quote(str(folder))} writes it")
        webbrowser.open(page.absolute().as_uri())


def _show_training(folder: Path) -> None:
    from adagoal.runs.train_result import read_training_record

    record = read_saved_run(folder, read_training_record)
    for config, curve in zip(record.configs, record.learning_curves, strict=True):
        echo_wrapped(f"{record.data['status']}: {config.env}, goal rule {config.goal_rule}, seed {config.seed}")
        # at most ten tests, evenly spaced, and always the last one
        points = curve[::-1][:: math.ceil(len(curve) / 10)][::-1]
        bars = [(f"{p['steps']:,} steps", f"{p['success']:.2f}", 0.0, p["success"]) for p in points]
        for line in draw_bars(bars, 1.0, "all test goals reached"):
            click.echo(line)


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
        from adagoal.comparison.method_comparison import ComparisonFolderSource

        return ComparisonFolderSource(folder)
    raise missing_run_error(folder)


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
        from adagoal.runs.exploration_session import build_result

        began = time.monotonic()
        if began >= self._next_publish_time:
            self.page_source.publish_result(build_result(run.setting, run, Status.INTERRUPTED))
            took = time.monotonic() - began
            self._next_publish_time = began + max(self.refresh_seconds, took / self.max_time_share)
        return self._inner_observer(run)


@contextlib.contextmanager
def observe_with_live_page(folder: Path, inner: RunObserver) -> Iterator[RunObserver]:
    """Serve the page of a run during the block; yield an observer that publishes results to it."""
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
    for lines in (outcome.errors, outcome.void, outcome.warnings, outcome.plan):
        lines[:] = [_spell_as_options(spell_options(line, check)) for line in lines]
    if as_json:
        click.echo(json.dumps(outcome.to_dict(), indent=1))
    else:
        for line in str(outcome).splitlines():
            click.echo(line) if line.startswith(" ") else echo_wrapped(line, "  ")
    if outcome.ok and not as_json:
        click.echo(f"Next: adagoal {_next_command(env, given) if outcome.goal_size is None else f'train {quote(env)}'}")
    if outcome.exit_code:
        raise click.exceptions.Exit(outcome.exit_code)


def _next_command(env: str, given: Mapping[str, Any]) -> str:
    """Return the exploration of the environment that was checked, with the same options."""
    words = ["explore", env, "--radius", "20"]
    for name, value in given["env_args"].items():
        words += ["--env-arg", f"{name}={value}"]
    for name in ("start", "start_seed", "max_states"):
        words += [] if given[name] is None else [f"--{name.replace('_', '-')}", str(given[name])]
    return join(words)


def _spell_as_options(line: str) -> str:
    """Replace arguments in a message (``env_args: ...``, ``max_states``) by their options (``--env-arg``)."""
    for parameter in click.get_current_context().command.params:
        name, spelled = str(parameter.name), parameter_spelling(parameter)
        # Words such as env or seed also have a meaning of their own.
        line = line.replace(name, spelled) if "_" in name else re.sub(rf"^{name}: ", f"{spelled}: ", line)
    return line


@click.command(epilog="Example: adagoal warm")
@options.quiet_option
def warm(quiet: bool) -> None:
    """Compile all methods now, on all cores, so that no first run has to wait.

    Numba keeps the compiled code in __pycache__ beside the package, or in the folder NUMBA_CACHE_DIR.
    """
    from adagoal.core import compiled_code
    from adagoal.runs.progress_display import ProgressDisplay

    start = time.monotonic()
    signatures = compiled_code.read_signatures()
    with ProgressDisplay(quiet):
        n_compiled = compiled_code.compile_in_processes(signatures)
    if n_compiled == 0:
        click.echo(f"all {len(signatures)} functions are compiled already")
        return
    seconds, cores = time.monotonic() - start, compiled_code.n_processes()
    click.echo(f"compiled {n_compiled} functions in {seconds:.0f} s on {cores} cores")
