"""Entry point of the command line: loads the called command and turns errors into one line and an exit code.

Exit codes are those of :mod:`adagoal.core.errors`. Errors of the library name the argument (``radius: ...``); this
module replaces it with the option (``--radius: ...``), and ``overwrite=True`` in a message with ``--overwrite``.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO, cast

import click
from click.shell_completion import CompletionItem

from adagoal.core import errors, user_code
from adagoal.core.errors import InputError, RunWarning


class OrderedGroup(click.Group):
    """Group that lists commands in the order of their definition, and names options in errors about arguments."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; replace the argument in an error by its option."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            if command is None:
                raise
            name, reason = error.name, error.reason
            options = {parameter.name: parameter for parameter in command.params}
            # name=value in an error about such an option is an argument of the environment or method
            if name not in options or name not in ("env_args", "method_args", "model_constants"):
                reason = spell_options(reason, command)
            # an argument that only Python has keeps its name
            raise InputError(reason, parameter_spelling(options[name]) if name in options else name) from error


class LazyGroup(OrderedGroup):
    """Group that imports a command when it is called; ``lazy`` maps its name to (module, help)."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.lazy)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the called command; suggest the most similar one if its name is unknown."""
        # a word with a dash is an unknown option, which click reports better; a shell that completes wants no message
        if not ctx.resilient_parsing and args[0] not in self.lazy and not args[0].startswith("-"):
            from adagoal.core.validation import suggest_name

            hint = suggest_name(args[0], self.lazy, f"{ctx.command_path} --help lists the commands")
            raise InputError(f"unknown command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in self.lazy:
            return None
        module = importlib.import_module(f"adagoal.cli.{self.lazy[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the commands without importing them."""
        names = [
            CompletionItem(name, help=text) for name, (_, text) in self.lazy.items() if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; report a missing package or a read-only cache of compiled code in one line."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            # an import that fails within adagoal is our bug, and keeps its traceback
            if not error.name or error.name.startswith("adagoal"):
                raise
            what = f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise InputError(
                f"{what} needs the package {error.name}, which is not installed; install it first"
            ) from None
        except RuntimeError as error:
            # Numba has no exception type of its own for this, only its text
            if "cannot cache function" not in str(error):
                raise
            raise InputError("no writable folder for compiled code; set NUMBA_CACHE_DIR to one") from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


COMMANDS = {
    "explore": ("run_commands", "Find the goals within a radius, with policies and certificates."),
    "certify-data": ("run_commands", "Certify goals from recorded transitions, without a step."),
    "resume": ("run_commands", "Resume an interrupted run."),
    "audit": ("run_commands", "Check a run exactly against the known model."),
    "play": ("run_commands", "Play the policies of a run, and compare measured steps with their certificates."),
    "report": ("run_commands", "Write report.html and its figures again."),
    "show": ("inspection_commands", "Show the goals of a run as bars in the terminal."),
    "watch": ("inspection_commands", "Serve a live report of a run for the browser."),
    "export": ("inspection_commands", "Export certificates as CSV, or models for model checkers."),
    "compare": ("run_commands", "Compare methods and goal rules over several seeds."),
    "train": ("policy_commands", "Train a goal-conditioned policy with adaptive goals."),
    "evaluate": ("policy_commands", "Test a trained policy: how often it succeeds, and where it fails."),
    "certify": ("policy_commands", "Certify where a policy succeeds."),
    "envs": ("run_commands", "List the available environments."),
    "check": ("inspection_commands", "Try an environment before a run."),
    "completion": ("completion", "Print the script for tab completion in bash, zsh or fish."),
    "warm": ("inspection_commands", "Compile all methods now, so no first run has to wait."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Example: adagoal explore two-room --radius 40 --epsilon 1 --delta 0.1 --seed 0",
)
@click.version_option(None, "-V", "--version", package_name="adagoal")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Which goals can an agent reach within a radius, how, and when has it learnt enough to stop?"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def parameter_spelling(parameter: click.Parameter) -> str:
    """Return a parameter as a user types it."""
    is_option = isinstance(parameter, click.Option)
    # the first name of an option is the long one (see setting_option)
    return parameter.opts[0] if is_option else str(parameter.metavar or parameter.name).upper()


def spell_options(text: str, command: click.Command) -> str:
    """Replace arguments of a command in a message (``max_states=5``, ``trust=True``) by options (``--max-states 5``).

    A word in quotes or brackets does not change, because it may be what the user typed, or part of a Python call.
    """
    options = {parameter.name: parameter for parameter in command.params if isinstance(parameter, click.Option)}

    def spell(match: re.Match[str]) -> str:
        option, value = options.get(match["name"]), match["value"]
        if option is None or (option.is_flag and value not in ("", "True")):
            return match[0]
        return parameter_spelling(option) + (f" {value}" if value and not option.is_flag else "")

    return re.sub(r'(?<!\S)(?P<name>[a-z_]+)=(?!\.\.\.)(?P<quote>"?)(?P<value>(?:[\w./:-]*\w)?)(?P=quote)', spell, text)


class BrokenPipeGuard:
    """Standard output that drops text without an error after its reader has gone away (``| head``)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, unless the pipe is closed."""
        return self._ignore_broken_pipe(lambda: self._stream.write(text)) or len(text)

    def flush(self) -> None:
        """Flush, unless the pipe is closed."""
        self._ignore_broken_pipe(self._stream.flush)

    def _ignore_broken_pipe(self, action: Callable[[], int | None]) -> int | None:
        try:
            return action()
        except BrokenPipeError:
            # Python flushes standard output once more at exit, which would raise again
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self._stream.fileno())
            os.close(null_device)
            return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this process and exit with its code."""
    # imports make hundreds of thousands of objects, which stay: looking for garbage among them took 0.1 s
    gc.set_threshold(100_000, 20, 20)
    # before other imports: libraries that read files of the current folder would execute a stranger's code
    user_code.ignore_local_files()
    _raise_on_os_exit()
    # Python has None for a stream that the shell has closed (>&-)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    sys.stdout = cast(TextIO, BrokenPipeGuard(sys.stdout))
    code = run_command_line(arguments)
    # here, not at exit: the guard handles a reader that has gone away
    sys.stdout.flush()
    # Python looks for garbage once more at exit; among the objects of imported libraries that took 0.2 s
    gc.freeze()
    sys.exit(code)


def _raise_on_os_exit() -> None:
    """Make ``os._exit`` raise, so that adagoal saves a run whose environment calls it, and reports a failure.

    Forked processes end as usual.
    """
    exit_process, main_process = os._exit, os.getpid()

    def raise_exit(status: int) -> NoReturn:
        text = f"os._exit({status})"
        # multiprocessing ends its forked processes in this way
        if os.getpid() != main_process:
            exit_process(status)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(text)
        # a thread cannot raise in the main thread; exit code 0 would look like a finished run
        print(f"error: a thread of the environment called {text}", file=sys.stderr, flush=True)
        exit_process(status or 1)

    os._exit = raise_exit


def run_command_line(
    arguments: Sequence[str] | None = None, group: click.Group | None = None, name: str = "adagoal"
) -> int:
    """Run a command line and return its exit code; ``group`` replaces the commands of adagoal."""
    try:
        with warnings.catch_warnings():
            # Python shows equal warnings once per process, but two runs in a test or notebook must both warn
            warnings.simplefilter("always", RunWarning)
            warnings.showwarning = _make_warning_printer(warnings.showwarning)
            # with standalone_mode click would print errors in several lines and exit by itself
            code = (group or cli).main(None if arguments is None else list(arguments), name, standalone_mode=False)
    except InputError as error:
        return _print_error(str(error))
    except click.UsageError as error:
        where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        return _print_error(error.format_message().rstrip(".") + where)
    except click.ClickException as error:
        return _print_error(error.format_message())
    except (KeyboardInterrupt, click.Abort) as error:
        # click raises its own exception from that of Python
        notes = getattr(error.__cause__ or error, "__notes__", ())
        click.echo(": ".join(["interrupted", *notes]), err=True)
        return errors.ExitCode.UNFINISHED if notes else errors.ExitCode.INTERRUPTED
    except errors.UnfinishedError as error:
        _print_error(str(error), error)
        return errors.ExitCode.UNFINISHED
    # a full disk or missing permissions are no bugs of ours, so they get no traceback
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        return _print_error(text, error)
    except MemoryError as error:
        text = f"not enough memory for a problem of this size ({str(error) or 'allocation failed'})"
        return _print_error(text, error)
    return code if isinstance(code, int) else 0


def _make_warning_printer(usual: Callable[..., None]) -> Callable[..., None]:
    """Return a ``warnings.showwarning`` that prints a :class:`RunWarning` as one line."""

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, RunWarning):
            context = click.get_current_context(silent=True)
            text = str(message) if context is None else spell_options(str(message), context.command)
            click.echo(f"warning: {text}", err=True)
        else:
            usual(message, category, *where)

    return show


def _print_error(message: str, error: BaseException | None = None) -> int:
    # the notes of an exception say where the results so far are saved
    text = " ".join("; ".join([message, *getattr(error, "__notes__", ())]).split())
    # a message may quote what the user typed, which may be long
    click.echo(f"error: {text if len(text) <= 1000 else text[:1000] + ' ...'}", err=True)
    return errors.ExitCode.BAD_INPUT
