"""A compiled simulator for known models: tens of millions of steps a second.

The learner sees transitions only, never the probabilities. A run that records its steps is played in Python instead,
with the same draws and the same outcome, at a million steps a second.

The states of a large model can be numbered as they are met (:meth:`ModelSimulator.number_states_if_large`). Then the
cost of a run follows the states that it meets, not the size of the model.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from adagoal.core.array_types import Floats, Longs
from adagoal.core.environment import ExplorationPlan, GridLayout, ObservedStates, RolloutLimits, RolloutOutcome
from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import episode_loop, observation_keys
from adagoal.envs.base_env import INITIAL_STATES, BaseEnv, CountingEnv, Diagnostics, make_room_for_states
from adagoal.envs.env_backends import ActionMask
from adagoal.envs.model import TabularMDP

# A run on a model with fewer states keeps the model's numbers. Its tables of all states then take less than a second.
MIN_LARGE_STATES = 5000


class ModelSimulator(BaseEnv):
    """A :class:`~adagoal.core.environment.TabularEnv` that samples from a known model.

    ``is_user_model``: the user brought the model, so a run must store it (:mod:`adagoal.envs.model_sources`).
    ``observations``: the model is that of a Gymnasium environment; the numbers of its first ``observations`` states are
    its observations.
    """

    FACTS_SCHEMA = object_schema(place=BaseEnv.POSITION_SCHEMA, diagnostics=Diagnostics.FACTS_SCHEMA)

    def __init__(self, mdp: TabularMDP, is_user_model: bool = False, observations: int | None = None) -> None:
        # A run could do nothing but reset.
        if mdp.terminal[mdp.start]:
            raise InputError(f"state {mdp.start} is terminal, so no other can be reached; choose another", "start")
        super().__init__(mdp.name, mdp.n_actions, mdp.start, mdp.n_states, mdp.n_states, start_is_certain=True)
        self.mdp, self.is_user_model, self._n_observations = mdp, is_user_model, observations
        self.has_virtual_start = observations is not None and mdp.start >= observations
        self.mixture = mdp.mixture
        self._cumulative_probabilities = _cumulative_rows(mdp)
        self._max_successors = int(np.diff(mdp.indptr).max())
        self._absent_pairs = np.flatnonzero(mdp.absent)
        # Absent pairs are known, so union bounds need not include them.
        self.pair_bound = mdp.n_states * mdp.n_actions - len(self._absent_pairs)
        self._position = np.array([mdp.start, -1, 0])  # state, goal column (-1: none), steps of the episode
        self._numbering: StateNumbering | None = None  # None: the numbers of the model

    def number_states_if_large(self, least: int = MIN_LARGE_STATES) -> None:
        """Number the states of a model with ``least`` states or more in the order in which they are met.

        Call it before the run. The start is then state 0. Gymnasium environments and mixtures keep their numbers.
        """
        if self.mdp.n_states < least or self._n_observations is not None or self.mixture is not None:
            return
        self._numbering, self.start = StateNumbering(self.mdp), 0
        self.initial_states = min(INITIAL_STATES, self.mdp.n_states)
        self._position[0] = 0

    @property
    def model_states(self) -> Longs:
        """[N] the model's number of every state that has one."""
        return np.arange(self.mdp.n_states) if self._numbering is None else self._numbering.states_met

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the states. If states are numbered as they are met, an unnamed one has the model's number."""
        names = self.mdp.labels
        if self._numbering is None:
            return names
        return tuple(names[s] if names else str(s) for s in self.model_states.tolist())

    @property
    def layout(self) -> GridLayout | None:
        """The map of the states."""
        whole = self.mdp.layout
        if whole is None or self._numbering is None:
            return whole
        # States that are allocated and not met yet are outside the map.
        cells = np.full((len(self._numbering.state_of_number), 2), -1)
        cells[: len(self.model_states)] = np.asarray(whole.cells)[self.model_states]
        return GridLayout(whole.shape, cells, whole.walls)

    def rollout(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: Generator, limits: RolloutLimits
    ) -> RolloutOutcome:
        """Play until the plan or a limit says stop."""
        if self._numbering is not None:
            self._numbering.prepare_counts(counts, self.uses_action_masks)
        else:
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
            terminal = mdp.terminal if self._numbering is None else c.terminal
            arrays = mdp.indptr, mdp.successors, self._cumulative_probabilities, terminal, self.start, thresholds
            model: Any = episode_loop.CountingModel(
                *arrays, c.successor, c.count, c.recent, c.support, c.n, c.settled, c.visits, c.seen, c.absent
            )
            if self._numbering is not None:
                model = episode_loop.NumberedModel(*model, *self._numbering.arrays(self.uses_action_masks))
            play = episode_loop.play_episodes_compiled
            steps, episodes = play(model, episode_plan, self._position, rng, max_steps, log)
            if self._numbering is None:
                counts.terminal |= self.mdp.terminal & counts.seen
            return episode_loop.make_outcome(steps, episodes, log)
        env = _SampledModel(self.mdp, self._cumulative_probabilities, rng, self._numbering)
        # No markov tests. Masks only if states are numbered as they are met, else absent pairs are known already.
        use_masks = self._numbering is not None and self.uses_action_masks
        counting = CountingEnv(env, plan, counts, None, Diagnostics(), use_masks)
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
        """Return the table from observations, the numbers of a Gymnasium environment or of a large model, to states.

        It is None if these are the numbers of the run.
        """
        if self._numbering is not None:
            numbers = {state: number for number, state in enumerate(self.model_states.tolist())}
            return ObservedStates({"kind": "whole"}, observation_keys.digest_states(numbers, len(numbers)))
        n = self._n_observations
        return None if n is None else ObservedStates({"kind": "states", "first": 0, "size": n})

    def reset_with_seed(self, seed: int) -> None:
        """Reset to the start; the simulator draws from the generator of the caller, so it needs no seed."""
        self._position[:] = self.start, -1, 0

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the position, the diagnostics, and the states met if they are numbered in this order."""
        arrays = {} if self._numbering is None else {"states_met": self.model_states}
        return arrays, {"place": self._position.tolist(), "diagnostics": self._diagnostics.state()}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned; raise ``ValueError`` if it is of another model."""
        check_json_value(self.FACTS_SCHEMA, facts)
        if self._numbering is not None:
            self._numbering.restore(arrays)
        self._diagnostics.restore(facts["diagnostics"])
        self._position[:] = facts["place"]


class StateNumbering:
    """Numbers of the states of a model, in the order in which they are met."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {"states_met": ArraySpec("int64", ("N",), low=0, below="M")}

    def __init__(self, mdp: TabularMDP) -> None:
        self._mdp = mdp
        self.state_of_number = np.zeros(INITIAL_STATES, np.int64)  # [allocated states] of the model
        self._number_of_state = np.full(mdp.n_states, -1, np.int32)
        self._n_met = np.zeros(1, np.int64)  # an array, because compiled code counts
        self.find_or_add(mdp.start)

    @property
    def states_met(self) -> Longs:
        """[N] the model's states in the order of their numbers."""
        return self.state_of_number[: self._n_met[0]].copy()

    def find_or_add(self, state: int) -> int:
        """Return the number of a state of the model; a new state gets the next number."""
        if self._number_of_state[state] < 0:
            number = int(self._n_met[0])
            self._allocate(number + 1)
            self.state_of_number[number], self._number_of_state[state] = state, number
            self._n_met[0] += 1
        return int(self._number_of_state[state])

    def _allocate(self, n_states: int) -> None:
        if n_states > len(self.state_of_number):
            self.state_of_number = np.pad(self.state_of_number, (0, 2 * n_states - len(self.state_of_number)))

    def prepare_counts(self, counts: TransitionCounts, use_masks: bool) -> None:
        """Make room for two more states, and mark the absent pairs of the start."""
        # One state ends the rollouts of most plans. The second keeps the arrays from being full then.
        make_room_for_states(counts, int(self._n_met[0]) + 1, self._mdp.n_states)
        self._allocate(counts.n_states)
        pairs = np.flatnonzero(self._mdp.absent.reshape(-1, counts.n_actions)[self._mdp.start])
        if use_masks and len(pairs) and not counts.absent[pairs[0]]:
            counts.mark_absent_pairs(pairs)

    def arrays(self, use_masks: bool) -> tuple[NDArray[Any], ...]:
        """Return the last fields of a :class:`~adagoal.envs.episode_loop.NumberedModel`."""
        absent = self._mdp.absent if use_masks else np.zeros(0, bool)
        return self.state_of_number, self._number_of_state, self._n_met, self._mdp.terminal, absent

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the states met; raise ``ValueError`` if they are not those of a run on this model."""
        sizes = check_arrays(self.ARRAY_SCHEMA, arrays, {"M": self._mdp.n_states})
        met = arrays["states_met"]
        if len(np.unique(met)) != sizes["N"] or met[:1].tolist() != [self._mdp.start]:
            raise ValueError("the states met are not those of this model")
        self._number_of_state[:] = -1
        self._number_of_state[met], self._n_met[0] = np.arange(len(met)), len(met)
        # As many as the counts have at least, see prepare_counts: a map has a cell for each of them.
        self._allocate(len(met) + 2)
        self.state_of_number[: len(met)] = met


class _SampledModel:
    """A known model as :class:`~adagoal.envs.base_env.CountingEnv` steps it, with the draws of the compiled one."""

    needs_reset = has_virtual_start = False

    def __init__(self, mdp: TabularMDP, cumulative: Floats, rng: Generator, numbering: StateNumbering | None) -> None:
        self.n_actions, self.state_bound = mdp.n_actions, mdp.n_states
        self.start = mdp.start if numbering is None else 0
        # Views, not lists: a list of a large model would take longer than the rollout.
        views: Any = [memoryview(array) for array in (mdp.indptr, mdp.successors, cumulative)]  # type: ignore[arg-type]
        (self._row_starts, self._successors, self._cumulative_probabilities), self._rng = views, rng
        self._terminal, self._absent, self._numbering = mdp.terminal, mdp.absent, numbering
        self._state = mdp.start

    @property
    def n_known_states(self) -> int:
        return self.state_bound if self._numbering is None else len(self._numbering.states_met)

    @property
    def action_mask(self) -> ActionMask:
        first = self._state * self.n_actions
        available = ~self._absent[first : first + self.n_actions]
        return None if available.all() else available.tobytes()

    def reset_to_start(self) -> int:
        self._state = self.start if self._numbering is None else int(self._numbering.state_of_number[0])
        return self.start

    def step(self, state: int, action: int) -> tuple[int, bool]:
        numbering = self._numbering
        model_state = state if numbering is None else int(numbering.state_of_number[state])
        u, k = self._rng.random(), self._row_starts[model_state * self.n_actions + action]
        while self._cumulative_probabilities[k] <= u:
            k += 1
        self._state = self._successors[k]
        number = self._state if numbering is None else numbering.find_or_add(self._state)
        return number, bool(self._terminal[self._state])


def _cumulative_rows(mdp: TabularMDP) -> Floats:
    """[nnz] cumulative probabilities inside each row; the last is infinite."""
    total = np.cumsum(mdp.probabilities)
    before_row = np.concatenate([[0.0], total])[mdp.indptr[:-1]]
    cumulative: Floats = total - np.repeat(before_row, np.diff(mdp.indptr))
    # Rounding may leave the last sum below one. A larger u would continue into the next row.
    cumulative[mdp.indptr[1:] - 1] = np.inf
    return cumulative
