"""Methods that decide for themselves what to play: no goal rule is asked.

AdaGoal separates what is believed (estimates) from where to go next (a goal rule). The methods that it is compared
with do not: they go through phases, with stopping rules of their own. An :class:`Explorer` is such a method. It answers
like estimates (goals, policies, a state to save), so that results, audits and comparisons do not tell them apart; but
where Algorithm 1 asks a rule, :func:`follow` asks the explorer for its next :class:`Move`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import Counts
from adagoal.core.goalspace import GoalSpace
from adagoal.core.run import Observer, Run, note
from adagoal.core.schema import COUNT, Array, Schema, check_arrays, check_json, record
from adagoal.core.status import Status
from adagoal.core.types import Actions, Bools, Floats, Longs
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
    state_bound: int = field(default=0, kw_only=True)
    """The most states that there are, where they are numbered as they are found; else 0"""

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
        self.plans = 0
        self.stopped = False
        self._way: Actions = np.zeros(0, np.int16)
        """[S] the policy of the collection under way, empty where there is none"""
        self._until = np.zeros(0, np.int64)
        """[X] the counts that end it"""
        self._see_goals()

    def _see_goals(self) -> None:
        """One column per goal; those that were not found yet are nobody's."""
        self.goals: Longs = self.space.numbers
        self.n_sets = len(self.space.names or ())
        self.column = self.goal_state = np.arange(self.space.size)
        if self.state_bound:
            met = np.isin(self.column, self.space.at[: self.counts.n_states][self.counts.seen])
            self.goal_state = np.where(met, self.column, -1)

    def grow(self) -> None:
        """Room for the states and the goals that were found; called before anything else after every rollout."""
        if not self.state_bound:
            return
        c = self.counts
        self.space.grow(c.n_states)
        self._see_goals()
        if len(self._way):
            self._way = np.pad(self._way, (0, c.n_states - len(self._way)), constant_values=c.n_actions)
            self._until = np.pad(self._until, (0, len(c.n) - len(self._until)), constant_values=NEVER)

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
        self.grow()
        check_json(record(**self.FACTS), facts)
        known = {"S": c.n_states, "A": c.n_actions, "G": self.n_sets, "T": c.n_states + self.n_sets}
        sizes = check_arrays(self.SCHEMA, arrays, known)
        if (sizes["N"], sizes["M"]) not in ((0, sizes["M"]), (c.n_states, len(c.n))):
            raise ValueError("the way under way is not one through these states")
        self._way, self._until = np.array(arrays["way"]), np.array(arrays["until"])
        self.plans, self.stopped = facts["plans"], facts["stopped"]
        self.remember(arrays, facts)

    # --- sample collection ---

    @property
    def confidence(self) -> float:
        """delta for :mod:`adagoal.rivals.planning`, which takes the allocated pairs for all that there are."""
        return self.delta * (self.counts.n_states / self.state_bound) if self.state_bound else self.delta

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
        rows = planning.optimistic(c, self.c, self.confidence)
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


def follow(run: Run, budget: int, observe: Observer = lambda run: None) -> Status:
    """Play an explorer's moves until its own rule stops it, the budget is spent, or ``observe`` returns False."""
    explorer, one = cast(Explorer, run.estimates), np.ones(1)
    while True:
        with run.timed():  # a move is planned here, which for most methods takes longer than to play it
            move = explorer.move()
            if move is None:
                return run.stopped_by_rule
            if run.steps >= budget:
                return Status.BUDGET
            if move.fresh:
                run.steps += run.world.rollout(_home(run), one, run.counts, run.rng, 1, 1).steps
            left = max(min(move.steps, budget - run.steps), 1)
            outcome = run.world.rollout(move.plan, one, run.counts, run.rng, left, move.episodes)
            explorer.grow()
            explorer.learn(outcome)
            note(run, outcome)
        if observe(run) is False:
            return Status.INTERRUPTED


def _home(run: Run) -> Plan:
    """Reset, unless the agent is at s0."""
    c = run.counts
    policy = np.full((1, c.n_states, 1), c.n_actions, np.int16)
    return Plan(policy, np.array([c.start]), NEVER, np.full(len(c.n), NEVER))
