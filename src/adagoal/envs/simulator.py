"""A compiled simulator for known models: tens of millions of steps a second.

The learner sees transitions only, never the probabilities.

The states of a large model can be numbered as they are met (:meth:`ModelSimulator.number_states_if_large`). Then the
cost of a run follows the states that it meets, not the size of the model.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from adagoal.core.environment import ExplorationPlan, RolloutLimits, RolloutOutcome
from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Floats, GridLayout, Longs, ObservedStates
from adagoal.envs import episode_loop, observation_keys
from adagoal.envs.base_env import INITIAL_STATES, BaseEnv, Diagnostics, make_room_for_states
from adagoal.envs.model import TabularMDP

# A run on a model with fewer states keeps the model's numbers. Its tables of all states then take less than a second.
MIN_LARGE_STATES = 5000
# A rollout of a run that records its steps ends here, because compiled code cannot enlarge the log: 64 MB.
MAX_RECORDED_STEPS = 2**22


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
        self.mixture = mdp.mixture
        self._cumulative_probabilities = _cumulative_rows(mdp)
        self._max_successors = int(np.diff(mdp.indptr).max())
        # Absent pairs are known, so union bounds need not include them.
        self.pair_bound -= int(mdp.absent.sum())
        self._position = np.array([mdp.start, -1, 0])  # state, goal column (-1: none), steps of the episode
        self._numbering, self._numbers_as_met = StateNumbering(mdp, np.arange(mdp.n_states)), False

    def number_states_if_large(self) -> None:
        """Number the states of a large model in the order in which they are met; call it before the run.

        The start is then state 0. Gymnasium environments and mixtures keep their numbers.
        """
        if self.mdp.n_states < MIN_LARGE_STATES or self._n_observations is not None or self.mixture is not None:
            return
        self._numbering, self._numbers_as_met = StateNumbering(self.mdp, np.array([self.mdp.start])), True
        self.initial_states = min(INITIAL_STATES, self.mdp.n_states)
        self._position[0] = self.start = 0

    @property
    def model_states(self) -> Longs:
        """[N] the model's number of every state that has one."""
        return self._numbering.states_met

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the states. If states are numbered as they are met, an unnamed one has the model's number."""
        names = self.mdp.labels
        if not self._numbers_as_met:
            return names
        return tuple(names[s] if names else str(s) for s in self.model_states.tolist())

    @property
    def layout(self) -> GridLayout | None:
        """The map of the states."""
        whole = self.mdp.layout
        if whole is None or not self._numbers_as_met:
            return whole
        # States that are allocated and not met yet are outside the map.
        cells = np.full((len(self._numbering.state_of_number), 2), -1)
        cells[: len(self.model_states)] = np.asarray(whole.cells)[self.model_states]
        return GridLayout(whole.shape, cells, whole.walls)

    def rollout(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: Generator, limits: RolloutLimits
    ) -> RolloutOutcome:
        """Play until the plan or a limit says stop."""
        self._numbering.prepare_counts(counts, self.uses_action_masks)
        max_steps, max_episodes = limits
        max_steps, log = min(max_steps, plan.max_steps), episode_loop.make_episode_log(max_episodes)
        is_recorded = counts.transition_log is not None
        max_steps = min(max_steps, MAX_RECORDED_STEPS) if is_recorded else max_steps
        moves, n_logged = np.empty((max_steps if is_recorded else 0, 2), np.int64), np.zeros(1, np.int64)
        # Compiled code cannot enlarge the arrays, so they get room for every row of the model beforehand.
        counts.grow_successors(self._max_successors)
        mdp, c = self.mdp, counts
        fields: list[Any] = [mdp.indptr, mdp.successors, self._cumulative_probabilities, mdp.terminal]
        fields += [*self._numbering.arrays(self.uses_action_masks), self.start, plan.replan_thresholds]
        fields += [*c.transition_arrays(), c.visits, c.seen, c.terminal, c.absent, moves, n_logged]
        model = episode_loop.CountingModel(*fields)
        episode_plan = episode_loop.make_episode_plan(plan, weights, self.n_actions, self.start)
        play = episode_loop.play_episodes_compiled
        steps, episodes = play(model, episode_plan, self._position, rng, max_steps, log)
        if counts.transition_log is not None:
            counts.transition_log.append_steps(*np.ascontiguousarray(moves[: n_logged[0]].T))
        return episode_loop.make_outcome(steps, episodes, log)

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Add all states; the observation is the number in a Gymnasium environment, else the label if there is one."""
        for state in range(self.state_bound if self._n_observations is None else self._n_observations):
            label = self.labels[state] if self.labels else str(state)
            has_name = self.labels and self._n_observations is None
            space.add_state(state, label if has_name else state, label)
        return True

    def observed_states(self) -> ObservedStates | None:
        """Return the table from observations, the numbers of a Gymnasium environment or of a large model, to states.

        It is None if these are the numbers of the run.
        """
        if self._numbers_as_met:
            numbers = {state: number for number, state in enumerate(self.model_states.tolist())}
            return ObservedStates({"kind": "whole"}, observation_keys.digest_states(numbers, len(numbers)))
        n = self._n_observations
        return None if n is None else ObservedStates({"kind": "states", "first": 0, "size": n})

    def reset_with_seed(self, seed: int) -> None:
        """Reset to the start; the simulator draws from the generator of the caller, so it needs no seed."""
        self._position[:] = self.start, -1, 0

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the position, the diagnostics, and the states met if they are numbered in this order."""
        arrays = {"states_met": self.model_states} if self._numbers_as_met else {}
        return arrays, {"place": self._position.tolist(), "diagnostics": self._diagnostics.state()}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned; raise ``ValueError`` if it is of another model."""
        check_json_value(self.FACTS_SCHEMA, facts)
        if self._numbers_as_met:
            self._numbering.restore(arrays)
        self._diagnostics.restore(facts["diagnostics"])
        self._position[:] = facts["place"]


class StateNumbering:
    """Numbers of the states of a model: those of ``first`` [N], then in the order in which they are met."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {"states_met": ArraySpec("int64", ("N",), low=0, below="M")}

    def __init__(self, mdp: TabularMDP, first: Longs) -> None:
        self._mdp, self._has_absent_pairs = mdp, bool(mdp.absent.any())
        self.state_of_number = np.zeros(INITIAL_STATES, np.int64)  # [allocated states] of the model
        self._number_of_state = np.full(mdp.n_states, -1, np.int32)
        self._n_met = np.zeros(1, np.int64)  # an array, because compiled code counts
        self._set_states(first)

    @property
    def states_met(self) -> Longs:
        """[N] the model's states in the order of their numbers."""
        return self.state_of_number[: self._n_met[0]].copy()

    def _set_states(self, states: Longs) -> None:
        self._number_of_state[:] = -1
        self._number_of_state[states], self._n_met[0] = np.arange(len(states)), len(states)
        # As many as the counts have at least, see prepare_counts: a map has a cell for each of them.
        self._allocate(len(states) + 2)
        self.state_of_number[: len(states)] = states

    def _allocate(self, n_states: int) -> None:
        if n_states > len(self.state_of_number):
            self.state_of_number = np.pad(self.state_of_number, (0, 2 * n_states - len(self.state_of_number)))

    def prepare_counts(self, counts: TransitionCounts, use_masks: bool) -> None:
        """Make room for two more states, and mark the terminal states and absent pairs of the states seen."""
        # One state ends the rollouts of most plans. The second keeps the arrays from being full then.
        make_room_for_states(counts, int(self._n_met[0]) + 1, self._mdp.n_states)
        self._allocate(counts.n_states)
        met = self.state_of_number[: self._n_met[0]]
        counts.terminal[: len(met)] |= self._mdp.terminal[met] & counts.seen[: len(met)]
        # Once: the loop marks the pairs of states that get their number later.
        if use_masks and self._has_absent_pairs and not counts.absent.any():
            counts.mark_absent_pairs(np.flatnonzero(self._mdp.absent.reshape(-1, counts.n_actions)[met]))

    def arrays(self, use_masks: bool) -> tuple[NDArray[Any], ...]:
        """Return the fields of a :class:`~adagoal.envs.episode_loop.CountingModel` that number its states."""
        absent = self._mdp.absent if use_masks else np.zeros(0, bool)
        return absent, self.state_of_number, self._number_of_state, self._n_met

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the states met; raise ``ValueError`` if they are not those of a run on this model."""
        sizes = check_arrays(self.ARRAY_SCHEMA, arrays, {"M": self._mdp.n_states})
        met = arrays["states_met"]
        if len(np.unique(met)) != sizes["N"] or met[:1].tolist() != [self._mdp.start]:
            raise ValueError("the states met are not those of this model")
        self._set_states(met)


def _cumulative_rows(mdp: TabularMDP) -> Floats:
    """[nnz] cumulative probabilities inside each row; the last is infinite."""
    total = np.cumsum(mdp.probabilities)
    before_row = np.concatenate([[0.0], total])[mdp.indptr[:-1]]
    cumulative: Floats = total - np.repeat(before_row, np.diff(mdp.indptr))
    # Rounding may leave the last sum below one. A larger u would continue into the next row.
    cumulative[mdp.indptr[1:] - 1] = np.inf
    return cumulative
