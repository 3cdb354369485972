"""``adagoal compare``: methods and goal rules of the user's choice, side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from adagoal.cli import options
from adagoal.cli.experiments import GOES_ON, conduct, shared
from adagoal.compare.experiment import Asked
from adagoal.core.errors import InputError

COMPARE = Asked("adagoal.compare.comparison:COMPARE", "Methods and goal rules side by side, over seeds.")


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
    help="Run methods and goal rules side by side on worlds whose model is known, and audit them exactly on the way. "
    f"Writes table.md, table.json and figure.png.\n\n{GOES_ON}",
    epilog="Example: adagoal compare two-room grid --radius 40,10 --goal-rules adagoal,unigoal --seeds 5 --budget 1e6",
)
@click.argument("worlds", metavar="ENV...", nargs=-1, required=True, type=options.Env())
@click.option("--radius", type=Numbers(), required=True, help="L, one for all worlds or one for each.")
@click.option("--epsilon", type=Numbers(), default="1", show_default=True, help="One for all worlds or one for each.")
@options.DELTA
@click.option("--methods", type=options.Names(), default="certified", show_default=True, help="NAME or NAME:KEY=VALUE.")
@options.CONSTANTS
@click.option("--goal-rules", type=options.Names(), default="adagoal,unigoal", show_default=True, help="As in explore.")
@click.option("--budget", type=options.Count(), default="1e7", show_default=True, help="Steps after which a run ends.")
@options.ENV_ARGS
@options.which_goals
@shared("compare", COMPARE)
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
    each = zip(worlds, _each("--radius", radius, worlds), _each("--epsilon", epsilon, worlds), strict=True)
    given["worlds"] = {env: {"radius": L, "epsilon": e, "env_args": env_args} for env, L, e in each}
    with options.goals_blamed(dict(given)), _blamed():
        given["goals"] = options.asked_goals(given)
        given["common"] = {name: given.pop(name) for name in ("delta", "constants", "budget", "goals")}
        given["common"]["seed"] = given["seed"]
        conduct(COMPARE, "all", given, jobs=jobs, engine=engine, address=address, as_json=as_json)


@contextlib.contextmanager
def _blamed() -> Iterator[None]:
    """What is wrong with one of several worlds or rules is said of the option that has them all."""
    try:
        yield
    except InputError as error:
        name = {"env": "ENV", "goal_rule": "goal_rules"}.get(error.name or "", error.name)
        raise type(error)(error.reason, name) from error


def _each(option: str, numbers: tuple[float, ...], worlds: tuple[str, ...]) -> tuple[float, ...]:
    if len(numbers) not in (1, len(worlds)):
        raise InputError(f"{option}: give one number, or one for each of the {len(worlds)} worlds, not {len(numbers)}")
    return numbers * len(worlds) if len(numbers) == 1 else numbers
