"""VALAE (Cai, Ma and Du 2022, "Near-optimal algorithms for autonomous exploration and multi-goal stochastic shortest
path").

With the relative accuracy e = epsilon / L:

0. *set*: DisCo (:mod:`adagoal.rivals.disco`) with the coarse accuracy L finds K. Its samples are not used again;
1. *samples*: N(s, a) >= phi on K x A, the power of two next to 12000 c L^2 |K| log(|K| A / delta);
2. *rounds* (:mod:`adagoal.rivals.rounds`) for one member of K after the other, by VISGO restricted to K with

       iota = 4 c log(12 (|K| + 1) A n / delta),   root = 6,   flat = 72 B,   cap = B = 10 L,

   lambda = 2048/e'^2 log^2(256/e') c log(2 |K|/delta) episodes, e' = e/3, and the limit V(s0) + e' L.

*Proved in the paper, for its constants:* K holds the incrementally L-reachable states and no state that is not
incrementally 2L-reachable, and each policy is within epsilon of the best one restricted to K.

*Checked against the text* (the proceedings of ICML 2022): all of the above; what DisCo does, as its own file says.
*Ours:* what :mod:`adagoal.rivals.rounds` says. A step is known to cost one, so that the bonus for unknown costs is
zero. VISGO plans on all samples of N, not on those up to the last power of two, with the precision 1/sum N of LAE
(that of the paper is halved in every skipped round, and soon too small for a computer). The answer holds the members of
K whose optimistic value is at most L, so that C2 can hold: K itself may reach as far as 2L. These are all that the
paper makes a claim on.

``constants``: as in :mod:`adagoal.rivals.planning`, "scaled=c" multiplies every logarithm of a confidence by c.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import Array, Schema
from adagoal.core.types import Actions, Floats
from adagoal.rivals.disco import DisCo
from adagoal.rivals.explorer import Move
from adagoal.rivals.rounds import Rounds, power

FIND, SAMPLE, GOALS = range(3)
ROOT, FLAT = 6.0, 72.0
"""c_1 and c_2 of VISGO."""
ENOUGH = 12_000.0


class VALAE(Rounds):
    """See the module's text."""

    name = "valae"
    SCHEMA: ClassVar[Schema] = {**Rounds.SCHEMA, "near": Array("float64", ("S",), low=0)}
    FACTS: ClassVar[dict[str, Any]] = {**Rounds.FACTS, "phase": {"type": "integer", "enum": list(range(3))}}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.finder = DisCo(self.counts, self.L, self.L, self.delta, None, self.constants, backend=self.backend)
        self.finder.eps = self.L
        self.known = self.finder.known
        self.found = np.zeros(self.counts.n_states)
        """[S] the optimistic value of every goal whose policy is final"""

    def move(self) -> Move | None:
        """The set, its samples, its goals."""
        while not self.stopped:
            move = (self._find, self._sample, self._play)[self.phase]()
            if move is not None:
                return move
        return None

    def _find(self) -> Move | None:
        """DisCo; None once it has stopped."""
        finder = self.finder
        move = finder.move()
        self._way, self._until, self.known, self.plans = finder._way, finder._until, finder.known, finder.plans
        if move is None:
            self.dropped, self.phase = self.counts.count.copy(), SAMPLE
        return move

    def _sample(self) -> Move | None:
        """Samples of K x A; None once they are there."""
        move = self.gather(self.phi())
        if move is None:
            self.phase = GOALS
        return move

    def _play(self) -> Move | None:
        """A round; None once it is over."""
        if self.target < 0:
            open_goals = np.flatnonzero(self.known & ~self.done)[:1]
            self.stopped = not len(open_goals)
            if not self.stopped:
                B = 10.0 * self.L
                V, policy = self.visgo(open_goals, self.iota(), ROOT, FLAT * B, B)
                self.begin(open_goals[0], V[0], policy[0])
            return None
        goal, answer = self.target, self.evaluate(self.episodes(), self.estimate + self.relative / 3.0 * self.L)
        if isinstance(answer, Move):
            return answer
        if answer:
            self.table[:, goal], self.found[goal], self.done[goal] = self.trial, self.estimate, True
        return None

    def phi(self) -> int:
        """The number of samples of a pair before any round."""
        size = int(self.known.sum())
        least = ENOUGH * self.c * self.L**2 * size * math.log(size * (self.counts.n_actions + 1) / self.delta)
        return int(power(math.ceil(least) - 1))

    def episodes(self) -> int:
        """lambda."""
        e = self.relative / 3.0
        confidence = self.c * math.log(2.0 * self.known.sum() / self.delta)
        return math.ceil(2048.0 / e**2 * math.log(256.0 / e) ** 2 * confidence)

    def iota(self) -> Floats:
        """[X] the logarithm of VISGO."""
        n, pairs = np.maximum(self.samples.sum(1), 1), (int(self.known.sum()) + 1) * (self.counts.n_actions + 1)
        iota: Floats = 4.0 * self.c * np.log(12.0 * pairs * n / self.delta)
        return iota

    @property
    def near(self) -> Floats:
        """[S] the optimistic value of the goals whose policy is final, 0 on the rest of K."""
        return np.where(self.known, self.found, np.inf)

    def way_to(self, state: int) -> Actions:
        """[1, S] the final policy, or DisCo's as long as there is none."""
        return np.ascontiguousarray(self.table[None, :, state]) if self.done[state] else self.finder.policy(state)

    def memory(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The values too."""
        arrays, facts = super().memory()
        return {**arrays, "near": self.found}, facts

    def remember(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        super().remember(arrays, facts)
        finder = self.finder
        self.found = np.array(arrays["near"])
        finder._way, finder._until, finder.known, finder.plans = self._way, self._until, self.known, self.plans
