"""DisCo (Tarbouriech et al. 2020, "Improved sample complexity for incremental autonomous exploration in MDPs").

K = {s0}; round after round:

1. sample every pair of K x A until n(s, a) >= phi(K), with eps = min(epsilon, 1) and

       phi(K) = 16 c ( L^4 Theta / eps^2 log^2(L |K| A / (eps delta)) + L^2 |K| / eps log(L |K| A / (eps delta)) ),
       Theta  = max over K x A of (sum over s' in K of sqrt(p_hat (1 - p_hat)))^2;

2. candidates: W = {u outside K : p_hat(u|s, a) >= (1 - eps/2)/L for some (s, a) in K x A}; none: stop;
3. for each u in W the optimistic shortest path to u restricted to K, up to eps/(6L) (:mod:`adagoal.rivals.planning`);
4. the u of smallest optimistic value from s0: stop if it exceeds L, else add it to K.

The answer is K, with policies restricted to K that are planned again on all samples ("policy consolidation").

Where goals are sets (:mod:`adagoal.rivals.incremental`), the sets outside K with p_hat(set|s, a) >=
(1 - eps/2)/L for some pair are looked at before the stop: once there are samples for them, those with an optimistic
value of at most L are added. Plans to a set are plans to a state, as V = 0 on all of it. The consolidation plans for
each set of the answer as a whole.

*Proved in the paper, for its constants:* K holds the incrementally L-reachable states and no state that is not
incrementally (L + eps)-reachable, and every policy is within eps of the best one restricted to them. Where that set
is G_L *and* such policies are as good as free ones, this is multi-goal exploration; elsewhere states of G_L are missing
(``toys.fan``), or the way to one leads through a state beyond L, where a restricted policy resets (FrozenLake).

*Checked against the source:* the objective and the rate L^5 S Gamma A / eps^2 (abstract; the text of the algorithm
could not be opened); the claim above, and the lower-order term L^3 S^2 A / eps of the rate, as Cai et al. (2022) quote
them (lemma 2.4). *Recalled:* phi up to its numerical constant, Theta, the threshold of W, eps/(6L), both stopping
conditions and the consolidation. *Derived:* the constant 16, which the paper leaves open. An optimistic value near L
falls short by about 2 sqrt(Theta l / n) L^2, l = log(2 S A n / delta), so that n must be a multiple of
4 L^4 Theta l / eps^2; with 1 instead of 16 the claim above fails in one of ten small random worlds, with 16 in none of
those tried. Theta does not count x, the one state for all outside K (:mod:`adagoal.rivals.planning`), and near s0 that
may be too little: on ``toys.fan`` with L = 15 the answer has a state at distance 19. *Ours:* Theta counts x where sets
are looked at, since they are large parts of what lies outside; samples are collected on the way to the nearest
under-sampled state of K, not one state after the other with its policy from s0; and phi is never less than the trials
that find the candidates at all (``Incremental.discovery``), which matters for c < 1 only.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import Schema
from adagoal.core.types import Actions, Floats, Longs
from adagoal.core.world import Outcome
from adagoal.rivals import planning
from adagoal.rivals.explorer import Move
from adagoal.rivals.incremental import Incremental

ALPHA = 16.0
"""The numerical constant of phi, which the paper leaves open."""


class DisCo(Incremental):
    """See the module's text."""

    name = "disco"
    SCHEMA: ClassVar[Schema] = {**Incremental.SCHEMA, **Incremental.SETS}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.eps = min(self.epsilon, 1.0)

    def move(self) -> Move | None:
        """Steps 1 to 4."""
        while not self.stopped:
            move = self.sample(self.phi())
            if move is not None:
                return move
            values = self._values(self.candidates())
            best = min(values, key=lambda u: values[u], default=-1)
            if best >= 0 and values[best] <= self.L:
                self.known[best] = True
                continue
            move = self._look_at_sets() if self.n_sets else None
            if move is not None:
                return move
            self.stopped = True
        return None

    def _look_at_sets(self) -> Move | None:
        """Sample what the sets outside K ask for, then add those within L."""
        sets, theta = self.candidate_sets()
        move = self.sample(self.phi(theta)) if len(sets) else None
        if move is None:
            within = [t for t, value in self._values(sets).items() if value <= self.L]
            self.sets[np.array(within, np.int64) - self.counts.n_states] = True
        return move

    def _values(self, numbers: Longs) -> dict[int, float]:
        """The optimistic values of targets from s0."""
        return {u: float(V[self.counts.start]) for u, V, _ in self.restricted(numbers)}

    def learn(self, outcome: Outcome) -> None:
        """The counts are all it needs."""

    def _spread(self) -> Floats:
        """[|K| A] what Theta is the largest of."""
        return planning.spread(self.counts, self.known)[np.repeat(self.known, self.counts.n_actions)]

    def phi(self, theta: float | None = None) -> float:
        """The number of samples that K asks of each of its pairs; ``theta``: another one than that of K."""
        size = int(self.known.sum())
        theta = float(self._spread().max()) if theta is None else theta
        log = math.log(self.L * size * self.counts.n_actions / (self.eps * self.delta))
        full = self.L**4 * theta / self.eps**2 * log**2 + self.L**2 * size / self.eps * log
        return max(ALPHA * self.c * full, self.discovery())

    def candidates(self) -> Longs:
        """The set W."""
        c = self.counts
        inside = np.repeat(self.known, c.n_actions)[:, None]
        often = inside & (c.count > 0) & (planning.empirical(c) >= (1.0 - self.eps / 2.0) / self.L)
        found = np.unique(c.successor[often]).astype(np.int64)
        return found[~self.known[found]]

    def candidate_sets(self) -> tuple[Longs, float]:
        """The same for sets outside K, from S on; and Theta with x, the largest over these sets."""
        c, pairs = self.counts, np.repeat(self.known, self.counts.n_actions)
        p_hat, to, root = planning.empirical(c)[pairs], c.successor[pairs], np.sqrt(self._spread())
        outside = np.where(self.known[to], 0.0, p_hat)
        found, theta = [], 0.0
        sets = self.waiting(c.seen)
        for number, inside in zip(sets.tolist(), self.targets(sets), strict=True):
            share = np.where(inside[to], p_hat, 0.0).sum(1)
            if share.max() >= (1.0 - self.eps / 2.0) / self.L:
                x = np.clip(outside.sum(1) - share, 0.0, 1.0)
                found.append(number)
                theta = max(theta, float(((root + np.sqrt(x * (1.0 - x))) ** 2).max()))
        return np.array(found, np.int64), theta

    def policy(self, goal: int) -> Actions:
        """[1, S] the optimistic policy restricted to K, on all samples."""
        first = self.counts.n_states if self.n_sets else 0
        _, policy = self.consolidated(first + np.flatnonzero(self.D == 0.0))[first + int(goal)]
        return policy[None]

    def memory(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """K, and the sets that were added."""
        return {"known": self.known, "sets": self.sets}, {}

    def remember(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        self.check_known(arrays["known"])
        self.known, self.sets = np.array(arrays["known"]), self.added(arrays)
