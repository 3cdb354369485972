"""``adagoal compare``: the table grows as the runs end."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from adagoal.cli import options
from adagoal.core.errors import InputError
from adagoal.core.files import write_json, write_text
from adagoal.experiments import compare as engine
from adagoal.experiments.compare_output import Row, figure, markdown, rows, terminal
from adagoal.runs.setting import Setting

WIDTH = 130
"""Columns of the table where the output is no terminal."""


class Numbers(click.ParamType["tuple[float, ...]"]):
    """One number, or one per world with commas."""

    name = "NUMBER[,NUMBER...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The numbers."""
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            return self.fail(f"{value!r} is not a number, nor several with commas between them", param, ctx)


@click.command(
    epilog="Example: adagoal compare two-room grid --radius 40,10 --goal-rules adagoal,unigoal --seeds 5 --budget 1e6"
)
@click.argument("worlds", metavar="ENV...", nargs=-1, required=True)
@click.option("--radius", type=Numbers(), required=True, help="L, one for all worlds or one for each.")
@click.option("--epsilon", type=Numbers(), default="1", show_default=True, help="One for all worlds or one for each.")
@options.DELTA
@click.option("--methods", type=options.Names(), default="certified", show_default=True, help="NAME or NAME:KEY=VALUE.")
@options.CONSTANTS
@click.option("--goal-rules", type=options.Names(), default="adagoal,unigoal", show_default=True, help="As in explore.")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Runs of each.")
@options.FIRST_SEED
@click.option("--budget", type=options.Count(), default="1e7", show_default=True, help="Steps after which a run ends.")
@click.option(
    "--jobs", type=click.IntRange(1, 1024), default=os.cpu_count() or 1, help="Processes.  [default: one a core]"
)
@options.ENV_ARGS
@options.GOALS
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/compare"), show_default=True,
    help="Folder; runs that it holds already are not run again.",
)  # fmt: skip
@options.JSON
@options.QUIET
def compare(
    worlds: tuple[str, ...],
    radius: tuple[float, ...],
    epsilon: tuple[float, ...],
    methods: tuple[str, ...],
    goal_rules: tuple[str, ...],
    seeds: int,
    jobs: int,
    env_args: dict[str, Any],
    out: Path,
    as_json: bool,
    quiet: bool,
    **common: Any,
) -> None:
    """Run methods and goal rules side by side on worlds whose model is known, and audit them exactly on the way.

    Writes table.md, table.json and figure.png. Stopped by Ctrl-C, the same command goes on where it was.
    """
    for env in worlds:
        if worlds.count(env) > 1:
            raise InputError(f"ENV: {env} is given twice; a comparison holds each world once")
    choices = {
        env: {"radius": L, "epsilon": e, "env_args": env_args}
        for env, L, e in zip(
            worlds, _each("--radius", radius, worlds), _each("--epsilon", epsilon, worlds), strict=True
        )
    }
    cells = engine.settings(choices, methods, goal_rules, seeds, **common)
    records = run_cells(cells, out, jobs, quiet)
    found = rows(records)
    write_text(out / "table.md", markdown(found))
    write_json(out / "table.json", {"rows": [row.to_dict() for row in found], "runs": records})
    figure(records).savefig(out / "figure.png", dpi=150)
    if as_json:
        click.echo(json.dumps([row.to_dict() for row in found], indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else WIDTH).print(terminal(found))
        click.echo(f"written: {out}/table.md, table.json, figure.png")


def run_cells(cells: list[Setting], out: Path, jobs: int, quiet: bool) -> list[engine.Record]:
    """All runs, with a live table on a terminal and a line per run elsewhere."""
    console = Console(stderr=True, quiet=quiet)
    records: list[engine.Record] = []
    began = time.monotonic()
    on_screen = console.is_terminal and not quiet

    def screen() -> Table:
        caption = f"{len(records)} of {len(cells)} runs, {time.monotonic() - began:,.0f} s"
        return terminal(fitting(records.copy(), console.height - 3), caption)

    def done(record: engine.Record) -> None:
        records.append(record)
        if not on_screen:
            setting = record["setting"]
            what = f"{setting['env']} {setting['method']} {setting['goal_rule']} seed {setting['seed']}"
            stops = f"own stop {record['own_stop'] or 'none'}, audit-stop {record['audit_stop'] or 'none'}"
            console.print(f"{len(records)} of {len(cells)} runs: {what}: {stops}", highlight=False, soft_wrap=True)

    live = Live(get_renderable=screen, console=console, refresh_per_second=1, transient=True)
    try:
        with live if on_screen else contextlib.nullcontext():
            return engine.run_all(cells, out, jobs, done)
    except KeyboardInterrupt:
        click.echo(
            f"interrupted: {len(records)} of {len(cells)} runs are kept in {out}; the same command goes on", err=True
        )
        raise click.exceptions.Exit(3) from None


def fitting(records: list[engine.Record], most: int) -> list[Row]:
    """The rows of the records; if they are too many for the screen, those whose runs ended last."""
    found = rows(records)
    if len(found) <= most:
        return found
    latest = rows(reversed(records))[: max(most, 1)]
    names = {(row.world, row.method, row.goal_rule) for row in latest}
    return [row for row in found if (row.world, row.method, row.goal_rule) in names]


def _each(option: str, numbers: tuple[float, ...], worlds: tuple[str, ...]) -> tuple[float, ...]:
    if len(numbers) not in (1, len(worlds)):
        raise InputError(f"{option}: give one number, or one for each of the {len(worlds)} worlds, not {len(numbers)}")
    return numbers * len(worlds) if len(numbers) == 1 else numbers
