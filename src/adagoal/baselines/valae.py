"""VALAE (Cai, Ma and Du 2022, "Near-optimal algorithms for autonomous exploration and multi-goal stochastic shortest
path").

With the relative accuracy e = epsilon / L:

0. *set*: DisCo (:mod:`adagoal.baselines.disco`) with the coarse accuracy L finds K. Its samples are not used again;
1. *samples*: N(s, a) >= phi on K x A, the power of two next to 12000 c L^2 |K| log(|K| A / delta);
2. *rounds* (:mod:`adagoal.baselines.incremental`) for one member of K after the other, by VISGO restricted to K with

       iota = 4 c log(12 (|K| + 1) A n / delta),   root = 6,   flat = 72 B,   cap = B = 10 L,

   lambda = 2048/e'^2 log^2(256/e') c log(2 |K|/delta) episodes, e' = e/3, and the limit V(s0) + e' L.

*Proved in the paper, for its constants:* K holds the incrementally L-reachable states and no state that is not
incrementally 2L-reachable, and each policy is within epsilon of the best one restricted to K.

*Checked against the text* (the proceedings of ICML 2022): all of the above; what DisCo does, as its own file says.
*Ours:* what :mod:`adagoal.baselines.incremental` says. A step is known to cost one, so that the bonus for unknown costs
is zero. VISGO plans on all samples of N, not on those up to the last power of two, with the precision 1/sum N of LAE
(that of the paper is halved in every skipped round, and soon too small for a computer). The answer holds the members of
K whose optimistic value is at most L, so that C2 can hold: K itself may reach as far as 2L. These are all that the
paper makes a claim on.

``constants``: as in :mod:`adagoal.baselines.self_directed`, "scaled=c" multiplies every logarithm of a confidence by c.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines.disco import DisCo
from adagoal.baselines.incremental import RoundBasedMethod, next_power_of_two
from adagoal.baselines.self_directed import PlannedRollout
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.types import Actions, Floats

SET_PHASE, SET_SAMPLING_PHASE, GOAL_PHASE = range(3)
VALAE_VISGO_ROOT, VALAE_VISGO_FLAT = 6.0, 72.0
"""c_1 and c_2 of VISGO."""
VALAE_SAMPLE_FACTOR = 12_000.0


class VALAE(RoundBasedMethod):
    """See the module's text."""

    name = "valae"
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {**RoundBasedMethod.ARRAY_SCHEMA, "near": ArraySpec("float64", ("S",), low=0)}
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **RoundBasedMethod.FACTS_SCHEMA,
        "phase": {"type": "integer", "enum": list(range(3))},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_finder = DisCo(self.counts, self.L, self.L, self.delta, None, self.constants)
        self.set_finder.eps = self.L
        self.known_states = self.set_finder.known_states
        self.final_values = np.zeros(self.counts.n_states)
        """[S] the optimistic value of every goal whose policy is final"""

    def next_rollout(self) -> PlannedRollout | None:
        """The set, its samples, its goals."""
        while not self.stopped:
            move = (self._find_state_set, self._sample_state_set, self._play_round)[self.phase]()
            if move is not None:
                return move
        return None

    def _find_state_set(self) -> PlannedRollout | None:
        """DisCo; None once it has stopped."""
        finder = self.set_finder
        move = finder.next_rollout()
        self._collection_policy, self._collection_thresholds, self.known_states, self.plans = (
            finder._collection_policy,
            finder._collection_thresholds,
            finder.known_states,
            finder.plans,
        )
        if move is None:
            self.dropped_samples, self.phase = self.counts.count.copy(), SET_SAMPLING_PHASE
        return move

    def _sample_state_set(self) -> PlannedRollout | None:
        """Samples of K x A; None once they are there."""
        move = self.collect_per_pair(self.samples_per_pair())
        if move is None:
            self.phase = GOAL_PHASE
        return move

    def _play_round(self) -> PlannedRollout | None:
        """A round; None once it is over."""
        if self.round_goal < 0:
            open_goals = np.flatnonzero(self.known_states & ~self.is_final)[:1]
            self.stopped = not len(open_goals)
            if not self.stopped:
                B = 10.0 * self.L
                V, policy = self.plan_with_visgo(
                    open_goals, self.visgo_iota(), VALAE_VISGO_ROOT, VALAE_VISGO_FLAT * B, B
                )
                self.begin_round(open_goals[0], V[0], policy[0])
            return None
        goal, answer = (
            self.round_goal,
            self.continue_round(
                self.episodes_of_round(), self.optimistic_value + self.relative_accuracy / 3.0 * self.L
            ),
        )
        if isinstance(answer, PlannedRollout):
            return answer
        if answer:
            self.policy_table[:, goal], self.final_values[goal], self.is_final[goal] = (
                self.trial_policy,
                self.optimistic_value,
                True,
            )
        return None

    def samples_per_pair(self) -> int:
        """The number of samples of a pair before any round."""
        size = int(self.known_states.sum())
        least = (
            VALAE_SAMPLE_FACTOR * self.c * self.L**2 * size * math.log(size * (self.counts.n_actions + 1) / self.delta)
        )
        return int(next_power_of_two(math.ceil(least) - 1))

    def episodes_of_round(self) -> int:
        """lambda."""
        e = self.relative_accuracy / 3.0
        confidence = self.c * math.log(2.0 * self.known_states.sum() / self.delta)
        return math.ceil(2048.0 / e**2 * math.log(256.0 / e) ** 2 * confidence)

    def visgo_iota(self) -> Floats:
        """[X] the logarithm of VISGO."""
        n, pairs = (
            np.maximum(self.round_samples.sum(1), 1),
            (int(self.known_states.sum()) + 1) * (self.counts.n_actions + 1),
        )
        iota: Floats = 4.0 * self.c * np.log(12.0 * pairs * n / self.delta)
        return iota

    @property
    def answer_distances(self) -> Floats:
        """[S] the optimistic value of the goals whose policy is final, 0 on the rest of K."""
        return np.where(self.known_states, self.final_values, np.inf)

    def policy_to_state(self, state: int) -> Actions:
        """[1, S] the final policy, or DisCo's as long as there is none."""
        return (
            np.ascontiguousarray(self.policy_table[None, :, state])
            if self.is_final[state]
            else self.set_finder.goal_policy(state)
        )

    def method_state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The values too."""
        arrays, facts = super().method_state()
        return {**arrays, "near": self.final_values}, facts

    def restore_method_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        super().restore_method_state(arrays, facts)
        finder = self.set_finder
        self.final_values = np.array(arrays["near"])
        finder._collection_policy, finder._collection_thresholds, finder.known_states, finder.plans = (
            self._collection_policy,
            self._collection_thresholds,
            self.known_states,
            self.plans,
        )
