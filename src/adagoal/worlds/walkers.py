"""Several walkers in one known model, side by side: a long rollout of a plan that is backed up on the way.

A local backup (:mod:`adagoal.core.backup`) takes several times as long as the draw of a step, and follows bounds that
the step before has raised. So a long rollout consists of *rounds*, as with several copies of an environment
(:mod:`adagoal.worlds.crew`). In a round every walker takes the same number of steps, with a generator of its own. It
reads the counts of the beginning of the round, and raises bounds of its own, which begin as those of all. After the
round the moves are counted walker after walker, in threads that share the states among them, and of all bounds the
largest are kept (docs/theory-more.md, "Several copies").

Rounds are short: bounds that were raised send a walker elsewhere, and so they must be told to the others. How many
walkers there are does not depend on the number of cores, so that a run is the same on any machine of a kind. A rollout
begins and ends at the start, and what is unfinished then ends with a reset: so there is no place to be saved.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from adagoal.core.backup import LocalLowerBounds
from adagoal.core.counts import CACHE_LINE_VALUES, TransitionCounts
from adagoal.core.threads import run_jobs_in_threads
from adagoal.core.types import Floats
from adagoal.core.world import ExplorationPlan, RolloutOutcome
from adagoal.worlds import episode
from adagoal.worlds.model import TabularMDP

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

    def __init__(self, known: episode.LoggingModel, given: episode.EpisodePlan, seed: int) -> None:
        local = given.policy
        self._model, self._episode_plan = known, given._replace(policy=local._replace(V=np.empty_like(local.V)))
        self._episode_log = np.zeros((episode.MAX_EPISODES_PER_CALL, 2), np.int64)
        self._position, self._rng = np.array([given.start, -1, 0]), np.random.default_rng(seed)
        numbers = len(known.moves) + episode.MAX_EPISODES_PER_CALL + 1  # of every step, and of every episode
        self._uniform_buffer = episode.UniformBuffer(np.empty(numbers), np.full(CACHE_LINE_VALUES, numbers))
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
        self.steps, n = episode.play_episodes_compiled(
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
    given = episode.restrict_to_columns(plan, weights, columns, mine, mdp.n_actions, mdp.start)
    rounds = -(-steps // (N_WALKERS * MAX_WALKER_ROUND_STEPS))
    each = (steps - N_WALKERS) // (N_WALKERS * rounds)  # a reset of each walker comes in the end
    moves, landed = np.empty((2, N_WALKERS, each), np.int64)
    taken = np.zeros((N_WALKERS, CACHE_LINE_VALUES), np.int64)
    seeds = rng.integers(2**63, size=N_WALKERS)
    walkers = [
        Walker(episode.LoggingModel.from_counts(mdp, cumulative, counts, *noted), given, int(seed))
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
            if sum(map(len, ended)) >= episode.MAX_EPISODES_PER_CALL or np.count_nonzero(counts.seen) > known:
                break
    local.V[columns] = V
    log = np.concatenate(ended)
    return episode.make_outcome(
        total + sum(count_reset_step(walker.current_state, counts) for walker in walkers), len(log), log
    )


def count_reset_step(state: int, counts: TransitionCounts) -> int:
    """The steps of a reset in a state: none at the start."""
    away = state != counts.start
    counts.add_steps(*np.full((2, int(away)), [[-1 - state], [counts.start]]))
    return int(away)
