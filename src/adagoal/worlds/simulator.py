"""A compiled simulator for known models: tens of millions of steps a second.

The learner sees transitions only; that the simulator knows the kernel is no help to it. A run that keeps its steps is
played in Python instead, with the same draws and the same outcome, at a million steps a second. Long rollouts are for
several walkers (:mod:`adagoal.worlds.walkers`), which note their steps in any case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import TransitionCounts
from adagoal.core.errors import InputError
from adagoal.core.goalspace import GoalSpace
from adagoal.core.names import ObservedStates
from adagoal.core.schema import check_json_value, object_schema
from adagoal.core.types import Floats
from adagoal.core.world import ExplorationPlan, RolloutOutcome
from adagoal.worlds import episode, walkers
from adagoal.worlds.body import ActionMask
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.sanity import Diagnostics
from adagoal.worlds.stepping import CountingEnv

LINES = {"type": "array", "items": {"type": "string"}}
FACTS_SCHEMA = object_schema(place=episode.POSITION_SCHEMA, warnings=LINES, void=LINES)


class ModelSimulator:
    """A :class:`~adagoal.core.world.TabularEnv` that samples from a known model."""

    start_is_certain = True

    def __init__(self, mdp: TabularMDP, own: bool = False, observations: int | None = None) -> None:
        """``own``: the user brought the model, so that a run must keep it (:mod:`adagoal.worlds.storage`).

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
        if walkers.should_use_walkers(plan, weights, max_steps, max_episodes):
            return self._rollout_with_walkers(plan, weights, counts, rng, max_steps)
        if counts.transition_log is not None:
            return self._rollout_in_python(plan, weights, counts, rng, max_steps, max_episodes)
        counts.grow_successors(self._max_successors)
        counts.terminal |= self.mdp.terminal & counts.seen
        log = np.zeros((min(max_episodes, episode.MAX_EPISODES_PER_CALL), 2), np.int64)
        given = episode.make_episode_plan(plan, weights, self.n_actions, self.start)
        known = episode.CountingModel.from_counts(
            self.mdp, self._cumulative_probabilities, plan.replan_thresholds, counts
        )
        steps, ended = episode.play_episodes_compiled(known, given, self._position, rng, max_steps, log)
        counts.terminal |= self.mdp.terminal & counts.seen
        return episode.make_outcome(steps, ended, log)

    def _rollout_with_walkers(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: np.random.Generator, max_steps: int
    ) -> RolloutOutcome:
        counts.grow_successors(self._max_successors)
        away = walkers.count_reset_step(int(self._position[0]), counts)
        self.reset_with_seed(0)
        outcome = walkers.rollout_with_walkers(
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
        log = np.zeros((min(max_episodes, episode.MAX_EPISODES_PER_CALL), 2), np.int64)
        given = episode.to_python_plan(episode.make_episode_plan(plan, weights, self.n_actions, self.start))
        place = self._position.tolist()
        try:
            steps, ended = episode.play_episodes(stage, given, place, rng, max_steps, log)
        finally:
            stage.flush_counts()
        self._position[:] = place
        return episode.make_outcome(steps, ended, log)

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
    """A known model as :class:`~adagoal.worlds.stepping.CountingEnv` steps it."""

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
