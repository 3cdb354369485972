"""The experiments by name, with what each asks of its user.

This file imports no experiment, so ``python -m experiments NAME --help`` answers at once. An experiment itself says
``asks=CATALOGUE[NAME]`` (:mod:`adagoal.compare.experiment`).
"""

from __future__ import annotations

from pathlib import Path

from adagoal.compare.experiment import ExperimentInfo, ExperimentOption

_IN = "experiments"
_WORLD = ExperimentOption(
    *("world", str, (), "Only these worlds."),
    choices=(
        *("two-room", "grid 4x5, slip 0.1", "FrozenLake 4x4", "FrozenLake 8x8", "CliffWalking"),
        "Taxi, start seed 0",
    ),
    multiple=True,
)

CATALOGUE = {
    "figure1": ExperimentInfo(
        f"{_IN}.figure3:FIGURE1",
        "The goals that AdaGoal selects, over time.",
        seeds=1,
        example="--seeds 20 --jobs 2 --out docs/figures",
    ),
    "figure2": ExperimentInfo(
        f"{_IN}.figure2:FIGURE2",
        "The deep runs: HER against AdaGoal on Fetch.",
        options=(
            ExperimentOption("env", str, None, "Only the panels of this task.", choices=("pick", "push")),
            ExperimentOption(
                *("panel", str, (), "Only these panels."),
                choices=("push-1", "push-10", "pick-1", "pick-5"),
                multiple=True,
            ),
            ExperimentOption("rule", str, (), "Only these lines.", choices=("AdaGoal", "HER", "paper"), multiple=True),
            ExperimentOption("baseline_seeds", int, None, "Runs of the other rules.  [default: --seeds]", minimum=1),
            ExperimentOption("radius", float, 40.0, "L in steps.", minimum=1),
            ExperimentOption("radius_ramp", int, 100_000, "Steps over which L grows to it; 0: fixed.", minimum=0),
            ExperimentOption("steps", int, 400_000, "Training steps a run.", minimum=1000),
            ExperimentOption("minutes", float, float("inf"), "Stop each panel after so long."),
            ExperimentOption("workers", int, 0, "Rollout processes.  [default: one for every core]", minimum=0),
            ExperimentOption(
                "data", Path, None, "Train nothing: draw the panels deep-figure2-PANEL.json of this folder."
            ),
        ),
        jobs=1,
        example="--env push --seeds 5 --baseline-seeds 3 --steps 300000",
    ),
    "figure3": ExperimentInfo(
        f"{_IN}.figure3:FIGURE3",
        "UniGoal, RareGoal and AdaGoal in three time windows.",
        seeds=1,
        example="--seeds 20 --jobs 2 --out docs/figures",
    ),
    "separation": ExperimentInfo(
        f"{_IN}.separation:SEPARATION", "What the reset is worth.", example="--seeds 20 --out docs/figures"
    ),
    "arena": ExperimentInfo(
        f"{_IN}.arena:ARENA",
        "UcbExplore, DisCo, VALAE, LAE, GOSPRL and every goal rule, on the same worlds.",
        # few plans are made late, so that the last ten million steps take a second or two
        options=(ExperimentOption("budget", int, 20_000_000, "Steps of a run, at most.", minimum=1),),
        seeds=10,
    ),
    "scaling": ExperimentInfo(
        f"{_IN}.scaling:SCALING",
        "Steps to the certified stop against L, S, A and 1/epsilon.",
        options=(ExperimentOption("full", bool, False, "Wider ranges; takes several times as long."),),
    ),
    "price": ExperimentInfo(
        f"{_IN}.price:PRICE",
        "Steps to the certified stop over the steps that sufficed.",
        options=(
            ExperimentOption("other_seeds", int, 3, "Seeds of other rules.", minimum=0),
            _WORLD,
            ExperimentOption("seconds", float, 60.0, "Most processor seconds of a run."),
        ),
        jobs=1,
    ),
    "limit": ExperimentInfo(
        f"{_IN}.limit:LIMIT",
        "Certified steps beside the fewest that any algorithm needs.",
        options=(
            _WORLD,
            ExperimentOption("rounds", int, 25, "Searches for models that must be told apart.", minimum=1),
        ),
        jobs=1,
    ),
    "intervals": ExperimentInfo(
        f"{_IN}.intervals:INTERVALS",
        "Certified steps beside those of model checkers' bounds.",
        options=(ExperimentOption("budget", int, 100_000_000, "Steps of a run, at most.", minimum=1),),
        example="--seeds 5 --jobs 1",
    ),
    "constants": ExperimentInfo(
        f"{_IN}.constants:CONSTANTS",
        "What the paper's own constants would need.",
        options=(ExperimentOption("all", bool, False, "Also worlds of more than 100 states."),),
        seeds=None,
    ),
    "linear": ExperimentInfo(
        f"{_IN}.linear:PARTS",
        "Linear mixtures: steps to the stop against S and against d.",
        options=(
            ExperimentOption(
                "minutes", float, 10.0, "Give a run up after so many; with more of them it goes on later."
            ),
        ),
        jobs=1,
        parts=("states", "kernels", "methods", "misfit"),
    ),
    "coverage": ExperimentInfo(
        f"{_IN}.coverage:COVERAGE",
        "How often a certificate is broken, over random worlds.",
        options=(
            ExperimentOption("runs", int, 2_200, "Honest runs.", minimum=1),
            ExperimentOption("control", int, 100, "Runs of the control.", minimum=0),
            ExperimentOption("seed", int, 0, "The first seed.", minimum=0),
        ),
        seeds=None,
        example="--runs 2200 --jobs 2 --out docs/figures",
    ),
}
