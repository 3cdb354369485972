"""A compiled simulator for known models: tens of millions of steps a second.

The learner sees transitions only, never the probabilities. A run that records its steps is played in Python instead,
with the same draws and the same outcome, at a million steps a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from adagoal.core.environment import ExplorationPlan, RolloutLimits, RolloutOutcome
from adagoal.core.errors import InputError
from adagoal.core.file_formats import check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Floats, ObservedStates
from adagoal.envs import episode_loop
from adagoal.envs.base_env import BaseEnv, CountingEnv, Diagnostics
from adagoal.envs.env_backends import ActionMask
from adagoal.envs.model import TabularMDP


class ModelSimulator(BaseEnv):
    """A :class:`~adagoal.core.environment.TabularEnv` that samples from a known model.

    ``own``: the user brought the model, so a run must store it (:mod:`adagoal.envs.model_sources`).
    ``observations``: the model is that of a Gymnasium environment; the numbers of its first ``observations`` states are
    its observations.
    """

    FACTS_SCHEMA = object_schema(place=BaseEnv.POSITION_SCHEMA, diagnostics=Diagnostics.FACTS_SCHEMA)

    def __init__(self, mdp: TabularMDP, own: bool = False, observations: int | None = None) -> None:
        # A run could do nothing but reset.
        if mdp.terminal[mdp.start]:
            raise InputError(f"state {mdp.start} is terminal, so no other can be reached; choose another", "start")
        super().__init__(mdp.name, mdp.n_actions, mdp.start, mdp.n_states, mdp.n_states, start_is_certain=True)
        self.mdp, self.own, self._n_observations = mdp, own, observations
        self.labels, self.layout, self.mixture = mdp.labels, mdp.layout, mdp.mixture
        self._cumulative_probabilities = _cumulative_rows(mdp)
        self._max_successors = int(np.diff(mdp.indptr).max())
        self._absent_pairs = np.flatnonzero(mdp.absent)
        # Absent pairs are known, so union bounds need not include them.
        self.pair_bound -= len(self._absent_pairs)
        self._position = np.array([mdp.start, -1, 0])  # state, goal column (-1: none), steps of the episode

    def rollout(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: Generator, limits: RolloutLimits
    ) -> RolloutOutcome:
        """Play until the plan or a limit says stop."""
        # Once per run: after that the first absent pair is marked.
        if self.uses_action_masks and len(self._absent_pairs) and not counts.absent[self._absent_pairs[0]]:
            counts.mark_absent_pairs(self._absent_pairs)
        counts.terminal |= self.mdp.terminal & counts.seen
        max_steps, max_episodes = limits
        max_steps, log = min(max_steps, plan.max_steps), episode_loop.make_episode_log(max_episodes)
        episode_plan = episode_loop.make_episode_plan(plan, weights, self.n_actions, self.start)
        # The compiled loop keeps no log of transitions.
        if counts.transition_log is None:
            # Compiled code cannot enlarge the arrays, so they get room for every row of the model beforehand.
            counts.grow_successors(self._max_successors)
            mdp, c, thresholds = self.mdp, counts, plan.replan_thresholds
            arrays = mdp.indptr, mdp.successors, self._cumulative_probabilities, mdp.terminal, mdp.start, thresholds
            model = episode_loop.CountingModel(
                *arrays, c.successor, c.count, c.recent, c.support, c.n, c.settled, c.visits, c.seen, c.absent
            )
            play = episode_loop.play_episodes_compiled
            steps, episodes = play(model, episode_plan, self._position, rng, max_steps, log)
            counts.terminal |= self.mdp.terminal & counts.seen
            return episode_loop.make_outcome(steps, episodes, log)
        env = _SampledModel(self.mdp, self._cumulative_probabilities, rng)
        # No markov tests, and no masks: which pairs are absent is known already.
        counting = CountingEnv(env, plan, counts, None, Diagnostics(), use_masks=False)
        position, python_plan = self._position.tolist(), episode_loop.to_python_plan(episode_plan)
        try:
            steps, episodes = episode_loop.play_episodes(counting, python_plan, position, rng, max_steps, log)
        finally:
            # Also after an interrupt: the log and the counts must agree.
            counting.flush_counts()
        self._position[:] = position
        return episode_loop.make_outcome(steps, episodes, log)

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Add all states; the observation is the number in a Gymnasium environment, else the label if there is one."""
        for state in range(self.state_bound if self._n_observations is None else self._n_observations):
            label = self.labels[state] if self.labels else str(state)
            has_name = self.labels and self._n_observations is None
            space.add_state(state, label if has_name else state, label)
        return True

    def observed_states(self) -> ObservedStates | None:
        """Return the table from observations to states for a Gymnasium environment; other models have none."""
        n = self._n_observations
        return None if n is None else ObservedStates({"kind": "states", "first": 0, "size": n})

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment, one line each."""
        return self._diagnostics.list_warnings()

    @property
    def void_reasons(self) -> list[str]:
        """Reasons for which no certificate can be given, one line each."""
        return list(self._diagnostics.void_reasons)

    def reset_with_seed(self, seed: int) -> None:
        """Reset to the start; the simulator draws from the generator of the caller, so it needs no seed."""
        self._position[:] = self.start, -1, 0

    @property
    def is_restorable(self) -> bool:
        """A simulator can be restored at any time."""
        return True

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the position and the diagnostics."""
        return {}, {"place": self._position.tolist(), "diagnostics": self._diagnostics.state()}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Restore the position and the diagnostics."""
        check_json_value(self.FACTS_SCHEMA, facts)
        self._diagnostics.restore(facts["diagnostics"])
        self._position[:] = facts["place"]


class _SampledModel:
    """A known model as :class:`~adagoal.envs.base_env.CountingEnv` steps it, with the draws of the compiled one."""

    needs_reset = has_virtual_start = False
    action_mask: ActionMask = None

    def __init__(self, mdp: TabularMDP, cumulative: Floats, rng: Generator) -> None:
        self.n_actions, self.start, self.state_bound = mdp.n_actions, mdp.start, mdp.n_states
        self.n_known_states = mdp.n_states
        self._row_starts, self._successors, self._terminal = mdp.indptr.tolist(), mdp.successors.tolist(), mdp.terminal
        self._cumulative_probabilities, self._rng = cumulative.tolist(), rng

    def reset_to_start(self) -> int:
        return self.start

    def step(self, state: int, action: int) -> tuple[int, bool]:
        u, k = self._rng.random(), self._row_starts[state * self.n_actions + action]
        while self._cumulative_probabilities[k] <= u:
            k += 1
        next_state = self._successors[k]
        return next_state, bool(self._terminal[next_state])


def _cumulative_rows(mdp: TabularMDP) -> Floats:
    """[nnz] cumulative probabilities inside each row; the last is infinite."""
    total = np.cumsum(mdp.probabilities)
    before_row = np.concatenate([[0.0], total])[mdp.indptr[:-1]]
    cumulative: Floats = total - np.repeat(before_row, np.diff(mdp.indptr))
    # Rounding may leave the last sum below one. A larger u would continue into the next row.
    cumulative[mdp.indptr[1:] - 1] = np.inf
    return cumulative
