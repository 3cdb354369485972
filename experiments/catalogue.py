"""The experiments by name, with what each asks of its user.

This file imports no experiment, so ``python -m experiments NAME --help`` answers at once. An experiment itself says
``defaults=CATALOGUE[NAME].defaults`` (:mod:`experiments.experiment`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagoal.core.validation import SettingInfo

_IN = "experiments"


@dataclass(frozen=True)
class ExperimentInfo:
    """What the command line needs to know about an experiment without importing it."""

    import_path: str = ""  # ``module:NAME`` of the declaration, or of a dictionary of parts
    description: str = ""  # one line
    options: tuple[SettingInfo, ...] = ()
    seeds: int | None = 5  # default number of seeds; None: the experiment has no seeds
    jobs: int | None = None  # default number of parallel runs on this machine; None: one per core
    example: str = ""  # options of the example in the help
    parts: tuple[str, ...] = ()  # names of the parts, if it has any

    @property
    def defaults(self) -> dict[str, Any]:
        """Values of options that are not given."""
        return {option.name: option.default for option in self.options} | {"seeds": self.seeds}


def _option(name: str, kind: Any, default: Any, help: str, **declared: Any) -> SettingInfo:
    """Declare an option; a number without a smallest value must be positive."""
    if "low" not in declared:
        declared |= {"low": 0, "closed": "(]"}
    return SettingInfo(name, (kind,), default, help, **declared)


_WORLD = _option(
    *("world", tuple[str, ...], (), "Only these worlds."),
    choices=(
        *("two-room", "grid 4x5, slip 0.1", "FrozenLake 4x4", "FrozenLake 8x8", "CliffWalking"),
        "Taxi, start seed 0",
    ),
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
            _option("env", str, None, "Only the panels of this task.", choices=("pick", "push")),
            _option(
                *("panel", tuple[str, ...], (), "Only these panels."),
                choices=("push-1", "push-10", "pick-1", "pick-5"),
            ),
            _option("rule", tuple[str, ...], (), "Only these lines.", choices=("AdaGoal", "HER", "paper")),
            _option("baseline_seeds", int, None, "Runs of the other rules.", default_text="--seeds", low=1),
            _option("radius", float, 40.0, "L in steps.", low=1),
            _option("radius_ramp", int, 100_000, "Steps over which L grows to it; 0: fixed.", low=0),
            _option("steps", int, 400_000, "Training steps a run.", low=1000),
            _option("minutes", float, float("inf"), "Stop each panel after so long."),
            _option("workers", int, 0, "Rollout processes; 0: one per core.", low=0),
            _option("data", Path, None, "Train nothing: draw the panels deep-figure2-PANEL.json of this folder."),
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
        options=(_option("budget", int, 20_000_000, "Steps of a run, at most.", low=1),),
        seeds=10,
    ),
    "scaling": ExperimentInfo(
        f"{_IN}.scaling:SCALING",
        "Steps to the certified stop against L, S, A and 1/epsilon.",
        options=(_option("full", bool, False, "Wider ranges; takes several times as long."),),
    ),
    "price": ExperimentInfo(
        f"{_IN}.price:PRICE",
        "Steps to the certified stop over the steps that sufficed.",
        options=(
            _option("other_seeds", int, 3, "Seeds of other rules.", low=0),
            _WORLD,
            _option("seconds", float, 60.0, "Most processor seconds of a run."),
        ),
        jobs=1,
    ),
    "limit": ExperimentInfo(
        f"{_IN}.limit:LIMIT",
        "Certified steps beside the fewest that any algorithm needs.",
        options=(
            _WORLD,
            _option("rounds", int, 25, "Searches for models that must be told apart.", low=1),
        ),
        jobs=1,
    ),
    "intervals": ExperimentInfo(
        f"{_IN}.intervals:INTERVALS",
        "Certified steps beside those of model checkers' bounds.",
        options=(_option("budget", int, 100_000_000, "Steps of a run, at most.", low=1),),
        example="--seeds 5 --jobs 1",
    ),
    "constants": ExperimentInfo(
        f"{_IN}.constants:CONSTANTS",
        "What the paper's own constants would need.",
        options=(_option("all", bool, False, "Also worlds of more than 100 states."),),
        seeds=None,
    ),
    "linear": ExperimentInfo(
        f"{_IN}.linear:PARTS",
        "Linear mixtures: steps to the stop against S and against d.",
        options=(_option("minutes", float, 10.0, "Give a run up after so many; with more of them it goes on later."),),
        jobs=1,
        parts=("states", "kernels", "methods", "misfit"),
    ),
    "probabilities": ExperimentInfo(
        f"{_IN}.probabilities:PROBABILITIES",
        "How often a certified probability is wrong, over random worlds.",
        options=(
            _option("runs", int, 1_000, "Honest runs.", low=1),
            _option("control", int, 100, "Runs of the control.", low=0),
            _option("seed", int, 0, "The first seed.", low=0),
        ),
        seeds=None,
        example="--runs 1000 --jobs 2",
    ),
    "discovery": ExperimentInfo(
        f"{_IN}.discovery:PARTS",
        "States whose number is not declared: how often a certificate is broken, and the steps of a queue.",
        options=(
            _option("runs", int, 1_000, "Honest runs of the coverage.", low=1),
            _option("control", int, 100, "Runs of its control.", low=0),
        ),
        parts=("coverage", "queue"),
        example="--part coverage --runs 1000 --jobs 2",
    ),
    "coverage": ExperimentInfo(
        f"{_IN}.coverage:COVERAGE",
        "How often a certificate is broken, over random worlds.",
        options=(
            _option("runs", int, 2_200, "Honest runs.", low=1),
            _option("control", int, 100, "Runs of the control.", low=0),
            _option("seed", int, 0, "The first seed.", low=0),
        ),
        seeds=None,
        example="--runs 2200 --jobs 2 --out docs/figures",
    ),
}
