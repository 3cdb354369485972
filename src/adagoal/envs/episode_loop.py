"""What an episode is: one definition, executed in two ways.

:func:`play_episodes` is the loop of goal-conditioned exploration. As a Python function it plays any world that can
step, reset and say where nothing but a reset is allowed (:class:`EpisodeEnv`); :data:`play_episodes_compiled` is the
same function compiled, for the arrays of a known model, which counts what is seen (:class:`CountingModel`) or notes it
(:class:`LoggingModel`). A new kind of world brings those operations and never writes the loop again.

Actions come from a table, or from lower bounds that are backed up at every state on the way
(:mod:`adagoal.core.local_backup`); the latter asks a world for its counts as they are at this moment.

An episode begins with the draw of a goal column in proportion to its weight. It ends when its goal is reached or after
``limit`` steps, and then the agent goes back to the start with a reset, which is a step. The loop returns to its caller
when a limit is met, when a pair has been tried often enough for a new plan, when a state is new and the plan is
curious (one of its columns stands for all goals without one), or when the world failed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
from numba.extending import overload, register_jitable

from adagoal.core.environment import OTHER_GOALS, ExplorationPlan, RolloutOutcome
from adagoal.core.local_backup import LocalLowerBounds, backup_state
from adagoal.core.transition_data import COUNTING_LOOP_OPTIONS, TransitionCounts, count_transition
from adagoal.core.types import Actions, Bools, Floats, Ints, Longs

MAX_EPISODES_PER_CALL = 4096
"""Episodes of one call, at most."""
STEP_FAILED = -1
"""The state after a step that did not take place."""
NO_EVENT, REPLAN_DUE, NEW_STATE = 0, 1, 2
"""What a move brought: nothing special, a pair's last try of the plan, or a state seen for the first time."""


POSITION_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 3,
    "maxItems": 3,
    "items": {"type": "integer", "minimum": -1, "maximum": 2**62},
}
"""What a checkpoint holds of an agent's place: state, goal column (-1: none), steps of the episode."""


class EpisodePlan(NamedTuple):
    """A plan as the loop reads it: arrays, or what indexes like them."""

    policy: Any
    """[T, S, columns] actions, or a Local"""
    stages: int
    n_planned_states: int
    """T and S: states from S on are newer than the plan"""
    goal_state: Any
    """[columns]"""
    at: Any
    """[S, W] the goals of every state"""
    goals_per_state: int
    """W"""
    weights: Any
    """[columns] cumulative weights of the columns"""
    limit: int
    stop_at_new_state: bool
    n_actions: int
    start: int


class EpisodeEnv(Protocol):
    """A world in Python, as :func:`play_episodes` uses it. Resets and moves count what happens."""

    def must_reset(self, state: int) -> bool:
        """Whether nothing but a reset is allowed."""
        ...

    def reset_from(self, state: int) -> int:
        """Reset, taken in ``state``: the state after it, or FAILED."""
        ...

    def take_action(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        """Take an action: the state after it, or FAILED, and what it brought. One that the state lacks is the reset."""
        ...

    def backup_and_choose(self, local: LocalLowerBounds, state: int, column: int) -> int:
        """Raise the bounds of a column at a state, with what is counted so far; returns the greedy action."""
        ...


def make_episode_plan(plan: ExplorationPlan, weights: Floats, n_actions: int, start: int) -> EpisodePlan:
    """The plan for the compiled loop."""
    if isinstance(
        plan.policy, LocalLowerBounds
    ):  # a new state may belong to the goals of any column: come back before a backup
        stages, rows, curious = 1, plan.policy.V.shape[1], True
    else:
        stages, rows, curious = *plan.policy.shape[:2], bool(plan.goal_state.min() == -1)
    at = np.arange(rows)[:, None] if plan.goals_of_states is None else plan.goals_of_states
    goals = plan.goal_state, at, at.shape[1]
    return EpisodePlan(
        plan.policy, stages, rows, *goals, np.cumsum(weights), plan.max_episode_steps, curious, n_actions, start
    )


def restrict_to_columns(
    plan: ExplorationPlan,
    weights: Floats,
    columns: Longs,
    policy: Actions | LocalLowerBounds,
    n_actions: int,
    start: int,
) -> EpisodePlan:
    """The plan for some of its columns, with a policy of theirs."""
    whole = make_episode_plan(plan, weights, n_actions, start)
    return whole._replace(policy=policy, goal_state=plan.goal_state[columns], weights=np.cumsum(weights[columns]))


def to_python_plan(given: EpisodePlan) -> EpisodePlan:
    """The same for the loop in Python, where lists and memory views are read faster than arrays."""
    return given._replace(
        policy=given.policy if isinstance(given.policy, LocalLowerBounds) else memoryview(given.policy),
        at=memoryview(given.at),
        goal_state=given.goal_state.tolist(),
        weights=given.weights.tolist(),
    )


def make_outcome(steps: int, ended: int, log: Longs) -> RolloutOutcome:
    """What the loop did, from what it returns and its log."""
    return RolloutOutcome(int(steps), log[:ended, 0].tolist(), (log[:ended, 1] > 0).tolist())


# --- the definition -------------------------------------------------------------------------------------------------


def play_episodes(world: Any, plan: EpisodePlan, place: Any, rng: Any, max_steps: int, log: Longs) -> tuple[int, int]:
    """Play episodes from ``place`` on; returns the steps taken and the episodes that ended, which stand in ``log``.

    ``place`` [3] is the state, the goal column aimed at (-1: none) and the steps of the episode; it is left where the
    agent stands. ``log`` [n, 2] takes the goal of every episode and whether it was reached.
    """
    state, aim, clock = place[0], place[1], place[2]
    steps, ended = 0, 0
    if aim >= 0 and plan.weights[aim] <= (plan.weights[aim - 1] if aim > 0 else 0.0):
        aim = -1  # the goal lost its weight: choose another one, from here
    while steps < max_steps:
        if aim < 0:
            aim = sample_column(plan.weights, next_uniform(rng) * plan.weights[-1])
            clock = 0
        goal = plan.goal_state[aim]
        reached = is_goal_reached(plan, state, goal)
        if reached or clock >= plan.limit:
            landed = plan.start if state == plan.start else reset_from(world, state)
            if landed == STEP_FAILED:
                break
            steps += state != plan.start
            log[ended, 0] = goal
            log[ended, 1] = reached
            ended += 1
            aim = -1
            state = landed
            if ended == len(log) or state >= plan.n_planned_states:
                break
            continue
        action = plan.n_actions if must_reset(world, state) else choose_action(world, plan, state, aim, clock)
        if action == plan.n_actions:
            landed, news = reset_from(world, state), NO_EVENT
        else:
            landed, news = take_action(world, state, action, rng)
        if landed == STEP_FAILED:
            break
        state = landed
        steps += 1
        clock += 1
        if news == NEW_STATE and goal == -1:
            log[ended, 0], log[ended, 1] = -1, 1
            ended += 1
            aim = -1
        if news == REPLAN_DUE or (news == NEW_STATE and plan.stop_at_new_state) or state >= plan.n_planned_states:
            break
    place[0], place[1], place[2] = state, aim, clock
    return steps, ended


@register_jitable
def is_goal_reached(plan: EpisodePlan, state: int, goal: int) -> bool:
    """Whether the state belongs to the goal; a negative one stands for all goals without a column."""
    wanted = goal if goal >= 0 else OTHER_GOALS
    found = False
    for k in range(plan.goals_per_state):
        found |= plan.at[state, k] == wanted
    return found


# --- executed in Python: by a Stage ---------------------------------------------------------------------------------


def next_uniform(rng: Any) -> float:
    """The next number in [0, 1): of a generator, or, compiled, of :class:`UniformBuffer`."""
    return float(rng.random())


def sample_column(weights: Any, u: float) -> int:
    """The column whose share of the cumulative weights holds u."""
    return min(bisect_right(weights, u), len(weights) - 1)


def must_reset(world: EpisodeEnv, state: int) -> bool:
    """See :class:`EpisodeEnv`."""
    return world.must_reset(state)


def reset_from(world: EpisodeEnv, state: int) -> int:
    """See :class:`EpisodeEnv`."""
    return world.reset_from(state)


def take_action(world: EpisodeEnv, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
    """See :class:`EpisodeEnv`."""
    return world.take_action(state, action, rng)


def choose_action(world: EpisodeEnv, plan: EpisodePlan, state: int, aim: int, clock: int) -> int:
    """The action of the table, or the one that a local backup finds."""
    if isinstance(plan.policy, LocalLowerBounds):
        return world.backup_and_choose(plan.policy, state, aim)
    return int(plan.policy[clock if plan.stages > 1 else 0, state, aim])


# --- executed compiled: on the arrays of a known model --------------------------------------------------------------


class CountingModel(NamedTuple):
    """A known model, and the counts of what is seen of it."""

    indptr: Longs
    successors: Ints
    cumulative: Floats
    """[nnz] cumulative probabilities inside each row, infinite at its end"""
    terminal: Bools
    start: int
    threshold: Longs
    """[X] the tries of each pair that ask for a new plan"""
    seen_successor: Ints
    counted: Longs
    recent: Longs
    support: Ints
    n: Longs
    settled: Longs
    visits: Longs
    seen: Bools
    absent: Bools

    @staticmethod
    def from_counts(mdp: Any, cumulative: Floats, threshold: Longs, c: TransitionCounts) -> CountingModel:
        """The arrays of a model and of counts with room for all its successors."""
        model = mdp.indptr, mdp.successors, cumulative, mdp.terminal, mdp.start, threshold
        return CountingModel(
            *model, c.successor, c.count, c.recent, c.support, c.n, c.settled, c.visits, c.seen, c.absent
        )


class LoggingModel(NamedTuple):
    """A known model, counts that stay as they are, and the moves made meanwhile."""

    indptr: Longs
    successors: Ints
    cumulative: Floats
    """As in :class:`CountingModel`"""
    terminal: Bools
    start: int
    seen_successor: Ints
    counted: Longs
    support: Ints
    n: Longs
    seen: Bools
    absent: Bools
    moves: Longs
    """[N] the pair s * A + a of every step, or -1 - s for a reset in s"""
    landed: Longs
    """[N] the states after them"""
    taken: Longs
    """[1] how many there are"""

    @staticmethod
    def from_counts(
        mdp: Any, cumulative: Floats, c: TransitionCounts, moves: Longs, landed: Longs, taken: Longs
    ) -> LoggingModel:
        """The arrays of a model and of counts, and where to note moves."""
        model = mdp.indptr, mdp.successors, cumulative, mdp.terminal, mdp.start
        return LoggingModel(*model, c.successor, c.count, c.support, c.n, c.seen, c.absent, moves, landed, taken)


class UniformBuffer(NamedTuple):
    """What a generator has drawn beforehand: to hand a generator over takes longer than a hundred steps."""

    values: Floats
    """[N] numbers in [0, 1)"""
    used: Longs
    """[1] how many of them were used"""

    def refill_used(self, rng: np.random.Generator) -> None:
        """Draw as many as were used, behind those that were not."""
        left = len(self.values) - self.used[0]
        self.values[:left] = self.values[self.used[0] :]
        rng.random(out=self.values[left:])
        self.used[0] = 0


@overload(next_uniform, inline="always")
def _compiled_next_uniform(rng):  # type: ignore[no-untyped-def]
    def following(rng):  # type: ignore[no-untyped-def]
        rng.used[0] += 1
        return rng.values[rng.used[0] - 1]

    return following if isinstance(rng, numba.types.BaseNamedTuple) else lambda rng: rng.random()


@overload(sample_column, inline="always")
def _compiled_sample_column(weights, u):  # type: ignore[no-untyped-def]
    return lambda weights, u: min(np.searchsorted(weights, u, side="right"), len(weights) - 1)


@overload(must_reset, inline="always")
def _compiled_must_reset(world, state):  # type: ignore[no-untyped-def]
    return lambda world, state: world.terminal[state]


@overload(choose_action, inline="always")
def _compiled_choose_action(world, plan, state, aim, clock):  # type: ignore[no-untyped-def]
    if isinstance(plan.types[plan.fields.index("policy")], numba.types.Array):
        return lambda world, plan, state, aim, clock: plan.policy[clock if plan.stages > 1 else 0, state, aim]
    return lambda world, plan, state, aim, clock: backup_state(
        state, aim, plan.policy, world.seen_successor, world.counted, world.support, world.n
    )


@overload(reset_from, inline="always")
def _compiled_reset_from(world, state):  # type: ignore[no-untyped-def]
    def reset(world, state):  # type: ignore[no-untyped-def]
        world.visits[state] += 1
        return world.start

    def noted(world, state):  # type: ignore[no-untyped-def]
        return log_transition(world, -1 - state, world.start)

    return noted if "moves" in world.fields else reset


@overload(take_action, inline="always")
def _compiled_take_action(world, state, action, rng):  # type: ignore[no-untyped-def]
    def step(world, state, action, rng):  # type: ignore[no-untyped-def]
        world.visits[state] += 1
        pair = state * (world.n.shape[0] // world.visits.shape[0]) + action
        if world.absent[pair]:
            return np.int64(world.start), NO_EVENT
        landed = sample_successor(world, pair, next_uniform(rng))
        count_transition(
            pair,
            landed,
            world.seen_successor,
            world.counted,
            world.recent,
            world.support,
            world.n,
            world.settled,
        )
        if not world.seen[landed]:
            world.seen[landed] = True
            return landed, NEW_STATE
        return landed, REPLAN_DUE if world.n[pair] >= world.threshold[pair] else NO_EVENT

    def noted(world, state, action, rng):  # type: ignore[no-untyped-def]
        pair = state * (world.n.shape[0] // world.seen.shape[0]) + action
        if world.absent[pair]:
            return np.int64(log_transition(world, -1 - state, world.start)), NO_EVENT
        landed = log_transition(world, pair, sample_successor(world, pair, next_uniform(rng)))
        return landed, NO_EVENT if world.seen[landed] else NEW_STATE

    return noted if "moves" in world.fields else step


@register_jitable
def sample_successor(world: CountingModel | LoggingModel, pair: int, u: float) -> int:
    """The successor of a pair that the number u in [0, 1) stands for."""
    k = world.indptr[pair]
    while world.cumulative[k] <= u:
        k += 1
    return np.int64(world.successors[k])  # type: ignore[return-value]


@register_jitable
def log_transition(world: LoggingModel, move: int, landed: int) -> int:
    """Take down a step; the state after it."""
    world.moves[world.taken[0]], world.landed[world.taken[0]] = move, landed
    world.taken[0] += 1
    return landed


play_episodes_compiled = numba.njit(**COUNTING_LOOP_OPTIONS)(play_episodes)
"""The same definition, compiled."""
