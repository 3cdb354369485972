"""The bounds and policies of every goal: one column per goal, in tables that grow. No decisions.

Goals never seen share column 0, whose goal is to reach any of them: a lower bound on the distance to the nearest is one
for each. So do goals that are seen but more than L + epsilon transitions away from the start: they lie beyond the
radius for sure. When a shorter way to a goal is found, it gets its own column, a copy of column 0
(docs/theory-more.md, the shared column).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Actions, Bools, Floats, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.environment import NO_LIMIT, OTHER_GOALS
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.planning.model_arrays import GoalBlock

# Hops to a state without a known path: larger than any number of hops, and one more does not overflow.
NO_KNOWN_PATH = 2**62


class GoalTable:
    """Bounds and policies of every goal: tables [S, columns] and rows [columns]."""

    # Values reserved for a table, 1 GiB of float64: memory is free until it is written, and reserving saves copies.
    reserved_values = 2**27
    TABLE_NAMES = ("V", "Y", "optimistic", "probing", "best", "returned")
    ROW_NAMES = ("goal_state", "D", "upper", "gap", "stale", "polished")

    # Arrays of a checkpoint. R states and N goals may be fewer than now: some were found since the last plan.
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **dict.fromkeys(("V", "Y"), ArraySpec("float64", ("R", "C"), low=0, finite=False)),
        **dict.fromkeys(("optimistic", "best", "returned"), ArraySpec("int16", ("R", "C"), low=0, high="A")),
        "probing": ArraySpec("int16", ("R", "C"), low=-1, high="A"),
        "goal_state": ArraySpec("int64", ("C",), low=-1, below="N"),
        **dict.fromkeys(("D", "upper", "gap"), ArraySpec("float64", ("C",), low=0, finite=False)),
        "stale": ArraySpec("bool", ("C",)),
        "polished": ArraySpec("float64", ("C",), low=0),
        "column": ArraySpec("int64", ("N",), low=0, below="C"),
    }

    def __init__(
        self, counts: TransitionCounts, L: float, epsilon: float, space: GoalSpace, upper_start_factor: float = 1.25
    ) -> None:
        """Upper bounds start at ``upper_start_factor`` times the cap C."""
        states, actions = counts.n_states, counts.n_actions
        self.counts, self.space, self.upper_start_factor = counts, space, upper_start_factor
        self.L, self.epsilon, self.cap = L, epsilon, L + 1.0 + epsilon
        self.plans = 0
        self.seen_states = np.flatnonzero(counts.seen)
        self._column_capacity = 1
        self._n_known_transitions = -1  # distinct transitions when columns were last added
        self._hop_counts = np.zeros(0, np.int64)  # [S] fewest observed transitions from the start
        self._known_support = np.zeros(0, np.int64)  # [X] the support that _hop_counts has taken in
        # Tables and rows with room for more columns. Columns are contiguous, because a backup reads only one.
        self._wide_arrays: dict[str, NDArray[Any]] = {}
        self.column = np.zeros(space.n_goal_numbers, np.int64)  # [N] of every goal; 0: never seen, or only far away
        self.goals = self._goals_with_columns()  # [G] the goal space
        self.V = np.zeros((states, 1))  # [S, columns] lower bounds
        self.Y = np.full((states, 1), upper_start_factor * self.cap)  # [S, columns] upper bounds
        self.optimistic = np.zeros((states, 1), np.int16)  # [S, columns] greedy for V: what exploration plays
        self.probing = np.full((states, 1), -1, np.int16)  # [S, columns] actions that probe action gaps, -1: none
        self.best = np.full((states, 1), actions, np.int16)  # [S, columns] the policy of Y
        self.returned = self.best.copy()  # [S, columns] the recorded policy, which ``upper`` and ``gap`` bound
        self.goal_state = np.full(1, -1)  # [columns] the goal of every column, -1 for column 0
        self.D = np.zeros(1)  # [columns] lower bounds on V*(s0)
        self.upper = np.full(1, np.inf)  # [columns] upper bounds on the value of the recorded policy at s0
        self.gap = np.full(1, np.inf)  # [columns] upper bounds on its sub-optimality at s0
        self.stale = np.ones(1, bool)  # [columns] not planned with the latest counts
        self.polished = np.zeros(1)  # [columns] step count at the last plan with exact duals

    @property
    def E(self) -> Floats:
        """[columns] error estimates: what every goal lacks for the definition ``def_MGE``, at least 0."""
        errors: Floats = goal_errors(self.D, self.upper, self.gap, self.L, self.cap)
        return errors

    @property
    def max_episode_steps(self) -> int:
        """The length of an episode of exploration that ends without success."""
        return math.ceil(min(4 * self.cap * (self.L + 1) / self.epsilon, NO_LIMIT))

    def grow(self) -> None:
        """Add the states and goals that were found since the last call, and take in what the agent raised."""
        self._add_rows()
        self._add_near_goals()
        self.seen_states = np.flatnonzero(self.counts.seen)
        np.maximum(self.D, self.V[self.counts.start], out=self.D)

    def _add_rows(self) -> None:
        """Add rows for new states and numbers for new goals."""
        states, actions = self.counts.n_states, self.counts.n_actions
        self.space.grow_states(states)
        if self.space.n_goal_numbers != len(self.column):
            self.column = np.pad(self.column, (0, self.space.n_goal_numbers - len(self.column)))
            self.goals = self._goals_with_columns()
        if states == len(self.V):
            return
        top = self.upper_start_factor * self.cap
        fill = {"V": 0.0, "Y": top, "optimistic": 0, "probing": -1, "best": actions, "returned": actions}
        for name, value in fill.items():
            array = getattr(self, name)
            wide = np.pad(array, [(0, states - len(array)), (0, 0)], constant_values=value)
            setattr(self, name, np.asfortranarray(wide))
        self._wide_arrays.clear()
        # The reserve is a number of values, so more rows mean fewer columns.
        self._column_capacity = len(self.D)

    def _goals_with_columns(self) -> Longs:
        """Return the goals that ``column`` has; the goal space may have more, found since the table last grew."""
        return np.flatnonzero(np.isin(np.arange(len(self.column)), self.space.goal_numbers))

    def _add_near_goals(self) -> None:
        """Give goals their own column if a short enough path to one of their states was found."""
        edges = int(self.counts.support.sum())
        if edges == self._n_known_transitions:
            return
        self._n_known_transitions = edges
        counts, new = self.counts, self.counts.n_states - len(self._hop_counts)
        if new:
            self._hop_counts = np.pad(self._hop_counts, (0, new), constant_values=NO_KNOWN_PATH)
            self._known_support = np.pad(self._known_support, (0, new * counts.n_actions))
        shorten_hop_counts(self._hop_counts, self._known_support, counts.start, counts.successor, counts.support)
        near = self._hop_counts <= self.cap - 1
        # The last entry takes the index -1 of states without a goal.
        nearby = np.zeros(len(self.column) + 1, bool)
        nearby[self.space.goals_of_states[: self.counts.n_states][near]] = True
        known = len(self.D)
        for goal in np.flatnonzero(nearby[:-1] & (self.column == 0)):
            self._add_column(int(goal))
        if len(self.D) > known:
            self.zero_at_goals(np.arange(known, len(self.D)))

    def widen_radius(self, L: float, unfinished: Bools) -> None:
        """Continue with a larger radius: upper bounds of ``unfinished`` [columns] restart at the new height."""
        self.L, self.cap = L, L + 1.0 + self.epsilon
        self.Y[:, unfinished], self.best[:, unfinished] = self.upper_start_factor * self.cap, self.counts.n_actions
        self.zero_at_goals(np.flatnonzero(unfinished))
        self.polished[:] = 0.0
        self.stale[:] = True
        # More goals are near enough for their own column, without any new transition.
        self._n_known_transitions = -1

    def record_policy(self, j: int, value: float, gap: float) -> None:
        """Record the policy of Y for column j, with bounds on its value and gap, if that leaves a smaller error."""
        record_if_better(j, value, gap, self.L, self.D, self.upper, self.gap, self.best.T, self.returned.T)

    def record_sweeps(self, block: Longs, upper_cap: float) -> None:
        """Take the bounds of the start from the tables, after sweeps of these columns that cut Y at ``upper_cap``."""
        given = self.counts.start, self.L, self.cap, upper_cap <= self.cap
        rows = self.D, self.upper, self.gap
        record_sweep_results(block, self.seen_states, *given, self.V.T, self.Y.T, *rows, self.best.T, self.returned.T)

    def goal_block(self, block: Longs, exact: bool, max_sweeps: int, tolerance: float) -> GoalBlock:
        """Return the columns ``block`` as sweeps of lower bounds read them; ``tolerance`` is in epsilons."""
        # Some states of these goals may be new.
        if not self.space.members_complete:
            self.zero_at_goals(block[block > 0])
        position = np.full(len(self.D), -1)
        position[block] = np.arange(len(block))
        # The last entry takes the index -1 of states without a goal.
        own = np.append(position[self.column], -1)[self.space.goals_of_states]
        return GoalBlock(self.seen_states, own, self.cap, exact, max_sweeps, tolerance * self.epsilon)

    def goals_of_states(self) -> Longs:
        """Return [S, W] the goals of every state, OTHER_GOALS for those that share column 0."""
        if len(self.D) > self.space.goal_bound:
            return self.space.goals_of_states
        own = np.append(np.where(self.column > 0, np.arange(len(self.column)), OTHER_GOALS), -1)
        goals: Longs = own[self.space.goals_of_states]
        return goals

    def zero_at_goals(self, columns: Longs) -> None:
        """Set both bounds to zero in the states of these goals."""
        at = self.space.columns_of_states(self.goal_state[columns])
        state, place = np.nonzero(at >= 0)
        column = columns[at[state, place]]
        self.V[state, column] = self.Y[state, column] = 0.0

    def _add_column(self, goal: int) -> None:
        columns = len(self.D)
        if columns == self._column_capacity:
            most = int(min(self.space.goal_bound, self.space.n_goal_numbers)) + 1
            self._column_capacity = min(max(2 * columns, self.reserved_values // len(self.V)), most)
            self._wide_arrays.clear()
        for name in (*self.TABLE_NAMES, *self.ROW_NAMES):
            if name not in self._wide_arrays:
                table = getattr(self, name)
                self._wide_arrays[name] = np.empty((*table.shape[:-1], self._column_capacity), table.dtype, order="F")
                self._wide_arrays[name][..., :columns] = table
        # A copy of column 0 is a bound for each goal that shared it.
        for name, wide in self._wide_arrays.items():
            wide[..., columns] = wide[..., 0]
            setattr(self, name, wide[..., : columns + 1])
        self.column[goal], self.goal_state[-1] = columns, goal
        if goal in self.space.goals_of_states[self.counts.start]:
            self.D[-1] = self.upper[-1] = self.gap[-1] = 0.0
        # No goal is left that shares column 0, so nothing must be played for it.
        if columns == self.space.goal_bound:
            self.D[0] = np.inf

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """Return (lower, upper): at least lower expected steps for any policy, at most upper for the recorded one."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def proven_policy(self, goal: int, table: Actions) -> Actions:
        """Return [1, S] the goal's column of ``table``, the recorded policies; of ``optimistic`` if none is recorded.

        The reset replaces actions that a state does not have, and all actions in states never seen, whose masks are
        unknown.
        """
        j, A = self.column[goal], self.counts.n_actions
        actions = (table if np.isfinite(self.upper[j]) else self.optimistic)[:, j].copy()
        if not np.isfinite(self.upper[j]):
            actions[~self.counts.seen[: len(actions)]] = A
        own = np.flatnonzero(actions < A)
        actions[own[self.counts.absent[own * A + actions[own]]]] = A
        return actions[None]

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """Return no arrays: the result needs none beside the table."""
        return {}

    def table_state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint."""
        return {name: getattr(self, name) for name in (*self.TABLE_NAMES, *self.ROW_NAMES, "column")}

    def restore_table(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Invert :meth:`table_state`, on restored counts."""
        sizes = check_arrays(self.ARRAY_SCHEMA, arrays, {"A": self.counts.n_actions})
        column, goal_state = arrays["column"], arrays["goal_state"]
        shown = np.flatnonzero(column)
        # Compiled loops do not check indices. A forged checkpoint must not make them read outside of the tables.
        self.space.grow_states(self.counts.n_states)
        if not (
            len(self.V) <= sizes["R"] <= self.counts.n_states
            and (len(column) == sizes["R"] if self.space.goals_are_states else len(column) <= self.space.n_goal_numbers)
            and goal_state[0] == -1
            and len(shown) == sizes["C"] - 1
            and np.array_equal(goal_state[column[shown]], shown)
            and np.isin(shown, self.space.goals_of_states[: self.counts.n_states][self.counts.seen]).all()
        ):
            raise ValueError("the columns and the goals do not belong together")
        for name in self.table_state():
            setattr(self, name, np.array(arrays[name], order="F"))
        self.goals = self._goals_with_columns()
        self._column_capacity, self._n_known_transitions = len(self.D), -1
        self._hop_counts, self._known_support = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._wide_arrays.clear()


@compiled
def shorten_hop_counts(hops, known, start, successor, support):  # type: ignore[no-untyped-def]
    """Update hops [S], the fewest observed transitions from the start to each state, after new transitions.

    ``known`` [X] is the support at the last call, and is updated. Only states whose hops fall are visited.
    """
    # The queue is a ring. A state waits in it at most once, so one entry more than states is enough.
    actions, size = len(support) // len(hops), len(hops) + 1
    queue, waiting, first, last = np.empty(size, np.int64), np.zeros(len(hops), np.bool_), 0, 0
    hops[start] = 0
    for x in range(len(support)):
        s = x // actions
        if known[x] != support[x] and not waiting[s]:
            queue[last], waiting[s], last = s, True, last + 1
        known[x] = support[x]
    while first != last:
        s = queue[first]
        first, waiting[s] = (first + 1) % size, False
        for x in range(s * actions, (s + 1) * actions):
            for k in range(support[x]):
                y = successor[x, k]
                if hops[s] + 1 < hops[y]:
                    hops[y] = hops[s] + 1
                    if not waiting[y]:
                        queue[last], waiting[y], last = y, True, (last + 1) % size


@compiled_helper
def goal_error(D, upper, gap, L):  # type: ignore[no-untyped-def]
    """Return what one goal lacks for the definition ``def_MGE``: min(upper - D, gap) or upper - L, the larger one."""
    return max(min(upper - D, gap), upper - L)


@compiled
def goal_errors(D, upper, gap, L, cap):  # type: ignore[no-untyped-def]
    """Return [columns] E: what every goal lacks, at least 0, with upper bounds cut at the cap."""
    E = np.empty(len(D))
    for j in range(len(D)):
        E[j] = max(goal_error(D[j], min(upper[j], cap), gap[j], L), 0.0)
    return E


@compiled
def record_if_better(j, value, bound, L, D, upper, gap, best, returned):  # type: ignore[no-untyped-def]
    """Record the policy of Y, with this value and this gap, if that leaves a smaller error for column j."""
    if goal_error(D[j], value, bound, L) < goal_error(D[j], upper[j], gap[j], L):
        upper[j], gap[j] = value, bound
        for s in range(best.shape[1]):
            returned[j, s] = best[j, s]


@compiled
def record_sweep_results(block, order, start, L, cap, whole, V, Y, D, upper, gap, best, returned):  # type: ignore[no-untyped-def]
    """Write the bounds of the start after a sweep of the columns ``block``; ``whole``: no Y exceeds the cap."""
    for j in block:
        D[j] = max(D[j], V[j, start])
        # Lemma 6 needs a start one below the cap, and lemma 10 a V^pi of at most C everywhere.
        proper = Y[j, start] <= cap - 1.0
        if proper and not whole:
            for s in order:
                proper &= Y[j, s] <= cap
        if proper:
            record_if_better(j, Y[j, start], np.inf, L, D, upper, gap, best, returned)
