"""What commands share: options of settings, parsers, grouped help, default run folders, and text for the terminal."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from click.shell_completion import CompletionItem

from adagoal.cli import completion
from adagoal.core import compiled_code
from adagoal.core.errors import InputError, Status
from adagoal.core.user_code import is_file_spec
from adagoal.core.validation import SettingInfo, check_value, declared_settings, parse_key_value
from adagoal.runs.run_folder import require_run_folder

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_Value = TypeVar("_Value")


class GroupedCommand(click.Command):
    """Command whose help lists options under headings; ``groups`` maps a heading to the names of its parameters.

    Only --help-all shows options without a group.
    """

    def __init__(self, *args: Any, groups: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = {heading: names.split() for heading, names in groups.items()}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        # click adds the option --help itself, under a name that depends on click's version
        records = {"help" if "--help" in p.opts else p.name: p.get_help_record(ctx) for p in options}
        sections = {
            heading: [record for name in names if (record := records.pop(name, None)) is not None]
            for heading, names in self.groups.items()
        }
        if ctx.meta.get("help_all"):
            sections["More settings"] = [record for record in records.values() if record is not None]
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def _print_all_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta["help_all"] = True
        click.echo(ctx.get_help())
        ctx.exit()


class ParsedParam(click.ParamType[_Value], Generic[_Value]):
    """Type of an option: ``parse`` raises a ValueError for text that is not ``expected``.

    If nothing is expected, such text is the value. Errors are :class:`InputError`, not click's, so they have the same
    form as those of the Python functions.
    """

    def __init__(
        self, metavar: str, parse: Callable[[str], _Value], expected: str, complete: Callable[..., Any] | None = None
    ) -> None:
        self.name, self._parse, self._expected, self._complete = metavar, parse, expected, complete

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the values that a shell offers."""
        found = [] if self._complete is None else self._complete(ctx, param, incomplete)
        return [item if isinstance(item, CompletionItem) else CompletionItem(item) for item in found]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Value:
        """Return the parsed value."""
        name = None if param is None else param.name
        # click also converts defaults, which are values already
        try:
            return self._parse(value) if isinstance(value, str) else value
        except InputError as error:
            raise InputError(error.reason, name) from None
        except (ValueError, OverflowError):
            if not self._expected:
                text: _Value = value
                return text
            raise InputError(f"must be {self._expected}, got {value!r}", name) from None


def _parse_integer(text: str) -> int:
    # by way of float, because people write a million steps as 1e6
    number = float(text)
    if number != int(number):
        raise ValueError
    # floats are exact only up to 2**53, so a longer number without an exponent is read digit by digit
    return int(number) if "e" in text.lower() else int(text, 10)


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ValueError
    return names


def _parse_path(text: str) -> Path:
    # an empty word is usually a shell variable without a value; Path("") would be the current folder
    if text == "":
        raise InputError("an empty name is not a folder; type . for the current folder")
    if Path(text).is_file():
        raise InputError(f"{text} is a file, not a folder; give another name")
    return Path(text)


def _parse_run_folder(text: str) -> Path:
    require_run_folder(text)
    # as typed, because commands print it
    return Path(text)


INTEGER = ParsedParam("INTEGER", _parse_integer, "a whole number such as 500000 or 1e6")
NUMBERS = ParsedParam(
    "NUMBER[,NUMBER...]",
    lambda text: tuple(float(part) for part in text.split(",")),
    "one or more numbers with commas between them",
)
NAMES = ParsedParam("A,B,...", _parse_names, "one or more names with commas between them", completion.complete_name)
FOLDER = ParsedParam("FOLDER", _parse_path, "a folder", completion.complete_folder)


def _allow_local_module(env: str) -> str:
    """Let ``module:Id`` name a module in the current folder, if no installed module has this name."""
    module, colon, _ = env.partition(":")
    # if the module is installed, nothing in the current folder becomes importable: it may be a stranger's folder
    try:
        installed = importlib.util.find_spec(module.partition(".")[0]) is not None
    except ValueError:  # an empty name, or a module without a specification
        installed = False
    allow_local_imports(bool(colon) and not installed)
    return env


def allow_local_imports(allowed: bool) -> bool:
    """Make modules in the current folder importable."""
    if allowed and os.getcwd() not in sys.path:
        # at the end: a file numpy.py in the current folder must not replace the package
        sys.path.append(os.getcwd())
    return allowed


ENV = ParsedParam("ENV", _allow_local_module, "an environment", completion.complete_env)
POLICY = ParsedParam("POLICY", _allow_local_module, "a policy")


def setting_options(cls: type[Any], *names: str, prefix: str = "", **changes: Any) -> Decorator:
    """Return a decorator that adds the options of the settings ``names`` of ``cls``; all settings without names.

    ``prefix`` comes before their help texts. ``changes`` are other arguments of :func:`click.option` than declared.
    """
    declared = declared_settings(cls)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        # click lists the option of the outermost decorator first, which is the one applied last
        for name in reversed(names or tuple(declared)):
            info = replace(declared[name], help=prefix + declared[name].help)
            command = setting_option(info, **changes)(command)
        return command

    return decorate


def setting_option(info: SettingInfo, **changes: Any) -> Decorator:
    """Return the option of a setting. Its value is checked as in Python, so both interfaces have the same messages."""
    default, kinds = info.default, [kind for kind in info.kinds if kind is not NoneType]
    choices = f"[{'|'.join(info.choices)}]" if info.choices else None
    keywords: dict[str, Any] = {"help": info.help, "metavar": info.metavar or choices}
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    if kinds == [bool]:
        keywords["is_flag"] = True
    elif kinds == [dict]:
        pair = ParsedParam("KEY=VALUE", parse_key_value, "key=value")
        keywords |= {"type": pair, "multiple": True, "callback": _merge_pairs}
        keywords["help"] = f"{info.help.rstrip('.')}; repeatable."
    elif kinds == [tuple[str, ...]]:
        keywords |= {"type": click.Choice(list(info.choices)), "multiple": True}
    else:
        keywords |= {
            "type": _param_type(info, kinds),
            "default": default,
            # None is an option that was not typed, also if the setting itself does not accept None
            "callback": lambda ctx, param, value: None if value is None else check_value(info, value),
        }
        if info.default_text or default not in (None, "", float("inf")):
            keywords["help"] += f"  [default: {info.default_text or shown}]"
    if info.name in ("method", "goal_rule"):
        keywords["shell_complete"] = completion.complete_name
    if changes.get("required"):
        keywords |= {"help": info.help, "default": None}
    # the long name comes first, because messages use the first one
    spellings = [info.option or f"--{info.name.replace('_', '-')}", *(["-o"] if info.name == "out" else [])]
    return click.option(*spellings, info.name, **(keywords | changes))


def _param_type(info: SettingInfo, kinds: list[Any]) -> click.ParamType[Any]:
    if str in kinds and len(kinds) > 1:
        # a word such as auto stays text; the check of the setting says which words are accepted
        return ParsedParam("TEXT", _parse_integer if int in kinds else float, "")
    number = ParsedParam("NUMBER", float, "a number")
    simple: dict[Any, click.ParamType[Any]] = {int: INTEGER, float: number, str: click.STRING, Path: FOLDER}
    integers = ParsedParam("N,N,...", lambda text: tuple(map(int, text.split(","))), "whole numbers such as 256,256")
    return simple.get(kinds[0]) or integers


def _merge_pairs(ctx: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    # dict() would keep the last value of a name without a word
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"{key} is given {keys.count(key)} times; give each name once", param.name)
    return dict(pairs)


def changed_options(given: Mapping[str, Any], unnamed: Collection[str] = ()) -> dict[str, Any]:
    """Return the options that differ from their defaults, without ``unnamed``: they name the default folder."""
    defaults = {parameter.name: parameter.default for parameter in click.get_current_context().command.params}
    chosen = {name: value for name, value in given.items() if name not in unnamed}
    return {name: value for name, value in chosen.items() if value not in (None, {}, (), defaults[name])}


def default_run_folder(env: str, options: Mapping[str, Any]) -> Path:
    """Return runs/ENV-OPTION-VALUE-..., so runs with different options have different folders."""
    words = [env]
    for name, value in options.items():
        if isinstance(value, Mapping):
            words += [f"{key}-{entry}" for key, entry in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [name.replace("_", "-"), *map(str, value)]
        else:
            words += [name.replace("_", "-"), f"{value:g}" if isinstance(value, float) else str(value)]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words)).strip("-")
    # file systems allow 255 bytes; the hash keeps long names different
    if len(name) > 100:
        name = f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path("runs") / name


# The options below are shared by several commands and are no settings.
env_argument = click.argument("env", metavar="ENV", type=ENV)
run_argument = click.argument(
    "folder", metavar="DIR", type=ParsedParam("DIR", _parse_run_folder, "a folder", completion.complete_folder)
)
env_override_option = click.option(
    "--env", type=ENV, help="The environment, if the folder names code that is not installed (module:Id)."
)
trust_option = click.option(
    "--trust",
    is_flag=True,
    # the code that a folder names may lie in the current folder
    callback=lambda ctx, param, value: allow_local_imports(value),
    help="Run the code that the folder names.",
)
seed_option = click.option("--seed", type=INTEGER, default=0, show_default=True, help="Random seed.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Show no progress display.")
# eager, so that it works although another option is wrong or missing
help_all_option = click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_print_all_help, help="Show all options."
)
start_option = click.option(
    "--start",
    type=click.Choice(["random"]),
    help="Declare that every reset draws the start state.  [default: try a few resets]",
)
constants_option = click.option(
    "--constants",
    metavar="paper|scaled=c",
    help="Constants of ucbexplore, disco, valae, lae, gosprl and bpi-ucbvi: those of their papers, or with the "
    "logarithms of the confidences times c.  [default: paper]",
)


def split_goals(text: str) -> list[int | str] | str:
    """Return the argument ``goals`` of Python from the value of ``--goals``.

    Commas separate goals, except in brackets and quotes: ``3, 7`` are states, ``(4, 5), (1, 2)`` and ``'a, b'`` labels.
    ``FILE.py:NAME`` and ``keys:KEY,...`` are texts in Python as well.
    """
    if is_file_spec(text) or text.startswith("keys:"):
        return text
    parts, depth, quote = [""], 0, ""
    for character in text:
        # an apostrophe within a name is no quote
        if character in "'\"" and (quote == character or not (quote or parts[-1].strip())):
            quote = "" if quote else character
        elif not quote:
            depth += (character in "([{") - (character in ")]}")
        if character == "," and not (quote or depth):
            parts.append("")
        else:
            parts[-1] += character
    goals = [part.strip() for part in parts]
    if "" in goals:
        raise ValueError
    return [_parse_goal(goal) for goal in goals]


def _parse_goal(text: str) -> int | str:
    if text.removeprefix("-").isdecimal():
        return int(text)
    # Not if the quotes are two pairs, as in an expression over labels: "a" | "b".
    is_quoted = len(text) > 1 and text[0] in "'\"" and text.find(text[0], 1) == len(text) - 1
    return text[1:-1] if is_quoted else text


def _join_goals(ctx: click.Context, param: click.Parameter, values: Sequence[Any]) -> Any:
    if len(values) > 1 and any(isinstance(value, str) for value in values):
        raise InputError("a file or keys cannot be combined with other goals; give it once", param.name)
    return values[0] if len(values) == 1 else [goal for value in values for goal in value] or None


def goals_option(help: str) -> Decorator:
    """Return the option --goals, whose value is the argument ``goals`` of Python."""
    expected = "states or labels with commas between them, FILE.py:NAME, or keys:KEY,..."
    return click.option(
        "--goals",
        type=ParsedParam("GOAL,...", split_goals, expected),
        multiple=True,
        callback=_join_goals,
        help=help,
    )


goals_help = (
    'States or labels: 3,7 or "(4, 5), (1, 2)"; for PRISM and JANI also "x=1 & y>2" or FILE.props. '
    "FILE.py:NAME: a function observation -> goal or None, or named predicates. keys:0,1: states that agree in these "
    "entries of the observation are one goal.  [default: all states]"
)

avoid_option = click.option(
    "--avoid",
    type=ParsedParam("STATE,...", split_goals, "states or labels with commas between them"),
    multiple=True,
    callback=_join_goals,
    help="With --within: states or labels that must not be entered on the way.",
)


def announce_compilation(quiet: bool) -> None:
    """Say at once that this command will compile, if Numba's cache is empty. Importing Numba takes half a second."""
    if not quiet and compiled_code.is_numba_cache_empty(Path(compiled_code.__file__).parent):
        click.echo("compiling, first run only ...", err=True)


@contextlib.contextmanager
def rename_in_errors(**names: str) -> Iterator[None]:
    """Replace names of arguments in the input errors of the block, if a command spells them in another way."""
    try:
        yield
    except InputError as error:
        if error.name not in names:
            raise
        raise type(error)(error.reason, names[error.name]) from error


@contextlib.contextmanager
def skip_drawing_on_interrupt(name: str, again: str) -> Iterator[None]:
    """Let Ctrl-C end only the drawing of the file ``name``, which the command ``again`` repeats.

    The run is saved by then, so the exit code stays that of the run.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"interrupted: {name} was not written; {again} writes it", err=True)


if TYPE_CHECKING:
    from adagoal.runs.result import Result


def echo_headline(result: Result) -> None:
    """Print what happened, one sentence per line."""
    from adagoal.runs.result_text import make_headline

    headline = make_headline(result)
    first, *others = headline.sentences
    for sentence in (f"{headline.title}: {first}", *others):
        echo_wrapped(sentence)


def echo_wrapped(text: str, indent: str = "", err: bool = False) -> None:
    """Print a text within the width of the terminal; a pipe or a file gets it in one line."""
    width = shutil.get_terminal_size((100_000, 24)).columns
    # an option must stay in one piece, so it can be copied
    click.echo(textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False), err=err)


def exploration_lines(result: Result, folder: Path, top: int) -> Iterator[str]:
    """Yield the ``top`` best goals of a result as bars, and the command that shows all of them."""
    # the intervals of a void run mean nothing
    rows = [row for row in result.table() if row["in_result"] and result.status is not Status.VOID]
    measure = result.measure
    rows.sort(key=measure.sort_key)
    bars = []
    for row in rows[:top]:
        lower, upper = row["lower"], row["upper"]
        numbers = f"{lower:.2f} to {upper:.2f}" if math.isfinite(upper) else f"{lower:.2f} or more"
        bars.append((row["label"], numbers + " open" * row["open"], lower, upper))
    yield from draw_bars(bars, measure.threshold, measure.threshold_text)
    if len(rows) > top:
        width = shutil.get_terminal_size((80, 24)).columns
        yield click.wrap_text(f"{len(rows) - top} more: adagoal show {quote(str(folder))} --top {len(rows)}", width)


def draw_bars(rows: Sequence[tuple[str, str, float, float]], mark: float, mark_text: str) -> Iterator[str]:
    """Draw (label, numbers, lower, upper) as one line each of the terminal, with a line at ``mark``."""
    from rich.cells import cell_len, set_cell_size

    # a pipe has no width; 80 columns suit a file or a pager
    width = shutil.get_terminal_size((80, 24)).columns
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
