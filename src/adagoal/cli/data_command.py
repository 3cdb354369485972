"""``adagoal certify-data``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adagoal.cli import options
from adagoal.cli.options import setting_options
from adagoal.core.errors import InputError
from adagoal.settings.exploration import ExecutionOptions, ExplorationSettings

MAX_PAIRS = 10  # pairs to try next that are printed


def _parse_columns(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise InputError(f"must look like state=NAME, got {value!r}", param.name)
    return dict(value.split("=", 1) for value in values)


@click.command(name="certify-data", epilog="Example: adagoal certify-data lake.csv --radius 10 --start 0 --n-states 16")
@click.argument("data", metavar="FILE")
@setting_options(ExplorationSettings, "radius", required=True, metavar="L", help="L >= 1, in expected steps.")
@setting_options(ExplorationSettings, "epsilon", "delta")
@click.option(
    "--start", metavar="STATE", help="State to which the reset leads.  [default: the state in which episodes begin]"
)
@click.option("--actions", type=options.NAMES, help="All actions, if some are not in the file.")
@click.option("--reset-action", metavar="ACTION", help="The action that stands for the reset.")
@click.option(
    "--column", "columns", multiple=True, metavar="COLUMN=NAME", callback=_parse_columns,
    help="Name of a column in the file, as in next_state=s2; repeatable.",
)  # fmt: skip
@click.option("--n-states", type=options.INTEGER, help="Number of states, seen or not, if it is known.")
@click.option("--branching", type=options.INTEGER, help="No pair has more than this many successors, if you know it.")
@setting_options(ExecutionOptions, "out", help="Folder of the result.  [default: runs/FILE-radius-L]")
@options.json_option
def certify_data(data: str, out: Path | None, as_json: bool, **given: Any) -> None:
    """Certify which goals can be reached within a radius from the transitions in FILE alone, without a step.

    FILE is a CSV file with the columns state, action, next_state and, if known, terminated and episode; an event log
    with the columns case and activity; or minari:ID. Anybody may have chosen the actions, but no transition may be left
    out because of its outcome. Exit code 0: certified; 3: some goals are open, and the pairs to try next are listed; 4:
    void, a check that the certificates rest on has failed.
    """
    from adagoal.api import certify_data as api
    from adagoal.cli.run_commands import report_result

    defaults = {parameter.name: parameter.default for parameter in click.get_current_context().command.params}
    named = {name: value for name, value in given.items() if value not in (None, {}, defaults[name])}
    folder = out or options.default_run_folder(Path(data).stem, named)
    result = api.certify_data(data, **given, out=folder)
    rows = [] if as_json else result.pairs_to_try()
    try:
        report_result(result, folder, as_json)
    finally:
        for row in rows[:MAX_PAIRS]:
            click.echo(
                f"try next: {row['action']} in {row['state']}, about {row['more']:,} times ({row['tries']:,} so far)"
            )
        if len(rows) > MAX_PAIRS:
            click.echo(f"... and {len(rows) - MAX_PAIRS} more pairs: result.pairs_to_try() lists all")
