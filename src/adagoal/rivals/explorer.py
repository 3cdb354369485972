"""Methods that decide for themselves what to play: no goal rule is asked.

AdaGoal separates what is believed (estimates) from where to go next (a goal rule). The methods that it is compared
with do not: they go through phases, with stopping rules of their own. An :class:`Explorer` is such a method. It answers
like estimates (goals, policies, a state to save), so that results, audits and comparisons do not tell them apart; but
where Algorithm 1 asks a rule, :func:`follow` asks the explorer for its next :class:`Move`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import Counts
from adagoal.core.goalspace import GoalSpace
from adagoal.core.run import Observer, Run, note
from adagoal.core.schema import COUNT, Array, Schema, check_arrays, check_json, record
from adagoal.core.status import Status
from adagoal.core.types import Actions, Bools, Floats, Ints, Longs
from adagoal.core.world import Outcome, Plan
from adagoal.planning.backend import NUMBA, Backend
from adagoal.rivals import planning

NEVER = 2**62
NOWHERE = -2
"""The goal of a plan that has none: it is played until a count says stop."""


@dataclass(frozen=True)
class Move:
    """What to play next: a plan with one column, and its limits."""

    plan: Plan
    episodes: int = NEVER
    steps: int = NEVER
    fresh: bool = False
    """Whether to begin at s0, with a reset if need be."""


@dataclass(eq=False)
class Explorer(ABC):
    """What the methods share: one column per goal, and sample collection."""

    counts: Counts
    L: float
    epsilon: float
    delta: float
    given: GoalSpace | None = None
    """The goals to consider; None means every state"""
    constants: str = "paper"
    """"paper", or "scaled=c" (:mod:`adagoal.rivals.planning`)"""
    backend: Backend = field(default=NUMBA, kw_only=True)

    SCHEMA: ClassVar[Schema] = {
        "way": Array("int16", ("N",), low=0, high="A"),
        "until": Array("int64", ("M",), low=0),
    }
    FACTS: ClassVar[dict[str, Any]] = {"plans": COUNT, "stopped": {"type": "boolean"}}
    """What a checkpoint holds; methods add what they remember."""

    name = "explorer"
    guarantee = False

    def __post_init__(self) -> None:
        self.c = planning.scale(self.constants)
        S = self.counts.n_states
        self.space = self.given or GoalSpace.states(S, S)
        self.goals: Longs = self.space.numbers
        self.column = self.goal_state = np.arange(self.space.size)
        self.n_sets = 0 if self.space.own else self.space.size
        self.plans = 0
        self.stopped = False
        self._way: Actions = np.zeros(0, np.int16)
        """[S] the policy of the collection under way, empty where there is none"""
        self._until = np.zeros(0, np.int64)
        """[X] the counts that end it"""

    # --- what the method decides ---

    @abstractmethod
    def move(self) -> Move | None:
        """The next thing to play; None once the method has stopped. Asked again without a rollout, it says the same."""

    @abstractmethod
    def learn(self, outcome: Outcome) -> None:
        """Take in what a move did; the counts know already."""

    # --- its answer so far, as if it stopped now ---

    @property
    @abstractmethod
    def D(self) -> Floats:
        """[N] at most L for the goals of the answer, else infinite."""

    @property
    def E(self) -> Floats:
        """[N] epsilon, what the method claims, once it has stopped; before that nothing is claimed."""
        return np.full(len(self.column), self.epsilon if self.stopped else self.L + 1.0 + self.epsilon)

    @abstractmethod
    def policy(self, goal: int) -> Actions:
        """[1, S] the policy for a goal of the answer."""

    def bounds(self, goal: int) -> tuple[float, float]:
        """No certificate: (0, infinity)."""
        return 0.0, np.inf

    def extras(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    # --- checkpoints ---

    @abstractmethod
    def memory(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """What the method itself remembers besides the counts."""

    @abstractmethod
    def remember(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`; types, shapes and ranges are checked already."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything but the counts, to go on bit for bit."""
        arrays, facts = self.memory()
        return arrays | {"way": self._way, "until": self._until}, facts | {"plans": self.plans, "stopped": self.stopped}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        c = self.counts
        check_json(record(**self.FACTS), facts)
        known = {"S": c.n_states, "A": c.n_actions, "G": self.n_sets, "T": c.n_states + self.n_sets}
        sizes = check_arrays(self.SCHEMA, arrays, known)
        if (sizes["N"], sizes["M"]) not in ((0, sizes["M"]), (c.n_states, len(c.n))):
            raise ValueError("the way under way is not one through these states")
        self._way, self._until = np.array(arrays["way"]), np.array(arrays["until"])
        self.plans, self.stopped = facts["plans"], facts["stopped"]
        self.remember(arrays, facts)

    # --- sample collection ---

    def lacking(self, required: Floats, known: Bools) -> Bools:
        """[X] pairs of known states that were tried less often than ``required``."""
        return np.repeat(known & ~self.counts.terminal, self.counts.n_actions) & (self.counts.n < required)

    def collect(self, required: Floats, known: Bools, cap: float) -> Move | None:
        """Go to the nearest state with an under-sampled action, optimistically, and take it; None if all is met.

        The meta-goal of GOSPRL: the set of all states that lack samples. The policy is kept until some count has
        doubled or a requirement is met.
        """
        c = self.counts
        if len(self._way) and (c.n < self._until).all():
            return self._onward()  # the last move was cut short by the budget
        lacking = self.lacking(required, known)
        if not lacking.any():
            self._way = np.zeros(0, np.int16)
            return None
        by_state = lacking.reshape(c.n_states, c.n_actions)
        target: Bools = np.asarray(by_state.any(1))
        rows = planning.optimistic(c, self.c, self.delta)
        precision = self.epsilon / (6 * self.L)
        _, (policy,) = planning.solve(c, rows, known, target[None], precision, cap, backend=self.backend)
        rarest = np.where(by_state, c.n.reshape(by_state.shape), NEVER).argmin(1)
        policy[target] = rarest[target]
        self.plans += 1
        enough = np.where(lacking, np.minimum(np.ceil(required), NEVER // 2).astype(np.int64), NEVER)
        self._way, self._until = policy, np.minimum(np.maximum(2 * c.n, 1), enough)
        return self._onward()

    def _onward(self) -> Move:
        return Move(Plan(self._way[None, :, None], np.array([NOWHERE]), NEVER, self._until))


class Incremental(Explorer):
    """Methods that answer a set K of states, grown from s0 state by state with policies restricted to K.

    *Goals that are sets.* K is grown over states all the same. A set that holds a state of K is in the answer: a policy
    for that state, which stops at any state of the set, can only be faster. A set of several states may be near though
    each of them is far (the middle of ``toys.fan``). Such sets are looked at once no state is left to add to K, as the
    candidates were: for policies restricted to K, a set outside K is one more state outside K.
    """

    SCHEMA: ClassVar[Schema] = {
        **Explorer.SCHEMA,
        "known": Array("bool", ("S",)),
        "sets": Array("bool", ("G",), optional=True),  # of no use where goals are states; older checkpoints lack it
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known: Bools = np.arange(self.counts.n_states) == self.counts.start
        """[S] the set K"""
        self.sets: Bools = np.zeros(self.n_sets, bool)
        """[G] the sets that were added though they hold no state of K"""
        self._far = 4.0 * (self.L + 2.0)
        """The value at which plans are cut"""
        self._plans: dict[int, tuple[Floats, Actions]] = {}
        self._planned = (-1, -1)

    @property
    def D(self) -> Floats:
        """[N] 0 on K; where goals are sets, on those that hold a state of K, and on those that were added."""
        return np.where(self.known if self.space.own else self._met(self.known) | self.sets, 0.0, np.inf)

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
        sets = [self.space.inside(g) for g in (numbers[numbers >= S] - S).tolist()]
        to: Bools = numbers[:, None] == np.arange(S)
        to[numbers >= S] = np.array(sets).reshape(len(sets), S)
        return to

    def check_known(self, arrays: dict[str, NDArray[Any]]) -> tuple[Bools, Bools]:
        """K and the added sets of a checkpoint: K holds the start, and neither has what was never seen."""
        known, seen = arrays["known"], self.counts.seen
        if not known[self.counts.start] or (known & ~seen).any():
            raise ValueError("the known states are not states that were seen, from the start on")
        if self.n_sets and "sets" not in arrays:
            raise ValueError("entry 'sets' is missing")
        sets = arrays.get("sets", self.sets)
        if self.n_sets and (sets & ~self._met(seen)).any():
            raise ValueError("a set was added none of whose states was seen")
        return np.array(known), np.array(sets)

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
        rows = planning.optimistic(c, self.c, self.delta, ~self.known & ~to)
        (V,), (policy,) = planning.solve(c, rows, self.known, to[None], precision, self._far, backend=self.backend)
        return V, policy

    def consolidated(self, numbers: Longs) -> dict[int, tuple[Floats, Actions]]:
        """What :meth:`restricted` says of the targets on all samples so far, planned once; no plan of the run."""
        moment = int(self.counts.n.sum()), int(self.known.sum() + self.sets.sum())
        if moment != self._planned:
            plans = self.plans
            self._plans = {t: (V, policy) for t, V, policy in self.restricted(numbers)}
            self.plans, self._planned = plans, moment
        return self._plans


def follow(run: Run, budget: int, observe: Observer = lambda run: None) -> Status:
    """Play an explorer's moves until its own rule stops it, the budget is spent, or ``observe`` returns False."""
    explorer, one = cast(Explorer, run.estimates), np.ones(1)
    while (move := explorer.move()) is not None:
        if run.steps >= budget:
            return Status.BUDGET
        began = time.perf_counter()
        if move.fresh:
            run.steps += run.world.rollout(_home(run), one, run.counts, run.rng, 1, 1).steps
        left = max(min(move.steps, budget - run.steps), 1)
        outcome = run.world.rollout(move.plan, one, run.counts, run.rng, left, move.episodes)
        explorer.learn(outcome)
        note(run, outcome, time.perf_counter() - began)
        if observe(run) is False:
            return Status.INTERRUPTED
    return run.stopped_by_rule


def _home(run: Run) -> Plan:
    """Reset, unless the agent is at s0."""
    c = run.counts
    policy = np.full((1, c.n_states, 1), c.n_actions, np.int16)
    return Plan(policy, np.array([c.start]), NEVER, np.full(len(c.n), NEVER))
