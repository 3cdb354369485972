"""UcbExplore (Lim and Auer 2012, "Autonomous exploration for navigating in MDPs").

K = {s0}; in every round:

1. *state discovery*: try every pair of K x A at least L log(4 |K|^2 / delta) times; the successors outside K are the
   candidates U;
2. for each u in U compute the optimistic shortest path to u restricted to K
   (:mod:`adagoal.baselines.self_directed`); take the u of smallest optimistic value from s0; stop if U is empty or
   the value exceeds L;
3. *policy evaluation*: play its policy from s0 for 6 c h^-3 log(16 |K|^2 / delta) episodes, h = min(e, 1)/8 with
   e = epsilon / L. If these take t steps on average with (t + h L + h)/(1 - h) <= (1 + 8 h) L, add u to K with this
   policy. As soon as this is impossible, end the round: there are new samples to plan on.

If goals are sets (:mod:`adagoal.baselines.incremental`), a round without a state in step 2 considers the sets outside K
in the same way, and the answer has those whose policies passed step 3.

*Proved in the paper, for its constants:* K contains the incrementally L-reachable states, and each policy reaches its
state within (1 + e) L = L + epsilon expected steps. The policies are *not* shown to be near-optimal: that of a state at
distance 2 may take L + epsilon steps, and it is never improved. C1 of definition ``def_MGE`` is not its claim.

*Checked against the text* (the proceedings of COLT 2012): the three steps, with the number of episodes and the test
that they must pass, and the claim. *Ours*, which make it easier: policies are stationary and planned with the Bernstein
widths of later papers; in this paper they have a horizon, at which an episode fails, and Hoeffding widths on samples
that are divided among its stages. The number of discovery trials is the one that is needed, a little less than
L log(8 A L |K|^2 / delta); they are taken on the way to the nearest under-sampled state. A round ends early only when
failure is certain.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.baselines.incremental import TrialMethod
from adagoal.baselines.self_directed import PlannedRollout
from adagoal.core.array_types import Actions
from adagoal.core.environment import NO_LIMIT


class UcbExplore(TrialMethod):
    """UcbExplore: states join K once a trial of their policy has passed."""

    name = "ucbexplore"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.h = min(self.epsilon / self.L, 1.0) / 8.0
        # The test of step 3, (t + h L + h)/(1 - h) <= (1 + 8 h) L, solved for t.
        self._max_mean_steps = (1.0 + 8.0 * self.h) * self.L * (1.0 - self.h) - self.h * (self.L + 1.0)

    def advance(self) -> PlannedRollout | None:
        """Steps 1 to 3."""
        if self.trial_target < 0:
            rollout = self.sample_known_pairs(self.discovery_trials())  # step 1
            if rollout is None:
                self._choose_target()  # step 2
            return rollout
        # Step 3. The paper ends a round when a count has doubled; here only the limit of the trial ends it.
        no_thresholds = np.full(len(self.counts.n), NO_LIMIT)
        answer = self.continue_trial(self.evaluation_episodes(), self._max_mean_steps, no_thresholds)
        if isinstance(answer, PlannedRollout):
            return answer
        target, self.trial_target, S = self.trial_target, -1, self.counts.n_states
        if answer:
            self.policy_table[:, target] = self.trial_policy
            accepted, number = (self.known_states, target) if target < S else (self.added_sets, target - S)
            accepted[number] = True
        return None

    def evaluation_episodes(self) -> int:
        """Number of episodes in step 3."""
        found = self.known_states.sum() + self.added_sets.sum()
        return math.ceil(6.0 * self.c * self.h**-3 * math.log(16.0 * found**2 / self.delta))

    def _choose_target(self) -> None:
        """Step 2."""
        c = self.counts
        tried = np.repeat(self.known_states, c.n_actions)[:, None] & (c.count > 0)
        found = np.unique(c.successor[tried])
        nearest = self.nearest_target(found[~self.known_states[found]])
        # Sets come last: a state that joins K brings its sets into the answer without a trial of their own.
        if nearest is None and self.n_sets:
            nearest = self.nearest_target(self.waiting_sets(np.isin(np.arange(c.n_states), found)))
        if nearest is None:
            self.stopped = True
        else:
            self.begin_trial(nearest[0], nearest[2])

    def goal_policy(self, goal: int) -> Actions:
        """Return the policy [1, S] that passed; for a set with states in K that of the nearest one."""
        target = int(goal)
        if self.n_sets:
            # A set with states in K takes the policy of the nearest one: that state is reached within L + epsilon
            # expected steps, and the set no later.
            added = self.added_sets[goal]
            target = self.counts.n_states + target if added else self.nearest_member(target, self.known_states)
        return np.ascontiguousarray(self.policy_table[None, :, target])
