"""Base classes of environments: warnings, reasons that make certificates void, action masks, and counting in Python.

:class:`CountingEnv` has the operations of :class:`~adagoal.envs.episode_loop.EpisodeEnv`. It updates the counts in
batches, because only local backups need them at every step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, final

import numpy as np

from adagoal.core.array_types import Longs
from adagoal.core.compiled_code import compiled
from adagoal.core.environment import ExplorationPlan, GridLayout, ObservedStates
from adagoal.core.errors import InputError
from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value, object_schema
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.operators import VECTOR_MATH_OPTIONS, LocalLowerBounds, backup_state
from adagoal.core.transition_data import TransitionCounts, count_transition
from adagoal.envs.env_backends import ActionMask
from adagoal.envs.episode_loop import NEW_STATE, NO_EVENT, REPLAN_DUE, STEP_FAILED
from adagoal.envs.markov_tests import MarkovTests
from adagoal.envs.observation_keys import StateKey
from adagoal.parallel.worker_process import WorkerKilled

INITIAL_STATES = 64  # states allocated at first, if states are numbered as they are met
LabelledStates = list[tuple[StateKey, str]]  # keys and labels, in the order of the state numbers
# Steps after which counts are updated: counting a single transition takes about as long as a step of a cheap
# environment, and a long rollout must not keep all its steps in memory.
MAX_PENDING_STEPS = 65_536


@dataclass
class Diagnostics:
    """Warnings, and reasons for which no certificate can be given, one line each."""

    warnings: list[str] = field(default_factory=list)
    void_reasons: list[str] = field(default_factory=list)
    lost_transitions: int = 0  # transitions in which the environment failed
    LINES_SCHEMA: ClassVar[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = object_schema(
        warnings=LINES_SCHEMA, void_reasons=LINES_SCHEMA, lost_transitions=COUNT_SCHEMA
    )

    def add_warning(self, line: str) -> None:
        """Add a warning, once."""
        if line not in self.warnings:
            self.warnings.append(line)

    def add_void_reason(self, line: str) -> None:
        """Add a reason, once."""
        # Lines that agree up to the first comma are the same reason: the rest names the first state that showed it.
        if not any(line.split(",")[0] == known.split(",")[0] for known in self.void_reasons):
            self.void_reasons.append(line)

    def report_reset_mismatch(self, next_state: int) -> None:
        """Add a void reason: a reset did not lead to the start."""
        self.add_void_reason(
            f"a reset led to another state than the start, the first time to state {next_state}; "
            'if the start is random, declare it: start="random" (--start random)'
        )

    def report_terminal_mismatch(self, state: int, state_bound: int) -> None:
        """Add a void reason: a state was terminal at one visit only."""
        self.add_void_reason(
            f"a state ended the episode at one visit and not at another, first state {state}; "
            # Twice as many: every observation may be a terminal state and another one.
            f"max_states={2 * state_bound} (--max-states {2 * state_bound}) makes the two visits different states"
        )

    def report_mask_conflict(self, state: int) -> None:
        """Add a void reason: the action mask of a state changed."""
        self.add_void_reason(f"a state had other actions at one visit than at another, first state {state}")

    def report_lost_transitions(self) -> None:
        """Add a void reason if transitions were lost."""
        # Called when the run continues. Whether a step fails may depend on its outcome, so the data are biased.
        if self.lost_transitions:
            self.add_void_reason(
                f"the environment failed and the run continued, so the data lack {self._lost_text} and the estimates "
                "may be biased"
            )

    def list_warnings(self) -> list[str]:
        """Return all warnings, and one about lost transitions."""
        if not self.lost_transitions:
            return list(self.warnings)
        text = f"the environment failed in {self._lost_text}; the data lack what happened, so a resumed run is void"
        return [*self.warnings, text]

    @property
    def _lost_text(self) -> str:
        return f"{self.lost_transitions} transition{'s' if self.lost_transitions > 1 else ''}"

    def state(self) -> dict[str, Any]:
        """Return a JSON-ready snapshot."""
        return asdict(self)

    def restore(self, facts: dict[str, Any]) -> None:
        """Restore a snapshot."""
        # Its lines are added to those of this object, which were added while the environment was made again.
        check_json_value(self.FACTS_SCHEMA, facts)
        for line in facts["warnings"]:
            self.add_warning(line)
        for line in facts["void_reasons"]:
            self.add_void_reason(line)
        self.lost_transitions = int(facts["lost_transitions"])


class BaseEnv:
    """Common fields of all environments; :class:`~adagoal.core.environment.TabularEnv` says what they mean."""

    POSITION_SCHEMA: ClassVar[dict[str, Any]] = {  # state, goal column (-1: none), steps of the episode
        **{"type": "array", "minItems": 3, "maxItems": 3},
        "items": {"type": "integer", "minimum": -1, "maximum": 2**62},
    }

    is_recorded = False
    has_virtual_start = False  # whether the start is a state of its own, which draws the first observation

    def __init__(
        self,
        name: str,
        n_actions: int,
        start: int,
        state_bound: int,
        initial_states: int,
        start_is_certain: bool,
        states_declared: bool = True,
    ) -> None:
        self.name, self.n_actions, self.start = name, n_actions, start
        self.state_bound, self.initial_states = state_bound, initial_states
        # The union over pairs is fixed before the first step, so it is over the pairs that could exist.
        self.pair_bound = state_bound * n_actions if states_declared else None
        self.start_is_certain, self.uses_action_masks = start_is_certain, True
        self.mixture: LinearMixture | None = None
        self._diagnostics = Diagnostics()

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment, one line each."""
        return self._diagnostics.list_warnings()

    @property
    def void_reasons(self) -> list[str]:
        """Reasons for which no certificate can be given, one line each."""
        return list(self._diagnostics.void_reasons)

    def has_other_goals_now(self) -> bool:
        """Return whether a goal function gives another answer for a known state than when the state was met."""
        return False

    @property
    def is_restorable(self) -> bool:
        """Whether :meth:`state` captures everything."""
        return True

    @final
    def add_warning(self, line: str) -> None:
        """Add a warning, once."""
        self._diagnostics.add_warning(line)

    @final
    def add_void_reason(self, line: str) -> None:
        """Add a reason for which certificates are void, once."""
        self._diagnostics.add_void_reason(line)


class EnvProperties(NamedTuple):
    """What is known of an environment before the first step; all workers must agree on it."""

    n_actions: int
    start: int
    state_bound: int
    initial_states: int
    has_virtual_start: bool  # the start is a state of its own, before the random first observation
    first_states: LabelledStates | None  # states known at first, without the virtual start; None if all are declared
    observed_states: ObservedStates  # how observations identify states; with the digests of the first states
    start_label: str | None  # the observation of the start, which is called "start"; None if it is virtual or declared


class MonitoredEnv(BaseEnv, ABC):
    """An environment of the user: its transitions are tested, and its code may fail at any step."""

    MAX_CONSECUTIVE_KILLS = 3  # times in a row that a process may be killed before its first step

    def __init__(self, name: str, properties: EnvProperties) -> None:
        n_actions, start, state_bound, initial_states, has_virtual_start, *_ = properties
        # Every reset leads to a virtual start by definition. adagoal infers any other start from resets that agreed.
        declared = properties.first_states is None
        super().__init__(name, n_actions, start, state_bound, initial_states, has_virtual_start, declared)
        self.has_virtual_start = has_virtual_start
        self.layout: GridLayout | None = None
        self.start_label = properties.start_label
        self._markov_tests = MarkovTests(n_actions)
        self._given_labels: tuple[str, ...] = ()
        # Raised by the next rollout: raised at once, it would lose the transitions of this rollout.
        self._pending_failure: BaseException | None = None
        self._consecutive_kills = 0  # times in a row that a process was killed before its first step

    @abstractmethod
    def _observed_labels(self) -> tuple[str, ...]:
        """Labels of the states met so far; empty if the environment declares its states."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the states: those that were assigned, or the observations so far."""
        # Toy-text environments have better labels than their observations, which are plain numbers.
        return self._given_labels or self._observed_labels()

    @labels.setter
    def labels(self, labels: tuple[str, ...]) -> None:
        self._given_labels = labels

    @final
    @property
    def void_reasons(self) -> list[str]:
        """Reasons for which no certificate can be given, those that the tests found included."""
        return list(dict.fromkeys([*self._diagnostics.void_reasons, *self._markov_tests.describe_violations()]))

    @final
    def _list_env_warnings(self, ever_truncated: bool) -> list[str]:
        # No step limit tells the user why such a run goes on: it waits for states that no episode can reach.
        truncated = "the environment was reset each time that it truncated an episode; states that no episode reaches"
        truncated += " stay unknown, so the run may never stop by its rule: remove the limit from the environment"
        return [*self._diagnostics.list_warnings(), *([truncated] if ever_truncated else [])]

    @final
    def _raise_pending_failure(self) -> None:
        if self._pending_failure is not None:
            failure, self._pending_failure = self._pending_failure, None
            raise failure


class SteppableEnv(Protocol):
    """What a rollout steps: an :class:`~adagoal.envs.gym_adapter.NumberedEnv`, or a known model."""

    n_actions: int
    start: int
    state_bound: int
    needs_reset: bool  # whether the environment truncated the episode
    has_virtual_start: bool  # whether the start is a state of its own, before the first random observation

    @property
    def action_mask(self) -> ActionMask: ...  # of the current state
    @property
    def n_known_states(self) -> int: ...
    def reset_to_start(self) -> int: ...
    def step(self, state: int, action: int) -> tuple[int, bool]: ...


class ActionMasks:
    """Masks of the states met so far; environments report them at every visit (``info["action_mask"]``).

    ``absent`` are the pairs that are known to be absent. With ``used=False`` all actions count as available.
    """

    def __init__(self, n_actions: int, absent: Iterable[int], used: bool) -> None:
        self._n_actions, self._used = n_actions, used
        self.absent_pairs = set(absent)  # pairs s * A + a
        self.masks_of_new_states: dict[int, ActionMask] = {}
        self._mask_of_state: dict[int, ActionMask] = {}

    def add_state_mask(self, state: int, mask: ActionMask) -> Longs:
        """Store the mask of a new state; return the pairs that it makes absent."""
        if not self._used:
            return np.zeros(0, np.int64)
        self.masks_of_new_states[state] = self._mask_of_state[state] = mask
        if mask is None:
            return np.zeros(0, np.int64)
        pairs = state * self._n_actions + np.flatnonzero(np.frombuffer(mask, np.uint8) == 0)
        self.absent_pairs.update(pairs.tolist())
        return pairs

    def conflicts_with_known(self, state: int, mask: ActionMask) -> bool:
        """Return whether the mask of a state has changed. Then an action no longer has one distribution."""
        if not self._used:
            return False
        # The masks of earlier rollouts are not stored: the absent pairs have the same information.
        if state not in self._mask_of_state:
            first = state * self._n_actions
            known = bytes(pair not in self.absent_pairs for pair in range(first, first + self._n_actions))
            self._mask_of_state[state] = known if 0 in known else None
        return self._mask_of_state[state] != mask


def make_room_for_states(counts: TransitionCounts, n_known: int, state_bound: int) -> None:
    """Enlarge the arrays for the known states and for one more, which the next step may find."""
    while n_known >= counts.n_states < state_bound:
        counts.grow_states(min(2 * counts.n_states, state_bound))


class CountingEnv:
    """One rollout of a plan, see :class:`~adagoal.envs.episode_loop.EpisodeEnv` for its operations.

    An exception of the environment ends the rollout; ``failure`` keeps it. Call :meth:`flush_counts` at the end.
    """

    def __init__(
        self,
        env: SteppableEnv,
        plan: ExplorationPlan,
        counts: TransitionCounts,
        markov_tests: MarkovTests | None,
        diagnostics: Diagnostics,
        use_masks: bool,
    ) -> None:
        self.failure: BaseException | None = None
        self._env, self._counts, self._markov_tests, self._diagnostics = env, counts, markov_tests, diagnostics
        self._known_states = set(np.flatnonzero(counts.seen).tolist())
        self._terminal_states = set(np.flatnonzero(counts.terminal).tolist())
        self._tries_before_replan = plan.replan_thresholds - counts.n[: len(plan.replan_thresholds)]
        # counts.n lags behind by the pending steps, so tries are counted here as well.
        self._tries_left: dict[int, int] = {}
        self._action_masks = ActionMasks(env.n_actions, np.flatnonzero(counts.absent).tolist(), use_masks)
        # The start is known without being entered, so its mask is stored before the first step of the run.
        if not counts.visits[env.start] and not env.has_virtual_start:
            counts.mark_absent_pairs(self._action_masks.add_state_mask(env.start, env.action_mask))
        # [n, 2] steps since the last flush: a pair s * A + a, or -1 - s for a reset in s; and the next state.
        self._steps = np.empty((MAX_PENDING_STEPS, 2), np.int64)
        # In Python, entries are written faster through a view.
        self._step_writer = memoryview(self._steps)  # type: ignore[arg-type]
        self._n_steps = 0
        self._n_counted = np.zeros(1, np.int64)  # of these steps, those that a backup has counted already

    def must_reset(self, state: int) -> bool:
        """Return whether the state is terminal, or the environment truncated the episode."""
        return self._env.needs_reset or state in self._terminal_states

    def reset_from(self, state: int) -> int:
        """Reset in ``state``; return the next state, or STEP_FAILED."""
        try:
            next_state = self._env.reset_to_start()
            if next_state == self._env.start:
                self._check_action_mask(next_state)
            else:
                make_room_for_states(self._counts, self._env.n_known_states, self._env.state_bound)
                self._counts.seen[next_state] = True
                self._diagnostics.report_reset_mismatch(next_state)
        except BaseException as error:
            self._record_failure(error)
            return STEP_FAILED
        self._add_step(-1 - state, next_state)
        return next_state

    def take_action(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        """Step the environment, which has a generator of its own; return the next state and an event."""
        pair = state * self._env.n_actions + action
        if pair in self._action_masks.absent_pairs:
            return self.reset_from(state), NO_EVENT
        try:
            next_state, terminated = self._env.step(state, action)
        except BaseException as error:
            self._record_failure(error)
            return STEP_FAILED, NO_EVENT
        if terminated != (next_state in self._terminal_states):
            self._mark_terminal(next_state, terminated)
        is_new = next_state not in self._known_states
        if is_new:
            make_room_for_states(self._counts, self._env.n_known_states, self._env.state_bound)
            self._known_states.add(next_state)
            self._counts.seen[next_state] = True
            self._counts.mark_absent_pairs(self._action_masks.add_state_mask(next_state, self._env.action_mask))
        # In a terminal state the reset is the only action, so its mask does not matter.
        elif not terminated:
            self._check_action_mask(next_state)
        self._add_step(pair, next_state)
        self._tries_left[pair] = tries_left = self._tries_left.get(pair, self._tries_before_replan[pair]) - 1
        return next_state, NEW_STATE if is_new else REPLAN_DUE if tries_left <= 0 else NO_EVENT

    def backup_and_choose(self, local: LocalLowerBounds, state: int, column: int) -> int:
        """Raise the bound of a column at a state, with all counts up to the last step; return the greedy action."""
        # Only counts are updated here. The log, the tests and the visits wait for the flush.
        counts, steps = self._counts, (self._steps, self._n_steps, self._n_counted)
        # Compiled code cannot enlarge the arrays. It stops at a full row, and returns a negative action.
        while (action := _count_and_back_up(state, column, local, *steps, *counts.transition_arrays())) < 0:
            counts.grow_successors(2 * counts.successor.shape[1])
        return int(action)

    def _add_step(self, move: int, next_state: int) -> None:
        i = self._n_steps
        self._step_writer[i, 0] = move
        self._step_writer[i, 1] = next_state
        # Last: a signal must not leave half a transition behind.
        self._n_steps = i + 1
        if self._n_steps == MAX_PENDING_STEPS:
            self.flush_counts()

    def _record_failure(self, error: BaseException) -> None:
        # A transition that made the environment fail is missing from the data, which biases them. A process that was
        # killed from outside loses a transition for an unrelated reason, which does not.
        if isinstance(error, InputError) and not isinstance(error, WorkerKilled):
            self._diagnostics.lost_transitions += 1
        self.failure = error

    def _mark_terminal(self, state: int, terminated: bool) -> None:
        self._terminal_states.add(state)
        self._counts.terminal[state] = True
        if state in self._known_states or not terminated:
            self._diagnostics.report_terminal_mismatch(state, self._env.state_bound)

    def _check_action_mask(self, state: int) -> None:
        if self._action_masks.conflicts_with_known(state, self._env.action_mask):
            self._diagnostics.report_mask_conflict(state)

    def flush_counts(self) -> None:
        """Update the counts, the log of transitions and the tests."""
        counts, n_steps = self._counts, self._n_steps
        # Contiguous like all other arrays: Numba would compile the kernels again for another memory layout.
        moves, next_states = np.ascontiguousarray(self._steps[:n_steps].T)
        self._n_steps = 0
        # Visits include resets, which have no pair.
        states = np.where(moves >= 0, moves // counts.n_actions, -1 - moves)
        counts.visits += np.bincount(states, minlength=counts.n_states)
        if self._markov_tests is not None:
            self._markov_tests.add_transitions(moves, next_states)
        if counts.transition_log is not None:
            counts.transition_log.append_steps(moves, next_states)
        while not _count_steps(self._steps, n_steps, self._n_counted, *counts.transition_arrays()):
            counts.grow_successors(2 * counts.successor.shape[1])
        self._n_counted[0] = 0


@compiled
def _count_steps(steps, n_steps, n_counted, *arrays):  # type: ignore[no-untyped-def]
    """Count the transitions that are not counted yet; return False if a row has no room left."""
    # Compiled code updates n_counted [1], so no signal can come between a transition and its mark.
    for i in range(n_counted[0], n_steps):
        if steps[i, 0] >= 0 and not count_transition(steps[i, 0], steps[i, 1], *arrays):
            return False
        n_counted[0] += 1
    return True


@compiled(**VECTOR_MATH_OPTIONS)
def _count_and_back_up(state, column, local, steps, n_steps, n_counted, *arrays):  # type: ignore[no-untyped-def]
    """Count, then back up the state and return the action; -1 if a row has no room left."""
    # One call of compiled code: Python spends about a microsecond on each, as much as on a step of a fast environment.
    if not _count_steps(steps, n_steps, n_counted, *arrays):
        return -1
    successor, count, _, support, n, _ = arrays
    return backup_state(state, column, local, successor, count, support, n)
