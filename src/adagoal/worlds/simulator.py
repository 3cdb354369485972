"""A compiled simulator for known models: tens of millions of steps a second.

The learner sees transitions only; that the simulator knows the kernel is no help to it. A run that keeps its steps is
played in Python instead, with the same draws and the same outcome, at a million steps a second. Long rollouts are for
several walkers (:mod:`adagoal.worlds.walkers`), which note their steps in any case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import Counts
from adagoal.core.errors import InputError
from adagoal.core.goalspace import GoalSpace
from adagoal.core.names import Observed
from adagoal.core.schema import check_json, record
from adagoal.core.types import Floats
from adagoal.core.world import Outcome, Plan
from adagoal.worlds import episode, walkers
from adagoal.worlds.body import Mask
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.sanity import Doubts
from adagoal.worlds.stepping import Stepping

LINES = {"type": "array", "items": {"type": "string"}}
FACTS = record(place=episode.PLACE, warnings=LINES, void=LINES)


class ModelWorld:
    """A :class:`~adagoal.core.world.World` that samples from a known model."""

    sure_start = True

    def __init__(self, mdp: TabularMDP, own: bool = False, observations: int | None = None) -> None:
        """``own``: the user brought the model, so that a run must keep it (:mod:`adagoal.worlds.storage`).

        ``observations``: the model is that of a Gymnasium environment, whose observations are the numbers of its first
        so many states.
        """
        if mdp.terminal[mdp.start]:
            raise InputError(f"state {mdp.start} is terminal, so that no other state can be reached", "start")
        self.own, self._observations = own, observations
        self.mdp, self.name, self.labels, self.layout = mdp, mdp.name, mdp.labels, mdp.layout
        self.mixture = mdp.mixture
        """What a learner of linear mixtures is told: the kernels, not their weights."""
        self.n_actions, self.start = mdp.n_actions, mdp.start
        self.state_bound = self.initial_states = mdp.n_states
        self._cumulative = _row_cumsum(mdp)
        self._width = int(np.diff(mdp.indptr).max())
        self.warnings: list[str] = []
        self.void: list[str] = []
        self._absent = np.flatnonzero(mdp.absent)
        self.pair_bound = mdp.n_states * mdp.n_actions - len(self._absent)
        self.masked = True
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
        if self.masked and len(self._absent) and not counts.absent[self._absent[0]]:
            counts.leave_out(self._absent)
        max_steps = min(max_steps, plan.steps)
        if walkers.pay(plan, weights, max_steps, max_episodes):
            return self._side_by_side(plan, weights, counts, rng, max_steps)
        if counts.trail is not None:
            return self._in_python(plan, weights, counts, rng, max_steps, max_episodes)
        counts.widen(self._width)
        counts.terminal |= self.mdp.terminal & counts.seen
        log = np.zeros((min(max_episodes, episode.EPISODES), 2), np.int64)
        given = episode.orders(plan, weights, self.n_actions, self.start)
        known = episode.Known.of(self.mdp, self._cumulative, plan.threshold, counts)
        steps, ended = episode.simulate(known, given, self._place, rng, max_steps, log)
        counts.terminal |= self.mdp.terminal & counts.seen
        return episode.outcome(steps, ended, log)

    def _side_by_side(
        self, plan: Plan, weights: Floats, counts: Counts, rng: np.random.Generator, max_steps: int
    ) -> Outcome:
        counts.widen(self._width)
        away = walkers.go_home(int(self._place[0]), counts)
        self.restart(0)
        outcome = walkers.rollout(self.mdp, self._cumulative, plan, weights, counts, rng, max_steps - away)
        outcome.steps += away
        counts.terminal |= self.mdp.terminal & counts.seen
        return outcome

    def _in_python(
        self, plan: Plan, weights: Floats, counts: Counts, rng: np.random.Generator, max_steps: int, max_episodes: int
    ) -> Outcome:
        counts.terminal |= self.mdp.terminal & counts.seen
        sampled = _Sampled(self.mdp, self._cumulative, rng)
        stage = Stepping(sampled, plan, counts, None, Doubts(), masked=False)  # what is absent is known already
        log = np.zeros((min(max_episodes, episode.EPISODES), 2), np.int64)
        given = episode.in_python(episode.orders(plan, weights, self.n_actions, self.start))
        place = self._place.tolist()
        try:
            steps, ended = episode.play(stage, given, place, rng, max_steps, log)
        finally:
            stage.flush()
        self._place[:] = place
        return episode.outcome(steps, ended, log)

    def classify(self, space: GoalSpace) -> bool:
        """Of a Gymnasium environment the observation is the number; else it is the label, or the number without one."""
        for state in range(self.state_bound if self._observations is None else self._observations):
            label = self.labels[state] if self.labels else str(state)
            named = self.labels and self._observations is None
            space.add(state, label if named else state, label)
        return True

    def observed(self) -> Observed | None:
        """Of a Gymnasium environment the observation is the number; other models have none."""
        return None if self._observations is None else Observed({"kind": "states", "first": 0})

    def note(self, line: str) -> None:
        """Add a warning, once."""
        if line not in self.warnings:
            self.warnings.append(line)

    def doubt(self, line: str) -> None:
        """Add a reason for which certificates are void, once."""
        if line not in self.void:
            self.void.append(line)

    def restart(self, seed: int) -> None:
        """Back to the start; the draws are the caller's."""
        self._place[:] = self.start, -1, 0

    @property
    def settled(self) -> bool:
        """A simulator can be copied at any time."""
        return True

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Where the agent stands, and what was noticed on the way."""
        return {}, {"place": self._place.tolist(), "warnings": list(self.warnings), "void": list(self.void)}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Back to where the agent stood, with what was noticed on the way."""
        check_json(FACTS, facts)
        for line in facts["warnings"]:
            self.note(line)
        for line in facts["void"]:
            self.doubt(line)
        self._place[:] = facts["place"]


class _Sampled:
    """A known model as :class:`~adagoal.worlds.stepping.Stepping` steps it."""

    overdue = virtual = False
    mask: Mask = None

    def __init__(self, mdp: TabularMDP, cumulative: Floats, rng: np.random.Generator) -> None:
        self.n_actions, self.start, self.state_bound = mdp.n_actions, mdp.start, mdp.n_states
        self._first, self._successors, self._terminal = mdp.indptr.tolist(), mdp.successors.tolist(), mdp.terminal
        self._cumulative, self._rng = cumulative.tolist(), rng

    @property
    def met(self) -> int:
        return self.state_bound

    def home(self) -> int:
        return self.start

    def step(self, state: int, action: int) -> tuple[int, bool]:
        u, k = self._rng.random(), self._first[state * self.n_actions + action]
        while self._cumulative[k] <= u:
            k += 1
        landed = self._successors[k]
        return landed, bool(self._terminal[landed])


def _row_cumsum(mdp: TabularMDP) -> Floats:
    """Cumulative probabilities inside each row; the last entry of a row is infinite, so that a draw always ends."""
    total = np.cumsum(mdp.probabilities)
    before = np.concatenate([[0.0], total])[mdp.indptr[:-1]]
    within: Floats = total - np.repeat(before, np.diff(mdp.indptr))
    within[mdp.indptr[1:] - 1] = np.inf
    return within
