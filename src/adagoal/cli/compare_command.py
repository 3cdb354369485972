"""``adagoal compare``: run methods and goal rules in the same environments, and print the table of scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adagoal.cli import options
from adagoal.cli.options import setting_options
from adagoal.settings.exploration import ComparisonOptions, ExecutionOptions, ExplorationSettings


@click.command(epilog="Example: adagoal compare two-room grid --radius 40,10 --goal-rules adagoal,unigoal --budget 1e6")
@click.argument("env", metavar="ENV...", nargs=-1, required=True, type=options.ENV)
@click.option("--radius", type=options.NUMBERS, required=True, help="L: one number, or one for each ENV.")
@click.option(
    "--epsilon", type=options.NUMBERS, default="1", show_default=True, help="Accuracy: one number, or one for each ENV."
)
@setting_options(ExplorationSettings, "delta")
@click.option("--methods", type=options.NAMES, default="certified", show_default=True, help="NAME or NAME:KEY=VALUE.")
@options.constants_option
@click.option("--goal-rules", type=options.NAMES, default="adagoal,unigoal", show_default=True, help="As in explore.")
@setting_options(ExplorationSettings, "budget", default=10**7, help="Steps after which a run ends.  [default: 1e7]")
@setting_options(ExplorationSettings, "env_args")
@options.goals_option(options.goals_help)
@setting_options(ComparisonOptions)
@setting_options(ExecutionOptions, "engine", "address")
@setting_options(ExecutionOptions, "out", default=Path("runs/compare"), show_default=True, help="Folder.")
@options.json_option
@options.quiet_option
def compare(env: tuple[str, ...], as_json: bool, quiet: bool, **given: Any) -> None:
    """Run methods and goal rules on environments with a known model, and audit every run exactly while it runs.

    Writes table.md, table.json, table.html and, with the extra figures, figure.png. Finished runs are saved as files in
    the folder; after Ctrl-C, the same command continues.
    """
    from adagoal.comparison.method_comparison import compare as compare_methods

    with options.rename_in_errors(env="ENV"):
        comparison = compare_methods(env, progress=not quiet, **given)
    click.echo(json.dumps([score.to_dict() for score in comparison.scores], indent=1) if as_json else comparison)
