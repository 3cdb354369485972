"""``adagoal reproduce``: every declared experiment as a command, with the options that all of them share."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from adagoal import engines
from adagoal.cli import options
from adagoal.cli.main import Group
from adagoal.core.status import UNFINISHED
from adagoal.experiments.catalogue import CATALOGUE
from adagoal.experiments.declare import Asked, Experiment, Option

if TYPE_CHECKING:  # imported where they are used: --help should not wait for them
    from adagoal.experiments.runner import Display

GOES_ON = "Finished runs are kept as files in the folder: stopped by Ctrl-C, the same command goes on where it was."


class Whole(options.Count):
    """A whole number with a smallest value."""

    name = "N"

    def __init__(self, low: float) -> None:
        self._low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        number = super().convert(value, param, ctx)
        if number < self._low:
            self.fail(f"{number} is not in the range x>={self._low:g}", param, ctx)
        return number


def shared(name: str, asked: Asked) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that all experiments have; the function gets them as it is to hand them to :func:`conduct`."""
    many, folder = click.IntRange(1, 10_000), options.Folder(file_okay=False)
    seeds = click.option("--seeds", type=many, default=asked.seeds, show_default=True, help="Runs of each.")
    usual = f"[default: {asked.jobs or 'one for every core'}; ray: all cores]"
    where = click.Choice(engines.NAMES)
    found = [
        *([seeds, options.FIRST_SEED] if asked.seeds is not None else []),
        click.option("--jobs", type=click.IntRange(1, 1024), help=f"Runs at a time.  {usual}"),
        click.option("--engine", type=where, default="local", show_default=True, help="Where they run."),
        click.option("--address", metavar="HOST:PORT", help="A Ray cluster.  [default: a new one on this machine]"),
        click.option("--out", type=folder, default=Path("runs") / name, show_default=True, help="Folder."),
        click.option("--json", "as_json", is_flag=True, help="Print the table as JSON."),
        options.QUIET,
    ]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(found):
            function = option(function)
        return function

    return decorate


def conduct(
    asked: Asked,
    part: str,
    given: dict[str, Any],
    *,
    jobs: int | None,
    engine: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Run one experiment, or a part or all parts of one, and print the tables."""
    from adagoal.experiments import runner

    parts = {name: found for name, found in declared(asked).items() if part in ("all", name)}
    display = runner.Display(given["quiet"])
    usual = asked.jobs if engine == "local" else None
    reports = {}
    with contextlib.closing(engines.make(engine, jobs or usual, address, display.say)) as used:
        for name, experiment in parts.items():
            try:
                report = reports[name] = runner.run(experiment, experiment.chosen(**given), used, display)
            except KeyboardInterrupt:
                if not any(given["out"].glob("*")):  # no run, and no checkpoint of one
                    raise
                _stopped("interrupted", display, given["out"])
            except engines.WorkerLost as error:
                _stopped(f"error: {error}", display, given["out"])
            if not as_json:
                click.echo(report.text)
    if as_json:
        rows = {name: report.rows for name, report in reports.items()}
        click.echo(json.dumps(rows if len(parts) > 1 or "" not in parts else rows[""], indent=1))
    if not all(report.finished for report in reports.values()):
        raise click.exceptions.Exit(UNFINISHED)


def declared(asked: Asked) -> Mapping[str, Experiment]:
    """The experiment itself, imported: its parts by name, or one part without a name."""
    module, _, name = asked.home.partition(":")
    found = getattr(importlib.import_module(module), name)
    return {"": found} if isinstance(found, Experiment) else found


def _stopped(reason: str, display: Display, out: Path) -> NoReturn:
    """Say what is kept."""
    kept = f"{display.done} of {display.total} runs are kept in {out}"
    click.echo(f"{reason}: {kept}; the same command goes on", err=True)
    raise click.exceptions.Exit(UNFINISHED) from None


def command(name: str, asked: Asked) -> click.Command:
    """The command of an experiment; one that has parts gets ``--part``."""

    def function(part: str = "all", **given: Any) -> None:
        engine = {key: given.pop(key) for key in ("jobs", "engine", "address", "as_json")}
        conduct(asked, part, given, **engine)

    taken = shared(name, asked)(function)
    for option in reversed(asked.options):
        taken = _click(option)(taken)
    if asked.parts:
        choice = click.Choice([*asked.parts, "all"])
        taken = click.option("--part", type=choice, default="all", show_default=True, help="Which.")(taken)
    example = f"Example: adagoal reproduce {name} {asked.example or f'--jobs 2 --out runs/{name}'}"
    return click.command(name, help=f"{asked.about}\n\n{GOES_ON}", epilog=example)(taken)


def _click(option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An experiment's own option, in click's words."""
    kind: click.ParamType[Any]
    if option.kind is bool:
        return click.option(_flag(option), option.name, is_flag=True, help=option.help)
    if option.kind is int:
        kind = Whole(option.low or 0)
    elif option.kind is float:
        kind = options.Positive() if option.low is None else click.FloatRange(option.low)
    elif option.kind is Path:
        kind = click.Path(path_type=Path, file_okay=False, exists=True)
    else:
        kind = click.Choice(option.choices)
    told = "default" in option.help or option.many or option.default in (None, float("inf"))
    default = None if option.many else option.default
    return click.option(
        *(_flag(option), option.name),
        type=kind,
        default=default,
        multiple=option.many,
        show_default=not told,
        help=option.help,
    )


def _flag(option: Option) -> str:
    return "--" + option.name.replace("_", "-")


@click.group(cls=Group, invoke_without_command=True, epilog="Example: adagoal reproduce figure3 --seeds 20")
@click.pass_context
def reproduce(ctx: click.Context) -> None:
    """Run an experiment again: its figure, its table, and the data behind them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for _name, _asked in CATALOGUE.items():
    reproduce.add_command(command(_name, _asked))
