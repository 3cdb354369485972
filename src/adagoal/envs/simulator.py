"""A compiled simulator for known models: tens of millions of steps a second.

The learner sees transitions only; that the simulator knows the kernel is no help to it. A run that keeps its steps is
played in Python instead, with the same draws and the same outcome, at a million steps a second. Long rollouts are for
several walkers (:mod:`adagoal.envs.simulator`), which note their steps in any case.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.compiled_code import run_jobs_in_threads
from adagoal.core.environment import ExplorationPlan, RolloutOutcome
from adagoal.core.errors import InputError
from adagoal.core.file_formats import check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.local_backup import LocalLowerBounds
from adagoal.core.transition_data import CACHE_LINE_VALUES, TransitionCounts
from adagoal.core.types import Floats, ObservedStates
from adagoal.envs import episode_loop
from adagoal.envs.assumption_tests import Diagnostics
from adagoal.envs.env_backends import ActionMask
from adagoal.envs.indexed_env import CountingEnv
from adagoal.envs.model import TabularMDP

LINES = {"type": "array", "items": {"type": "string"}}
FACTS_SCHEMA = object_schema(place=episode_loop.POSITION_SCHEMA, warnings=LINES, void=LINES)


class ModelSimulator:
    """A :class:`~adagoal.core.environment.TabularEnv` that samples from a known model."""

    start_is_certain = True

    def __init__(self, mdp: TabularMDP, own: bool = False, observations: int | None = None) -> None:
        """``own``: the user brought the model, so that a run must keep it (:mod:`adagoal.envs.model_sources`).

        ``observations``: the model is that of a Gymnasium environment, whose observations are the numbers of its first
        so many states.
        """
        if mdp.terminal[mdp.start]:
            raise InputError(f"state {mdp.start} is terminal, so that no other state can be reached", "start")
        self.own, self._n_observations = own, observations
        self.mdp, self.name, self.labels, self.layout = mdp, mdp.name, mdp.labels, mdp.layout
        self.mixture = mdp.mixture
        """What a learner of linear mixtures is told: the kernels, not their weights."""
        self.n_actions, self.start = mdp.n_actions, mdp.start
        self.state_bound = self.initial_states = mdp.n_states
        self._cumulative_probabilities = _cumulative_rows(mdp)
        self._max_successors = int(np.diff(mdp.indptr).max())
        self.warnings: list[str] = []
        self.void_reasons: list[str] = []
        self._absent_pairs = np.flatnonzero(mdp.absent)
        self.pair_bound = mdp.n_states * mdp.n_actions - len(self._absent_pairs)
        self.uses_action_masks = True
        self._position = np.array([mdp.start, -1, 0])  # state, goal column aimed at (-1: none), steps of the episode

    def rollout(
        self,
        plan: ExplorationPlan,
        weights: Floats,
        counts: TransitionCounts,
        rng: np.random.Generator,
        max_steps: int,
        max_episodes: int,
    ) -> RolloutOutcome:
        """Play until a threshold is met, a state is new, or ``max_steps`` or ``max_episodes`` is spent."""
        if self.uses_action_masks and len(self._absent_pairs) and not counts.absent[self._absent_pairs[0]]:
            counts.mark_absent_pairs(self._absent_pairs)
        max_steps = min(max_steps, plan.max_steps)
        if should_use_walkers(plan, weights, max_steps, max_episodes):
            return self._rollout_with_walkers(plan, weights, counts, rng, max_steps)
        if counts.transition_log is not None:
            return self._rollout_in_python(plan, weights, counts, rng, max_steps, max_episodes)
        counts.grow_successors(self._max_successors)
        counts.terminal |= self.mdp.terminal & counts.seen
        log = np.zeros((min(max_episodes, episode_loop.MAX_EPISODES_PER_CALL), 2), np.int64)
        given = episode_loop.make_episode_plan(plan, weights, self.n_actions, self.start)
        known = episode_loop.CountingModel.from_counts(
            self.mdp, self._cumulative_probabilities, plan.replan_thresholds, counts
        )
        steps, ended = episode_loop.play_episodes_compiled(known, given, self._position, rng, max_steps, log)
        counts.terminal |= self.mdp.terminal & counts.seen
        return episode_loop.make_outcome(steps, ended, log)

    def _rollout_with_walkers(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: np.random.Generator, max_steps: int
    ) -> RolloutOutcome:
        counts.grow_successors(self._max_successors)
        away = count_reset_step(int(self._position[0]), counts)
        self.reset_with_seed(0)
        outcome = rollout_with_walkers(
            self.mdp, self._cumulative_probabilities, plan, weights, counts, rng, max_steps - away
        )
        outcome.steps += away
        counts.terminal |= self.mdp.terminal & counts.seen
        return outcome

    def _rollout_in_python(
        self,
        plan: ExplorationPlan,
        weights: Floats,
        counts: TransitionCounts,
        rng: np.random.Generator,
        max_steps: int,
        max_episodes: int,
    ) -> RolloutOutcome:
        counts.terminal |= self.mdp.terminal & counts.seen
        sampled = _SampledModel(self.mdp, self._cumulative_probabilities, rng)
        stage = CountingEnv(sampled, plan, counts, None, Diagnostics(), masked=False)  # what is absent is known already
        log = np.zeros((min(max_episodes, episode_loop.MAX_EPISODES_PER_CALL), 2), np.int64)
        given = episode_loop.to_python_plan(episode_loop.make_episode_plan(plan, weights, self.n_actions, self.start))
        place = self._position.tolist()
        try:
            steps, ended = episode_loop.play_episodes(stage, given, place, rng, max_steps, log)
        finally:
            stage.flush_counts()
        self._position[:] = place
        return episode_loop.make_outcome(steps, ended, log)

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Of a Gymnasium environment the observation is the number; else it is the label, or the number without one."""
        for state in range(self.state_bound if self._n_observations is None else self._n_observations):
            label = self.labels[state] if self.labels else str(state)
            named = self.labels and self._n_observations is None
            space.add_state(state, label if named else state, label)
        return True

    def observed_states(self) -> ObservedStates | None:
        """Of a Gymnasium environment the observation is the number; other models have none."""
        return None if self._n_observations is None else ObservedStates({"kind": "states", "first": 0})

    def add_warning(self, line: str) -> None:
        """Add a warning, once."""
        if line not in self.warnings:
            self.warnings.append(line)

    def add_void_reason(self, line: str) -> None:
        """Add a reason for which certificates are void, once."""
        if line not in self.void_reasons:
            self.void_reasons.append(line)

    def reset_with_seed(self, seed: int) -> None:
        """Back to the start; the draws are the caller's."""
        self._position[:] = self.start, -1, 0

    @property
    def is_restorable(self) -> bool:
        """A simulator can be copied at any time."""
        return True

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Where the agent stands, and what was noticed on the way."""
        return {}, {"place": self._position.tolist(), "warnings": list(self.warnings), "void": list(self.void_reasons)}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Back to where the agent stood, with what was noticed on the way."""
        check_json_value(FACTS_SCHEMA, facts)
        for line in facts["warnings"]:
            self.add_warning(line)
        for line in facts["void"]:
            self.add_void_reason(line)
        self._position[:] = facts["place"]


class _SampledModel:
    """A known model as :class:`~adagoal.envs.indexed_env.CountingEnv` steps it."""

    needs_reset = has_virtual_start = False
    action_mask: ActionMask = None

    def __init__(self, mdp: TabularMDP, cumulative: Floats, rng: np.random.Generator) -> None:
        self.n_actions, self.start, self.state_bound = mdp.n_actions, mdp.start, mdp.n_states
        self._row_starts, self._successors, self._terminal = mdp.indptr.tolist(), mdp.successors.tolist(), mdp.terminal
        self._cumulative_probabilities, self._rng = cumulative.tolist(), rng

    @property
    def n_known_states(self) -> int:
        return self.state_bound

    def reset_to_start(self) -> int:
        return self.start

    def step(self, state: int, action: int) -> tuple[int, bool]:
        u, k = self._rng.random(), self._row_starts[state * self.n_actions + action]
        while self._cumulative_probabilities[k] <= u:
            k += 1
        landed = self._successors[k]
        return landed, bool(self._terminal[landed])


def _cumulative_rows(mdp: TabularMDP) -> Floats:
    """Cumulative probabilities inside each row; the last entry of a row is infinite, so that a draw always ends."""
    total = np.cumsum(mdp.probabilities)
    before = np.concatenate([[0.0], total])[mdp.indptr[:-1]]
    within: Floats = total - np.repeat(before, np.diff(mdp.indptr))
    within[mdp.indptr[1:] - 1] = np.inf
    return within


# Several walkers in one known model, side by side: a long rollout of a plan that is backed up on the way.
#
# A local backup (:mod:`adagoal.core.local_backup`) takes several times as long as the draw of a step, and follows
# bounds that the step before has raised. So a long rollout consists of *rounds*, as with several copies of an
# environment (:mod:`adagoal.envs.parallel_env`). In a round every walker takes the same number of steps, with a
# generator of its own. It reads the counts of the beginning of the round, and raises bounds of its own, which begin as
# those of all. After the round the moves are counted walker after walker, in threads that share the states among them,
# and of all bounds the largest are kept (docs/theory-more.md, "Several copies").
#
# Rounds are short: bounds that were raised send a walker elsewhere, and so they must be told to the others. How many
# walkers there are does not depend on the number of cores, so that a run is the same on any machine of a kind. A
# rollout begins and ends at the start, and what is unfinished then ends with a reset: so there is no place to be saved.


MIN_WALKER_ROLLOUT_STEPS = 65_536
"""Steps of a rollout from which on it is for walkers. The first such one comes after 1.7e7 steps (schedule.py)."""
N_WALKERS, MAX_WALKER_ROUND_STEPS = 8, 8192
"""Walkers, and the steps of each in a round, at most: that is a millisecond, which threads are worth."""


def should_use_walkers(plan: ExplorationPlan, weights: Floats, steps: int, episodes: int) -> bool:
    """Whether a rollout of so many steps and episodes, at most, is for walkers.

    They have bounds of their own for every column that may be played: copies take no longer than steps.
    """
    if not isinstance(plan.policy, LocalLowerBounds) or min(steps, episodes) < MIN_WALKER_ROLLOUT_STEPS:
        return False
    return bool(np.count_nonzero(weights > 0) * plan.policy.V.shape[1] <= MIN_WALKER_ROLLOUT_STEPS)


class Walker:
    """One of them."""

    def __init__(self, known: episode_loop.LoggingModel, given: episode_loop.EpisodePlan, seed: int) -> None:
        local = given.policy
        self._model, self._episode_plan = known, given._replace(policy=local._replace(V=np.empty_like(local.V)))
        self._episode_log = np.zeros((episode_loop.MAX_EPISODES_PER_CALL, 2), np.int64)
        self._position, self._rng = np.array([given.start, -1, 0]), np.random.default_rng(seed)
        numbers = len(known.moves) + episode_loop.MAX_EPISODES_PER_CALL + 1  # of every step, and of every episode
        self._uniform_buffer = episode_loop.UniformBuffer(np.empty(numbers), np.full(CACHE_LINE_VALUES, numbers))
        self.steps, self.finished_episodes = 0, self._episode_log[:0]
        """Of the last round: its steps, and of every episode that ended the goal and whether it was reached, [n, 2]"""

    @property
    def V(self) -> Floats:
        """[columns, S] its bounds"""
        found: Floats = self._episode_plan.policy.V
        return found

    def walk_from_bounds(self, V: Floats, steps: int) -> None:
        """Take so many steps, at most, from bounds V on."""
        self.V[:], self._model.taken[0] = V, 0
        self._uniform_buffer.refill_used(self._rng)
        self.steps, n = episode_loop.play_episodes_compiled(
            self._model, self._episode_plan, self._position, self._uniform_buffer, steps, self._episode_log
        )
        self.finished_episodes = self._episode_log[:n].copy()

    @property
    def current_state(self) -> int:
        """Where it stands."""
        return int(self._position[0])


def rollout_with_walkers(
    mdp: TabularMDP,
    cumulative: Floats,
    plan: ExplorationPlan,
    weights: Floats,
    counts: TransitionCounts,
    rng: np.random.Generator,
    steps: int,
) -> RolloutOutcome:
    """Rounds until a state is new, the steps are spent, or there are as many episodes as in any rollout.

    ``counts`` have room for all successors. No threshold is looked at: a plan with local backups has none.
    """
    local, columns = plan.policy, np.flatnonzero(weights > 0)
    assert isinstance(local, LocalLowerBounds)
    V = local.V[columns]
    mine = local._replace(V=V, probe=local.probe[columns])
    given = episode_loop.restrict_to_columns(plan, weights, columns, mine, mdp.n_actions, mdp.start)
    rounds = -(-steps // (N_WALKERS * MAX_WALKER_ROUND_STEPS))
    each = (steps - N_WALKERS) // (N_WALKERS * rounds)  # a reset of each walker comes in the end
    moves, landed = np.empty((2, N_WALKERS, each), np.int64)
    taken = np.zeros((N_WALKERS, CACHE_LINE_VALUES), np.int64)
    seeds = rng.integers(2**63, size=N_WALKERS)
    walkers = [
        Walker(episode_loop.LoggingModel.from_counts(mdp, cumulative, counts, *noted), given, int(seed))
        for *noted, seed in zip(moves, landed, taken, seeds, strict=True)
    ]
    ended, total, known = [], 0, np.count_nonzero(counts.seen)
    cores = min(N_WALKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(cores) as threads:
        for _ in range(rounds):
            run_jobs_in_threads([partial(walker.walk_from_bounds, V, each) for walker in walkers], threads)
            counts.add_step_rows(moves, landed, taken[:, 0], threads, cores)
            for walker in walkers:
                np.maximum(V, walker.V, out=V)
                ended.append(walker.finished_episodes)
                total += walker.steps
            if sum(map(len, ended)) >= episode_loop.MAX_EPISODES_PER_CALL or np.count_nonzero(counts.seen) > known:
                break
    local.V[columns] = V
    log = np.concatenate(ended)
    return episode_loop.make_outcome(
        total + sum(count_reset_step(walker.current_state, counts) for walker in walkers), len(log), log
    )


def count_reset_step(state: int, counts: TransitionCounts) -> int:
    """The steps of a reset in a state: none at the start."""
    away = state != counts.start
    counts.add_steps(*np.full((2, int(away)), [[-1 - state], [counts.start]]))
    return int(away)
