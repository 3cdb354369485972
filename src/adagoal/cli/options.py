"""Options that several commands share, and the types of what is typed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from adagoal.core.argument_checks import parse_key_value
from adagoal.core.errors import InputError
from adagoal.core.user_code import is_file_spec

MAX_FOLDER_NAME_CHARACTERS = 100
"""Characters of a default folder's name; the rest of a longer one becomes a hash, since file systems allow 255."""


class StepCountParam(click.ParamType[int]):
    """A whole number, also written 1e6 or 1_000_000."""

    name = "STEPS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        try:
            number = float(value)
            if number != int(number):
                raise ValueError
            return int(number) if abs(number) > 2**53 or "e" in str(value).lower() else int(str(value), 10)
        except (ValueError, OverflowError):
            return self.fail(f"{value!r} is not a whole number (such as 500000 or 1e6)", param, ctx)


class PositiveFloatParam(click.FloatRange):
    """A number > 0, infinity included."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        return self.fail("nan is not in the range x>0", param, ctx) if math.isnan(number) else number


class OutputFolderParam(click.Path):
    """A folder to write into; an empty word is a shell variable without a value rather than the current folder."""

    def __init__(self, file_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if str(value) == "":
            self.fail("an empty name is no folder (the current one is .)", param, ctx)
        return super().convert(value, param, ctx)


def default_run_folder(env: str, told: Mapping[str, Any]) -> Path:
    """Return runs/ENV-OPTION-VALUE-..., so runs with different options have different folders."""
    words = [env]
    for name, value in told.items():
        if isinstance(value, Mapping):
            words += [f"{key}-{each}" for key, each in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [name.replace("_", "-"), *map(str, value)]
        else:
            words += [name.replace("_", "-"), f"{value:g}" if isinstance(value, float) else str(value)]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words)).strip("-")
    if len(name) > MAX_FOLDER_NAME_CHARACTERS:
        name = f"{name[:MAX_FOLDER_NAME_CHARACTERS]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path("runs") / name


class RadiusParam(click.ParamType["float | str"]):
    """A number, auto or all."""

    name = "L|auto|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """The number, or the word."""
        if str(value).partition(":")[0] in ("auto", "all"):
            return str(value)
        try:
            return float(value)
        except ValueError:
            return self.fail(f"{value!r} is neither a number >= 1 nor auto nor all", param, ctx)


class KeyValueParam(click.ParamType["tuple[str, Any]"]):
    """key=value; the value is JSON (0.1, true, [1, 2]) or else plain text."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """The key and the value."""
        try:
            return parse_key_value(str(value))
        except InputError as error:
            return self.fail(str(error), param, ctx)


class StateListParam(click.ParamType["tuple[int, ...]"]):
    """One state number, or several with commas."""

    name = "STATE[,STATE...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers."""
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            return self.fail(f"{value!r} is not a state number, nor several with commas between them", param, ctx)


class NameListParam(click.ParamType["tuple[str, ...]"]):
    """Several names with commas between them."""

    name = "A,B,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names."""
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(part.strip() for part in str(value).split(",") if part.strip()))
        return names or self.fail("needs at least one name", param, ctx)


class EnvParam(click.ParamType[str]):
    """The name of an environment. A module (``module:Id``) is looked for in the current folder if none is installed."""

    name = "ENV"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name."""
        module, colon, _ = str(value).partition(":")
        allow_local_imports(bool(colon) and not _is_module_installed(module))
        return str(value)


def _is_module_installed(module: str) -> bool:
    """Whether a module can be imported without the current folder."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except ValueError:  # no name, or a module without a specification
        return False


def allow_local_imports(wanted: bool) -> bool:
    """Let modules of the current folder be found, where the user asks for one; they hide nothing that is installed."""
    if wanted and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return wanted


def key_value_option(option: str, name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A repeatable option KEY=VALUE that arrives as a dictionary."""

    def once(ctx: click.Context, param: click.Parameter, value: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
        keys = [key for key, _ in value]
        for key in keys:
            if keys.count(key) > 1:
                raise click.BadParameter(f"{key} is given {keys.count(key)} times", ctx, param)
        return dict(value)

    return click.option(option, name, type=KeyValueParam(), multiple=True, callback=once, help=text)


class ConstantsParam(click.ParamType["dict[str, Any]"]):
    """Several KEY=VALUE with commas between them."""

    name = "KEY=VALUE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """The dictionary."""
        return dict(KeyValueParam().convert(part.strip(), param, ctx) for part in str(value).split(","))


def goal_state_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The repeatable option --goal, which arrives as the argument ``name``."""
    return click.option(
        "--goal",
        name,
        type=StateListParam(),
        multiple=True,
        callback=lambda ctx, param, value: tuple(goal for part in value for goal in part) or None,
        help="Only these goals; repeatable.  [default: all]",
    )


epsilon_option = click.option("--epsilon", type=float, default=1.0, show_default=True, help="Accuracy in steps, > 0.")
delta_option = click.option(
    "--delta", type=float, default=0.1, show_default=True, help="Probability of a wrong answer, in (0, 1)."
)
constants_option = click.option(
    "--constants",
    metavar="paper|scaled=c",
    help="Of ucbexplore, disco, valae, lae, gosprl and bpi-ucbvi: their papers', or logarithms of confidences times "
    "c.  [default: paper]",
)
goal_labels_option = click.option(
    "--goal-label", "goal_labels", metavar="LABEL", multiple=True, help="A goal by its label; repeatable."
)


def goal_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what the goals are; :func:`take_goals_argument` makes one argument of them."""
    for option in (
        click.option("--goal-keys", metavar="KEY,...", help="States that agree in these entries are one goal: 0,1"),
        click.option("--goals", "goals_file", metavar="FILE.py:NAME", help="A function observation -> goal or None, or "
                     "a dictionary of named predicates."),
        goal_labels_option,
        goal_state_option("goal_states"),
    ):  # fmt: skip
        command = option(command)
    return command


def take_goals_argument(given: dict[str, Any]) -> Any:
    """Take what :func:`goal_options` added out of ``given``: the argument ``goals`` of Python."""
    file, keys = given.pop("goals_file"), given.pop("goal_keys")
    listed = [*(given.pop("goal_states") or ()), *given.pop("goal_labels")]
    if (file is not None) + (keys is not None) + bool(listed) > 1:
        raise InputError("give --goals, --goal-keys, or --goal and --goal-label, not several of these")
    if file is not None and not is_file_spec(file):
        raise InputError(f"must look like FILE.py:NAME, got {file!r}", "goals_file")
    return file or (listed or None if keys is None else f"keys:{keys}")


@contextmanager
def blame_goal_option(given: Mapping[str, Any]) -> Iterator[None]:
    """What is wrong with the goals is said of the option that was given."""
    options = ("goals_file", "goal_keys", "goal_labels", "goal_states")
    used = next((name for name in options if given.get(name)), "goals_file")
    try:
        yield
    except InputError as error:
        raise type(error)(error.reason, used if error.name == "goals" else error.name) from error


selected_goals_option = goal_state_option("goals")
goals_override_option = click.option("--goals", help="The goals, where the folder names a file (FILE.py:NAME).")
env_override_option = click.option(
    "--env", type=EnvParam(), help="The environment, where the folder names code that is not installed (module:Id)."
)
goal_rule_override_option = click.option(
    "--goal-rule", help="The goal rule, where the folder names a file (FILE.py:FUNCTION)."
)
trust_option = click.option(
    "--trust",
    is_flag=True,
    callback=lambda ctx, param, value: allow_local_imports(value),
    help="Run the code that the folder names.",
)
workers_option = click.option(
    "--workers", type=int, default=1, show_default=True, help="Step so many copies of ENV at once, in processes."
)
engine_option = click.option(
    "--engine",
    metavar="local|ray",
    default="local",
    show_default=True,
    help="Where the workers live: processes of this machine, or of a Ray cluster (extra ray).",
)
address_option = click.option(
    "--address", metavar="HOST:PORT", help="A Ray cluster.  [default: a new one on this machine]"
)
step_timeout_option = click.option(
    "--step-timeout",
    type=PositiveFloatParam(),
    metavar="SECONDS",
    help="Step ENV in a process of its own, and give up where a step takes longer.  [default: wait]",
)
first_seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
port_option = click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of the page on this machine.  [default: any that is free]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress display.")
start_option = click.option(
    "--start", type=click.Choice(["random"]), help="Declare that every reset draws the first state.  [default: try it]"
)
start_seed_option = click.option("--start-seed", type=int, help="Draw the start state with this seed at every reset.")
env_args_option = key_value_option("--env-arg", "env_args", "Argument of the environment; repeatable.")
model_constants_option = click.option(
    "--model-constants", type=ConstantsParam(), help="Constants of a PRISM or JANI model: N=4,K=2 for --env-arg N=4 ..."
)


# The last part of a command: what it draws after the run has ended.


@contextlib.contextmanager
def skip_drawing_on_interrupt(name: str, again: str) -> Iterator[None]:
    """Around what is imported and written for a page or a figure: Ctrl-C ends only that.

    The run is over and saved by then, so the exit code stays that of the run. ``again`` is the command that writes the
    file ``name``.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"interrupted: {name} was not written; {again} writes it", err=True)
