"""The command that tries an environment before a run."""

from __future__ import annotations

import json
from typing import Any

import click

from adagoal.cli import options
from adagoal.cli.main import parameter_spelling


@click.command(epilog="Example: adagoal check MiniGrid-Empty-5x5-v0")
@click.argument("env", metavar="ENV", type=options.EnvParam())
@options.env_args_option
@options.start_option
@options.start_seed_option
@click.option("--max-states", type=int, help="Bound on the number of states, where the environment has none.")
@options.step_timeout_option
@click.option("--steps", type=options.StepCountParam(), default=2000, show_default=True, help="Steps to try.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything random.")
@options.json_option
def check(env: str, as_json: bool, **given: Any) -> None:
    """Try ENV: can it be used, would something void a certificate, and what would a run do with it?

    Exit code 0: fine; 1: something would void a certificate; 2: it cannot be used.
    """
    from adagoal.api.check import check_env

    found = check_env(env, **given)
    found.errors = [_spell_as_options(line) for line in found.errors]
    found.void = [_spell_as_options(line) for line in found.void]
    click.echo(json.dumps(found.to_dict(), indent=1) if as_json else str(found))
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)


def _spell_as_options(line: str) -> str:
    """Replace the name of an argument at the beginning of a message (``env_args``) by its option (``--env-arg``)."""
    name, colon, rest = line.partition(": ")
    named = [parameter for parameter in click.get_current_context().command.params if parameter.name == name]
    return f"{parameter_spelling(named[0])}{colon}{rest}" if named else line
