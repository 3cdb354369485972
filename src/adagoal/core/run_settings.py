"""Arguments of explorations, comparisons, training runs and certifications, each declared once.

:class:`adagoal.deep.Config` declares the settings of learning. This module imports nothing heavy, because
``adagoal explore --help`` and ``adagoal train --help`` read it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagoal.core.errors import InputError
from adagoal.core.validation import check_field_values, check_number, setting_field

# Steps of a run without a budget, and the largest budget. Half of what int64 holds, so sums do not overflow.
UNLIMITED_BUDGET = 2**62


@dataclass(frozen=True)
class ExplorationSettings:
    """Settings of an exploration, as its result stores them: enough to repeat the run."""

    env: str = setting_field(
        help="A built-in name, a Gymnasium id, module:Id, or a file with a model.",
        details="Or a Gymnasium environment with discrete actions, a :class:`Model`, a matrix P[s, a, s'], a list of "
        "sparse matrices (one per action), or an environment of your own class (docs/extending.md).",
    )
    env_args: dict[str, Any] = setting_field({}, "Arguments of the environment.", option="--env-arg")
    method: str = setting_field("certified", "How uncertainty is measured; see docs/methods.md.", metavar="NAME")
    method_args: dict[str, Any] = setting_field({}, "Arguments of the method.", option="--method-arg")
    goal_rule: str = setting_field(
        "adagoal",
        "Which goal to try next: a name, name:key=value, or FILE.py:FUNCTION.",
        "Or a function of :class:`adagoal.goal_rules.GoalInfo`.",
        metavar="RULE",
    )
    radius: float | str = setting_field(
        10.0,
        "L >= 1, in expected steps from the start. auto: double L until the budget is spent. all: until every goal is "
        "certified, which never happens if a goal is unreachable. auto:F and all:F use another factor.",
        low=1,
        high=1e9,
        text_form="auto, all, auto:F, all:F (factor F in (1, 100])",
        metavar="L|auto|all",
    )
    within: int | None = setting_field(
        None,
        "Certify probabilities of reaching goals within this many steps, without a reset (docs/probabilities.md).",
        "It takes the place of ``radius`` and needs ``probability``.",
        low=1,
        high=100_000,
        metavar="STEPS",
    )
    probability: float | None = setting_field(
        None,
        "Find the goals that are reached in that many steps with at least this probability.",
        low=0,
        high=1,
        closed="(]",
    )
    avoid: tuple[int | str, ...] | None = None  # with within: states, or labels of states or of sets of states
    epsilon: float = setting_field(1.0, "Accuracy, > 0: of expected steps, or of probabilities.", low=1e-9, high=1e9)
    delta: float = setting_field(
        0.1, "Probability that the answer is wrong, in (0, 1).", low=1e-300, high=1, closed="[)"
    )
    seed: int = setting_field(0, "Random seed.", low=0, high=2**128 - 1)
    budget: int | None = setting_field(
        None,
        "Stop after this many steps; the run can be resumed.",
        "Resets count as steps.",
        default_text="no limit",
        low=1,
        high=UNLIMITED_BUDGET,
        metavar="STEPS",
    )
    goal_space: tuple[int, ...] | None = None  # goals that are states; None: all states, or `goal_sets`
    goal_sets: dict[str, Any] | None = None  # the description of other goals, see core/goal_spec.py
    start_seed: int | str | None = setting_field(
        None,
        "Draw the start state with this seed at every reset.",
        'In a result, "random" stands for start="random".',
        low=0,
        high=2**128 - 1,
        choices=("random",),
        metavar="INTEGER",
    )
    max_states: int | None = setting_field(
        None,
        "Most states that a run may meet, if the environment does not declare their number.",
        "Above the number of integer observations, an observation that ends the episode is a state of its own.",
        low=2,
        high=2**62,
    )
    workers: int = setting_field(
        1,
        "Play this many copies of ENV at once, in processes.",
        "The environment must be given by its name; a Gymnasium vector environment has one worker for each of its "
        "environments. The result depends on the seed and on the number of workers. A script needs the guard ``if "
        '__name__ == "__main__":`` around the call, because every worker imports it.',
        low=1,
        # Each worker is a Python process of about 150 MB, plus the environment.
        high=256,
    )

    def __post_init__(self) -> None:
        budget: Any = self.budget
        # Users write 1e6, which is a float in Python and in JSON.
        if isinstance(budget, float) and budget.is_integer():
            object.__setattr__(self, "budget", int(budget))
        check_field_values(self)
        self._check_probability()
        if isinstance(self.radius, str):
            radius_growth_factor(self.radius)
            # L grows at every stage, so without a budget the run would never end by itself.
            if self.radius.startswith("auto") and self.budget is None:
                raise InputError("auto needs a budget, the number of steps after which L stops growing", "radius")

    def _check_probability(self) -> None:
        if self.within is None:
            given = {"probability": self.probability, "avoid": self.avoid}
            for name, value in given.items():
                if value is not None:
                    raise InputError("needs the number of steps as well (within)", name)
        elif self.probability is None:
            raise InputError("needs a probability as well, for instance 0.9", "within")
        elif self.epsilon >= 1:
            raise InputError(f"must be below 1 with within, for instance 0.1; got {self.epsilon:g}", "epsilon")
        # Otherwise the run could stop before it has seen a goal (docs/probabilities.md, statement 2).
        elif self.epsilon >= self.probability:
            raise InputError(f"must be below the probability {self.probability:g}, got {self.epsilon:g}", "epsilon")
        elif self.radius != self.within:
            raise InputError("cannot be combined with within", "radius")

    @property
    def has_growing_radius(self) -> bool:
        """Whether L grows during the run (auto or all)."""
        return isinstance(self.radius, str)


def radius_growth_factor(radius: str) -> float:
    """Return the factor by which L grows: 2 for "auto" and "all", F for "auto:F" and "all:F"."""
    name, _, factor = radius.partition(":")
    # "nan" and "inf" are numbers for float(); the comparison below refuses both.
    try:
        value = float(factor or 2)
    except ValueError:
        value = math.nan
    if name not in ("auto", "all") or not 1 < value <= 100:
        text = "must be a number >= 1 or auto, all, auto:F, all:F (factor F in (1, 100])"
        raise InputError(f"{text}, got {radius!r}", "radius")
    return value


@dataclass(frozen=True)
class ExecutionOptions:
    """Where and how a run is executed. These arguments change no number of the result, which does not store them."""

    step_timeout: float | None = setting_field(
        None,
        "Step the environment in a separate process; end the run if a step takes longer.",
        "In seconds.",
        default_text="wait",
        low=0,
        high=1e6,
        closed="(]",
        metavar="SECONDS",
    )
    engine: str = setting_field(
        "local",
        "Where the workers run: local (processes on this machine) or ray (a Ray cluster, extra ray).",
        choices=("local", "ray"),
        metavar="local|ray",
    )
    address: str | None = setting_field(
        None, "Address of a Ray cluster.", default_text="start one on this machine", metavar="HOST:PORT"
    )
    out: Path | None = setting_field(
        None, "Folder of the run.", "It holds checkpoints and the result; :func:`resume` continues a killed run."
    )
    overwrite: bool = setting_field(
        False, "Replace the run in the folder.", "The first checkpoint of the new run deletes the old run."
    )
    record: bool = setting_field(
        False, "Save every step in the folder, 10 bytes each (transitions.npz).", "See :func:`transitions`."
    )


@dataclass(frozen=True)
class ComparisonOptions:
    """How many runs a comparison or an experiment makes, and how many of them at a time."""

    seeds: int = setting_field(5, "Number of seeds.", low=1, high=10_000)
    seed: int = setting_field(0, "The first seed.", low=0, high=2**64)
    jobs: int | None = setting_field(
        None, "Number of parallel runs.", default_text="one per core; ray: all cores", low=1, high=1024
    )


@dataclass(frozen=True)
class TrainingOptions:
    """Where and for how long training runs are executed; a result does not store these arguments."""

    seeds: int = setting_field(1, "Number of runs with consecutive seeds, trained together.", low=1, high=256)
    workers: int | None = setting_field(
        None, "Number of rollout processes.", low=1, high=1024, default_text="one per core"
    )
    minutes: float = setting_field(
        math.inf, "Stop after this time; the run can be resumed.", low=0, closed="(]", metavar="MINUTES"
    )
    checkpoint_every: int | None = setting_field(
        None, "Cycles between checkpoints.", low=1, high=10**9, default_text="as often as their size allows"
    )
    until: str | None = setting_field(
        None,
        "Stop earlier: when all cells of test goals that are believed to be within L are certified.",
        choices=("certified",),
    )
    tensorboard: Path | None = setting_field(None, "Folder for TensorBoard: the numbers of every cycle.")


@dataclass(frozen=True)
class ClaimSettings:
    """What a certification claims about a policy."""

    radius: int | None = setting_field(
        None,
        "L: a goal must be reached within this many steps.",
        details="At most the steps of an episode.",
        low=1,
        high=1_000_000,
        default_text="the steps of an episode",
    )
    success: float = setting_field(
        0.9, "A cell whose success probability is lower is refuted.", low=0, high=1, closed="(]"
    )
    delta: float = setting_field(
        0.05, "Probability that any verdict is wrong, all cells together.", low=1e-300, high=1, closed="[)"
    )
    slack: float = setting_field(
        0.05, "Tolerance: a cell is certified for success - slack; 0 needs a number of rollouts.", low=0, high=1
    )
    halvings: int = setting_field(6, "How often the space is halved, at most; 6 make 64 cells.", low=0, high=12)
    rollouts: int | None = setting_field(
        None, "Stop after this many rollouts.", low=1, high=10**12, default_text="stop when every cell is decided"
    )

    def __post_init__(self) -> None:
        check_field_values(self)
        if self.slack != 0.0:
            # With a smaller slack the bets on a cell would need more than about a million rollouts.
            check_number("slack", self.slack, 0.001, self.success, closed="[)")
        elif self.rollouts is None:
            raise InputError("missing; with slack 0 a cell may stay open forever, so give a limit", "rollouts")
