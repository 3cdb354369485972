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

from adagoal.core.backup import Local
from adagoal.core.counts import LINE, Counts
from adagoal.core.threads import side_by_side
from adagoal.core.types import Floats
from adagoal.core.world import Outcome, Plan
from adagoal.worlds import episode
from adagoal.worlds.model import TabularMDP

LONG = 65_536
"""Steps of a rollout from which on it is for walkers. The first such one comes after 1.7e7 steps (schedule.py)."""
WALKERS, EACH = 8, 8192
"""Walkers, and the steps of each in a round, at most: that is a millisecond, which threads are worth."""


def pay(plan: Plan, weights: Floats, steps: int, episodes: int) -> bool:
    """Whether a rollout of so many steps and episodes, at most, is for walkers.

    They have bounds of their own for every column that may be played: copies take no longer than steps.
    """
    if not isinstance(plan.policy, Local) or min(steps, episodes) < LONG:
        return False
    return bool(np.count_nonzero(weights > 0) * plan.policy.V.shape[1] <= LONG)


class Walker:
    """One of them."""

    def __init__(self, known: episode.Noted, given: episode.Orders, seed: int) -> None:
        local = given.policy
        self._known, self._given = known, given._replace(policy=local._replace(V=np.empty_like(local.V)))
        self._log = np.zeros((episode.EPISODES, 2), np.int64)
        self._place, self._rng = np.array([given.start, -1, 0]), np.random.default_rng(seed)
        numbers = len(known.moves) + episode.EPISODES + 1  # of every step, and of every episode
        self._numbers = episode.Numbers(np.empty(numbers), np.full(LINE, numbers))
        self.steps, self.ended = 0, self._log[:0]
        """Of the last round: its steps, and of every episode that ended the goal and whether it was reached, [n, 2]"""

    @property
    def V(self) -> Floats:
        """[columns, S] its bounds"""
        found: Floats = self._given.policy.V
        return found

    def walk(self, V: Floats, steps: int) -> None:
        """Take so many steps, at most, from bounds V on."""
        self.V[:], self._known.taken[0] = V, 0
        self._numbers.refill(self._rng)
        self.steps, n = episode.simulate(self._known, self._given, self._place, self._numbers, steps, self._log)
        self.ended = self._log[:n].copy()

    @property
    def state(self) -> int:
        """Where it stands."""
        return int(self._place[0])


def rollout(
    mdp: TabularMDP,
    cumulative: Floats,
    plan: Plan,
    weights: Floats,
    counts: Counts,
    rng: np.random.Generator,
    steps: int,
) -> Outcome:
    """Rounds until a state is new, the steps are spent, or there are as many episodes as in any rollout.

    ``counts`` have room for all successors. No threshold is looked at: a plan with local backups has none.
    """
    local, columns = plan.policy, np.flatnonzero(weights > 0)
    assert isinstance(local, Local)
    V = local.V[columns]
    mine = local._replace(V=V, probe=local.probe[columns])
    given = episode.part(plan, weights, columns, mine, mdp.n_actions, mdp.start)
    rounds = -(-steps // (WALKERS * EACH))
    each = (steps - WALKERS) // (WALKERS * rounds)  # a reset of each walker comes in the end
    moves, landed = np.empty((2, WALKERS, each), np.int64)
    taken = np.zeros((WALKERS, LINE), np.int64)
    seeds = rng.integers(2**63, size=WALKERS)
    walkers = [
        Walker(episode.Noted.of(mdp, cumulative, counts, *noted), given, int(seed))
        for *noted, seed in zip(moves, landed, taken, seeds, strict=True)
    ]
    ended, total, known = [], 0, np.count_nonzero(counts.seen)
    cores = min(WALKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(cores) as threads:
        for _ in range(rounds):
            side_by_side([partial(walker.walk, V, each) for walker in walkers], threads)
            counts.add_rows(moves, landed, taken[:, 0], threads, cores)
            for walker in walkers:
                np.maximum(V, walker.V, out=V)
                ended.append(walker.ended)
                total += walker.steps
            if sum(map(len, ended)) >= episode.EPISODES or np.count_nonzero(counts.seen) > known:
                break
    local.V[columns] = V
    log = np.concatenate(ended)
    return episode.outcome(total + sum(go_home(walker.state, counts) for walker in walkers), len(log), log)


def go_home(state: int, counts: Counts) -> int:
    """The steps of a reset in a state: none at the start."""
    away = state != counts.start
    counts.add(*np.full((2, int(away)), [[-1 - state], [counts.start]]))
    return int(away)
