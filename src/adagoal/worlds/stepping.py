"""Episodes in a Gymnasium environment: the operations of :class:`adagoal.worlds.episode.EpisodeEnv`, counted.

Counts are brought up to date in batches: a step of a cheap environment takes about as long as counting it alone would.
Only local backups need them at every step.
"""

from __future__ import annotations

from typing import Protocol

import numba
import numpy as np

from adagoal.core.backup import LocalLowerBounds, backup_state
from adagoal.core.counts import TransitionCounts, count_transition
from adagoal.core.errors import InputError
from adagoal.core.types import Longs
from adagoal.core.world import ExplorationPlan
from adagoal.worlds import episode
from adagoal.worlds.body import ActionMask
from adagoal.worlds.masks import ActionMasks, describe_mask_conflict
from adagoal.worlds.process import WorkerKilled
from adagoal.worlds.sanity import Diagnostics, MarkovTests

COUNT_BATCH_STEPS = 65_536
"""Steps after which counts are brought up to date."""


class SteppableEnv(Protocol):
    """What is stepped: :class:`adagoal.worlds.adapter.IndexedEnv`, or a known model."""

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
            return episode.STEP_FAILED
        self._pending_transitions += (-1 - state, landed)
        return landed

    def take_action(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        """One step of the environment; its draws are its own."""
        if state * self._env.n_actions + action in self._action_masks.absent_pairs:
            return self.reset_from(state), episode.NO_EVENT
        try:
            landed, terminated = self._env.step(state, action)
        except BaseException as error:
            self._record_failure(error)
            return episode.STEP_FAILED, episode.NO_EVENT
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
        return landed, episode.NEW_STATE if new else episode.REPLAN_DUE if more <= 0 else episode.NO_EVENT

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
