"""Options that several commands share, and the types of what is typed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from adagoal.core.checks import pair
from adagoal.core.errors import InputError


class Count(click.ParamType[int]):
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


class Positive(click.FloatRange):
    """A number > 0, infinity included."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        return self.fail("nan is not in the range x>0", param, ctx) if math.isnan(number) else number


class Radius(click.ParamType["float | str"]):
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


class Pair(click.ParamType["tuple[str, Any]"]):
    """key=value; the value is JSON (0.1, true, [1, 2]) or else plain text."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """The key and the value."""
        try:
            return pair(str(value))
        except InputError as error:
            return self.fail(str(error), param, ctx)


class Goals(click.ParamType["tuple[int, ...]"]):
    """One state number, or several with commas."""

    name = "STATE[,STATE...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers."""
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            return self.fail(f"{value!r} is not a state number, nor several with commas between them", param, ctx)


class Names(click.ParamType["tuple[str, ...]"]):
    """Several names with commas between them."""

    name = "A,B,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names."""
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(part.strip() for part in str(value).split(",") if part.strip()))
        return names or self.fail("needs at least one name", param, ctx)


def pairs(option: str, name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A repeatable option KEY=VALUE that arrives as a dictionary."""
    return click.option(
        option, name, type=Pair(), multiple=True, callback=lambda ctx, param, value: dict(value), help=text
    )


class Constants(click.ParamType["dict[str, Any]"]):
    """Several KEY=VALUE with commas between them."""

    name = "KEY=VALUE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """The dictionary."""
        return dict(Pair().convert(part.strip(), param, ctx) for part in str(value).split(","))


def goals(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The repeatable option --goal, which arrives as the argument ``name``."""
    return click.option(
        "--goal",
        name,
        type=Goals(),
        multiple=True,
        callback=lambda ctx, param, value: tuple(goal for part in value for goal in part) or None,
        help="Only these goals; repeatable.  [default: all]",
    )


EPSILON = click.option("--epsilon", type=float, default=1.0, show_default=True, help="Accuracy in steps, > 0.")
DELTA = click.option(
    "--delta", type=float, default=0.1, show_default=True, help="Probability of a wrong answer, in (0, 1)."
)
CONSTANTS = click.option(
    "--constants",
    metavar="paper|scaled=c",
    help="Of ucbexplore, disco, gosprl and bpi-ucbvi: their papers', or logarithms of confidences times c.  "
    "[default: paper]",
)
GOALS = goals("goal_space")
GOAL_LABELS = click.option(
    "--goal-label",
    "goal_labels",
    metavar="LABEL",
    multiple=True,
    help="Only the states that the model calls so, by its labels or by their own; repeatable.",
)
ENV_AGAIN = click.option(
    "--env", help="The environment, where the folder names code that is not installed (module:Id)."
)
RULE_AGAIN = click.option("--goal-rule", help="The goal rule, where the folder names a file (FILE.py:FUNCTION).")
TRUST = click.option("--trust", is_flag=True, help="Run the code that the folder names.")
DEVICE = click.option(
    "--device", default="cpu", show_default=True, help="Where to plan: cpu, or gpu (extra gpu, method certified)."
)
STEP_TIMEOUT = click.option(
    "--step-timeout",
    type=Positive(),
    metavar="SECONDS",
    help="Step ENV in a process of its own, and give up where a step takes longer.  [default: wait]",
)
FIRST_SEED = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
PORT = click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of the page on this machine.  [default: any that is free]"
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
QUIET = click.option("--quiet", is_flag=True, help="No progress display.")
START = click.option(
    "--start", type=click.Choice(["random"]), help="Declare that every reset draws the first state.  [default: try it]"
)
START_SEED = click.option("--start-seed", type=int, help="Draw the start state with this seed at every reset.")
ENV_ARGS = pairs("--env-arg", "env_args", "Argument of the environment; repeatable.")
MODEL_CONSTANTS = click.option(
    "--model-constants", type=Constants(), help="Constants of a PRISM or JANI model: N=4,K=2 for --env-arg N=4 ..."
)
