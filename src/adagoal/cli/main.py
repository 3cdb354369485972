"""The command line. Commands are loaded when they are called, so that ``adagoal --help`` imports none of them.

Exit codes are those of :mod:`adagoal.core.errors`. What the library says about an argument (``radius: ...``) is told
with the name of the option (``--radius: ...``), which only this layer knows.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO, cast

import click

from adagoal.core import errors, safe_imports
from adagoal.core.errors import InputError, RunWarning


class OrderedGroup(click.Group):
    """Commands in the order in which they were added; errors about an argument name the option instead."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in their order."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            options = {parameter.name: parameter for parameter in command.params} if command is not None else {}
            if error.name not in options:
                raise
            raise InputError(error.reason, parameter_spelling(options[error.name])) from error


class LazyGroup(OrderedGroup):
    """A group whose commands are given as name -> ("module:attribute", one line of help)."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it needs and cannot have is one line."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            if not error.name or error.name.startswith("adagoal"):
                raise
            what = f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise InputError(f"{what}: not available in this installation: it needs {error.name}") from None
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
            raise InputError("NUMBA_CACHE_DIR: set it to a folder that can be written, for compiled code") from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


COMMANDS = {
    "explore": ("adagoal.cli.run_commands:explore", "Find the goals within a radius, with policies and certificates."),
    "resume": ("adagoal.cli.run_commands:resume", "Go on with a run that was killed, interrupted or out of budget."),
    "audit": ("adagoal.cli.run_commands:audit", "Check a run exactly against the known model."),
    "play": (
        "adagoal.cli.run_commands:play",
        "Try the policies of a run in its environment, beside their certificates.",
    ),
    "report": ("adagoal.cli.run_commands:report", "Write report.html and its figures again."),
    "watch": (
        "adagoal.cli.inspection_commands:watch",
        "Serve the page of a run on this machine, also while it goes on.",
    ),
    "export": (
        "adagoal.cli.inspection_commands:export",
        "Write what a run knows: certificates as CSV, models for model checkers.",
    ),
    "compare": ("adagoal.cli.compare_command:compare", "Methods and goal rules side by side, over seeds."),
    "train": ("adagoal.cli.training_commands:train", "Deep goal-conditioned policies with adaptive goals."),
    "evaluate": (
        "adagoal.cli.training_commands:evaluate",
        "Test a trained policy: how often it succeeds, and where it fails.",
    ),
    "certify": ("adagoal.cli.training_commands:certify", "Which goals a trained policy reaches, with a certificate."),
    "envs": ("adagoal.cli.run_commands:envs", "What ENV can be."),
    "check": ("adagoal.cli.inspection_commands:check", "Try an environment before a run."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Example: adagoal explore two-room --radius 40 --epsilon 1 --delta 0.1 --seed 0",
)
@click.version_option(package_name="adagoal")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Which goals can an agent reach within a radius, how, and when has it learnt enough to stop?"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def parameter_spelling(parameter: click.Parameter) -> str:
    """A parameter as it is typed."""
    return (
        parameter.opts[0] if isinstance(parameter, click.Option) else str(parameter.metavar or parameter.name).upper()
    )


MAX_ERROR_CHARACTERS = 1000
"""Characters of an error, at most: what was typed is quoted in it."""


class BrokenPipeGuard:
    """Standard output whose reader may go away (``| head``): what is written after that is dropped, and no error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, if there is a reader."""
        return self._ignore_broken_pipe(lambda: self._stream.write(text)) or len(text)

    def flush(self) -> None:
        """Flush, if there is a reader."""
        self._ignore_broken_pipe(self._stream.flush)

    def _ignore_broken_pipe(self, action: Callable[[], int | None]) -> int | None:
        try:
            return action()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and exits with its code; whatever the user got wrong is one line."""
    safe_imports.ignore_local_files()
    _raise_on_os_exit()
    sys.stdout = cast(TextIO, BrokenPipeGuard(sys.stdout))
    code = run_command_line(arguments)
    sys.stdout.flush()
    sys.exit(code)


def _raise_on_os_exit() -> None:
    """Make ``os._exit`` of an environment an exception, so a run that it ends is saved and has failed.

    Forked processes end as usual. A thread cannot raise in the main thread, so it ends the process with a failure.
    """
    leave, process = os._exit, os.getpid()

    def raise_exit(status: int) -> NoReturn:
        text = f"os._exit({status})"
        if os.getpid() != process:
            leave(status)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(text)
        print(f"error: a thread of the environment called {text}", file=sys.stderr, flush=True)
        leave(status or 1)

    os._exit = raise_exit


def run_command_line(
    arguments: Sequence[str] | None = None, group: click.Group | None = None, name: str = "adagoal"
) -> int:
    """Run a command line (of another group of commands, if one is given) and return its exit code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RunWarning)
            warnings.showwarning = _make_warning_printer(warnings.showwarning)
            code = (group or cli).main(None if arguments is None else list(arguments), name, standalone_mode=False)
    except InputError as error:
        return _print_error(str(error))
    except click.UsageError as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        return _print_error(error.format_message().rstrip(".") + where)
    except click.ClickException as error:
        return _print_error(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return errors.ExitCode.INTERRUPTED
    except OSError as error:
        return _print_error(
            _append_notes(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error), error)
        )
    except MemoryError as error:
        return _print_error(
            _append_notes(f"not enough memory for a problem of this size ({str(error) or 'nothing left'})", error)
        )
    return code if isinstance(code, int) else 0


def _make_warning_printer(usual: Callable[..., None]) -> Callable[..., None]:
    """What a run, or its folder, has to say is a line; other warnings are shown as usual."""

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, RunWarning):
            click.echo(f"warning: {message}", err=True)
        else:
            usual(message, category, *where)

    return show


def _append_notes(text: str, error: BaseException) -> str:
    """With what was noted on the way, such as where the things learnt are."""
    return "; ".join([text, *getattr(error, "__notes__", ())])


def _print_error(message: str) -> int:
    text = " ".join(message.split())
    click.echo(
        "error: " + (text if len(text) <= MAX_ERROR_CHARACTERS else text[:MAX_ERROR_CHARACTERS] + " ..."), err=True
    )
    return errors.ExitCode.BAD_INPUT
