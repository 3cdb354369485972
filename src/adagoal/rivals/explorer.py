"""Methods that decide for themselves what to play: no goal rule is asked.

AdaGoal separates what is believed (estimates) from where to go next (a goal rule). The methods that it is compared
with do not: they go through phases, with stopping rules of their own. An :class:`SelfDirectedMethod` is such a method. It answers
like estimates (goals, policies, a state to save), so that results, audits and comparisons do not tell them apart; but
where Algorithm 1 asks a rule, :func:`run_self_directed` asks the explorer for its next :class:`PlannedRollout`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import TransitionCounts
from adagoal.core.goalspace import GoalSpace
from adagoal.core.run import ExplorationRun, RunObserver, record_rollout
from adagoal.core.schema import COUNT_SCHEMA, ArraySchema, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.status import Status
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.core.world import ExplorationPlan, RolloutOutcome
from adagoal.planning.backend import NUMBA_BACKEND, Backend
from adagoal.rivals import planning

NEVER = 2**62
NO_GOAL = -2
"""The goal of a plan that has none: it is played until a count says stop."""


@dataclass(frozen=True)
class PlannedRollout:
    """What to play next: a plan with one column, and its limits."""

    plan: ExplorationPlan
    max_episodes: int = NEVER
    max_steps: int = NEVER
    reset_first: bool = False
    """Whether to begin at s0, with a reset if need be."""


@dataclass(eq=False)
class SelfDirectedMethod(ABC):
    """What the methods share: one column per goal, and sample collection."""

    counts: TransitionCounts
    L: float
    epsilon: float
    delta: float
    given_goals: GoalSpace | None = None
    """The goals to consider; None means every state"""
    constants: str = "paper"
    """"paper", or "scaled=c" (:mod:`adagoal.rivals.planning`)"""
    backend: Backend = field(default=NUMBA_BACKEND, kw_only=True)
    state_bound: int = field(default=0, kw_only=True)
    """The most states that there are, where they are numbered as they are found; else 0"""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "way": ArraySpec("int16", ("N",), low=0, high="A"),
        "until": ArraySpec("int64", ("M",), low=0),
    }
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {"plans": COUNT_SCHEMA, "stopped": {"type": "boolean"}}
    """What a checkpoint holds; methods add what they remember."""

    name = "explorer"
    guarantee = False

    def __post_init__(self) -> None:
        self.c = planning.parse_constants(self.constants)
        S = self.counts.n_states
        self.space = self.given_goals or GoalSpace.from_states(S, S)
        self.plans = 0
        self.stopped = False
        self._collection_policy: Actions = np.zeros(0, np.int16)
        """[S] the policy of the collection under way, empty where there is none"""
        self._collection_thresholds = np.zeros(0, np.int64)
        """[X] the counts that end it"""
        self._update_goals()

    def _update_goals(self) -> None:
        """One column per goal; those that were not found yet are nobody's."""
        self.goals: Longs = self.space.goal_numbers
        self.n_sets = len(self.space.names or ())
        self.column = self.goal_state = np.arange(self.space.n_goal_numbers)
        if self.state_bound:
            met = np.isin(self.column, self.space.goals_of_states[: self.counts.n_states][self.counts.seen])
            self.goal_state = np.where(met, self.column, -1)

    def grow_with_counts(self) -> None:
        """Room for the states and the goals that were found; called before anything else after every rollout."""
        if not self.state_bound:
            return
        c = self.counts
        self.space.grow_states(c.n_states)
        self._update_goals()
        if len(self._collection_policy):
            self._collection_policy = np.pad(
                self._collection_policy, (0, c.n_states - len(self._collection_policy)), constant_values=c.n_actions
            )
            self._collection_thresholds = np.pad(
                self._collection_thresholds, (0, len(c.n) - len(self._collection_thresholds)), constant_values=NEVER
            )

    # --- what the method decides ---

    @abstractmethod
    def next_rollout(self) -> PlannedRollout | None:
        """The next thing to play; None once the method has stopped. Asked again without a rollout, it says the same."""

    @abstractmethod
    def record_outcome(self, outcome: RolloutOutcome) -> None:
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
    def goal_policy(self, goal: int) -> Actions:
        """[1, S] the policy for a goal of the answer."""

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """No certificate: (0, infinity)."""
        return 0.0, np.inf

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    # --- checkpoints ---

    @abstractmethod
    def method_state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """What the method itself remembers besides the counts."""

    @abstractmethod
    def restore_method_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`method_state`; types, shapes and ranges are checked already."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything but the counts, to go on bit for bit."""
        arrays, facts = self.method_state()
        return arrays | {"way": self._collection_policy, "until": self._collection_thresholds}, facts | {
            "plans": self.plans,
            "stopped": self.stopped,
        }

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        c = self.counts
        self.grow_with_counts()
        check_json_value(object_schema(**self.FACTS_SCHEMA), facts)
        known = {"S": c.n_states, "A": c.n_actions, "G": self.n_sets, "T": c.n_states + self.n_sets}
        sizes = check_arrays(self.ARRAY_SCHEMA, arrays, known)
        if (sizes["N"], sizes["M"]) not in ((0, sizes["M"]), (c.n_states, len(c.n))):
            raise ValueError("the way under way is not one through these states")
        self._collection_policy, self._collection_thresholds = np.array(arrays["way"]), np.array(arrays["until"])
        self.plans, self.stopped = facts["plans"], facts["stopped"]
        self.restore_method_state(arrays, facts)

    # --- sample collection ---

    @property
    def effective_delta(self) -> float:
        """delta for :mod:`adagoal.rivals.planning`, which takes the allocated pairs for all that there are."""
        return self.delta * (self.counts.n_states / self.state_bound) if self.state_bound else self.delta

    def under_sampled(self, required: Floats, known: Bools) -> Bools:
        """[X] pairs of known states that were tried less often than ``required``."""
        return np.repeat(known & ~self.counts.terminal, self.counts.n_actions) & (self.counts.n < required)

    def collect_samples(self, required: Floats, known: Bools, cap: float) -> PlannedRollout | None:
        """Go to the nearest state with an under-sampled action, optimistically, and take it; None if all is met.

        The meta-goal of GOSPRL: the set of all states that lack samples. The policy is kept until some count has
        doubled or a requirement is met.
        """
        c = self.counts
        if len(self._collection_policy) and (c.n < self._collection_thresholds).all():
            return self._continue_collection()  # the last move was cut short by the budget
        lacking = self.under_sampled(required, known)
        if not lacking.any():
            self._collection_policy = np.zeros(0, np.int16)
            return None
        by_state = lacking.reshape(c.n_states, c.n_actions)
        target: Bools = np.asarray(by_state.any(1))
        rows = planning.optimistic_rows(c, self.c, self.effective_delta)
        precision = self.epsilon / (6 * self.L)
        _, (policy,) = planning.solve_restricted_paths(
            c, rows, known, target[None], precision, cap, backend=self.backend
        )
        rarest = np.where(by_state, c.n.reshape(by_state.shape), NEVER).argmin(1)
        policy[target] = rarest[target]
        self.plans += 1
        enough = np.where(lacking, np.minimum(np.ceil(required), NEVER // 2).astype(np.int64), NEVER)
        self._collection_policy, self._collection_thresholds = policy, np.minimum(np.maximum(2 * c.n, 1), enough)
        return self._continue_collection()

    def _continue_collection(self) -> PlannedRollout:
        return PlannedRollout(
            ExplorationPlan(
                self._collection_policy[None, :, None], np.array([NO_GOAL]), NEVER, self._collection_thresholds
            )
        )


def run_self_directed(run: ExplorationRun, budget: int, observe: RunObserver = lambda run: None) -> Status:
    """Play an explorer's moves until its own rule stops it, the budget is spent, or ``observe`` returns False."""
    explorer, one = cast(SelfDirectedMethod, run.estimates), np.ones(1)
    while True:
        with run.measure_seconds():  # a move is planned here, which for most methods takes longer than to play it
            move = explorer.next_rollout()
            if move is None:
                return run.status_of_own_rule
            if run.steps >= budget:
                return Status.BUDGET
            if move.reset_first:
                run.steps += run.env.rollout(_reset_to_start_plan(run), one, run.counts, run.rng, 1, 1).steps
            left = max(min(move.max_steps, budget - run.steps), 1)
            outcome = run.env.rollout(move.plan, one, run.counts, run.rng, left, move.max_episodes)
            explorer.grow_with_counts()
            explorer.record_outcome(outcome)
            record_rollout(run, outcome)
        if observe(run) is False:
            return Status.INTERRUPTED


def _reset_to_start_plan(run: ExplorationRun) -> ExplorationPlan:
    """Reset, unless the agent is at s0."""
    c = run.counts
    policy = np.full((1, c.n_states, 1), c.n_actions, np.int16)
    return ExplorationPlan(policy, np.array([c.start]), NEVER, np.full(len(c.n), NEVER))
