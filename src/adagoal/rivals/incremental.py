"""Methods that answer a set K of states, grown from s0 state by state with policies restricted to K.

*Goals that are sets.* K is grown over states all the same. A set that holds a state of K is in the answer: a policy for
that state, which stops at any state of the set, can only be faster. A set of several states may be near though each of
them is far (the middle of ``toys.fan``). Such sets are looked at once no state is left to add to K, as the candidates
were: for policies restricted to K, a set outside K is one more state outside K. A set of one state is that state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import Array, Schema
from adagoal.core.types import Actions, Bools, Floats, Ints, Longs
from adagoal.core.world import Outcome
from adagoal.rivals import planning
from adagoal.rivals.explorer import Explorer, Move


class Incremental(Explorer):
    """See the module's text."""

    SCHEMA: ClassVar[Schema] = {**Explorer.SCHEMA, "known": Array("bool", ("S",))}
    SETS: ClassVar[Schema] = {"sets": Array("bool", ("G",))}
    """For the checkpoints of methods whose goals may be sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known: Bools = np.arange(self.counts.n_states) == self.counts.start
        """[S] the set K"""
        self.sets: Bools = np.zeros(self.n_sets, bool)
        """[G] the sets that were added though they hold no state of K"""
        self._far = 4.0 * (self.L + 2.0)
        """The value at which plans are cut"""
        self._plans: dict[int, tuple[Floats, Actions]] = {}
        self._planned = (-1, b"")

    def grow(self) -> None:
        """Room for more states, none of them known, and more sets."""
        super().grow()
        self.known = np.pad(self.known, (0, self.counts.n_states - len(self.known)))
        self.sets = np.pad(self.sets, (0, self.n_sets - len(self.sets)))

    @property
    def D(self) -> Floats:
        """[N] 0 on K; where goals are sets, on those that hold a state of K, and on those that were added."""
        found = self.known if self.space.own else self._met(self.known) | self.sets
        return np.pad(np.where(found, 0.0, np.inf), (0, len(self.column) - len(found)), constant_values=np.inf)

    def _met(self, states: Bools) -> Bools:
        """[G] the sets that hold one of the states [S]."""
        found = np.zeros(self.n_sets + 1, bool)  # the last entry is for states of no set, whose number is -1
        found[self.space.at[: len(states)][states]] = True
        return found[:-1]

    def waiting(self, seen: Bools) -> Longs:
        """The sets of several states, none of them in K, some of them ``seen`` [S], that were not added; from S on.

        A set of one state is that state.
        """
        members = np.bincount(self.space.at[self.space.at >= 0], minlength=self.n_sets)[: self.n_sets]
        wanted = self._met(seen) & ~self._met(self.known) & ~self.sets & (members > 1)
        return self.counts.n_states + np.flatnonzero(wanted)

    def targets(self, numbers: Longs | Ints) -> Bools:
        """[B, S] where to go: a number below S is a state, and S + g is the set g."""
        S = self.counts.n_states
        sets = [self.space.inside(g)[:S] for g in (numbers[numbers >= S] - S).tolist()]
        to: Bools = numbers[:, None] == np.arange(S)
        to[numbers >= S] = np.array(sets).reshape(len(sets), S)
        return to

    def member(self, goal: int, states: Bools) -> int:
        """The state of a set, of those among ``states`` [S], whose optimistic value from s0 is smallest."""
        among, start = np.flatnonzero(states), self.counts.start
        plans, inside = self.consolidated(among), self.space.inside(goal)
        return int(min(among[inside[among]], key=lambda s: plans[int(s)][0][start]))

    def credit(self, outcome: Outcome, state: int) -> None:
        """Episodes to a state are, where goals are sets, episodes to the first set that holds it."""
        if self.n_sets:
            outcome.goals = [int(self.space.at[state, 0])] * len(outcome.goals)

    def check_known(self, known: Bools) -> None:
        """A set K from a checkpoint holds the start, and nothing that was never seen."""
        if not known[self.counts.start] or (known & ~self.counts.seen).any():
            raise ValueError("the known states are not states that were seen, from the start on")

    def added(self, arrays: dict[str, NDArray[Any]]) -> Bools:
        """[G] the sets that were added, from a checkpoint."""
        if not self.n_sets:
            return self.sets
        if (arrays["sets"] & ~self._met(self.counts.seen)).any():
            raise ValueError("a set was added none of whose states was seen")
        return np.array(arrays["sets"])

    def discovery(self) -> float:
        """Trials of every pair of K x A that find every state reachable from K within L: L log(4 |K|^2 / delta).

        Such a state, or set, has a pair of K x A that leads to it with probability 1/L at least, and
        (1 - 1/L)^n <= exp(-n/L). ``constants`` does not scale this number: it is small.
        """
        return self.L * math.log(4.0 * int(self.known.sum()) ** 2 / self.delta)

    def sample(self, required: float) -> Move | None:
        """Collect ``required`` samples of every pair of K x A; None once they are there."""
        return self.collect(np.full(len(self.counts.n), required), self.known, self._far)

    def restricted(self, numbers: Longs | Ints) -> Iterator[tuple[int, Floats, Actions]]:
        """Optimistic values [S] and policy [S] restricted to K, up to min(epsilon, 1)/(6L), to each of the targets."""
        precision = min(self.epsilon, 1.0) / (6 * self.L)
        for number, to in zip(numbers.tolist(), self.targets(numbers), strict=True):
            self.plans += 1
            yield number, *self._path(to, precision)

    def _path(self, to: Bools, precision: float) -> tuple[Floats, Actions]:
        c = self.counts
        rows = planning.optimistic(c, self.c, self.confidence, ~self.known & ~to)
        (V,), (policy,) = planning.solve(c, rows, self.known, to[None], precision, self._far, backend=self.backend)
        return V, policy

    def consolidated(self, numbers: Longs) -> dict[int, tuple[Floats, Actions]]:
        """What :meth:`restricted` says of the targets on all samples so far, planned once; no plan of the run."""
        moment = int(self.counts.n.sum()), numbers.tobytes()
        if moment != self._planned:
            plans = self.plans
            self._plans = {t: (V, policy) for t, V, policy in self.restricted(numbers)}
            self.plans, self._planned = plans, moment
        return self._plans
