"""One exploration in progress: protocols of its estimates, its state, history of bounds, and successes per goal.

A method provides *estimates* (:class:`GoalEstimates`): a distance D and an error E per goal, computed from transition
counts. :class:`ExplorationRun` joins them with an environment and a goal rule. The loops that drive it are in loop.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Protocol

import numpy as np
from numba.core import event
from numpy.typing import NDArray

from adagoal import goal_rules
from adagoal.core.array_types import Actions, Bools, Floats, Longs
from adagoal.core.compiled_code import compiled
from adagoal.core.environment import ExplorationPlan, RolloutOutcome, TabularEnv
from adagoal.core.errors import InputError, Status
from adagoal.core.file_formats import (
    COUNT_SCHEMA,
    ArraySchema,
    ArraySpec,
    check_arrays,
    check_json_value,
    object_schema,
)
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.goal_rules import GoalInfo, GoalRule


class GoalStanding(IntEnum):
    """How a goal stood in a snapshot; the report's script knows these numbers."""

    UNSEEN = 0
    OPEN = 1  # error above epsilon
    DONE = 2  # error at most epsilon
    BEYOND = 3  # D beyond the radius


class GoalEstimates(Protocol):
    """The answer of a method so far, and its checkpoints. Goals with equal estimates may share a column."""

    name: str
    guarantee: bool
    counts: TransitionCounts
    L: float
    epsilon: float
    column: Longs  # [N]: the column of every goal
    goal_state: Longs  # [columns]: the goal of a column (a state, or the number of a set), -1 for all unseen goals
    plans: int

    @property
    def goals(self) -> Longs:
        """The goal space [G]."""

    @property
    def D(self) -> Floats:
        """Optimistic distances [columns], at most L for the goals of the answer."""

    @property
    def E(self) -> Floats:
        """Errors [columns]."""

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """Lower bound on the optimal expected steps from s0 to the goal, and upper bound on those of its policy."""

    def goal_policy(self, goal: int) -> Actions:
        """Return the policy [T, S] for the goal."""

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """Return arrays of this method that belong to the result, for instance the weights of a mixture."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON facts from which :meth:`restore` continues bit for bit."""

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`; the counts are restored before."""


class PlanningEstimates(GoalEstimates, Protocol):
    """Estimates for :func:`adagoal.loop.run_exploration`, with one exploration policy per column.

    ``D`` and ``E`` may be out of date for columns that the goal rule did not want, but they stay valid: D is never
    above the optimal distance, E never below the remaining error.
    """

    def refresh_columns(self, wanted: Bools) -> bool:
        """Update some of the wanted columns; return False if all were up to date. Call it until it returns False."""

    def exploration_plan(self) -> ExplorationPlan:
        """Return the policies to explore with."""


class SupportsRadiusCurriculum(PlanningEstimates, Protocol):
    """Estimates whose radius can grow in a curriculum (label ``cor_UB_increasingL``)."""

    def set_radius(self, L: float, stage: int) -> None:
        """Continue with a larger radius, as stage 1, 2, ... of the curriculum."""


class SupportsFinalize(PlanningEstimates, Protocol):
    """Estimates that postpone some updates to the end of the run."""

    def finalize(self, wanted: Bools) -> None:
        """Update the wanted columns for a final result, with bounded work. The run cannot continue afterwards."""


class SavedEstimates:
    """Base class of estimates whose checkpoint consists of the attributes that the two schemas name."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {}
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {"plans": COUNT_SCHEMA}
    plans: int

    def _axis_sizes(self) -> dict[str, int]:
        """Sizes of the axes that ``ARRAY_SCHEMA`` names."""
        raise NotImplementedError

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        """Raise a ``ValueError`` if a checkpoint contradicts itself or the counts; types and ranges are checked."""

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """Return no arrays beside the standard ones."""
        return {}

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the attributes that the schemas name."""
        arrays = {name: getattr(self, name) for name in self.ARRAY_SCHEMA}
        return arrays, {name: getattr(self, name) for name in self.FACTS_SCHEMA}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Check a saved :meth:`state`, then set the attributes."""
        check_json_value(object_schema(**self.FACTS_SCHEMA), facts)
        sizes = check_arrays(self.ARRAY_SCHEMA, arrays, self._axis_sizes())
        self._check_saved(arrays, facts, sizes)
        for name in self.ARRAY_SCHEMA:
            setattr(self, name, np.array(arrays[name]))
        for name in self.FACTS_SCHEMA:
            setattr(self, name, facts[name])


class EstimatesPerGoal(SavedEstimates):
    """Base class of estimates with one column for every goal, seen or not."""

    def __init__(self, counts: TransitionCounts, L: float, epsilon: float, space: GoalSpace | None) -> None:
        self.counts, self.L, self.epsilon = counts, L, epsilon
        self.space = space or GoalSpace.from_states(counts.n_states, counts.n_states)
        self.goals = self.goal_state = self.space.goal_numbers
        self.column = np.full(self.space.n_goal_numbers, -1)
        self.column[self.goals] = np.arange(len(self.goals))
        self.plans = 0

    def _axis_sizes(self) -> dict[str, int]:
        return {"S": self.counts.n_states, "A": self.counts.n_actions, "G": len(self.goals)}


class BoundsHistory:
    """Snapshots of the bounds of all goals, for the report; later snapshots may have more goals and states.

    A snapshot is due whenever the steps have grown by a quarter, so a run of any length has a few dozen. It also keeps
    the policies of its finite upper bounds, in the order of ``past_upper``, as long as they are stationary and all
    together have at most ``max_policy_entries`` entries.
    """

    max_policy_entries = 1_000_000  # 2 MB of a checkpoint; the report draws the policies of larger runs at the end only
    # F snapshots of P goals. Single precision is enough, because they are only drawn.
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "past_steps": ArraySpec("int64", ("F",), low=0, increasing=True),
        "past_episodes": ArraySpec("int64", ("F",), low=0),
        "past_goals": ArraySpec("int64", ("P",), low=0, increasing=True),
        "past_lower": ArraySpec("float32", ("F", "P"), low=0, finite=False),
        "past_upper": ArraySpec("float32", ("F", "P"), low=0, finite=False),
        "past_stand": ArraySpec("int8", ("F", "P"), low=min(GoalStanding), high=max(GoalStanding)),
        "past_policy": ArraySpec("int16", ("R", "S"), low=0, high="A", optional=True),
    }

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.episodes: list[int] = []
        self.goals: Longs = np.zeros(0, np.int64)
        self._snapshot_rows: dict[str, list[NDArray[Any]]] = {"past_lower": [], "past_upper": [], "past_stand": []}
        self._policies: list[Actions] | None = []  # [1, S] each; None: too many, or not stationary

    def is_snapshot_due(self, steps: int) -> bool:
        """Return whether the steps have grown by a quarter since the last snapshot."""
        return not self.steps or (steps > self.steps[-1] and steps >= 1.25 * self.steps[-1])

    def take_snapshot(self, steps: int, episodes: int, estimates: GoalEstimates) -> None:
        """Record the bounds and the standing of every goal."""
        self.goals = np.array(estimates.goals, np.int64)
        columns = estimates.column[self.goals]
        D, E, seen = estimates.D[columns], estimates.E[columns], estimates.goal_state[columns] >= 0
        bounds = np.tile(np.array([[0.0], [np.inf]]), len(self.goals))
        for i in np.flatnonzero(seen):
            bounds[:, i] = estimates.distance_bounds(int(self.goals[i]))
        within = np.where(estimates.epsilon < E, GoalStanding.OPEN, GoalStanding.DONE)
        standing = np.where(estimates.L >= D, within, GoalStanding.BEYOND)
        self.steps.append(steps)
        self.episodes.append(episodes)
        rows = *bounds, np.where(seen, standing, GoalStanding.UNSEEN)
        for name, row in zip(self._snapshot_rows, rows, strict=True):
            self._snapshot_rows[name].append(row.astype(self.ARRAY_SCHEMA[name].dtype))
        self._add_policies([int(goal) for goal in self.goals[np.isfinite(bounds[1])]], estimates)

    def _add_policies(self, goals: list[int], estimates: GoalEstimates) -> None:
        if self._policies is None or not goals:
            return
        # Only of goals with an upper bound: methods without bounds plan the policies of their answer when asked.
        n_policies, n_states = len(self._policies) + len(goals), estimates.counts.n_states
        new = [] if n_policies * n_states > self.max_policy_entries else [estimates.goal_policy(goal) for goal in goals]
        is_kept = new and all(len(policy) == 1 for policy in new)
        self._policies = self._policies + new if is_kept else None

    def to_arrays(self, counts: TransitionCounts) -> dict[str, NDArray[Any]]:
        """Return the arrays of ``ARRAY_SCHEMA``; ``counts`` are those of the run."""
        # Goals are numbered in the order of discovery, so an early row is the beginning of a later one.
        tables, unseen = {}, (0.0, np.inf, GoalStanding.UNSEEN)
        for (name, rows), value in zip(self._snapshot_rows.items(), unseen, strict=True):
            tables[name] = np.full((len(rows), len(self.goals)), value, self.ARRAY_SCHEMA[name].dtype)
            for table_row, row in zip(tables[name], rows, strict=True):
                table_row[: len(row)] = row
        times = {"past_steps": np.array(self.steps, np.int64), "past_episodes": np.array(self.episodes, np.int64)}
        arrays = {**times, "past_goals": self.goals, **tables}
        if self._policies is not None:
            # In states that were found later, the policy of the time resets.
            arrays["past_policy"] = np.full((len(self._policies), counts.n_states), counts.n_actions, np.int16)
            for table_row, policy in zip(arrays["past_policy"], self._policies, strict=True):
                table_row[: policy.shape[1]] = policy[0]
        return arrays

    @staticmethod
    def from_arrays(arrays: dict[str, NDArray[Any]]) -> BoundsHistory:
        """Return the history that arrays of the schema describe; raise ``ValueError`` if policies are missing."""
        history = BoundsHistory()
        history.steps, history.episodes = arrays["past_steps"].tolist(), arrays["past_episodes"].tolist()
        history.goals = np.array(arrays["past_goals"])
        history._snapshot_rows = {name: list(np.array(arrays[name])) for name in history._snapshot_rows}
        history._policies = list(np.array(arrays["past_policy"])[:, None]) if "past_policy" in arrays else None
        if history._policies is not None and len(history._policies) != np.isfinite(arrays["past_upper"]).sum():
            raise ValueError("the policies of the past are not those of its upper bounds")
        return history


class GoalAttempts:
    """Episodes and successes per goal, with a fast and a slow moving average of success."""

    ARRAY_NAMES = ("total", "reached", "recent", "previous")

    def __init__(self, n_states: int) -> None:
        self.total, self.reached, self.recent, self.previous = np.zeros((4, n_states))

    def add_episodes(self, goals: list[int], reached: list[bool]) -> None:
        """Add episodes in order; those with the goal -1 ("any unseen state") are not attempts at a goal."""
        if goals:
            self._grow_arrays(max(goals))
            arrays = [getattr(self, name) for name in self.ARRAY_NAMES]
            update_attempt_arrays(np.array(goals), np.array(reached, float), *arrays)

    def arrays_of_goals(self, goals: Longs, needs: frozenset[str]) -> tuple[Floats, ...]:
        """Attempts, successes, recent and previous rate of the goals; zeros for fields that the rule does not need."""
        self._grow_arrays(int(goals.max(initial=-1)))
        optional = {"successes": self.reached, "recent": self.recent, "previous": self.previous}
        zeros = np.zeros(len(goals))
        return self.total[goals], *(array[goals] if name in needs else zeros for name, array in optional.items())

    def _grow_arrays(self, goal: int) -> None:
        if goal >= len(self.total):
            # By at least its own length, so discovering goals one by one does not copy the arrays each time.
            for name in self.ARRAY_NAMES:
                setattr(self, name, np.pad(getattr(self, name), (0, goal + 1)))


@compiled
def update_attempt_arrays(goals, success, total, reached, recent, previous):  # type: ignore[no-untyped-def]
    """Add episodes with ``goals`` and ``success`` [episodes] to the arrays of :class:`GoalAttempts`, in place."""
    recent_rate, previous_rate = 0.2, 0.05
    for i in range(len(goals)):
        g = goals[i]
        if g >= 0:
            total[g] += 1.0
            reached[g] += success[i]
            recent[g] += recent_rate * (success[i] - recent[g])
            previous[g] += previous_rate * (success[i] - previous[g])


# Numba reports compilation here. It is registered once, because one listener per rollout cost 1% of a small run.
_compiler_timer = event.TimingListener()  # type: ignore[no-untyped-call]
event.register("numba:compiler_lock", _compiler_timer)  # type: ignore[no-untyped-call]


def _seconds_without_compilation() -> float:
    compiled = _compiler_timer.duration if _compiler_timer.done else 0.0
    return time.perf_counter() - float(compiled)


@dataclass
class ExplorationRun:
    """One exploration in progress: everything that the loop reads and changes."""

    env: TabularEnv
    estimates: GoalEstimates
    goal_rule: GoalRule
    rng: np.random.Generator
    steps: int = 0
    seconds: float = 0.0  # wall time of goal selection, planning and stepping, without observers, saves, compilation
    episode_goals: list[int] = field(default_factory=list)  # goal of every episode; -1 for "any unseen state"
    episode_reached: list[bool] = field(default_factory=list)
    # (steps, episodes, largest error of an open goal, open goals), whenever the steps have grown by 2%.
    trace: list[tuple[int, int, float, int]] = field(default_factory=list)
    bounds_history: BoundsHistory = field(default_factory=BoundsHistory)
    goal_attempts: GoalAttempts = field(default_factory=lambda: GoalAttempts(0))
    goal_space: GoalSpace = field(default_factory=lambda: GoalSpace.from_states(0, 0))  # by default all states
    setting: Any = None  # ExplorationSettings, for observers; None in runs without settings

    def __post_init__(self) -> None:
        # These fields of GoalInfo are computed only for rules that declare them: every rollout needs a GoalInfo.
        optional_fields = frozenset({"visits", "successes", "recent", "previous"})
        self._required_fields = goal_rules.required_fields(self.goal_rule, optional_fields)
        if self._required_fields & {"onward_D", "onward_E"}:
            raise InputError("this rule needs a target, which only training has; choose another rule", "goal_rule")
        if self.goal_space.goals_are_states:
            self.goal_space.grow_states(self.counts.n_states)

    @contextlib.contextmanager
    def measure_seconds(self) -> Iterator[None]:
        """Add the duration of the block, without Numba's compilation, to ``seconds``."""
        began = _seconds_without_compilation()
        try:
            yield
        finally:
            self.seconds += _seconds_without_compilation() - began

    @property
    def counts(self) -> TransitionCounts:
        """The transitions observed so far."""
        return self.estimates.counts

    @property
    def status_of_own_rule(self) -> Status:
        """Status of a run that the method's own stopping rule has ended."""
        return Status.CERTIFIED if self.estimates.guarantee else Status.STOPPED

    def has_open_goals(self) -> bool:
        """Return whether a goal is open; the stopping rule (eq. ``stopping_rule``) holds if not."""
        estimates = self.estimates
        return bool(any_column_open(estimates.D, estimates.E, estimates.L, estimates.epsilon))

    def open_columns(self) -> Bools:
        """Columns with D <= L and E > epsilon, as a mask."""
        estimates = self.estimates
        return (estimates.D <= estimates.L) & (estimates.E > estimates.epsilon)

    def goal_info(self) -> GoalInfo:
        """Return the input of the goal rule, one entry per goal of the goal space."""
        estimates, goals = self.estimates, self.estimates.goals
        columns = estimates.column[goals]
        total, reached, recent, previous = self.goal_attempts.arrays_of_goals(goals, self._required_fields)
        visits = np.zeros(len(goals))
        if "visits" in self._required_fields:
            visits = self.goal_space.visits_of_goals(self.counts.visits, goals)
        # The start belongs to its goal already, and an episode of no steps would teach nothing.
        eligible = ~self.goal_space.contains_state(self.env.start, goals)
        D, E = estimates.D[columns], estimates.E[columns]
        is_open = (D <= estimates.L) & (E > estimates.epsilon)
        # Unless no other goal is open: then the reset is what has to be learnt (docs/probabilities.md).
        if not (is_open & eligible).any() and is_open.any():
            eligible = is_open
        return GoalInfo(
            D=D,
            E=E,
            L=estimates.L,
            eligible=eligible,
            visits=visits,
            attempts=total,
            successes=reached,
            recent=recent,
            previous=previous,
        )

    def column_weights(self) -> Floats:
        """Weights of the goal rule [columns], summed over the goals that share a column."""
        weights = goal_rules.compute_weights(self.goal_rule, self.goal_info())
        columns = self.estimates.column[self.estimates.goals]
        return np.bincount(columns, weights, minlength=len(self.estimates.goal_state)).astype(float)


@compiled
def any_column_open(D, E, L, epsilon):  # type: ignore[no-untyped-def]
    """Return whether :meth:`ExplorationRun.open_columns` has one; without temporary arrays, as every rollout asks."""
    is_open = False
    for j in range(len(D)):
        is_open |= D[j] <= L and E[j] > epsilon
    return is_open


# Called after every rollout; returning False ends the run, with everything learnt so far.
RunObserver = Callable[[ExplorationRun], bool | None]


def record_rollout(run: ExplorationRun, outcome: RolloutOutcome) -> None:
    """Add the steps and episodes of a rollout to the run, its trace and its history."""
    run.steps += outcome.steps
    run.episode_goals += outcome.goals
    run.episode_reached += outcome.reached
    run.goal_attempts.add_episodes(outcome.goals, outcome.reached)
    # Geometric spacing keeps the trace of a run of any length short.
    if not run.trace or run.steps >= 1.02 * run.trace[-1][0]:
        still_open = run.open_columns()
        largest = float(run.estimates.E[still_open].max(initial=0.0))
        run.trace.append((run.steps, len(run.episode_goals), largest, int(still_open.sum())))
        if run.bounds_history.is_snapshot_due(run.steps):
            run.bounds_history.take_snapshot(run.steps, len(run.episode_goals), run.estimates)
