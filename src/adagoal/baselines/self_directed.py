"""Methods that decide for themselves what to play: no goal rule is asked.

AdaGoal separates what is believed (estimates) from where to go next (a goal rule). The methods that it is compared
with do not: they go through phases, with stopping rules of their own. An :class:`SelfDirectedMethod` is such a method.
It answers like estimates (goals, policies, a state to save), so that results, audits and comparisons do not tell them
apart; but where Algorithm 1 asks a rule, :func:`run_self_directed` asks the explorer for its next
:class:`PlannedRollout`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from adagoal.core.environment import ExplorationPlan, RolloutOutcome
from adagoal.core.errors import InputError, Status
from adagoal.core.exploration_run import ExplorationRun, RunObserver, record_rollout
from adagoal.core.file_formats import (
    COUNT_SCHEMA,
    ArraySchema,
    ArraySpec,
    check_arrays,
    check_json_value,
    object_schema,
)
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.planning.model_arrays import TransitionKernel
from adagoal.planning.shortest_paths import solve_shortest_paths

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
    """"paper", or "scaled=c" (:mod:`adagoal.baselines.self_directed`)"""
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
        self.c = parse_constants(self.constants)
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
        """delta for :mod:`adagoal.baselines.self_directed`, which takes the allocated pairs for all that there are."""
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
        rows = optimistic_rows(c, self.c, self.effective_delta)
        precision = self.epsilon / (6 * self.L)
        _, (policy,) = solve_restricted_paths(c, rows, known, target[None], precision, cap)
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


# Unit-cost shortest paths on counts (:mod:`adagoal.planning.shortest_paths`), as UcbExplore, DisCo and GOSPRL plan
# them.
#
# A problem has a set K of *known* states, in which every action may be played, and a set of targets. Elsewhere the
# reset is the only action (the policies "restricted to K" of Lim and Auer 2012). With the rows q of a model,
#
#     V = 0 on the targets,   V(s) = 1 + min{ V(s0), min_a q(s, a) V }  on K,   V(s) = 1 + V(s0)  elsewhere.
#
# *Optimistic rows* (the operator of DisCo and of GOSPRL): q(s'|x) = max{p_hat(s'|x) - beta(s'|x), 0}; what is missing
# to one goes to the target, where V = 0. An untried pair is a sure step to the target. The widths are empirical
# Bernstein,
#
#     beta(s'|x) = 2 sqrt(p_hat (1 - p_hat) l(n) / n) + 6 l(n) / n,    l(n) = c log(2 S A n / delta),
#
# the form of Fruit et al. (2020), which both papers of Tarbouriech et al. cite: recalled, not checked against their
# text. *Empirical rows*: q = p_hat, and untried pairs are not played.
#
# *One state for all others* (recalled from DisCo). V is the same in every state outside K that is no target. They count
# as one state, with one p_hat and one width: the widths of many rare successors would add up to a shortcut.
#
# *Constants.* "paper" is c = 1. "scaled=c" multiplies every logarithm of a confidence by c, that is, it asks for the
# confidence delta^c. Sample numbers are proportional to these logarithms and squared widths too, so that numbers and
# widths stay in the proportion that the proofs need, and only the confidence is given up.


def parse_constants(constants: str) -> float:
    """c of ``paper`` or ``scaled=c``."""
    if constants == "paper":
        return 1.0
    word, _, number = str(constants).partition("=")
    try:
        c = float(number)
    except ValueError:
        c = math.nan
    if word != "scaled" or not 0 < c < math.inf:
        raise InputError(f"must be paper or scaled=c with a number c > 0, got {constants!r}", name="constants")
    return c


def empirical_rows(counts: TransitionCounts) -> Floats:
    """[X, W] p_hat in the places of ``counts.successor``."""
    p_hat: Floats = counts.count / np.maximum(counts.n, 1)[:, None]
    return p_hat


def confidence_log(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """[X] l(n) of the module's text."""
    return c * np.log(2.0 * len(counts.n) * np.maximum(counts.n, 1) / delta)


def bernstein_widths(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """[X, W] beta of the module's text, zero where nothing was observed."""
    beta: Floats = np.where(
        counts.count > 0, _bernstein_width(empirical_rows(counts), _log_over_n(counts, c, delta)), 0.0
    )
    return beta


def optimistic_rows(counts: TransitionCounts, c: float, delta: float, alike: Bools | None = None) -> Floats:
    """[X, W] the optimistic rows; all states that are ``alike`` [S] have one probability, and one width."""
    p_hat, rate = empirical_rows(counts), _log_over_n(counts, c, delta)
    q: Floats = np.maximum(p_hat - bernstein_widths(counts, c, delta), 0.0)
    if alike is not None:
        one = alike[counts.successor] & (counts.count > 0)
        together = np.where(one, p_hat, 0.0).sum(1, keepdims=True)
        left = np.maximum(together - _bernstein_width(together, rate), 0.0) / np.maximum(together, 1e-300)
        q = np.where(one, p_hat * left, q)
    return q


def _log_over_n(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """[X, 1] l(n)/n."""
    return (confidence_log(counts, c, delta) / np.maximum(counts.n, 1))[:, None]


def _bernstein_width(p: Floats, rate: Floats) -> Floats:
    width: Floats = 2.0 * np.sqrt(np.maximum(p * (1.0 - p), 0.0) * rate) + 6.0 * rate
    return width


def deviation_spread(counts: TransitionCounts, inside: Bools) -> Floats:
    """[X] (sum over s' of sqrt(p_hat (1 - p_hat)))^2 over the successors in ``inside`` [S]; at most their number."""
    p_hat = empirical_rows(counts)
    root: Floats = np.where(inside[counts.successor], np.sqrt(p_hat * (1.0 - p_hat)), 0.0).sum(1)
    return root * root


def solve_restricted_paths(
    counts: TransitionCounts,
    rows: Floats,
    known: Bools,
    targets: Bools,
    precision: float,
    cap: float,
    untried: bool = True,
) -> tuple[Floats, Actions]:
    """V [B, S], from below, up to a residual of ``precision`` and cut at ``cap``; and its greedy policies [B, S].

    One problem for each set of ``targets`` [B, S]. ``untried`` allows pairs never tried.
    """
    usable = np.repeat(known & ~counts.terminal, counts.n_actions) & (untried | (counts.n > 0))
    kernel = TransitionKernel(counts.successor, rows, counts.support, counts.terminal, counts.start)
    found: tuple[Floats, Actions] = solve_shortest_paths(kernel, usable, targets, precision, cap)
    return found
