"""Episodes in a Gymnasium environment: the operations of :class:`adagoal.worlds.episode.Stage`, counted.

Counts are brought up to date in batches: a step of a cheap environment takes about as long as counting it alone would.
Only local backups need them at every step.
"""

from __future__ import annotations

from typing import Protocol

import numba
import numpy as np

from adagoal.core.backup import Local, back_up
from adagoal.core.counts import Counts, record
from adagoal.core.errors import InputError
from adagoal.core.types import Longs
from adagoal.core.world import Plan
from adagoal.worlds import episode
from adagoal.worlds.body import Mask
from adagoal.worlds.masks import Masks, torn
from adagoal.worlds.process import Killed
from adagoal.worlds.sanity import Doubts, Recorder

BATCH = 65_536
"""Steps after which counts are brought up to date."""


class Stepped(Protocol):
    """What is stepped: :class:`adagoal.worlds.adapter.Adapter`, or a known model."""

    n_actions: int
    start: int
    state_bound: int
    overdue: bool
    """Whether the environment ended the episode by itself"""
    virtual: bool
    """Whether the start is a state of its own, before the first draw of the environment's"""
    mask: Mask
    """The actions that the present state has, where the environment says so"""

    @property
    def met(self) -> int:
        """States that have a number."""
        ...

    def home(self) -> int:
        """The reset action: the state after it."""
        ...

    def step(self, state: int, action: int) -> tuple[int, bool]:
        """Take an action in a state: the state after it, and whether that one is terminated."""
        ...


class Stepping:
    """One rollout of a plan. What the environment raises ends it and is kept in ``failure``."""

    def __init__(
        self, adapter: Stepped, plan: Plan, counts: Counts, recorder: Recorder | None, doubts: Doubts, masked: bool
    ) -> None:
        self.failure: BaseException | None = None
        self._adapter, self._counts, self._recorder, self._doubts = adapter, counts, recorder, doubts
        self._known = set(np.flatnonzero(counts.seen).tolist())
        self._terminal = set(np.flatnonzero(counts.terminal).tolist())
        self._missing, self._left = plan.threshold - counts.n[: len(plan.threshold)], dict[int, int]()
        self._masks = Masks(adapter.n_actions, np.flatnonzero(counts.absent).tolist(), masked)
        if not counts.visits[adapter.start] and not adapter.virtual:
            counts.leave_out(self._masks.enter(adapter.start, adapter.mask))  # the agent has not moved yet
        self._trail: list[int] = []  # the last steps: pairs s * A + a, or -1 - s for a reset in s; states after them
        self._counted = np.zeros(1, np.int64)  # how many of them are in the counts of pairs already

    def forced(self, state: int) -> bool:
        """In a terminated state, or after the environment's own time limit, nothing but a reset is allowed."""
        return self._adapter.overdue or state in self._terminal

    def home(self, state: int) -> int:
        """The reset action, taken in ``state``."""
        try:
            landed = self._adapter.home()
            if landed == self._adapter.start:
                self._compare(landed)
            else:
                self._make_room()
                self._counts.seen[landed] = True
                self._doubts.astray(landed)
        except BaseException as error:
            self._fail(error)
            return episode.FAILED
        self._trail += (-1 - state, landed)
        return landed

    def move(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        """One step of the environment; its draws are its own."""
        if state * self._adapter.n_actions + action in self._masks.absent:
            return self.home(state), episode.NOTHING
        try:
            landed, terminated = self._adapter.step(state, action)
        except BaseException as error:
            self._fail(error)
            return episode.FAILED, episode.NOTHING
        if terminated != (landed in self._terminal):
            self._end(landed, terminated)
        new = landed not in self._known
        if new:
            self._make_room()
            self._known.add(landed)
            self._counts.seen[landed] = True
            self._counts.leave_out(self._masks.enter(landed, self._adapter.mask))
        elif not terminated:
            self._compare(landed)
        pair = state * self._adapter.n_actions + action
        self._trail += (pair, landed)  # after the state was marked, and in one piece, whenever a signal comes
        self._left[pair] = more = self._left.get(pair, self._missing[pair]) - 1
        if len(self._trail) >= 2 * BATCH:
            self.flush()
        return landed, episode.NEW if new else episode.ENOUGH if more <= 0 else episode.NOTHING

    def back_up(self, local: Local, state: int, column: int) -> int:
        """With counts up to the last step."""
        counts, trail = self._counts, self._trail
        for i in range(2 * int(self._counted[0]), len(trail), 2):
            self._count(np.array(trail[i : i + 1]), np.array(trail[i + 1 : i + 2]), i // 2)
        return int(back_up(state, column, local, counts.successor, counts.count, counts.support, counts.n))

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, InputError) and not isinstance(error, Killed):
            self._doubts.lost += 1  # what the environment did may have to do with why nothing came back
        self.failure = error

    def _make_room(self) -> None:
        """Rows for the states met so far, and one kept free for the next."""
        counts, met = self._counts, self._adapter.met
        if met >= counts.n_states and counts.n_states < self._adapter.state_bound:
            counts.grow_states(min(2 * counts.n_states, self._adapter.state_bound))

    def _end(self, state: int, terminated: bool) -> None:
        """A terminated state was entered for the first time, or one entered before did not terminate now."""
        self._terminal.add(state)
        self._counts.terminal[state] = True
        if state in self._known or not terminated:
            self._doubts.ends_now_and_then(state, self._adapter.state_bound)

    def _compare(self, state: int) -> None:
        """The mask of a state must not change."""
        if self._masks.differs(state, self._adapter.mask):
            self._doubts.add(torn(state))

    def flush(self) -> None:
        """Bring counts and sanity checks up to date."""
        counts = self._counts
        # Contiguous, as they are elsewhere: what counts and checks them would be compiled anew for another layout.
        moves, landed = np.ascontiguousarray(np.array(self._trail, np.int64).reshape(-1, 2).T)
        self._trail.clear()
        states = np.where(moves >= 0, moves // counts.n_actions, -1 - moves)
        counts.visits += np.bincount(states, minlength=counts.n_states)
        if self._recorder is not None:
            self._recorder.add(moves, landed)
        if counts.trail is not None:
            counts.trail.add(moves, landed)
        self._count(moves, landed, 0)
        self._counted[0] = 0

    def _count(self, moves: Longs, landed: Longs, first: int) -> None:
        """Count transitions, of which the trail has number ``first`` in the first place."""
        c = self._counts
        arrays = (c.successor, c.count, c.recent, c.support, c.n, c.settled)
        while not _count_from(moves, landed, first, self._counted, *arrays):
            c.widen(2 * c.successor.shape[1])
            arrays = (c.successor, c.count, c.recent, c.support, c.n, c.settled)


@numba.njit(cache=True, nogil=True)
def _count_from(moves, landed, first, counted, *arrays):  # type: ignore[no-untyped-def]
    """Count transitions after the ``counted`` first ones of the trail; False where a row has no place left.

    ``counted`` [1] is kept here, so that no signal comes between a transition and its mark.
    """
    for i in range(counted[0] - first, len(moves)):
        if moves[i] >= 0 and not record(moves[i], landed[i], *arrays):
            return False
        counted[0] += 1
    return True
