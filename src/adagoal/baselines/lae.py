"""LAE (Chen, Tirinzoni, Lazaric and Pirotta 2023, "Layered state discovery for incremental autonomous exploration").

With the relative accuracy e = epsilon / L. First *layers* (LASD, their algorithm 1): K = {s0}, K' = {}, and

0. *discovery*: try every pair of K x A 2 L log(4 S A L r^2 / delta) times, r the number of the round; the successors
   outside K are the candidates U; these samples are not used again;
1. *samples*: on K x A so many that VISGO's bonus is at most 1/8, N >= max{576 L^2, 4096 L} iota, and
   N >= 5 c L^2 |K| log(S r / delta);
2. *rounds* (:mod:`adagoal.baselines.incremental`): VISGO for every candidate, restricted to K, with delta' = delta/(4
  r^2 S^2),

       iota = c log(2 |K| A n / delta'),   root = 3,   flat = 512 L,   cap = 2 L;

   take the u of smallest optimistic value V(s0). If it is at most L, play lambda episodes; where they take
   V(s0) + e L/2 steps on average, or fewer, u goes from U to K', with this policy. If it exceeds L, or there is none:
   where K' is empty the layers are done, else K becomes K + K', and the next layer begins with step 0.

Then *consolidation* (their algorithm 2), on new samples N, as many as in step 1, with 5 c L^2 |K| log(|K|/delta):
rounds for one member of K after the other, with delta' = delta / |K|, and the limit V(s0) (1 + e/2). In both, lambda is
the smallest n with

    8 (c log(8 n^2 L_0 / delta''))^2 / sqrt(n) <= e/256,   L_0 = 32 L,   delta'' = delta/(4 r^2), or delta/(2 r^2).

*Proved in the paper, for its constants:* K holds the incrementally L-reachable states and no state that is not
incrementally (1 + e) L-reachable; each policy takes at most (1 + e) times as long as the best one restricted to K. As
for DisCo this is multi-goal exploration where such policies are as good as free ones and reach all of G_L.

*Checked against the text* (the proceedings of ICML 2023): all of the above but the numbers of step 1, of which it says
that they exist. *Derived:* 576 and 4096, which make the bonus at most 1/8 as the proof of lemma 3 wants it, for
values in [0, 2L]; lambda, by solving the inequality in the proof of lemma 50 as the paper says. The number 5 is from
the code that the authors published (github.com/lchenat/AX_exp), which has the layers only, with 64 in place of 512 and
5000 in place of lambda, "to boost the empirical performance". *Ours:* what :mod:`adagoal.baselines.incremental` says.
Of the two ways to find layers this is the one for a known number of states (the paper's algorithm 3 allows both). The
other one, LASD+, is not here: it does not know S, tests each policy from every known state, and begins again whenever K
has doubled.

``constants``: "scaled=c" multiplies every logarithm of a confidence by c (:mod:`adagoal.baselines.self_directed`). As
lambda has the fourth power of its logarithm it falls with the fourth power of c.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines.incremental import SAMPLE_COUNTS, RoundBasedMethod
from adagoal.baselines.self_directed import PlannedRollout
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.types import Actions, Bools, Floats

DISCOVERY_PHASE, SAMPLING_PHASE, LAYER_PHASE, RESAMPLING_PHASE, CONSOLIDATION_PHASE = range(5)
LAE_VISGO_ROOT, LAE_VISGO_FLAT = 3.0, 512.0
"""c_1 and c_2 of VISGO."""
LAE_SAMPLE_FACTOR = 5.0
"""The number before L^2 |K| of the samples that keep a policy's value within twice its estimate."""


def enough_episodes(L0: float, accuracy: float, delta: float, c: float = 1.0) -> int:
    """N_DEV of lemma 50: so many episodes of a policy whose values are at most L0 have a mean within accuracy * L0."""
    n = 1.0
    while (more := (8.0 * (c * math.log(8.0 * n * n * L0 / delta)) ** 2 / accuracy) ** 2) > n * (1.0 + 1e-9):
        n = more
    return math.ceil(n)


class LAE(RoundBasedMethod):
    """See the module's text."""

    name = "lae"
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **RoundBasedMethod.ARRAY_SCHEMA,
        "kept": SAMPLE_COUNTS,
        "layer": ArraySpec("bool", ("S",)),
        "candidates": ArraySpec("bool", ("S",)),
    }
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **RoundBasedMethod.FACTS_SCHEMA,
        "phase": {"type": "integer", "enum": list(range(5))},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kept_samples = np.zeros_like(self.counts.count)
        """[X, K] N when the discovery under way began"""
        self.next_layer: Bools = np.zeros(self.counts.n_states, bool)
        """[S] K'"""
        self.candidate_states: Bools = np.zeros(self.counts.n_states, bool)
        """[S] U"""

    def next_rollout(self) -> PlannedRollout | None:
        """Layers, then consolidation."""
        while not self.stopped:
            move = (
                self._collect_for_phase()
                if self.phase in (DISCOVERY_PHASE, SAMPLING_PHASE, RESAMPLING_PHASE)
                else self._play_round()
            )
            if move is not None:
                return move
        return None

    def _collect_for_phase(self) -> PlannedRollout | None:
        """Samples; None once they are there, and the next phase has begun."""
        c, size = self.counts, int(self.known_states.sum())
        if self.phase == DISCOVERY_PHASE:
            trials = 2.0 * self.L * math.log(4.0 * len(c.n) * self.L * self.round_number**2 / self.delta)
            move = self.collect_per_pair(trials, self._pad_samples(self.kept_samples))
        else:
            of, delta = (
                (c.n_states * self.round_number, self._layer_delta)
                if self.phase == SAMPLING_PHASE
                else (size, self.delta / size)
            )
            least = LAE_SAMPLE_FACTOR * self.c * self.L**2 * size * math.log(of / self.delta)
            move = self.collect_per_pair(max(least, self.small_bonus_samples(delta)))
        if move is None:
            if self.phase == DISCOVERY_PHASE:
                new = (self.round_samples > self._pad_samples(self.kept_samples)) & np.repeat(
                    self.known_states, c.n_actions
                )[:, None]
                self.candidate_states = np.isin(np.arange(c.n_states), c.successor[new]) & ~self.known_states
                self.dropped_samples = c.count - self._pad_samples(self.kept_samples)
            self.phase += 1
        return move

    def _play_round(self) -> PlannedRollout | None:
        """A round of the layers or of the consolidation; None once it is over."""
        layers = self.phase == LAYER_PHASE
        if self.round_goal < 0:
            (self._choose_candidate if layers else self._begin_next_goal)()
            return None
        more = self.relative_accuracy / 2.0 * (self.L if layers else self.optimistic_value)
        goal, answer = (
            self.round_goal,
            self.continue_round(self.episodes_of_round(self.round_number, self.phase), self.optimistic_value + more),
        )
        if isinstance(answer, PlannedRollout):
            return answer
        if answer:
            self.policy_table[:, goal] = self.trial_policy
            if layers:
                self.next_layer[goal], self.candidate_states[goal] = True, False
            else:
                self.is_final[goal] = True
        return None

    def episodes_of_round(self, number: int, phase: int) -> int:
        """lambda of that round."""
        share = self.delta / ((4.0 if phase == LAYER_PHASE else 2.0) * number**2)
        return enough_episodes(32.0 * self.L, self.relative_accuracy / 256.0, share, self.c)

    def _choose_candidate(self) -> None:
        """The nearest candidate, or the next layer, or the end of the layers."""
        c, goals = self.counts, np.flatnonzero(self.candidate_states)
        V, policy = self.plan_with_visgo(goals, self.visgo_iota(self._layer_delta), LAE_VISGO_ROOT, *self._visgo_limits)
        nearest = int(V[:, c.start].argmin()) if len(goals) else -1
        if nearest >= 0 and V[nearest, c.start] <= self.L:
            self.begin_round(goals[nearest], V[nearest], policy[nearest])
            return
        self.round_number += 1
        if self.next_layer.any():
            self.known_states, self.next_layer = self.known_states | self.next_layer, np.zeros_like(self.next_layer)
            self.kept_samples, self.phase = self.round_samples, DISCOVERY_PHASE
        else:
            self.dropped_samples, self.round_number, self.phase = c.count.copy(), 1, RESAMPLING_PHASE

    def _begin_next_goal(self) -> None:
        """A goal whose policy is not final, or the end."""
        open_goals = np.flatnonzero(self.known_states & ~self.is_final)[:1]
        self.stopped = not len(open_goals)
        if not self.stopped:
            V, policy = self.plan_with_visgo(
                open_goals, self.visgo_iota(self.delta / self.known_states.sum()), LAE_VISGO_ROOT, *self._visgo_limits
            )
            self.begin_round(open_goals[0], V[0], policy[0])

    @property
    def _visgo_limits(self) -> tuple[float, float]:
        return LAE_VISGO_FLAT * self.L, 2.0 * self.L

    @property
    def _layer_delta(self) -> float:
        """delta' of a round of the layers."""
        return self.delta / (4.0 * self.round_number**2 * self.counts.n_states**2)

    def small_bonus_samples(self, delta: float) -> float:
        """The samples of a pair that make the bonus at most 1/8 wherever values are at most 2 L."""
        pairs, rate, n = (
            self._n_known_pairs,
            self.c * max((8.0 * LAE_VISGO_ROOT * self.L) ** 2, 8.0 * LAE_VISGO_FLAT * self.L),
            1.0,
        )
        while (more := rate * math.log(2.0 * pairs * n / delta)) > n * (1.0 + 1e-9):
            n = more
        return n

    @property
    def _n_known_pairs(self) -> int:
        return int(self.known_states.sum()) * (self.counts.n_actions + 1)

    def visgo_iota(self, delta: float) -> Floats:
        """[X] the logarithm of VISGO."""
        n = np.maximum(self.round_samples.sum(1), 1)
        iota: Floats = self.c * np.log(2.0 * self._n_known_pairs * n / delta)
        return iota

    @property
    def answer_distances(self) -> Floats:
        """[S] 0 on K and K'."""
        return np.where(self.known_states | self.next_layer, 0.0, np.inf)

    def policy_to_state(self, state: int) -> Actions:
        """[1, S] the policy of the last round that was a success."""
        return np.ascontiguousarray(self.policy_table[None, :, state])

    def method_state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The layers too."""
        arrays, facts = super().method_state()
        return {
            **arrays,
            "kept": self._pad_samples(self.kept_samples),
            "layer": self.next_layer,
            "candidates": self.candidate_states,
        }, facts

    def restore_method_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        super().restore_method_state(arrays, facts)
        self.check_sample_counts(arrays["kept"] + (arrays["dropped"] if self.phase == DISCOVERY_PHASE else 0))
        if ((arrays["layer"] | arrays["candidates"]) & ~self.counts.seen).any():
            raise ValueError("a layer or a candidate is no state that was seen")
        if (arrays["layer"] & arrays["known"]).any():
            raise ValueError("a state is both known and of the next layer")
        self.kept_samples, self.next_layer, self.candidate_states = (
            np.array(arrays[name]) for name in ("kept", "layer", "candidates")
        )
