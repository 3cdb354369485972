"""A compiled simulator for known models: tens of millions of steps a second.

The learner sees transitions only; that the simulator knows the kernel is no help to it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from adagoal.core.counts import Counts, record
from adagoal.core.types import Floats
from adagoal.core.world import Outcome, Plan
from adagoal.worlds.model import TabularMDP

LOG = 4096
"""Episodes per call of the kernel."""


class ModelWorld:
    """A :class:`~adagoal.core.world.World` that samples from a known model."""

    def __init__(self, mdp: TabularMDP) -> None:
        self.mdp, self.name, self.labels, self.layout = mdp, mdp.name, mdp.labels, mdp.layout
        self.mixture = mdp.mixture
        """What a learner of linear mixtures is told: the kernels, not their weights."""
        self.n_actions, self.start = mdp.n_actions, mdp.start
        self.state_bound = self.initial_states = mdp.n_states
        self._cumulative = _row_cumsum(mdp)
        self._width = int(np.diff(mdp.indptr).max())
        self.warnings: list[str] = []
        self._place = np.array([mdp.start, -1, 0])  # state, goal column aimed at (-1: none), steps of the episode

    def rollout(
        self,
        plan: Plan,
        weights: Floats,
        counts: Counts,
        rng: np.random.Generator,
        max_steps: int,
        max_episodes: int,
    ) -> Outcome:
        """Play until a threshold is met, a state is new, or ``max_steps`` or ``max_episodes`` is spent."""
        counts.widen(self._width)
        counts.terminal |= self.mdp.terminal & counts.seen
        log = np.zeros((min(max_episodes, LOG), 2), np.int64)
        steps, episodes = simulate(
            *(self.mdp.indptr, self.mdp.successors, self._cumulative, self.mdp.terminal, self.mdp.start),
            *(plan.policy, plan.goal_state, np.cumsum(weights), plan.limit, plan.threshold),
            *(counts.successor, counts.count, counts.recent, counts.support, counts.n, counts.settled),
            *(counts.visits, counts.seen),
            *(self._place, rng, max_steps, log),
        )
        counts.terminal |= self.mdp.terminal & counts.seen
        ended = log[:episodes]
        return Outcome(steps, ended[:, 0].tolist(), (ended[:, 1] > 0).tolist())

    def note(self, line: str) -> None:
        """Add a warning, once."""
        if line not in self.warnings:
            self.warnings.append(line)

    def restart(self, seed: int) -> None:
        """Back to the start; the draws are the caller's."""
        self._place[:] = self.start, -1, 0

    @property
    def settled(self) -> bool:
        """A simulator can be copied at any time."""
        return True

    def snapshot(self) -> dict[str, Any]:
        """Where the agent stands."""
        return {"place": self._place.tolist()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Back to where the agent stood."""
        self._place[:] = snapshot["place"]
        if not 0 <= self._place[0] < self.mdp.n_states:
            raise ValueError(f"no state {self._place[0]}")


def _row_cumsum(mdp: TabularMDP) -> Floats:
    """Cumulative probabilities inside each row; the last entry of a row is infinite, so that a draw always ends."""
    total = np.cumsum(mdp.probabilities)
    before = np.concatenate([[0.0], total])[mdp.indptr[:-1]]
    within: Floats = total - np.repeat(before, np.diff(mdp.indptr))
    within[mdp.indptr[1:] - 1] = np.inf
    return within


@numba.njit(cache=True, nogil=True)
def simulate(  # type: ignore[no-untyped-def]
    indptr, successors, cumulative, terminal, start,  # the world
    policy, goal_state, weights, limit, threshold,  # the plan; weights are cumulative
    seen_successor, count, recent, support, n, settled, visits, seen,  # the counts
    place, rng, max_steps, log,
):  # fmt: skip
    """Play episodes; see :class:`adagoal.core.world.World`. Returns steps taken and episodes ended (in ``log``)."""
    n_actions = n.shape[0] // visits.shape[0]
    stages = policy.shape[0]
    state, aim, clock = place[0], place[1], place[2]
    steps, ended = 0, 0
    curious = goal_state.min() == -1
    if aim >= 0 and (weights[aim] if aim == 0 else weights[aim] - weights[aim - 1]) <= 0:
        aim = -1  # the goal lost its weight: choose another one, from here
    while steps < max_steps:
        if aim < 0:
            aim = min(np.searchsorted(weights, rng.random() * weights[-1], side="right"), len(weights) - 1)
            clock = 0
        if state == goal_state[aim] or clock >= limit:
            log[ended, 0] = goal_state[aim]
            log[ended, 1] = state == goal_state[aim]
            ended += 1
            aim = -1
            if state != start:
                visits[state] += 1
                state = start
                steps += 1
            if ended == log.shape[0]:
                break
            continue
        action = policy[clock if stages > 1 else 0, state, aim]
        visits[state] += 1
        steps += 1
        clock += 1
        if terminal[state] or action == n_actions:
            state = start
            continue
        pair = state * n_actions + action
        u = rng.random()
        k = indptr[pair]
        while cumulative[k] <= u:
            k += 1
        state = successors[k]
        record(pair, state, seen_successor, count, recent, support, n, settled)
        if not seen[state]:
            seen[state] = True
            if not curious:
                continue
            if goal_state[aim] < 0:
                log[ended, 0], log[ended, 1] = -1, 1
                ended += 1
                aim = -1
            break
        if n[pair] >= threshold[pair]:
            break
    place[0], place[1], place[2] = state, aim, clock
    return steps, ended
