"""LAE (Chen, Tirinzoni, Lazaric and Pirotta 2023, "Layered state discovery for incremental autonomous exploration").

With the relative accuracy e = epsilon / L. First *layers* (LASD, their algorithm 1): K = {s0}, K' = {}, and

0. *discovery*: try every pair of K x A 2 L log(4 S A L r^2 / delta) times, r the number of the round; the successors
   outside K are the candidates U; these samples are not used again;
1. *samples*: collect samples on K x A until VISGO's bonus is at most 1/8, N >= max{576 L^2, 4096 L} iota, and
   N >= 5 c L^2 |K| log(S r / delta);
2. *rounds* (:class:`~adagoal.baselines.incremental.RoundBasedMethod`): VISGO for every candidate, restricted to K, with
   delta' = delta/(4 r^2 S^2),

       iota = c log(2 |K| A n / delta'),   root = 3,   flat = 512 L,   cap = 2 L;

   take the u of smallest optimistic value V(s0). If it is at most L, play lambda episodes; if they take at most
   V(s0) + e L/2 steps on average, move u from U to K', with this policy. If it exceeds L, or U is empty: if K' is empty
   the layers are done, else K becomes K + K', and the next layer begins with step 0.

Then *consolidation* (their algorithm 2), on new samples N, as many as in step 1, with 5 c L^2 |K| log(|K|/delta):
rounds for one member of K after the other, with delta' = delta / |K|, and the limit V(s0) (1 + e/2). In both, lambda is
the smallest n with

    8 (c log(8 n^2 L_0 / delta''))^2 / sqrt(n) <= e/256,   L_0 = 32 L,   delta'' = delta/(4 r^2), or delta/(2 r^2).

*Proved in the paper, for its constants:* K contains the incrementally L-reachable states and no state that is not
incrementally (1 + e) L-reachable; each policy takes at most (1 + e) times as long as the best one restricted to K. As
for DisCo this is multi-goal exploration if such policies are as good as free ones and reach all of G_L.

*Checked against the text* (the proceedings of ICML 2023): all of the above except the numbers of step 1, which the
paper does not give. *Derived:* 576 and 4096; lambda, by solving the inequality in the proof of lemma 50 as the paper
says. *Ours:* what :class:`~adagoal.baselines.incremental.RoundBasedMethod` says. The paper's algorithm 3 allows two
ways to find layers; this is the one for a known number of states. The other one, LASD+, is not here: it does not know
S, tests each policy from every known state, and begins again whenever K has doubled.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines.incremental import RoundBasedMethod, VisgoConstants
from adagoal.baselines.self_directed import PlannedRollout
from adagoal.core.array_types import Bools, Floats
from adagoal.core.file_formats import ArraySchema, ArraySpec


class LAEPhase(IntEnum):
    """Steps 0 to 2 of a layer, then the two steps of the consolidation."""

    DISCOVERY = 0
    SAMPLING = 1
    LAYER_ROUNDS = 2
    RESAMPLING = 3
    CONSOLIDATION = 4


def enough_episodes(L0: float, accuracy: float, delta: float, c: float = 1.0) -> int:
    """N_DEV of lemma 50: the mean of this many episodes of a policy with values up to L0 is within accuracy * L0."""
    # Fixed-point iteration from below: the right side grows more slowly than n. It has the fourth power of the
    # logarithm, so a scaled c reduces lambda by its fourth power.
    n = 1.0
    while (more := (8.0 * (c * math.log(8.0 * n * n * L0 / delta)) ** 2 / accuracy) ** 2) > n * (1.0 + 1e-9):
        n = more
    return math.ceil(n)


class LAE(RoundBasedMethod):
    """LAE: K grows layer by layer, then every member gets a final policy."""

    name = "lae"
    N_PHASES = len(LAEPhase)
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **RoundBasedMethod.ARRAY_SCHEMA,
        "kept_samples": RoundBasedMethod.ARRAY_SCHEMA["dropped_samples"],
        "next_layer": ArraySpec("bool", ("S",)),
        "candidate_states": ArraySpec("bool", ("S",)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.visgo = VisgoConstants(root=3.0, flat=512.0 * self.L, cap=2.0 * self.L)
        self.kept_samples = np.zeros_like(self.counts.count)  # [X, K]: N when the last discovery began
        self.next_layer: Bools = np.zeros(self.counts.n_states, bool)  # [S]: K'
        self.candidate_states: Bools = np.zeros(self.counts.n_states, bool)  # [S]: U

    def grow_with_counts(self) -> None:
        """Make room for new successors of a pair."""
        super().grow_with_counts()
        self.kept_samples = self.pad_samples(self.kept_samples)

    def advance(self) -> PlannedRollout | None:
        """Layers, then consolidation."""
        rounds = self.phase in (LAEPhase.LAYER_ROUNDS, LAEPhase.CONSOLIDATION)
        return self._play_round() if rounds else self._collect_for_phase()

    def _collect_for_phase(self) -> PlannedRollout | None:
        """Collect the samples of the phase; once they are there, begin the next phase and return None."""
        c, size = self.counts, int(self.known_states.sum())
        if self.phase == LAEPhase.DISCOVERY:
            trials = 2.0 * self.L * math.log(4.0 * len(c.n) * self.L * self.round_number**2 / self.delta)
            rollout = self.collect_per_pair(trials, self.kept_samples)
        else:
            union, delta = size, self.delta / size
            if self.phase == LAEPhase.SAMPLING:
                union, delta = c.n_states * self.round_number, self._layer_delta
            # The paper gives no number. 5 is from the authors' code (github.com/lchenat/AX_exp), which has the layers
            # only, with 64 in place of 512 and 5000 in place of lambda, "to boost the empirical performance".
            least = 5.0 * self.c * self.L**2 * size * math.log(union / self.delta)
            rollout = self.collect_per_pair(max(least, self.small_bonus_samples(delta)))
        if rollout is None:
            if self.phase == LAEPhase.DISCOVERY:
                # Samples of the discovery chose the candidates, so the rounds must not use them.
                inside = np.repeat(self.known_states, c.n_actions)[:, None]
                new = (self.round_samples > self.kept_samples) & inside
                self.candidate_states = np.isin(np.arange(c.n_states), c.successor[new]) & ~self.known_states
                self.dropped_samples = c.count - self.kept_samples
            self.phase += 1
        return rollout

    def _play_round(self) -> PlannedRollout | None:
        """Play a round of the layers or of the consolidation; None once it is over."""
        layers = self.phase == LAEPhase.LAYER_ROUNDS
        if self.trial_target < 0:
            if layers:
                self._choose_candidate()
            else:
                self.begin_next_member(self.visgo_iota(self.delta / self.known_states.sum()))
            return None
        more = self.relative_accuracy / 2.0 * (self.L if layers else self.optimistic_value)
        state, episodes = self.trial_target, self.episodes_of_round(self.round_number, self.phase)
        answer = self.continue_round(episodes, self.optimistic_value + more)
        if isinstance(answer, PlannedRollout):
            return answer
        if answer and layers:
            self.next_layer[state], self.candidate_states[state] = True, False
        elif answer:
            self.is_final[state] = True
        return None

    def episodes_of_round(self, number: int, phase: int) -> int:
        """lambda of a round."""
        share = self.delta / ((4.0 if phase == LAEPhase.LAYER_ROUNDS else 2.0) * number**2)
        return enough_episodes(32.0 * self.L, self.relative_accuracy / 256.0, share, self.c)

    def _choose_candidate(self) -> None:
        """Start a round for the nearest candidate, or the next layer, or the consolidation."""
        c, states = self.counts, np.flatnonzero(self.candidate_states)
        V, policy = self.plan_with_visgo(states, self.visgo_iota(self._layer_delta))
        nearest = int(V[:, c.start].argmin()) if len(states) else -1
        if nearest >= 0 and V[nearest, c.start] <= self.L:  # step 2
            self.begin_round(states[nearest], V[nearest], policy[nearest])
            return
        self.round_number += 1
        if self.next_layer.any():
            self.known_states, self.next_layer = self.known_states | self.next_layer, np.zeros_like(self.next_layer)
            # The samples N of the rounds carry over to the next layer; only those of its discovery are dropped.
            self.kept_samples, self.phase = self.round_samples, LAEPhase.DISCOVERY
        else:
            # All samples so far chose K, so the consolidation begins with new ones.
            self.dropped_samples, self.round_number, self.phase = c.count.copy(), 1, LAEPhase.RESAMPLING

    @property
    def _layer_delta(self) -> float:
        """delta' of a round of the layers."""
        return self.delta / (4.0 * self.round_number**2 * self.counts.n_states**2)

    @property
    def _n_known_pairs(self) -> int:
        return int(self.known_states.sum()) * (self.counts.n_actions + 1)

    def small_bonus_samples(self, delta: float) -> float:
        """Samples of a pair that make the bonus at most 1/8 for values up to 2 L."""
        # The proof of lemma 3 needs such a bonus; the factors are 576 L^2 and 4096 L.
        rate, n = self.c * max((8.0 * self.visgo.root * self.L) ** 2, 8.0 * self.visgo.flat), 1.0
        while (more := rate * math.log(2.0 * self._n_known_pairs * n / delta)) > n * (1.0 + 1e-9):
            n = more
        return n

    def visgo_iota(self, delta: float) -> Floats:
        """iota [X]."""
        n = np.maximum(self.round_samples.sum(1), 1)
        iota: Floats = self.c * np.log(2.0 * self._n_known_pairs * n / delta)
        return iota

    @property
    def answer_distances(self) -> Floats:
        """0 on K and K', infinite elsewhere [S]."""
        return np.where(self.known_states | self.next_layer, 0.0, np.inf)

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        discovery = facts["phase"] == LAEPhase.DISCOVERY
        # During the discovery kept and dropped samples are different ones, so their sum must not exceed the counts.
        self.check_sample_counts(arrays["kept_samples"] + (arrays["dropped_samples"] if discovery else 0))
        if ((arrays["next_layer"] | arrays["candidate_states"]) & ~self.counts.seen).any():
            raise ValueError("a layer or a candidate is no state that was seen")
        if (arrays["next_layer"] & arrays["known_states"]).any():
            raise ValueError("a state is both known and of the next layer")
