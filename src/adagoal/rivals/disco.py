"""DisCo (Tarbouriech et al. 2020, "Improved sample complexity for incremental autonomous exploration in MDPs").

K = {s0}; round after round:

1. sample every pair of K x A until n(s, a) >= phi(K), with eps = min(epsilon, 1) and

       phi(K) = 16 c ( L^4 Theta / eps^2 log^2(L |K| A / (eps delta)) + L^2 |K| / eps log(L |K| A / (eps delta)) ),
       Theta  = max over K x A of (sum over s' in K of sqrt(p_hat (1 - p_hat)))^2;

2. candidates: W = {u outside K : p_hat(u|s, a) >= (1 - eps/2)/L for some (s, a) in K x A}; none: stop;
3. for each u in W the optimistic shortest path to u restricted to K, up to eps/(6L) (:mod:`adagoal.rivals.planning`);
4. the u of smallest optimistic value from s0: stop if it exceeds L, else add it to K.

The answer is K, with policies restricted to K that are planned again on all samples ("policy consolidation").

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
those tried. *Ours:* samples are collected on the way to the nearest under-sampled state of K, not one state after the
other with its policy from s0; and phi is never less than the trials that find the candidates at all
(``Incremental.discovery``), which matters for c < 1 only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.types import Actions, Longs
from adagoal.core.world import Outcome
from adagoal.rivals import planning
from adagoal.rivals.explorer import Incremental, Move

ALPHA = 16.0
"""The numerical constant of phi, which the paper leaves open."""


class DisCo(Incremental):
    """See the module's text."""

    name = "disco"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.eps = min(self.epsilon, 1.0)
        self._answer: dict[int, Actions] = {}
        self._answered = (-1, -1)

    def move(self) -> Move | None:
        """Steps 1 to 4."""
        while not self.stopped:
            move = self.sample(self.phi())
            if move is not None:
                return move
            values = {u: float(V[self.counts.start]) for u, V, _ in self.restricted(self.candidates())}
            best = min(values, key=lambda u: values[u], default=-1)
            self.stopped = best < 0 or values[best] > self.L
            if not self.stopped:
                self.known[best] = True
        return None

    def learn(self, outcome: Outcome) -> None:
        """The counts are all it needs."""

    def phi(self) -> float:
        """The number of samples that K asks of each of its pairs."""
        c, size = self.counts, int(self.known.sum())
        inside = np.repeat(self.known, c.n_actions)
        theta = float(planning.spread(c, self.known)[inside].max())
        log = math.log(self.L * size * c.n_actions / (self.eps * self.delta))
        full = self.L**4 * theta / self.eps**2 * log**2 + self.L**2 * size / self.eps * log
        return max(ALPHA * self.c * full, self.discovery())

    def candidates(self) -> Longs:
        """The set W."""
        c = self.counts
        inside = np.repeat(self.known, c.n_actions)[:, None]
        often = inside & (c.count > 0) & (planning.empirical(c) >= (1.0 - self.eps / 2.0) / self.L)
        found = np.unique(c.successor[often]).astype(np.int64)
        return found[~self.known[found]]

    def policy(self, goal: int) -> Actions:
        """[1, S] the optimistic policy restricted to K, on all samples."""
        moment = int(self.counts.n.sum()), int(self.known.sum())
        if moment != self._answered:
            plans = self.plans
            self._answer = {g: policy[None] for g, _, policy in self.restricted(np.flatnonzero(self.known))}
            self.plans, self._answered = plans, moment
        return self._answer[int(goal)]

    def memory(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """K."""
        return {"known": self.known}, {}

    def remember(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        self.check_known(arrays["known"])
        self.known = np.array(arrays["known"])
