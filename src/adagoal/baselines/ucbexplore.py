"""UcbExplore (Lim and Auer 2012, "Autonomous exploration for navigating in MDPs").

K = {s0}; round after round:

1. *state discovery*: try every pair of K x A at least L log(4 |K|^2 / delta) times; the successors outside K are the
   candidates U;
2. for each u in U the optimistic shortest path to u restricted to K (:mod:`adagoal.baselines.self_directed`); take the
  u of
   smallest optimistic value from s0; if there is none or it exceeds L: stop;
3. *policy evaluation*: play its policy from s0 for 6 c h^-3 log(16 |K|^2 / delta) episodes, h = min(e, 1)/8 with
   e = epsilon / L. If these take t steps each on average with (t + h L + h)/(1 - h) <= (1 + 8 h) L, u is added to K
   with this policy; as soon as they have taken more in all, they are broken off, and the round ends: there are new
   samples to plan on.

Where goals are sets (:mod:`adagoal.baselines.incremental`), a round that finds no state in step 2 looks at the
sets outside K in the same way, and the answer has those whose policies passed step 3. A set with states in K has the
policy of the one whose optimistic value from s0 is smallest: that state is reached within L + epsilon expected steps,
and the set no later.

*Proved in the paper, for its constants:* K holds the incrementally L-reachable states, and each policy reaches its
state within (1 + e) L = L + epsilon expected steps. It is *not* shown to be near-optimal: the policy of a state at
distance 2 may take L + epsilon steps, and it is never improved. C1 of definition ``def_MGE`` is not its claim.

*Checked against the text* (the proceedings of COLT 2012): the three steps, with the number of episodes and the test
that they must pass, and what is proved. *Ours*, to make it easier: policies are stationary and planned with the
Bernstein widths of its successors; in the paper they have a horizon, at which an episode fails, and Hoeffding widths on
samples that are divided among its stages. The number of discovery trials (``Incremental.discovery_trials``) is that
which is needed, a little less than L log(8 A L |K|^2 / delta); they are taken on the way to the nearest under-sampled
state. A round is broken off when failure is certain, and not when a count has doubled.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines.incremental import IncrementalMethod
from adagoal.baselines.self_directed import NEVER, PlannedRollout
from adagoal.core.environment import ExplorationPlan, RolloutOutcome
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.types import Actions, Ints, Longs


class UcbExplore(IncrementalMethod):
    """See the module's text."""

    name = "ucbexplore"
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **IncrementalMethod.ARRAY_SCHEMA,
        **IncrementalMethod.SETS,
        "table": ArraySpec("int16", ("S", "T"), low=0, high="A"),
    }
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **IncrementalMethod.FACTS_SCHEMA,
        "trial": {"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "integer", "minimum": -1}},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        S = self.counts.n_states
        self.h = min(self.epsilon / self.L, 1.0) / 8.0
        self.max_mean_steps = (1.0 + 8.0 * self.h) * self.L * (1.0 - self.h) - self.h * (self.L + 1.0)
        """The mean of the episodes of an evaluation, at most"""
        self.policy_table = np.full((S, S + self.n_sets), self.counts.n_actions, np.int16)
        """[S, T] the policies of the members of K, and, from S on, of the sets that were added"""
        self._evaluated_target = -1
        """The state, or from S on the set, that is evaluated; -1 between evaluations"""
        self._episodes_played, self._steps_played = 0, 0

    def grow_with_counts(self) -> None:
        """Room for more states and sets; those of the sets come after those of the states."""
        before, S, A = len(self.known_states), self.counts.n_states, self.counts.n_actions
        super().grow_with_counts()
        if self.policy_table.shape != (S, S + self.n_sets):
            old = self.policy_table
            self.policy_table = np.full((S, S + self.n_sets), A, np.int16)
            self.policy_table[:before, :before] = old[:, :before]
            self.policy_table[:before, S : S + old.shape[1] - before] = old[:, before:]
            self._evaluated_target += S - before if self._evaluated_target >= before else 0

    def next_rollout(self) -> PlannedRollout | None:
        """Steps 1 to 3."""
        while not self.stopped:
            if self._evaluated_target < 0:
                move = self.sample_known_pairs(self.discovery_trials())
                if move is not None:
                    return move
                self._choose_target()
                continue
            episodes = self.evaluation_episodes()
            allowed = math.floor(episodes * self.max_mean_steps)
            if self._steps_played <= allowed and self._episodes_played < episodes:
                fresh = self._steps_played == 0 and self._episodes_played == 0
                return PlannedRollout(
                    self._trial_plan(), episodes - self._episodes_played, allowed + 1 - self._steps_played, fresh
                )
            S = self.counts.n_states
            if self._evaluated_target < S:
                self.known_states[self._evaluated_target] = self._steps_played <= allowed
            else:
                self.added_sets[self._evaluated_target - S] = self._steps_played <= allowed
            self._evaluated_target = -1
        return None

    def _trial_plan(self) -> ExplorationPlan:
        """The policy that is evaluated, up to its state or its set."""
        c, target = self.counts, self._evaluated_target
        goal, at = (target, None) if target < c.n_states else (target - c.n_states, self.space.goals_of_states)
        return ExplorationPlan(
            self.policy_table[None, :, [target]], np.array([goal]), NEVER, np.full(len(c.n), NEVER), at
        )

    def record_outcome(self, outcome: RolloutOutcome) -> None:
        """Count the episodes and steps of an evaluation."""
        if self._evaluated_target >= 0:
            self._episodes_played += len(outcome.goals)
            self._steps_played += outcome.steps - len(outcome.goals)  # the way back to s0 is not the policy's
            if self._evaluated_target < self.counts.n_states:
                self.credit_goal(outcome, self._evaluated_target)

    def evaluation_episodes(self) -> int:
        """Episodes of an evaluation."""
        found = self.known_states.sum() + self.added_sets.sum()
        return math.ceil(6.0 * self.c * self.h**-3 * math.log(16.0 * found**2 / self.delta))

    def _choose_target(self) -> None:
        """Step 2."""
        c = self.counts
        tried = np.repeat(self.known_states, c.n_actions)[:, None] & (c.count > 0)
        found = np.unique(c.successor[tried])
        self._episodes_played = self._steps_played = 0
        best = self._take_nearest(found[~self.known_states[found]])
        if best > self.L and self.n_sets:
            best = self._take_nearest(self.waiting_sets(np.isin(np.arange(c.n_states), found)))
        if best > self.L:
            self.stopped, self._evaluated_target = True, -1

    def _take_nearest(self, numbers: Longs | Ints) -> float:
        """Take the target of smallest optimistic value, which is returned."""
        best = math.inf
        for u, V, policy in self.plan_restricted(numbers):
            if V[self.counts.start] < best:
                best, self._evaluated_target, self.policy_table[:, u] = float(V[self.counts.start]), u, policy
        return best

    def goal_policy(self, goal: int) -> Actions:
        """[1, S] the policy that was evaluated; of a set, that of its nearest state in K."""
        place = int(goal)
        if self.n_sets:
            place = (
                self.counts.n_states + place if self.added_sets[goal] else self.nearest_member(place, self.known_states)
            )
        return np.ascontiguousarray(self.policy_table[None, :, place])

    def method_state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """K, the sets that were added, their policies, and where the evaluation stands."""
        arrays = {"known": self.known_states, "sets": self.added_sets, "table": self.policy_table}
        return arrays, {"trial": [self._evaluated_target, self._episodes_played, self._steps_played]}

    def restore_method_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        self.check_known_states(arrays["known"])
        sets = self.read_added_sets(arrays)
        target, episodes, steps = facts["trial"]
        if target >= self.policy_table.shape[1] or min(episodes, steps) < 0 or max(episodes, steps) > NEVER:
            raise ValueError("the evaluation under way is not one")
        self.known_states, self.added_sets, self.policy_table = (
            np.array(arrays["known"]),
            sets,
            np.array(arrays["table"]),
        )
        self._evaluated_target, self._episodes_played, self._steps_played = target, episodes, steps
