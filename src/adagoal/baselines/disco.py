"""DisCo, which finds the states within L, and VALAE, which then learns a near-optimal policy to each of them.

**DisCo** (Tarbouriech et al. 2020, "Improved sample complexity for incremental autonomous exploration in MDPs").

K = {s0}; in every round:

1. sample every pair of K x A until n(s, a) >= phi(K), with eps = min(epsilon, 1) and

       phi(K) = 16 c ( L^4 Theta / eps^2 log^2(L |K| A / (eps delta)) + L^2 |K| / eps log(L |K| A / (eps delta)) ),
       Theta  = max over K x A of (sum over s' in K of sqrt(p_hat (1 - p_hat)))^2;

2. candidates: W = {u outside K : p_hat(u|s, a) >= (1 - eps/2)/L for some (s, a) in K x A}; stop if W is empty;
3. for each u in W compute the optimistic shortest path to u restricted to K, up to eps/(6L)
   (:mod:`adagoal.baselines.self_directed`);
4. take the u of smallest optimistic value from s0: stop if it exceeds L, else add it to K.

The answer is K, with policies restricted to K that are planned again on all samples ("policy consolidation").

If goals are sets (:mod:`adagoal.baselines.incremental`), the method considers the sets outside K with
p_hat(set|s, a) >= (1 - eps/2)/L for some pair before it stops: once there are samples for them, it adds those with an
optimistic value of at most L. Plans to a set are plans to a state, with V = 0 on all of it. The consolidation plans for
each set of the answer as a whole.

*Proved in the paper, for its constants:* K contains the incrementally L-reachable states and no state that is not
incrementally (L + eps)-reachable, and every policy is within eps of the best one restricted to them. If that set is G_L
*and* such policies are as good as free ones, this is multi-goal exploration. Otherwise states of G_L are missing
(``toys.fan``), or the way to one leads through a state beyond L, where a restricted policy resets (FrozenLake).

*Checked against the source:* the objective and the rate L^5 S Gamma A / eps^2 (abstract; the text of the algorithm
could not be opened); the claim above, and the lower-order term L^3 S^2 A / eps of the rate, as Cai et al. (2022) quote
them (lemma 2.4). *Recalled:* phi up to its numerical constant, Theta, the threshold of W, eps/(6L), both stopping
conditions and the consolidation. *Derived:* the constant 16, which the paper leaves open. *Ours:* Theta for sets, the
minimum of phi, and samples are collected on the way to the nearest under-sampled state of K, not one state after the
other with its policy from s0.

**VALAE** (Cai, Ma and Du 2022, "Near-optimal algorithms for autonomous exploration and multi-goal stochastic shortest
path"). With the relative accuracy e = epsilon / L:

0. *set*: DisCo with the coarse accuracy L finds K. Its samples are not used again;
1. *samples*: N(s, a) >= phi on K x A, the power of two next to 12000 c L^2 |K| log(|K| A / delta);
2. *rounds* (:class:`~adagoal.baselines.incremental.RoundBasedMethod`) for one member of K after the other, by VISGO
   restricted to K with

       iota = 4 c log(12 (|K| + 1) A n / delta),   root = 6,   flat = 72 B,   cap = B = 10 L,

   lambda = 2048/e'^2 log^2(256/e') c log(2 |K|/delta) episodes, e' = e/3, and the limit V(s0) + e' L.

*Proved in the paper, for its constants:* K contains the incrementally L-reachable states and no state that is not
incrementally 2L-reachable, and each policy is within epsilon of the best one restricted to K.

*Checked against the text* (the proceedings of ICML 2022): all of the above except DisCo. *Ours:* what
:class:`~adagoal.baselines.incremental.RoundBasedMethod` says. A step is known to cost one, so the bonus for unknown
costs is zero. VISGO plans on all samples of N, not on those up to the last power of two.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines.incremental import IncrementalMethod, RoundBasedMethod, VisgoConstants, next_power_of_two
from adagoal.baselines.self_directed import PlannedRollout, deviation_spread, empirical_rows
from adagoal.core.array_types import Actions, Floats, Longs
from adagoal.core.file_formats import ArraySchema, ArraySpec


class DisCo(IncrementalMethod):
    """DisCo: a set of states, found by sampling and planning, without trials of policies."""

    name = "disco"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.eps = min(self.epsilon, 1.0)  # VALAE replaces it by a coarser accuracy

    def advance(self) -> PlannedRollout | None:
        """Steps 1 to 4."""
        rollout = self.sample_known_pairs(self.samples_per_pair())  # step 1
        if rollout is not None:
            return rollout
        nearest = self.nearest_target(self.candidate_states())  # steps 2 and 3
        if nearest is not None:  # step 4
            self.known_states[nearest[0]] = True
            return None
        rollout = self._consider_sets() if self.n_sets else None
        self.stopped = rollout is None
        return rollout

    def _consider_sets(self) -> PlannedRollout | None:
        """Collect the samples that the sets outside K need, then add those within L."""
        sets, theta = self.candidate_sets()
        rollout = self.sample_known_pairs(self.samples_per_pair(theta)) if len(sets) else None
        if rollout is None:
            S, start = self.counts.n_states, self.counts.start
            within = [target - S for target, V, _ in self.plan_restricted(sets) if V[start] <= self.L]
            self.added_sets[np.array(within, np.int64)] = True
        return rollout

    def _spread_of_known(self) -> Floats:
        """Spreads [|K| A], whose maximum is Theta."""
        # Without x, the one state for all outside K. Near s0 that may be too little: on ``toys.fan`` with L = 15 the
        # answer has a state at distance 19.
        return deviation_spread(self.counts, self.known_states)[np.repeat(self.known_states, self.counts.n_actions)]

    def samples_per_pair(self, theta: float | None = None) -> float:
        """phi(K); ``theta`` replaces the Theta of K."""
        size = int(self.known_states.sum())
        theta = float(self._spread_of_known().max()) if theta is None else theta
        log = math.log(self.L * size * self.counts.n_actions / (self.eps * self.delta))
        full = self.L**4 * theta / self.eps**2 * log**2 + self.L**2 * size / self.eps * log
        # 16: an optimistic value near L falls short by about 2 sqrt(Theta l / n) L^2, l = log(2 S A n / delta), so n
        # must be a multiple of 4 L^4 Theta l / eps^2. With 1 instead of 16 the paper's claim fails in one of ten small
        # random worlds, with 16 in none of those tried. The maximum matters for c < 1 only.
        return max(16.0 * self.c * full, self.discovery_trials())

    def candidate_states(self) -> Longs:
        """The set W."""
        c = self.counts
        inside = np.repeat(self.known_states, c.n_actions)[:, None]
        often = inside & (c.count > 0) & (empirical_rows(c) >= (1.0 - self.eps / 2.0) / self.L)
        found = np.unique(c.successor[often]).astype(np.int64)
        return found[~self.known_states[found]]

    def candidate_sets(self) -> tuple[Longs, float]:
        """The sets of W as targets, and the largest Theta with x over these sets."""
        c, pairs = self.counts, np.repeat(self.known_states, self.counts.n_actions)
        p_hat, to, root = empirical_rows(c)[pairs], c.successor[pairs], np.sqrt(self._spread_of_known())
        outside = np.where(self.known_states[to], 0.0, p_hat)
        candidates, theta = [], 0.0
        sets = self.waiting_sets(c.seen)
        for target, inside in zip(sets.tolist(), self.target_masks(sets), strict=True):
            share = np.where(inside[to], p_hat, 0.0).sum(1)
            # Here Theta counts x, since sets are large parts of what lies outside K.
            if share.max() >= (1.0 - self.eps / 2.0) / self.L:
                # Rounding may leave the range of a probability, and the root would be NaN.
                x = np.clip(outside.sum(1) - share, 0.0, 1.0)
                candidates.append(target)
                theta = max(theta, float(((root + np.sqrt(x * (1.0 - x))) ** 2).max()))
        return np.array(candidates, np.int64), theta

    def goal_policy(self, goal: int) -> Actions:
        """Return the optimistic policy [1, S] restricted to K, on all samples."""
        # All goals of the answer in one call, so the cached plans serve the next goal too.
        first = self.counts.n_states if self.n_sets else 0
        _, policy = self.consolidated_plans(first + np.flatnonzero(self.D == 0.0))[first + int(goal)]
        return policy[None]


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
