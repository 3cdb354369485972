"""VALAE: finds the states within L with DisCo, then learns a near-optimal policy to each of them.

Source: Cai, Ma and Du 2022, "Near-optimal algorithms for autonomous exploration and multi-goal stochastic shortest
path".

With the relative accuracy e = epsilon / L:

0. *set*: DisCo (:mod:`adagoal.baselines.disco`) with the coarse accuracy L finds K. Its samples are not used again;
1. *samples*: N(s, a) >= phi on K x A, the power of two next to 12000 c L^2 |K| log(|K| A / delta);
2. *rounds* (:class:`~adagoal.baselines.incremental.RoundBasedMethod`) for one member of K after the other, by VISGO
   restricted to K with

       iota = 4 c log(12 (|K| + 1) A n / delta),   root = 6,   flat = 72 B,   cap = B = 10 L,

   lambda = 2048/e'^2 log^2(256/e') c log(2 |K|/delta) episodes, e' = e/3, and the limit V(s0) + e' L.

*Proved in the paper, for its constants:* K contains the incrementally L-reachable states and no state that is not
incrementally 2L-reachable, and each policy is within epsilon of the best one restricted to K.

*Checked against the text* (the proceedings of ICML 2022): all of the above; for DisCo see its own file. *Ours:* what
:class:`~adagoal.baselines.incremental.RoundBasedMethod` says. A step is known to cost one, so the bonus for unknown
costs is zero. VISGO plans on all samples of N, not on those up to the last power of two.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines.disco import DisCo
from adagoal.baselines.incremental import RoundBasedMethod, VisgoConstants, next_power_of_two
from adagoal.baselines.self_directed import PlannedRollout
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.types import Actions, Floats


class VALAE(RoundBasedMethod):
    """VALAE: DisCo's set, then a policy for every member; its phases are steps 0 to 2."""

    name = "valae"
    N_PHASES = 3
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **RoundBasedMethod.ARRAY_SCHEMA,
        "final_values": ArraySpec("float64", ("S",), low=0),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        B = 10.0 * self.L
        self.visgo = VisgoConstants(root=6.0, flat=72.0 * B, cap=B)
        self.set_finder = DisCo(self.counts, self.L, self.L, self.delta, None, self.constants)
        # DisCo cuts its accuracy at 1, which is finer than the accuracy L of this paper.
        self.set_finder.eps = self.L
        self.known_states = self.set_finder.known_states
        self.final_values = np.zeros(self.counts.n_states)  # [S]: optimistic values of states with a final policy

    def advance(self) -> PlannedRollout | None:
        """Steps 0 to 2."""
        if self.phase == 2:
            return self._play_round()
        if self.phase == 0:
            rollout = self.set_finder.next_rollout()
            _copy_progress(self.set_finder, self)
            if rollout is None:
                # These samples chose K, so the rounds must not use them again.
                self.dropped_samples = self.counts.count.copy()
        else:
            rollout = self.collect_per_pair(self.samples_per_pair())
        self.phase += rollout is None
        return rollout

    def _play_round(self) -> PlannedRollout | None:
        if self.trial_target < 0:
            self.begin_next_member(self.visgo_iota())
            return None
        state, limit = self.trial_target, self.optimistic_value + self.relative_accuracy / 3.0 * self.L
        answer = self.continue_round(self.episodes_of_round(), limit)
        if isinstance(answer, PlannedRollout):
            return answer
        if answer:
            self.final_values[state], self.is_final[state] = self.optimistic_value, True
        return None

    def samples_per_pair(self) -> int:
        """phi, the number of samples of a pair before any round."""
        size = int(self.known_states.sum())
        least = 12_000.0 * self.c * self.L**2 * size * math.log(size * (self.counts.n_actions + 1) / self.delta)
        return int(next_power_of_two(math.ceil(least) - 1))

    def episodes_of_round(self) -> int:
        """lambda."""
        e = self.relative_accuracy / 3.0
        confidence = self.c * math.log(2.0 * self.known_states.sum() / self.delta)
        return math.ceil(2048.0 / e**2 * math.log(256.0 / e) ** 2 * confidence)

    def visgo_iota(self) -> Floats:
        """iota [X]."""
        n = np.maximum(self.round_samples.sum(1), 1)
        pairs = (int(self.known_states.sum()) + 1) * (self.counts.n_actions + 1)
        iota: Floats = 4.0 * self.c * np.log(12.0 * pairs * n / self.delta)
        return iota

    @property
    def answer_distances(self) -> Floats:
        """Optimistic values of the states with a final policy, 0 on the rest of K, infinite elsewhere [S]."""
        # K may reach as far as 2L. The answer has the members with an optimistic value of at most L, as C2 requires;
        # the paper claims nothing about the others.
        return np.where(self.known_states, self.final_values, np.inf)

    def policy_to_state(self, state: int) -> Actions:
        """Return the final policy [1, S], or DisCo's before it is known."""
        return super().policy_to_state(state) if self.is_final[state] else self.set_finder.goal_policy(state)

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().restore(arrays, facts)
        _copy_progress(self, self.set_finder)


def _copy_progress(source: RoundBasedMethod | DisCo, target: RoundBasedMethod | DisCo) -> None:
    """Let the method and its set finder share K, the collection under way and the number of plans."""
    # The set finder has no checkpoint of its own: after a restore it continues from these.
    for name in ("collection_policy", "collection_thresholds", "known_states", "plans"):
        setattr(target, name, getattr(source, name))
