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

from adagoal.core.schema import ArraySchema, ArraySpec
from adagoal.core.types import Actions, Bools, Floats, Ints, Longs
from adagoal.core.world import RolloutOutcome
from adagoal.rivals import planning
from adagoal.rivals.explorer import PlannedRollout, SelfDirectedMethod


class IncrementalMethod(SelfDirectedMethod):
    """See the module's text."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {**SelfDirectedMethod.ARRAY_SCHEMA, "known": ArraySpec("bool", ("S",))}
    SETS: ClassVar[ArraySchema] = {"sets": ArraySpec("bool", ("G",))}
    """For the checkpoints of methods whose goals may be sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known_states: Bools = np.arange(self.counts.n_states) == self.counts.start
        """[S] the set K"""
        self.added_sets: Bools = np.zeros(self.n_sets, bool)
        """[G] the sets that were added though they hold no state of K"""
        self._value_cap = 4.0 * (self.L + 2.0)
        """The value at which plans are cut"""
        self._cached_plans: dict[int, tuple[Floats, Actions]] = {}
        self._cached_moment = (-1, b"")

    def grow_with_counts(self) -> None:
        """Room for more states, none of them known, and more sets."""
        super().grow_with_counts()
        self.known_states = np.pad(self.known_states, (0, self.counts.n_states - len(self.known_states)))
        self.added_sets = np.pad(self.added_sets, (0, self.n_sets - len(self.added_sets)))

    @property
    def D(self) -> Floats:
        """[N] 0 on K; where goals are sets, on those that hold a state of K, and on those that were added."""
        found = (
            self.known_states
            if self.space.goals_are_states
            else self._sets_holding_any(self.known_states) | self.added_sets
        )
        return np.pad(np.where(found, 0.0, np.inf), (0, len(self.column) - len(found)), constant_values=np.inf)

    def _sets_holding_any(self, states: Bools) -> Bools:
        """[G] the sets that hold one of the states [S]."""
        found = np.zeros(self.n_sets + 1, bool)  # the last entry is for states of no set, whose number is -1
        found[self.space.goals_of_states[: len(states)][states]] = True
        return found[:-1]

    def waiting_sets(self, seen: Bools) -> Longs:
        """The sets of several states, none of them in K, some of them ``seen`` [S], that were not added; from S on.

        A set of one state is that state.
        """
        members = np.bincount(self.space.goals_of_states[self.space.goals_of_states >= 0], minlength=self.n_sets)[
            : self.n_sets
        ]
        wanted = (
            self._sets_holding_any(seen) & ~self._sets_holding_any(self.known_states) & ~self.added_sets & (members > 1)
        )
        return self.counts.n_states + np.flatnonzero(wanted)

    def target_masks(self, numbers: Longs | Ints) -> Bools:
        """[B, S] where to go: a number below S is a state, and S + g is the set g."""
        S = self.counts.n_states
        sets = [self.space.states_of_goal(g)[:S] for g in (numbers[numbers >= S] - S).tolist()]
        to: Bools = numbers[:, None] == np.arange(S)
        to[numbers >= S] = np.array(sets).reshape(len(sets), S)
        return to

    def nearest_member(self, goal: int, states: Bools) -> int:
        """The state of a set, of those among ``states`` [S], whose optimistic value from s0 is smallest."""
        among, start = np.flatnonzero(states), self.counts.start
        plans, inside = self.consolidated_plans(among), self.space.states_of_goal(goal)
        return int(min(among[inside[among]], key=lambda s: plans[int(s)][0][start]))

    def credit_goal(self, outcome: RolloutOutcome, state: int) -> None:
        """Episodes to a state are, where goals are sets, episodes to the first set that holds it."""
        if self.n_sets:
            outcome.goals = [int(self.space.goals_of_states[state, 0])] * len(outcome.goals)

    def check_known_states(self, known: Bools) -> None:
        """A set K from a checkpoint holds the start, and nothing that was never seen."""
        if not known[self.counts.start] or (known & ~self.counts.seen).any():
            raise ValueError("the known states are not states that were seen, from the start on")

    def read_added_sets(self, arrays: dict[str, NDArray[Any]]) -> Bools:
        """[G] the sets that were added, from a checkpoint."""
        if not self.n_sets:
            return self.added_sets
        if (arrays["sets"] & ~self._sets_holding_any(self.counts.seen)).any():
            raise ValueError("a set was added none of whose states was seen")
        return np.array(arrays["sets"])

    def discovery_trials(self) -> float:
        """Trials of every pair of K x A that find every state reachable from K within L: L log(4 |K|^2 / delta).

        Such a state, or set, has a pair of K x A that leads to it with probability 1/L at least, and
        (1 - 1/L)^n <= exp(-n/L). ``constants`` does not scale this number: it is small.
        """
        return self.L * math.log(4.0 * int(self.known_states.sum()) ** 2 / self.delta)

    def sample_known_pairs(self, required: float) -> PlannedRollout | None:
        """Collect ``required`` samples of every pair of K x A; None once they are there."""
        return self.collect_samples(np.full(len(self.counts.n), required), self.known_states, self._value_cap)

    def plan_restricted(self, numbers: Longs | Ints) -> Iterator[tuple[int, Floats, Actions]]:
        """Optimistic values [S] and policy [S] restricted to K, up to min(epsilon, 1)/(6L), to each of the targets."""
        precision = min(self.epsilon, 1.0) / (6 * self.L)
        for number, to in zip(numbers.tolist(), self.target_masks(numbers), strict=True):
            self.plans += 1
            yield number, *self._plan_path(to, precision)

    def _plan_path(self, to: Bools, precision: float) -> tuple[Floats, Actions]:
        c = self.counts
        rows = planning.optimistic_rows(c, self.c, self.effective_delta, ~self.known_states & ~to)
        (V,), (policy,) = planning.solve_restricted_paths(
            c, rows, self.known_states, to[None], precision, self._value_cap, backend=self.backend
        )
        return V, policy

    def consolidated_plans(self, numbers: Longs) -> dict[int, tuple[Floats, Actions]]:
        """What :meth:`plan_restricted` says of the targets on all samples so far, planned once; no plan of the run."""
        moment = int(self.counts.n.sum()), numbers.tobytes()
        if moment != self._cached_moment:
            plans = self.plans
            self._cached_plans = {t: (V, policy) for t, V, policy in self.plan_restricted(numbers)}
            self.plans, self._cached_moment = plans, moment
        return self._cached_plans
