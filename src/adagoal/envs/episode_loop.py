"""The loop that plays episodes of a plan: defined once, executed in Python or compiled.

:func:`play_episodes` plays any environment with the operations of :class:`EpisodeEnv`. A new kind of environment
implements these operations and reuses the loop. :data:`play_episodes_compiled` is the same function compiled by Numba;
its operations work on the arrays of a known model and of its counts (:class:`CountingModel`).

An episode starts with a goal column, drawn in proportion to its weight. It ends when the goal is reached or after
``max_episode_steps``. Then the agent resets to the start, and the reset is a step. The loop returns when

* a limit on steps or episodes is reached,
* a pair has been tried often enough for a new plan,
* a state is new, and one column of the plan stands for all goals without a column, or
* the environment failed.

The policy is a table of actions, or lower bounds that a backup raises at every visited state
(:mod:`adagoal.core.operators`). Backups need the counts of this moment.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
from numba.extending import overload, register_jitable

from adagoal.core.array_types import Bools, Floats, Ints, Longs
from adagoal.core.compiled_code import compiled
from adagoal.core.environment import OTHER_GOALS, ExplorationPlan, RolloutOutcome
from adagoal.core.operators import LocalLowerBounds, backup_state
from adagoal.core.transition_data import COUNTING_LOOP_OPTIONS, count_transition

# Rows of the episode log, which is allocated for every rollout. A full log ends the rollout.
MAX_EPISODES_PER_CALL = 4096

# Plain integers, not an enum: the loop in Python reads them at every step, a million times a second.
STEP_FAILED = -1  # in place of the next state
NO_EVENT, REPLAN_DUE, NEW_STATE = 0, 1, 2


class EpisodePlan(NamedTuple):
    """A plan as the loop reads it: arrays, or objects that are indexed like arrays."""

    policy: Any  # [T, S, columns] actions, or LocalLowerBounds
    stages: int  # T
    n_planned_states: int  # S; states with larger numbers are newer than the plan
    goal_state: Any  # [columns]
    goals_of_states: Any  # [S, W]
    goals_per_state: int  # W
    cumulative_weights: Any  # [columns]
    max_episode_steps: int
    stop_at_new_state: bool
    n_actions: int
    start: int
    reset_ends_episode: bool
    counts_steps_since_reset: bool


class EpisodeEnv(Protocol):
    """Operations that :func:`play_episodes` needs. They count what happens."""

    def must_reset(self, state: int) -> bool:
        """Return whether the reset is the only action."""

    def reset_from(self, state: int) -> int:
        """Reset in ``state``; return the next state, or STEP_FAILED."""

    def take_action(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        """Take an action; return the next state, or STEP_FAILED, and an event. An absent action is the reset."""

    def backup_and_choose(self, local: LocalLowerBounds, state: int, column: int) -> int:
        """Raise the bound of a column at a state, with the counts so far; return the greedy action."""


def make_episode_plan(plan: ExplorationPlan, weights: Floats, n_actions: int, start: int) -> EpisodePlan:
    """Return the plan for the compiled loop; ``weights`` [columns]."""
    if isinstance(plan.policy, LocalLowerBounds):
        # A new state may belong to the goals of any column, so the caller must see it before the next backup.
        stages, n_states, stop_at_new_state = 1, plan.policy.V.shape[1], True
    else:
        stages, n_states = plan.policy.shape[:2]
        stop_at_new_state = bool(plan.goal_state.min() == -1)
    # Without sets every state is its own goal, and the loop has one case.
    goals_of_states = np.arange(n_states)[:, None] if plan.goals_of_states is None else plan.goals_of_states
    goals = plan.goal_state, goals_of_states, goals_of_states.shape[1], np.cumsum(weights)
    ends = plan.max_episode_steps, stop_at_new_state
    resets = plan.reset_ends_episode, plan.counts_steps_since_reset
    return EpisodePlan(plan.policy, stages, n_states, *goals, *ends, n_actions, start, *resets)


def to_python_plan(plan: EpisodePlan) -> EpisodePlan:
    """Return the plan for the loop in Python, which reads lists and memory views faster than arrays."""
    return plan._replace(
        policy=plan.policy if isinstance(plan.policy, LocalLowerBounds) else memoryview(plan.policy),
        goals_of_states=memoryview(plan.goals_of_states),
        goal_state=plan.goal_state.tolist(),
        cumulative_weights=plan.cumulative_weights.tolist(),
    )


def make_episode_log(max_episodes: int) -> Longs:
    """[n, 2] empty log of a rollout: the goal of every finished episode, and whether it was reached."""
    return np.zeros((min(max_episodes, MAX_EPISODES_PER_CALL), 2), np.int64)


def make_outcome(steps: int, episodes: int, log: Longs) -> RolloutOutcome:
    """Return the outcome of a rollout, from the return values of the loop and its log."""
    return RolloutOutcome(int(steps), log[:episodes, 0].tolist(), (log[:episodes, 1] > 0).tolist())


def play_episodes(env: Any, plan: EpisodePlan, position: Any, rng: Any, max_steps: int, log: Longs) -> tuple[int, int]:
    """Play episodes from ``position`` on; return the number of steps and of finished episodes.

    ``position`` [3] is the state, the goal column (-1: none) and the steps of the episode; the loop updates it.
    ``log`` [n, 2] receives the goal of every finished episode and whether it was reached.
    """
    state, column, episode_steps = position[0], position[1], position[2]
    steps, episodes = 0, 0
    weights = plan.cumulative_weights
    if column >= 0 and weights[column] <= (weights[column - 1] if column > 0 else 0.0):
        # The new plan gives this goal no weight: draw another one, without a reset.
        column = -1
    while steps < max_steps:
        if column < 0:
            # One draw per episode in both versions of the loop, so they play the same episodes.
            column = sample_column(weights, rng.random() * weights[-1])
            if not plan.counts_steps_since_reset:
                episode_steps = 0
        goal = plan.goal_state[column]
        reached = is_goal_reached(plan, state, goal)
        if reached or episode_steps >= plan.max_episode_steps:
            # In the start a reset would change nothing, so it is neither taken nor counted as a step.
            next_state = plan.start if state == plan.start else reset_from(env, state)
            if next_state == STEP_FAILED:
                break
            steps += state != plan.start
            log[episodes, 0] = goal
            log[episodes, 1] = reached
            episodes += 1
            column, episode_steps = -1, 0
            state = next_state
            # States newer than the plan have no row in the policy, so the caller must plan first.
            if episodes == len(log) or state >= plan.n_planned_states:
                break
            continue
        action = plan.n_actions if must_reset(env, state) else choose_action(env, plan, state, column, episode_steps)
        # In the start it cannot end the episode: without a step in between, the loop would never return.
        if action == plan.n_actions and plan.reset_ends_episode and state != plan.start:
            episode_steps = plan.max_episode_steps
            continue
        if action == plan.n_actions:
            next_state, event = reset_from(env, state), NO_EVENT
        else:
            next_state, event = take_action(env, state, action, rng)
        if next_state == STEP_FAILED:
            break
        state = next_state
        steps += 1
        episode_steps += 1
        # This column stands for all goals without one, so any new state reaches it.
        if event == NEW_STATE and goal == -1:
            log[episodes, 0], log[episodes, 1] = -1, 1
            episodes += 1
            column = -1
        if event == REPLAN_DUE or (event == NEW_STATE and plan.stop_at_new_state) or state >= plan.n_planned_states:
            break
    position[0], position[1], position[2] = state, column, episode_steps
    return steps, episodes


@register_jitable
def is_goal_reached(plan: EpisodePlan, state: int, goal: int) -> bool:
    """Return whether the state belongs to the goal; a negative goal stands for all goals without a column."""
    # Every state of such a goal reaches the column of all other goals.
    wanted = goal if goal >= 0 else OTHER_GOALS
    reached = False
    for k in range(plan.goals_per_state):
        reached |= plan.goals_of_states[state, k] == wanted
    return reached


# The next five functions are the operations of the loop in Python. Numba replaces each by its overload below.


def sample_column(cumulative_weights: Any, u: float) -> int:
    """Return the column whose interval of the cumulative weights contains u."""
    # Rounding can make u equal to the total weight, and then no interval contains it.
    return min(bisect_right(cumulative_weights, u), len(cumulative_weights) - 1)


def must_reset(env: EpisodeEnv, state: int) -> bool:
    return env.must_reset(state)


def reset_from(env: EpisodeEnv, state: int) -> int:
    return env.reset_from(state)


def take_action(env: EpisodeEnv, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
    return env.take_action(state, action, rng)


def choose_action(env: EpisodeEnv, plan: EpisodePlan, state: int, column: int, episode_steps: int) -> int:
    """Return the action of the policy table, or the greedy action of a local backup."""
    if isinstance(plan.policy, LocalLowerBounds):
        return env.backup_and_choose(plan.policy, state, column)
    return int(plan.policy[episode_steps if plan.stages > 1 else 0, state, column])


class CountingModel(NamedTuple):
    """Arrays of a known model, and of counts with room for all its successors, which the compiled loop updates."""

    indptr: Longs
    successors: Ints
    cumulative: Floats  # [nnz] cumulative probabilities inside each row, infinite at its end
    terminal: Bools
    start: int
    replan_thresholds: Longs  # [X] tries of each pair after which a new plan is due
    seen_successor: Ints
    counted: Longs
    recent: Longs
    support: Ints
    n: Longs
    settled: Longs
    visits: Longs
    seen: Bools
    absent: Bools


class NumberedModel(NamedTuple):
    """A :class:`CountingModel` whose states are numbered as they are met; counts and ``terminal`` have these numbers.

    The counts have room for one more state than the states met, which ``n_met`` [1] counts.
    """

    indptr: Longs
    successors: Ints
    cumulative: Floats
    terminal: Bools
    start: int
    replan_thresholds: Longs
    seen_successor: Ints
    counted: Longs
    recent: Longs
    support: Ints
    n: Longs
    settled: Longs
    visits: Longs
    seen: Bools
    absent: Bools
    state_of_number: Longs  # [S] the model's state of every number
    number_of_state: Ints  # [states of the model] the number of every state, -1 if it was not met
    n_met: Longs
    terminal_states: Bools  # [states of the model]
    absent_pairs: Bools  # [pairs of the model], or empty


@overload(sample_column, inline="always")
def _compiled_sample_column(cumulative_weights, u):  # type: ignore[no-untyped-def]
    return lambda cumulative_weights, u: min(
        np.searchsorted(cumulative_weights, u, side="right"), len(cumulative_weights) - 1
    )


@overload(must_reset, inline="always")
def _compiled_must_reset(env, state):  # type: ignore[no-untyped-def]
    return lambda env, state: env.terminal[state]


@overload(choose_action, inline="always")
def _compiled_choose_action(env, plan, state, column, episode_steps):  # type: ignore[no-untyped-def]
    # Chosen while compiling, so a table of actions costs one read and no branch on the kind of policy.
    if isinstance(plan.types[plan.fields.index("policy")], numba.types.Array):
        return lambda env, plan, state, column, episode_steps: plan.policy[
            episode_steps if plan.stages > 1 else 0, state, column
        ]
    return lambda env, plan, state, column, episode_steps: backup_state(
        state, column, plan.policy, env.seen_successor, env.counted, env.support, env.n
    )


@overload(reset_from, inline="always")
def _compiled_reset_from(env, state):  # type: ignore[no-untyped-def]
    def reset(env, state):  # type: ignore[no-untyped-def]
        env.visits[state] += 1
        return env.start

    return reset


@overload(take_action, inline="always")
def _compiled_take_action(env, state, action, rng):  # type: ignore[no-untyped-def]
    if "state_of_number" in env.fields:
        return _take_numbered_action

    def step(env, state, action, rng):  # type: ignore[no-untyped-def]
        env.visits[state] += 1
        pair = state * (env.n.shape[0] // env.visits.shape[0]) + action
        # An absent action is the reset: it is a visit, but there is nothing to learn and no count.
        if env.absent[pair]:
            return np.int64(env.start), NO_EVENT
        u, k = rng.random(), env.indptr[pair]
        # A linear search, as most rows are short. The last entry of a row is infinite, so the search ends inside it.
        while env.cumulative[k] <= u:
            k += 1
        next_state = np.int64(env.successors[k])
        # The arrays have room for all successors of the model, so no row can be full here.
        count_transition(pair, next_state, env.seen_successor, env.counted, env.recent, env.support, env.n, env.settled)
        if not env.seen[next_state]:
            env.seen[next_state] = True
            return next_state, NEW_STATE
        return next_state, REPLAN_DUE if env.n[pair] >= env.replan_thresholds[pair] else NO_EVENT

    return step


@register_jitable
def _take_numbered_action(env, state, action, rng):  # type: ignore[no-untyped-def]
    A = env.n.shape[0] // env.visits.shape[0]
    env.visits[state] += 1
    pair = state * A + action
    if env.absent[pair]:
        return np.int64(env.start), NO_EVENT
    u, k = rng.random(), env.indptr[env.state_of_number[state] * A + action]
    while env.cumulative[k] <= u:
        k += 1
    successor = env.successors[k]
    is_new = env.number_of_state[successor] < 0
    if is_new:
        # In place: a function that takes ``env`` would make every step twice as slow, although it is rarely called.
        number = env.n_met[0]
        env.n_met[0] += 1
        env.number_of_state[successor], env.state_of_number[number] = number, successor
        env.seen[number], env.terminal[number] = True, env.terminal_states[successor]
        # As TransitionCounts.mark_absent_pairs.
        for a in range(A if len(env.absent_pairs) else 0):
            if env.absent_pairs[successor * A + a]:
                x = number * A + a
                env.absent[x], env.support[x], env.seen_successor[x, 0] = True, 1, env.start
    next_state = np.int64(env.number_of_state[successor])
    count_transition(pair, next_state, env.seen_successor, env.counted, env.recent, env.support, env.n, env.settled)
    # Without room for another state the rollout must end, and the next one enlarges the arrays.
    if is_new and (env.n_met[0] < len(env.visits) or env.n_met[0] == len(env.number_of_state)):
        return next_state, NEW_STATE
    return next_state, REPLAN_DUE if is_new or env.n[pair] >= env.replan_thresholds[pair] else NO_EVENT


play_episodes_compiled = compiled(**COUNTING_LOOP_OPTIONS)(play_episodes)  # type: ignore[no-untyped-call]
