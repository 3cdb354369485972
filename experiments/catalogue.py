"""The experiments by name, with what each asks of its user.

This file imports no experiment, so ``python -m experiments NAME --help`` answers at once. An experiment itself says
``asks=CATALOGUE[NAME]`` (:mod:`adagoal.compare.experiment`).
"""

from __future__ import annotations

from pathlib import Path

from adagoal.compare.experiment import Asked, Option

_IN = "experiments"
_WORLD = Option(
    *("world", str, (), "Only these worlds."),
    choices=(
        *("two-room", "grid 4x5, slip 0.1", "FrozenLake 4x4", "FrozenLake 8x8", "CliffWalking"),
        "Taxi, start seed 0",
    ),
    many=True,
)

CATALOGUE = {
    "figure1": Asked(
        f"{_IN}.figure3:FIGURE1",
        "The goals that AdaGoal selects, over time.",
        seeds=1,
        example="--seeds 20 --jobs 2 --out docs/figures",
    ),
    "figure2": Asked(
        f"{_IN}.figure2:FIGURE2",
        "The deep runs: HER against AdaGoal on Fetch.",
        options=(
            Option("env", str, None, "Only the panels of this task.", choices=("pick", "push")),
            Option(
                *("panel", str, (), "Only these panels."), choices=("push-1", "push-10", "pick-1", "pick-5"), many=True
            ),
            Option("rule", str, (), "Only these lines.", choices=("AdaGoal", "HER", "paper"), many=True),
            Option("baseline_seeds", int, None, "Runs of the other rules.  [default: --seeds]", low=1),
            Option("radius", float, 40.0, "L in steps.", low=1),
            Option("radius_ramp", int, 100_000, "Steps over which L grows to it; 0: fixed.", low=0),
            Option("steps", int, 400_000, "Training steps a run.", low=1000),
            Option("minutes", float, float("inf"), "Stop each panel after so long."),
            Option("workers", int, 0, "Rollout processes.  [default: one for every core]", low=0),
            Option("data", Path, None, "Train nothing: draw the panels deep-figure2-PANEL.json of this folder."),
        ),
        jobs=1,
        example="--env push --seeds 5 --baseline-seeds 3 --steps 300000",
    ),
    "figure3": Asked(
        f"{_IN}.figure3:FIGURE3",
        "UniGoal, RareGoal and AdaGoal in three time windows.",
        seeds=1,
        example="--seeds 20 --jobs 2 --out docs/figures",
    ),
    "separation": Asked(
        f"{_IN}.separation:SEPARATION", "What the reset is worth.", example="--seeds 20 --out docs/figures"
    ),
    "arena": Asked(
        f"{_IN}.arena:ARENA",
        "UcbExplore, DisCo, VALAE, LAE, GOSPRL and every goal rule, on the same worlds.",
        # few plans are made late, so that the last ten million steps take a second or two
        options=(Option("budget", int, 20_000_000, "Steps of a run, at most.", low=1),),
        seeds=10,
    ),
    "scaling": Asked(
        f"{_IN}.scaling:SCALING",
        "Steps to the certified stop against L, S, A and 1/epsilon.",
        options=(Option("full", bool, False, "Wider ranges; takes several times as long."),),
    ),
    "price": Asked(
        f"{_IN}.price:PRICE",
        "Steps to the certified stop over the steps that sufficed.",
        options=(
            Option("other_seeds", int, 3, "Seeds of other rules.", low=0),
            _WORLD,
            Option("seconds", float, 60.0, "Most processor seconds of a run."),
        ),
        jobs=1,
    ),
    "limit": Asked(
        f"{_IN}.limit:LIMIT",
        "Certified steps beside the fewest that any algorithm needs.",
        options=(_WORLD, Option("rounds", int, 25, "Searches for models that must be told apart.", low=1)),
        jobs=1,
    ),
    "intervals": Asked(
        f"{_IN}.intervals:INTERVALS",
        "Certified steps beside those of model checkers' bounds.",
        options=(Option("budget", int, 100_000_000, "Steps of a run, at most.", low=1),),
        example="--seeds 5 --jobs 1",
    ),
    "constants": Asked(
        f"{_IN}.constants:CONSTANTS",
        "What the paper's own constants would need.",
        options=(Option("all", bool, False, "Also worlds of more than 100 states."),),
        seeds=None,
    ),
    "linear": Asked(
        f"{_IN}.linear:PARTS",
        "Linear mixtures: steps to the stop against S and against d.",
        options=(Option("minutes", float, 10.0, "Give a run up after so many; with more of them it goes on later."),),
        jobs=1,
        parts=("states", "kernels", "methods", "misfit"),
    ),
    "coverage": Asked(
        f"{_IN}.coverage:COVERAGE",
        "How often a certificate is broken, over random worlds.",
        options=(
            Option("runs", int, 2_200, "Honest runs.", low=1),
            Option("control", int, 100, "Runs of the control.", low=0),
            Option("seed", int, 0, "The first seed.", low=0),
        ),
        seeds=None,
        example="--runs 2200 --jobs 2 --out docs/figures",
    ),
}
