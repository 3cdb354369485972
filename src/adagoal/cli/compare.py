"""``adagoal compare``: methods and goal rules of the user's choice, side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from adagoal.cli import options
from adagoal.cli.experiments import RESUME_HELP, experiment_options, run_experiment_command
from adagoal.compare.experiment import ExperimentInfo
from adagoal.core.errors import InputError

COMPARE_INFO = ExperimentInfo("adagoal.compare.comparison:COMPARE", "Methods and goal rules side by side, over seeds.")


class NumberListParam(click.ParamType["tuple[float, ...]"]):
    """One number, or one per world with commas."""

    name = "NUMBER[,NUMBER...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The numbers."""
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            return self.fail(f"{value!r} is not a number, nor several with commas between them", param, ctx)


@click.command(
    help="Run methods and goal rules side by side on worlds whose model is known, and audit them exactly on the way. "
    f"Writes table.md, table.json and figure.png.\n\n{RESUME_HELP}",
    epilog="Example: adagoal compare two-room grid --radius 40,10 --goal-rules adagoal,unigoal --seeds 5 --budget 1e6",
)
@click.argument("worlds", metavar="ENV...", nargs=-1, required=True, type=options.EnvParam())
@click.option("--radius", type=NumberListParam(), required=True, help="L, one for all worlds or one for each.")
@click.option(
    "--epsilon", type=NumberListParam(), default="1", show_default=True, help="One for all worlds or one for each."
)
@options.delta_option
@click.option(
    "--methods", type=options.NameListParam(), default="certified", show_default=True, help="NAME or NAME:KEY=VALUE."
)
@options.constants_option
@click.option(
    "--goal-rules", type=options.NameListParam(), default="adagoal,unigoal", show_default=True, help="As in explore."
)
@click.option(
    "--budget", type=options.StepCountParam(), default="1e7", show_default=True, help="Steps after which a run ends."
)
@options.env_args_option
@options.goal_options
@experiment_options("compare", COMPARE_INFO)
def compare(
    worlds: tuple[str, ...],
    radius: tuple[float, ...],
    epsilon: tuple[float, ...],
    env_args: dict[str, Any],
    jobs: int | None,
    engine: str,
    address: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    for env in worlds:
        if worlds.count(env) > 1:
            raise InputError(f"ENV: {env} is given twice; a comparison holds each world once")
    each = zip(
        worlds, _one_per_env("--radius", radius, worlds), _one_per_env("--epsilon", epsilon, worlds), strict=True
    )
    given["worlds"] = {env: {"radius": L, "epsilon": e, "env_args": env_args} for env, L, e in each}
    with options.blame_goal_option(dict(given)), _blame_list_options():
        given["goals"] = options.take_goals_argument(given)
        given["common"] = {name: given.pop(name) for name in ("delta", "constants", "budget", "goals")}
        given["common"]["seed"] = given["seed"]
        run_experiment_command(COMPARE_INFO, "all", given, jobs=jobs, engine=engine, address=address, as_json=as_json)


@contextlib.contextmanager
def _blame_list_options() -> Iterator[None]:
    """What is wrong with one of several worlds or rules is said of the option that has them all."""
    try:
        yield
    except InputError as error:
        name = {"env": "ENV", "goal_rule": "goal_rules"}.get(error.name or "", error.name)
        raise type(error)(error.reason, name) from error


def _one_per_env(option: str, numbers: tuple[float, ...], worlds: tuple[str, ...]) -> tuple[float, ...]:
    if len(numbers) not in (1, len(worlds)):
        raise InputError(f"{option}: give one number, or one for each of the {len(worlds)} worlds, not {len(numbers)}")
    return numbers * len(worlds) if len(numbers) == 1 else numbers
