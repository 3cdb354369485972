"""How the interval of every goal shrank: a few snapshots of a run, kept for its report.

A snapshot is taken whenever the steps have grown by a quarter, so that a run of any length has a few dozen. Numbers are
single precision: they are drawn, and nothing is concluded from them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numba
import numpy as np
from numba.core import event
from numpy.typing import NDArray

from adagoal import goal_rules
from adagoal.core.environment import ExplorationPlan, RolloutOutcome, TabularEnv
from adagoal.core.errors import Status
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.goal_rules import GoalInfo, GoalRule

SNAPSHOT_STEP_GROWTH = 1.25
GOAL_UNSEEN, GOAL_OPEN, GOAL_DONE, GOAL_BEYOND = range(4)
"""How a goal stood: never seen, error above epsilon, error at most epsilon, or D beyond the radius."""

BOUNDS_HISTORY_SCHEMA: ArraySchema = {
    "past_steps": ArraySpec("int64", ("F",), low=0, increasing=True),
    "past_episodes": ArraySpec("int64", ("F",), low=0),
    "past_goals": ArraySpec("int64", ("P",), low=0, increasing=True),
    "past_lower": ArraySpec("float32", ("F", "P"), low=0, finite=False),
    "past_upper": ArraySpec("float32", ("F", "P"), low=0, finite=False),
    "past_stand": ArraySpec("int8", ("F", "P"), low=GOAL_UNSEEN, high=GOAL_BEYOND),
}
"""F snapshots of P goals."""


class BoundsHistory:
    """Snapshots of the bounds of all goals; there may be more goals in a later one."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.episodes: list[int] = []
        self.goals: Longs = np.zeros(0, np.int64)
        self._snapshot_rows: dict[str, list[NDArray[Any]]] = {"past_lower": [], "past_upper": [], "past_stand": []}

    def is_snapshot_due(self, steps: int) -> bool:
        """Whether it is time for the next snapshot."""
        return not self.steps or (steps > self.steps[-1] and steps >= SNAPSHOT_STEP_GROWTH * self.steps[-1])

    def take_snapshot(self, steps: int, episodes: int, answer: GoalEstimates) -> None:
        """Take a snapshot."""
        self.goals = np.array(answer.goals, np.int64)
        columns = answer.column[self.goals]
        D, E, seen = answer.D[columns], answer.E[columns], answer.goal_state[columns] >= 0
        bounds = np.tile(np.array([[0.0], [np.inf]]), len(self.goals))
        for place in np.flatnonzero(seen):
            bounds[:, place] = answer.distance_bounds(int(self.goals[place]))
        stand = np.where(answer.L >= D, np.where(answer.epsilon < E, GOAL_OPEN, GOAL_DONE), GOAL_BEYOND)
        self.steps.append(steps)
        self.episodes.append(episodes)
        for name, row in zip(self._snapshot_rows, (*bounds, np.where(seen, stand, GOAL_UNSEEN)), strict=True):
            self._snapshot_rows[name].append(row.astype(BOUNDS_HISTORY_SCHEMA[name].dtype))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of :data:`BOUNDS_HISTORY_SCHEMA`."""
        empty = {"past_lower": 0.0, "past_upper": np.inf, "past_stand": GOAL_UNSEEN}
        tables = {
            name: np.full((len(rows), len(self.goals)), empty[name], BOUNDS_HISTORY_SCHEMA[name].dtype)
            for name, rows in self._snapshot_rows.items()
        }
        for name, rows in self._snapshot_rows.items():
            for table_row, row in zip(tables[name], rows, strict=True):
                table_row[: len(row)] = row
        times = {"past_steps": np.array(self.steps, np.int64), "past_episodes": np.array(self.episodes, np.int64)}
        return {**times, "past_goals": self.goals, **tables}

    @staticmethod
    def from_arrays(arrays: dict[str, NDArray[Any]]) -> BoundsHistory:
        """From arrays that keep to the schema."""
        past = BoundsHistory()
        past.steps, past.episodes = arrays["past_steps"].tolist(), arrays["past_episodes"].tolist()
        past.goals = np.array(arrays["past_goals"])
        past._snapshot_rows = {name: list(np.array(arrays[name])) for name in past._snapshot_rows}
        return past


# One exploration in progress, and what it is made of: estimates, attempts, a trace.


OPTIONAL_RULE_FIELDS = frozenset({"visits", "successes", "recent", "previous"})
"""Fields of :class:`~adagoal.goal_rules.GoalInfo` that are made for rules that need them."""
RECENT_RATE, PREVIOUS_RATE = 0.2, 0.05
"""Rates of the two moving averages of success: recent and previous."""


class GoalAttempts:
    """How often every goal was aimed at, how often it was reached, and whether that is changing."""

    ARRAY_NAMES = ("total", "reached", "recent", "previous")

    def __init__(self, n_states: int) -> None:
        self.total, self.reached, self.recent, self.previous = np.zeros((4, n_states))

    def add_episodes(self, goals: list[int], reached: list[bool]) -> None:
        """Episodes, in their order; a goal of -1 ("any state never seen") is nobody's attempt."""
        if goals:
            self._grow_arrays(max(goals))
            update_attempt_arrays(
                np.array(goals), np.array(reached, float), *(getattr(self, name) for name in self.ARRAY_NAMES)
            )

    def arrays_of_goals(self, goals: Longs, needs: frozenset[str]) -> tuple[Floats, ...]:
        """The four arrays over the given goals; zeros for those that a rule does not need, but for the attempts."""
        self._grow_arrays(int(goals.max(initial=-1)))
        rest = {"successes": self.reached, "recent": self.recent, "previous": self.previous}
        none = np.zeros(len(goals))
        return self.total[goals], *(array[goals] if name in needs else none for name, array in rest.items())

    def _grow_arrays(self, goal: int) -> None:
        if goal >= len(self.total):
            for name in self.ARRAY_NAMES:
                array = getattr(self, name)
                setattr(self, name, np.pad(array, (0, goal + 1)))


@numba.njit(cache=True, nogil=True)
def update_attempt_arrays(goals, success, total, reached, recent, previous):  # type: ignore[no-untyped-def]
    """Add episodes with ``goals`` and ``success`` [episodes] to the arrays of :class:`GoalAttempts`, in place."""
    for i in range(len(goals)):
        g = goals[i]
        if g >= 0:
            total[g] += 1.0
            reached[g] += success[i]
            recent[g] += RECENT_RATE * (success[i] - recent[g])
            previous[g] += PREVIOUS_RATE * (success[i] - previous[g])


class GoalEstimates(Protocol):
    """What a method would answer now, and what it needs to go on later. Goals that look alike may share a column."""

    name: str
    guarantee: bool
    counts: TransitionCounts
    L: float
    epsilon: float
    column: Longs
    """[N] the column of every goal"""
    goal_state: Longs
    """[columns] the goal behind a column (a state, or the number of a set), -1 for that of all goals never seen"""
    plans: int

    @property
    def goals(self) -> Longs:
        """[G] the goal space"""
        ...

    @property
    def D(self) -> Floats:
        """[columns] at most L for the goals of the answer"""
        ...

    @property
    def E(self) -> Floats:
        """[columns]"""
        ...

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """Lower and upper bound on the expected number of steps from s0 to the goal (the upper one: of its policy)."""
        ...

    def goal_policy(self, goal: int) -> Actions:
        """[T, S] the policy that is returned for the goal."""
        ...

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of the method's own that belong to its answer, for instance the weights of a mixture."""
        ...

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and JSON-ready facts from which :meth:`restore` goes on bit for bit."""
        ...

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`; the counts are restored already."""
        ...


class PlanningEstimates(GoalEstimates, Protocol):
    """What is believed about every goal, from the counts.

    ``D`` and ``E`` may be out of date for columns that nobody asked for, but they must always be valid: D never above
    the truth, E never below what is missing.
    """

    episodes_per_plan: int

    def refresh_columns(self, wanted: Bools) -> bool:
        """Bring wanted columns up to date; False where they were. May be called until it says False."""
        ...

    def exploration_plan(self) -> ExplorationPlan:
        """The policies to explore with."""
        ...


class SupportsRadiusCurriculum(PlanningEstimates, Protocol):
    """Estimates whose radius can grow in a curriculum (label ``cor_UB_increasingL``)."""

    def set_radius(self, L: float, stage: int) -> None:
        """Go on with a larger radius, as stage 1, 2, ... of the curriculum."""
        ...


class SupportsFinalize(PlanningEstimates, Protocol):
    """Estimates of which some columns wait for their turn to be brought up to date."""

    def finalize(self, wanted: Bools) -> None:
        """Bring them up to date for an answer; the work is bounded, and the run does not go on from here."""
        ...


@dataclass
class ExplorationRun:
    """One exploration in progress: everything that the loop reads and changes."""

    env: TabularEnv
    estimates: GoalEstimates
    """Estimates for :func:`explore`; a method that ignores goal rules has a loop of its own
    (baselines/self_directed.py)."""
    goal_rule: GoalRule
    rng: np.random.Generator
    steps: int = 0
    seconds: float = 0.0
    """Wall time of goal selection, planning and stepping; without observers, saves and compilation."""
    episode_goals: list[int] = field(default_factory=list)
    """The goal of every episode, in order; -1 for 'any state never seen'."""
    episode_reached: list[bool] = field(default_factory=list)
    trace: list[tuple[int, int, float, int]] = field(default_factory=list)
    """(steps, episodes, largest error of an open goal, open goals) whenever the steps have grown by 2%."""
    bounds_history: BoundsHistory = field(default_factory=BoundsHistory)
    """The bounds of all goals, whenever the steps have grown by a quarter."""
    goal_attempts: GoalAttempts = field(default_factory=lambda: GoalAttempts(0))
    goal_space: GoalSpace = field(default_factory=lambda: GoalSpace.from_states(0, 0))
    """The goals; every state is one unless something else was asked for."""
    setting: Any = None
    """The :class:`~adagoal.settings.exploration.ExplorationSettings` of the run, for observers; None for a run
    without one."""

    def __post_init__(self) -> None:
        self._required_fields = goal_rules.required_fields(self.goal_rule, OPTIONAL_RULE_FIELDS)
        if self.goal_space.goals_are_states:
            self.goal_space.grow_states(self.counts.n_states)

    @contextlib.contextmanager
    def measure_seconds(self) -> Iterator[None]:
        """Add the time that the block takes, less that of Numba's compiler, to ``seconds``."""
        compiler = event.TimingListener()  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        try:
            with event.install_listener("numba:compiler_lock", compiler):
                yield
        finally:
            self.seconds += time.perf_counter() - began - (compiler.duration if compiler.done else 0.0)

    @property
    def counts(self) -> TransitionCounts:
        """The transitions seen so far."""
        return self.estimates.counts

    @property
    def status_of_own_rule(self) -> Status:
        """The status of a run that its method's own rule has ended."""
        return Status.CERTIFIED if self.estimates.guarantee else Status.STOPPED

    def has_open_goals(self) -> bool:
        """Whether there is an open goal (the stopping rule, eq. ``stopping_rule``, says that there is none)."""
        estimates = self.estimates
        return bool(any_column_open(estimates.D, estimates.E, estimates.L, estimates.epsilon))

    def open_columns(self) -> Bools:
        """[columns] goals believed reachable whose error is still above epsilon."""
        estimates = self.estimates
        return (estimates.D <= estimates.L) & (estimates.E > estimates.epsilon)

    def goal_info(self) -> GoalInfo:
        """What the goal rule may look at, one entry per goal of the goal space."""
        estimates, goals = self.estimates, self.estimates.goals
        columns = estimates.column[goals]
        total, reached, recent, previous = self.goal_attempts.arrays_of_goals(goals, self._required_fields)
        return GoalInfo(
            D=estimates.D[columns],
            E=estimates.E[columns],
            L=estimates.L,
            eligible=~self.goal_space.contains_state(self.env.start, goals),
            visits=self.goal_space.visits_of_goals(self.counts.visits, goals)
            if "visits" in self._required_fields
            else np.zeros(len(goals)),
            attempts=total,
            successes=reached,
            recent=recent,
            previous=previous,
        )

    def column_weights(self) -> Floats:
        """The rule's weights, summed over the goals that share a column."""
        weights = goal_rules.compute_weights(self.goal_rule, self.goal_info())
        columns = self.estimates.column[self.estimates.goals]
        return np.bincount(columns, weights, minlength=len(self.estimates.D)).astype(float)


@numba.njit(cache=True, nogil=True)
def any_column_open(D, E, L, epsilon):  # type: ignore[no-untyped-def]
    """Whether a column is open, as :meth:`Run.open_columns` has it."""
    found = False
    for j in range(len(D)):
        found |= D[j] <= L and E[j] > epsilon
    return found


RunObserver = Callable[[ExplorationRun], bool | None]
"""Called after every rollout; False ends the run, with everything learnt so far."""


def record_rollout(run: ExplorationRun, outcome: RolloutOutcome) -> None:
    """Take down what a rollout did."""
    run.steps += outcome.steps
    run.episode_goals += outcome.goals
    run.episode_reached += outcome.reached
    run.goal_attempts.add_episodes(outcome.goals, outcome.reached)
    if not run.trace or run.steps >= 1.02 * run.trace[-1][0]:
        still = run.open_columns()
        largest = float(run.estimates.E[still].max(initial=0.0))
        run.trace.append((run.steps, len(run.episode_goals), largest, int(still.sum())))
        if run.bounds_history.is_snapshot_due(run.steps):
            run.bounds_history.take_snapshot(run.steps, len(run.episode_goals), run.estimates)
