"""A Gymnasium environment as numbered states: observations get numbers, resets keep their generators apart."""

from __future__ import annotations

from typing import Any, Protocol

import numba
import numpy as np

from adagoal.core import random_streams
from adagoal.core.environment import ExplorationPlan
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.goal_space import GoalSpace
from adagoal.core.local_backup import LocalLowerBounds, backup_state
from adagoal.core.transition_data import TransitionCounts, count_transition
from adagoal.core.types import DIGEST_BYTES, Longs, ObservedStates
from adagoal.envs import episode_loop, observation_keys
from adagoal.envs.assumption_tests import ActionMasks, Diagnostics, MarkovTests, describe_mask_conflict
from adagoal.envs.env_backends import DEFAULT_MAX_STATES, ActionMask, EnvBackend
from adagoal.envs.observation_keys import StateKey
from adagoal.parallel.exceptions import WorkerKilled

INITIAL_STATE_CAPACITY = 64
"""States allocated at first, where the number is not declared."""
TERMINAL_LABEL_SUFFIX = " (end)"
"""Ends the label of a state that ended the episode: the same observation may be one that does not."""
N_START_RESETS = 16
"""Resets that must agree for the start to count as fixed."""
RANDOM_START = "random"
"""In place of a start seed: the user declares that the start is random, whatever the first resets show."""
StartSeed = int | str | None
"""How the first observation is drawn: with this seed, at random by declaration, or as the first resets show."""


class IndexedEnv:
    """Numbers the states of an environment and resets it; :mod:`adagoal.envs.gym_adapter` says by which conventions."""

    def __init__(self, body: EnvBackend, name: str, start_seed: StartSeed, max_states: int | None) -> None:
        self.name, self.backend, self.n_actions = name, body, body.spaces.n_actions
        self.actions_since_reset: list[int] = []
        """What was done since the last reset of the environment."""
        self.needs_reset = False
        """Whether the environment ended the episode by itself, so that nothing but a reset is left."""
        self.ever_truncated = False
        """Whether it ever did."""
        self.action_mask: ActionMask = None
        """The actions of the state that was entered last."""
        self._start_seed = start_seed if isinstance(start_seed, int) else None
        self._rng_before_reset: dict[str, Any] = {}  # the generator before the last reset
        self._goal_space: GoalSpace | None = None  # to which states that are found belong
        self.reseeded: tuple[str, ...] = ()
        """Random generators that every reset puts into the same state."""
        starts = self._sample_start_keys()
        self._start_observation = body.observation()  # of the start, unless that is virtual
        self.has_virtual_start = start_seed == RANDOM_START or len(starts) > 1
        """Whether the start is a state of its own, before the random first observation."""
        self.labels: tuple[str, ...] = ()
        self.state_numbers: dict[StateKey, int] = {}
        """The numbers of the states met so far (of all, where they are declared)."""
        states = body.spaces.declared_states
        self._states_declared = states is not None
        if states is not None:
            self.state_numbers = {key: s for s, key in enumerate(states)}
            self.start = len(self.state_numbers) if self.has_virtual_start else self.state_numbers[starts.pop()]
            self.state_bound = self.initial_states = len(self.state_numbers) + self.has_virtual_start
        else:
            self.start, self.state_bound = 0, max_states or DEFAULT_MAX_STATES
            self.initial_states = min(INITIAL_STATE_CAPACITY, self.state_bound)
            self.state_numbers = {} if self.has_virtual_start else {starts.pop(): 0}
            self.labels = ("start",)

    def _sample_start_keys(self) -> set[StateKey]:
        """The keys of several first observations; one means that the start is fixed."""
        if self._start_seed is None:
            seeded = {self.backend.reset(seed)[0] for seed in range(N_START_RESETS)}
            self.reseeded, unseeded = self.backend.find_reseeded_generators()
            return seeded | unseeded
        if not self.backend.generator_state():
            raise InputError(f"{self.name} does not use Gymnasium's random generator (np_random)", "start_seed")
        starts = {self.backend.reset(self._start_seed)[0] for _ in range(2)}
        if len(starts) > 1:
            raise InputError(f"the start of {self.name} does not follow from the seed", "start_seed")
        return starts

    def terminal_key(self, key: StateKey) -> StateKey:
        """The key of a terminated state."""
        return key if self._states_declared else (key, "end")

    def add_new_state(self, key: StateKey, label: str) -> int:
        """A number for a state that has none."""
        state = len(self.labels)
        if state >= self.state_bound:
            raise InputError(
                f"{self.name} has more than {self.state_bound} states; give a larger number "
                "(if they never end, the observations are not discrete)",
                "max_states",
            )
        if self._goal_space is not None:
            self._goal_space.add_state(state, self.backend.observation(), label)
        self.state_numbers[key] = state
        self.labels += (label,)
        return state

    def assign_states_to_goals(self, space: GoalSpace, labels: tuple[str, ...]) -> bool:
        """Add all states to the goal space, those that are not known yet when they get their numbers."""
        if self._states_declared:
            for key, state in self.state_numbers.items():
                space.add_state(state, key, labels[state] if labels else str(key))
            return True
        self._goal_space = space
        if not self.has_virtual_start:
            space.add_state(self.start, self._start_observation, labels[self.start])
        return False

    def observed_states(self) -> ObservedStates:
        """How the states are known by their observations."""
        if self._states_declared:
            return ObservedStates({"kind": "states", "first": next(iter(self.state_numbers))})
        digests = np.zeros((len(self.labels), DIGEST_BYTES), np.uint8)
        for key, state in self.state_numbers.items():
            digests[state] = np.frombuffer(observation_keys.hash_state_key(key), np.uint8)
        return ObservedStates(self.backend.spaces.key_format, digests)

    @property
    def n_known_states(self) -> int:
        """States that have a number."""
        return len(self.labels) or self.initial_states

    # --- moving -----------------------------------------------------------------------------------------------

    def seed_and_reset(self, seed: int) -> int:
        """Seed all randomness of the environment, and go to the start: the state after it, as for
        :meth:`reset_to_start`."""
        self.backend.reset(seed)
        return self.reset_to_start()

    def reset_backend(self) -> StateKey:
        """Reset the environment; the key of its first observation."""
        key, self.action_mask, self._rng_before_reset = self.backend.reset(
            self._start_seed, self._start_seed is not None
        )
        self.actions_since_reset.clear()  # after the reset: an interrupted one leaves the episode as it is
        self.needs_reset = False
        return key

    def reset_to_start(self) -> int:
        """The reset action: the state after it, which is the start unless something is wrong."""
        if self.has_virtual_start:
            self.actions_since_reset.clear()
            self.needs_reset, self.action_mask = False, None
            return self.start
        return self._find_or_add_state(self.reset_backend())

    def step(self, state: int, action: int) -> tuple[int, bool]:
        """Take an action in a state: the state after it, and whether that one is terminated."""
        if self.has_virtual_start and state == self.start:
            return self._find_or_add_state(self.reset_backend()), False
        key, self.action_mask, terminated, truncated = self.backend.step(action)
        landed = self._find_or_add_state(key, terminated)
        self.actions_since_reset.append(action)
        self.needs_reset = truncated and not terminated
        self.ever_truncated |= self.needs_reset
        return landed, terminated

    def _find_or_add_state(self, key: StateKey, terminated: bool = False) -> int:
        key = self.terminal_key(key) if terminated else key
        state = self.state_numbers.get(key)
        if state is None:
            return self.add_new_state(key, self.backend.label() + (TERMINAL_LABEL_SUFFIX if terminated else ""))
        return state

    # --- saving -----------------------------------------------------------------------------------------------

    def episode_snapshot(self, waiting: bool, adrift: bool) -> dict[str, Any]:
        """How the environment got where it is; ``waiting``: at the virtual start, nowhere yet; ``adrift``: unknown."""
        return {
            "generator": {} if adrift else self.backend.generator_state() if waiting else self._rng_before_reset,
            "actions": None if waiting or adrift else list(self.actions_since_reset),
            "states": []
            if self._states_declared
            else [observation_keys.key_to_json(key) for key in self.state_numbers],
            "labels": [] if self._states_declared else list(self.labels),
        }

    def restore_state_numbers(self, snapshot: dict[str, Any]) -> None:
        """The numbers and names that states have in a snapshot; what is no snapshot of it is a ``ValueError``."""
        if snapshot["generator"]:
            random_streams.check_rng_state(snapshot["generator"])
        if any(action >= self.n_actions for action in snapshot["actions"] or ()):
            raise ValueError("there is no such action")
        if self._states_declared:
            return
        given = snapshot["states"]
        index = {observation_keys.key_from_json(key): s + self.has_virtual_start for s, key in enumerate(given)}
        labels = tuple(to_single_line(label) for label in snapshot["labels"])
        if not len(labels) - self.has_virtual_start == len(index) == len(given):
            raise ValueError("the states do not have one number and one label each")
        if len(labels) > self.state_bound or not (
            self.has_virtual_start or list(index)[:1] == list(self.state_numbers)[:1]
        ):
            raise ValueError("the states are not those of this environment")
        self.state_numbers, self.labels = index, labels

    def replay_episode(self, snapshot: dict[str, Any]) -> int:
        """Replay the episode under way; the state to which it led, -1 for one without a number."""
        if snapshot["generator"]:
            self.backend.set_generator_state(snapshot["generator"])
        if snapshot["actions"] is None:
            return self.start
        key, terminated, truncated = self.reset_backend(), False, False
        for action in snapshot["actions"]:
            key, self.action_mask, terminated, truncated = self.backend.step(action)
        self.actions_since_reset = list(snapshot["actions"])
        self.needs_reset = truncated and not terminated
        return self.state_numbers.get(self.terminal_key(key) if terminated else key, -1)


# Episodes in a Gymnasium environment: the operations of :class:`adagoal.envs.episode_loop.EpisodeEnv`, counted.
#
# Counts are brought up to date in batches: a step of a cheap environment takes about as long as counting it alone
# would. Only local backups need them at every step.


COUNT_BATCH_STEPS = 65_536
"""Steps after which counts are brought up to date."""


class SteppableEnv(Protocol):
    """What is stepped: :class:`adagoal.envs.indexed_env.IndexedEnv`, or a known model."""

    n_actions: int
    start: int
    state_bound: int
    needs_reset: bool
    """Whether the environment ended the episode by itself"""
    has_virtual_start: bool
    """Whether the start is a state of its own, before the first draw of the environment's"""
    action_mask: ActionMask
    """The actions that the present state has, where the environment says so"""

    @property
    def n_known_states(self) -> int:
        """States that have a number."""
        ...

    def reset_to_start(self) -> int:
        """The reset action: the state after it."""
        ...

    def step(self, state: int, action: int) -> tuple[int, bool]:
        """Take an action in a state: the state after it, and whether that one is terminated."""
        ...


class CountingEnv:
    """One rollout of a plan. What the environment raises ends it and is kept in ``failure``."""

    def __init__(
        self,
        adapter: SteppableEnv,
        plan: ExplorationPlan,
        counts: TransitionCounts,
        recorder: MarkovTests | None,
        doubts: Diagnostics,
        masked: bool,
    ) -> None:
        self.failure: BaseException | None = None
        self._env, self._counts, self._markov_tests, self._diagnostics = adapter, counts, recorder, doubts
        self._known_states = set(np.flatnonzero(counts.seen).tolist())
        self._terminal_states = set(np.flatnonzero(counts.terminal).tolist())
        self._tries_before_replan, self._tries_left = (
            plan.replan_thresholds - counts.n[: len(plan.replan_thresholds)],
            dict[int, int](),
        )
        self._action_masks = ActionMasks(adapter.n_actions, np.flatnonzero(counts.absent).tolist(), masked)
        if not counts.visits[adapter.start] and not adapter.has_virtual_start:
            counts.mark_absent_pairs(
                self._action_masks.add_state_mask(adapter.start, adapter.action_mask)
            )  # the agent has not moved yet
        self._pending_transitions: list[
            int
        ] = []  # the last steps: pairs s * A + a, or -1 - s for a reset in s; states after them
        self._n_counted = np.zeros(1, np.int64)  # how many of them are in the counts of pairs already

    def must_reset(self, state: int) -> bool:
        """In a terminated state, or after the environment's own time limit, nothing but a reset is allowed."""
        return self._env.needs_reset or state in self._terminal_states

    def reset_from(self, state: int) -> int:
        """The reset action, taken in ``state``."""
        try:
            landed = self._env.reset_to_start()
            if landed == self._env.start:
                self._check_action_mask(landed)
            else:
                self._grow_counts()
                self._counts.seen[landed] = True
                self._diagnostics.report_reset_mismatch(landed)
        except BaseException as error:
            self._record_failure(error)
            return episode_loop.STEP_FAILED
        self._pending_transitions += (-1 - state, landed)
        return landed

    def take_action(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        """One step of the environment; its draws are its own."""
        if state * self._env.n_actions + action in self._action_masks.absent_pairs:
            return self.reset_from(state), episode_loop.NO_EVENT
        try:
            landed, terminated = self._env.step(state, action)
        except BaseException as error:
            self._record_failure(error)
            return episode_loop.STEP_FAILED, episode_loop.NO_EVENT
        if terminated != (landed in self._terminal_states):
            self._mark_terminal(landed, terminated)
        new = landed not in self._known_states
        if new:
            self._grow_counts()
            self._known_states.add(landed)
            self._counts.seen[landed] = True
            self._counts.mark_absent_pairs(self._action_masks.add_state_mask(landed, self._env.action_mask))
        elif not terminated:
            self._check_action_mask(landed)
        pair = state * self._env.n_actions + action
        self._pending_transitions += (
            pair,
            landed,
        )  # after the state was marked, and in one piece, whenever a signal comes
        self._tries_left[pair] = more = self._tries_left.get(pair, self._tries_before_replan[pair]) - 1
        if len(self._pending_transitions) >= 2 * COUNT_BATCH_STEPS:
            self.flush_counts()
        return (
            landed,
            episode_loop.NEW_STATE if new else episode_loop.REPLAN_DUE if more <= 0 else episode_loop.NO_EVENT,
        )

    def backup_and_choose(self, local: LocalLowerBounds, state: int, column: int) -> int:
        """With counts up to the last step."""
        counts, trail = self._counts, self._pending_transitions
        for i in range(2 * int(self._n_counted[0]), len(trail), 2):
            self._count_transitions(np.array(trail[i : i + 1]), np.array(trail[i + 1 : i + 2]), i // 2)
        return int(backup_state(state, column, local, counts.successor, counts.count, counts.support, counts.n))

    def _record_failure(self, error: BaseException) -> None:
        if isinstance(error, InputError) and not isinstance(error, WorkerKilled):
            self._diagnostics.lost += 1  # what the environment did may have to do with why nothing came back
        self.failure = error

    def _grow_counts(self) -> None:
        """Rows for the states met so far, and one kept free for the next."""
        counts, met = self._counts, self._env.n_known_states
        if met >= counts.n_states and counts.n_states < self._env.state_bound:
            counts.grow_states(min(2 * counts.n_states, self._env.state_bound))

    def _mark_terminal(self, state: int, terminated: bool) -> None:
        """A terminated state was entered for the first time, or one entered before did not terminate now."""
        self._terminal_states.add(state)
        self._counts.terminal[state] = True
        if state in self._known_states or not terminated:
            self._diagnostics.ends_now_and_then(state, self._env.state_bound)

    def _check_action_mask(self, state: int) -> None:
        """The mask of a state must not change."""
        if self._action_masks.conflicts_with_known(state, self._env.action_mask):
            self._diagnostics.add_void_reason(describe_mask_conflict(state))

    def flush_counts(self) -> None:
        """Bring counts and sanity checks up to date."""
        counts = self._counts
        # Contiguous, as they are elsewhere: what counts and checks them would be compiled anew for another layout.
        moves, landed = np.ascontiguousarray(np.array(self._pending_transitions, np.int64).reshape(-1, 2).T)
        self._pending_transitions.clear()
        states = np.where(moves >= 0, moves // counts.n_actions, -1 - moves)
        counts.visits += np.bincount(states, minlength=counts.n_states)
        if self._markov_tests is not None:
            self._markov_tests.add_transitions(moves, landed)
        if counts.transition_log is not None:
            counts.transition_log.append_steps(moves, landed)
        self._count_transitions(moves, landed, 0)
        self._n_counted[0] = 0

    def _count_transitions(self, moves: Longs, landed: Longs, first: int) -> None:
        """Count transitions, of which the trail has number ``first`` in the first place."""
        c = self._counts
        arrays = (c.successor, c.count, c.recent, c.support, c.n, c.settled)
        while not _count_pending(moves, landed, first, self._n_counted, *arrays):
            c.grow_successors(2 * c.successor.shape[1])
            arrays = (c.successor, c.count, c.recent, c.support, c.n, c.settled)


@numba.njit(cache=True, nogil=True)
def _count_pending(moves, landed, first, counted, *arrays):  # type: ignore[no-untyped-def]
    """Count transitions after the ``counted`` first ones of the trail; False where a row has no place left.

    ``counted`` [1] is kept here, so that no signal comes between a transition and its mark.
    """
    for i in range(counted[0] - first, len(moves)):
        if moves[i] >= 0 and not count_transition(moves[i], landed[i], *arrays):
            return False
        counted[0] += 1
    return True
