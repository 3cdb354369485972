"""UcbExplore (Lim and Auer 2012, "Autonomous exploration for navigating in MDPs").

K = {s0}; round after round:

1. *state discovery*: try every pair of K x A at least L log(4 |K|^2 / delta) times; the successors outside K are the
   candidates U;
2. for each u in U the optimistic shortest path to u restricted to K (:mod:`adagoal.rivals.planning`); take the u of
   smallest optimistic value from s0; if there is none or it exceeds L: stop;
3. *policy evaluation*: play its policy from s0 for 6 c h^-3 log(16 |K|^2 / delta) episodes, h = min(e, 1)/8 with
   e = epsilon / L. If these take t steps each on average with (t + h L + h)/(1 - h) <= (1 + 8 h) L, u is added to K
   with this policy; as soon as they have taken more in all, they are broken off, and the round ends: there are new
   samples to plan on.

Where goals are sets (:mod:`adagoal.rivals.incremental`), a round that finds no state in step 2 looks at the
sets outside K in the same way, and the answer has those whose policies passed step 3. A set with states in K has the
policy of the one whose optimistic value from s0 is smallest: that state is reached within L + epsilon expected steps,
and the set no later.

*Proved in the paper, for its constants:* K holds the incrementally L-reachable states, and each policy reaches its
state within (1 + e) L = L + epsilon expected steps. It is *not* shown to be near-optimal: the policy of a state at
distance 2 may take L + epsilon steps, and it is never improved. C1 of definition ``def_MGE`` is not its claim.

*Checked against the text* (the proceedings of COLT 2012): the three steps, with the number of episodes and the test
that they must pass, and what is proved. *Ours*, to make it easier: policies are stationary and planned with the
Bernstein widths of its successors; in the paper they have a horizon, at which an episode fails, and Hoeffding widths on
samples that are divided among its stages. The number of discovery trials (``Incremental.discovery``) is that which is
needed, a little less than L log(8 A L |K|^2 / delta); they are taken on the way to the nearest under-sampled state. A
round is broken off when failure is certain, and not when a count has doubled.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import Array, Schema
from adagoal.core.types import Actions, Ints, Longs
from adagoal.core.world import Outcome, Plan
from adagoal.rivals.explorer import NEVER, Move
from adagoal.rivals.incremental import Incremental


class UcbExplore(Incremental):
    """See the module's text."""

    name = "ucbexplore"
    SCHEMA: ClassVar[Schema] = {
        **Incremental.SCHEMA,
        **Incremental.SETS,
        "table": Array("int16", ("S", "T"), low=0, high="A"),
    }
    FACTS: ClassVar[dict[str, Any]] = {
        **Incremental.FACTS,
        "trial": {"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "integer", "minimum": -1}},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        S = self.counts.n_states
        self.h = min(self.epsilon / self.L, 1.0) / 8.0
        self.limit = (1.0 + 8.0 * self.h) * self.L * (1.0 - self.h) - self.h * (self.L + 1.0)
        """The mean of the episodes of an evaluation, at most"""
        self.table = np.full((S, S + self.n_sets), self.counts.n_actions, np.int16)
        """[S, T] the policies of the members of K, and, from S on, of the sets that were added"""
        self._target = -1
        """The state, or from S on the set, that is evaluated; -1 between evaluations"""
        self._episodes, self._steps = 0, 0

    def grow(self) -> None:
        """Room for more states and sets; those of the sets come after those of the states."""
        before, S, A = len(self.known), self.counts.n_states, self.counts.n_actions
        super().grow()
        if self.table.shape != (S, S + self.n_sets):
            old = self.table
            self.table = np.full((S, S + self.n_sets), A, np.int16)
            self.table[:before, :before] = old[:, :before]
            self.table[:before, S : S + old.shape[1] - before] = old[:, before:]
            self._target += S - before if self._target >= before else 0

    def move(self) -> Move | None:
        """Steps 1 to 3."""
        while not self.stopped:
            if self._target < 0:
                move = self.sample(self.discovery())
                if move is not None:
                    return move
                self._choose()
                continue
            episodes = self.episodes()
            allowed = math.floor(episodes * self.limit)
            if self._steps <= allowed and self._episodes < episodes:
                fresh = self._steps == 0 and self._episodes == 0
                return Move(self._trial(), episodes - self._episodes, allowed + 1 - self._steps, fresh)
            S = self.counts.n_states
            if self._target < S:
                self.known[self._target] = self._steps <= allowed
            else:
                self.sets[self._target - S] = self._steps <= allowed
            self._target = -1
        return None

    def _trial(self) -> Plan:
        """The policy that is evaluated, up to its state or its set."""
        c, target = self.counts, self._target
        goal, at = (target, None) if target < c.n_states else (target - c.n_states, self.space.at)
        return Plan(self.table[None, :, [target]], np.array([goal]), NEVER, np.full(len(c.n), NEVER), at)

    def learn(self, outcome: Outcome) -> None:
        """Count the episodes and steps of an evaluation."""
        if self._target >= 0:
            self._episodes += len(outcome.goals)
            self._steps += outcome.steps - len(outcome.goals)  # the way back to s0 is not the policy's
            if self._target < self.counts.n_states:
                self.credit(outcome, self._target)

    def episodes(self) -> int:
        """Episodes of an evaluation."""
        found = self.known.sum() + self.sets.sum()
        return math.ceil(6.0 * self.c * self.h**-3 * math.log(16.0 * found**2 / self.delta))

    def _choose(self) -> None:
        """Step 2."""
        c = self.counts
        tried = np.repeat(self.known, c.n_actions)[:, None] & (c.count > 0)
        found = np.unique(c.successor[tried])
        self._episodes = self._steps = 0
        best = self._nearest(found[~self.known[found]])
        if best > self.L and self.n_sets:
            best = self._nearest(self.waiting(np.isin(np.arange(c.n_states), found)))
        if best > self.L:
            self.stopped, self._target = True, -1

    def _nearest(self, numbers: Longs | Ints) -> float:
        """Take the target of smallest optimistic value, which is returned."""
        best = math.inf
        for u, V, policy in self.restricted(numbers):
            if V[self.counts.start] < best:
                best, self._target, self.table[:, u] = float(V[self.counts.start]), u, policy
        return best

    def policy(self, goal: int) -> Actions:
        """[1, S] the policy that was evaluated; of a set, that of its nearest state in K."""
        place = int(goal)
        if self.n_sets:
            place = self.counts.n_states + place if self.sets[goal] else self.member(place, self.known)
        return np.ascontiguousarray(self.table[None, :, place])

    def memory(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """K, the sets that were added, their policies, and where the evaluation stands."""
        arrays = {"known": self.known, "sets": self.sets, "table": self.table}
        return arrays, {"trial": [self._target, self._episodes, self._steps]}

    def remember(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        self.check_known(arrays["known"])
        sets = self.added(arrays)
        target, episodes, steps = facts["trial"]
        if target >= self.table.shape[1] or min(episodes, steps) < 0 or max(episodes, steps) > NEVER:
            raise ValueError("the evaluation under way is not one")
        self.known, self.sets, self.table = np.array(arrays["known"]), sets, np.array(arrays["table"])
        self._target, self._episodes, self._steps = target, episodes, steps
