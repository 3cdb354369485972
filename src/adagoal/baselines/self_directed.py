"""Base class of baselines that choose their own rollouts without a goal rule; their confidence widths and planners.

AdaGoal separates estimates from the choice of the next goal. The methods that it is compared with do not: they have
phases and stopping rules of their own. A :class:`SelfDirectedMethod` has the interface of estimates, so results, audits
and comparisons treat all methods alike. But instead of asking a goal rule,
:func:`adagoal.loop.run_self_directed` asks the method for its next :class:`PlannedRollout`.

*Constants.* Every method has the option ``constants``. "paper" is c = 1. "scaled=c" multiplies every logarithm of a
confidence by c, which asks for the confidence delta^c.

*Unit-cost shortest paths on counts*, as UcbExplore, DisCo and GOSPRL plan them. A problem has a set K of *known*
states, in which every action may be played, and a set of targets. In all other states the reset is the only action (the
policies "restricted to K" of Lim and Auer 2012). With the rows q of a model,

    V = 0 on the targets,   V(s) = 1 + min{ V(s0), min_a q(s, a) V }  on K,   V(s) = 1 + V(s0)  elsewhere.

*Optimistic rows* (the operator of DisCo and of GOSPRL): q(s'|x) = max{p_hat(s'|x) - beta(s'|x), 0}; the missing mass
goes to the target, where V = 0. An untried pair leads surely to the target. The widths are empirical Bernstein,

    beta(s'|x) = 2 sqrt(p_hat (1 - p_hat) l(n) / n) + 6 l(n) / n,    l(n) = c log(2 S A n / delta),

in the form of Fruit et al. (2020), which both papers of Tarbouriech et al. cite: recalled, not checked against their
text. *Empirical rows*: q = p_hat, and untried pairs are not played. LAE and VALAE plan with :func:`solve_visgo`.

*One state for all others* (recalled from DisCo): see :func:`optimistic_rows`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Actions, Bools, Floats, Longs
from adagoal.core.compiled_code import compiled
from adagoal.core.environment import NO_LIMIT, ExplorationPlan, RolloutOutcome
from adagoal.core.errors import InputError
from adagoal.core.exploration_run import SavedEstimates
from adagoal.core.file_formats import ArraySchema, ArraySpec
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.planning.model_arrays import TransitionKernel


def parse_constants(constants: str) -> float:
    """Return c of ``paper`` or ``scaled=c``."""
    # Sample sizes are proportional to the logarithms that c scales, and so are squared widths. So their proportion
    # stays as the proofs need it, and only the confidence is given up.
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


@dataclass(frozen=True)
class PlannedRollout:
    """A plan with one column, and its limits."""

    plan: ExplorationPlan
    max_episodes: int = NO_LIMIT
    max_steps: int = NO_LIMIT
    reset_first: bool = False  # begin at s0, with a reset if the agent is elsewhere


@dataclass(eq=False)
class SelfDirectedMethod(SavedEstimates, ABC):
    """Common part of the methods: one column per goal, sample collection, checkpoints."""

    counts: TransitionCounts
    L: float
    epsilon: float
    delta: float
    given_goals: GoalSpace | None = None  # None: every state is a goal
    constants: str = "paper"
    state_bound: int = field(default=0, kw_only=True)  # bound on the states if they are discovered, 0 if S is known

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        "collection_policy": ArraySpec("int16", ("N",), low=0, high="A"),
        "collection_thresholds": ArraySpec("int64", ("M",), low=0),
    }
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {**SavedEstimates.FACTS_SCHEMA, "stopped": {"type": "boolean"}}

    name = "self-directed"
    guarantee = False

    def __post_init__(self) -> None:
        self.c = parse_constants(self.constants)
        S = self.counts.n_states
        self.space = self.given_goals or GoalSpace.from_states(S, S)
        self.plans = 0
        self.stopped = False
        self.collection_policy: Actions = np.zeros(0, np.int16)  # [S] while collect_samples is under way, else empty
        self.collection_thresholds = np.zeros(0, np.int64)  # [X]: the counts that end it
        self._update_goals()

    def _update_goals(self) -> None:
        self.goals: Longs = self.space.goal_numbers
        self.n_sets = len(self.space.names or ())
        self.column = self.goal_state = np.arange(self.space.n_goal_numbers)
        # Goals that are not seen yet have no state to end an episode in.
        if self.state_bound:
            seen = np.isin(self.column, self.space.goals_of_states[: self.counts.n_states][self.counts.seen])
            self.goal_state = np.where(seen, self.column, -1)

    def grow_with_counts(self) -> None:
        """Add discovered states and goals; called after every rollout before anything else."""
        if not self.state_bound:
            return
        c = self.counts
        self.space.grow_states(c.n_states)
        self._update_goals()
        if n := len(self.collection_policy):
            self.collection_policy = np.pad(self.collection_policy, (0, c.n_states - n), constant_values=c.n_actions)
            new = len(c.n) - len(self.collection_thresholds)
            self.collection_thresholds = np.pad(self.collection_thresholds, (0, new), constant_values=NO_LIMIT)

    def next_rollout(self) -> PlannedRollout | None:
        """Return the next rollout, or None once the method has stopped; the same one if none was played since."""
        while not self.stopped:
            rollout = self.advance()
            if rollout is not None:
                return rollout
        return None

    @abstractmethod
    def advance(self) -> PlannedRollout | None:
        """Return the rollout that the current step of the algorithm needs; if none, go to the next step or stop."""

    def record_outcome(self, outcome: RolloutOutcome) -> None:
        """Update the method after a rollout, whose transitions are in the counts already."""

    @property
    @abstractmethod
    def D(self) -> Floats:
        """At most L for the goals of the answer, infinite for the others [N]."""

    @property
    def E(self) -> Floats:
        """Errors [N]: epsilon, as the method claims, once it has stopped; above epsilon before."""
        return np.full(len(self.column), self.epsilon if self.stopped else self.L + 1.0 + self.epsilon)

    @abstractmethod
    def goal_policy(self, goal: int) -> Actions:
        """Return the policy [1, S] for a goal of the answer."""

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """Return (0, infinity): these methods have no certificates."""
        return 0.0, np.inf

    def _axis_sizes(self) -> dict[str, int]:
        """Sizes of the axes; a target (axis T) is a state or, from S on, a set."""
        S = self.counts.n_states
        return {"S": S, "A": self.counts.n_actions, "G": self.n_sets, "T": S + self.n_sets}

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        if sizes["N"] and (sizes["N"], sizes["M"]) != (self.counts.n_states, len(self.counts.n)):
            raise ValueError("the policy of the sample collection has another number of states")

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the attributes that the schemas name."""
        # If the environment failed during a rollout, the counts may have grown since.
        self.grow_with_counts()
        return super().state()

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`."""
        self.grow_with_counts()
        super().restore(arrays, facts)

    @property
    def effective_delta(self) -> float:
        """delta for :func:`optimistic_rows`, whose union bound is over the allocated pairs only."""
        return self.delta * (self.counts.n_states / self.state_bound) if self.state_bound else self.delta

    def collect_samples(self, required: Floats, known: Bools, cap: float) -> PlannedRollout | None:
        """Go to the nearest known state with an under-sampled action and take it; None if ``required`` [X] is met.

        This is the meta-goal of GOSPRL: the set of all states that lack samples, reached by an optimistic shortest path
        with values up to ``cap``. The policy is kept until some count has doubled or a requirement is met.
        """
        c = self.counts
        # The budget may have ended the last rollout: continue with its policy, as an uninterrupted run would.
        if len(self.collection_policy) and (c.n < self.collection_thresholds).all():
            return self._continue_collection()
        lacking = np.repeat(known & ~c.terminal, c.n_actions) & (c.n < required)
        if not lacking.any():
            self.collection_policy = np.zeros(0, np.int16)
            return None
        by_state = lacking.reshape(c.n_states, c.n_actions)
        target: Bools = np.asarray(by_state.any(1))
        rows = optimistic_rows(c, self.c, self.effective_delta)
        precision = self.epsilon / (6 * self.L)
        _, (policy,) = solve_restricted_paths(c, rows, known, target[None], precision, cap)
        rarest = np.where(by_state, c.n.reshape(by_state.shape), NO_LIMIT).argmin(1)
        policy[target] = rarest[target]
        self.plans += 1
        # The doubling rule keeps the number of plans logarithmic in the samples of a pair.
        enough = np.where(lacking, np.minimum(np.ceil(required), NO_LIMIT // 2).astype(np.int64), NO_LIMIT)
        self.collection_policy, self.collection_thresholds = policy, np.minimum(np.maximum(2 * c.n, 1), enough)
        return self._continue_collection()

    def _continue_collection(self) -> PlannedRollout:
        # The goal -2 is never reached, so only the thresholds end the rollout.
        no_goal = np.array([-2])
        table = self.collection_policy[None, :, None]
        return PlannedRollout(ExplorationPlan(table, no_goal, NO_LIMIT, self.collection_thresholds))


def empirical_rows(counts: TransitionCounts) -> Floats:
    """p_hat [X, W] of the entries of ``counts.successor``."""
    p_hat: Floats = counts.count / np.maximum(counts.n, 1)[:, None]
    return p_hat


def confidence_log(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """l(n) [X]."""
    return c * np.log(2.0 * len(counts.n) * np.maximum(counts.n, 1) / delta)


def bernstein_widths(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """beta [X, W], zero for successors that were not observed."""
    widths = _bernstein_width(empirical_rows(counts), _log_over_n(counts, c, delta))
    beta: Floats = np.where(counts.count > 0, widths, 0.0)
    return beta


def optimistic_rows(counts: TransitionCounts, c: float, delta: float, merged: Bools | None = None) -> Floats:
    """Optimistic rows q [X, W]; the states of ``merged`` [S] share one probability and one width."""
    p_hat, rate = empirical_rows(counts), _log_over_n(counts, c, delta)
    q: Floats = np.maximum(p_hat - bernstein_widths(counts, c, delta), 0.0)
    if merged is not None:
        # V is the same in every state outside K that is no target. These states count as one, with one p_hat and one
        # width: the widths of many rare successors would add up to a shortcut.
        inside = merged[counts.successor] & (counts.count > 0)
        together = np.where(inside, p_hat, 0.0).sum(1, keepdims=True)
        # Scale the merged states by the same factor: then their sum is the one optimistic probability.
        left = np.maximum(together - _bernstein_width(together, rate), 0.0) / np.maximum(together, 1e-300)
        q = np.where(inside, p_hat * left, q)
    return q


def _log_over_n(counts: TransitionCounts, c: float, delta: float) -> Floats:
    return (confidence_log(counts, c, delta) / np.maximum(counts.n, 1))[:, None]


def _bernstein_width(p: Floats, rate: Floats) -> Floats:
    # A merged p may exceed one by rounding, and its root would be NaN.
    width: Floats = 2.0 * np.sqrt(np.maximum(p * (1.0 - p), 0.0) * rate) + 6.0 * rate
    return width


def deviation_spread(counts: TransitionCounts, inside: Bools) -> Floats:
    """(sum over s' of sqrt(p_hat (1 - p_hat)))^2 [X] over the successors in ``inside`` [S]; at most their number."""
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
    """Solve one problem for each set of ``targets`` [B, S]: values V [B, S] and greedy policies [B, S].

    V is computed from below, up to a residual of ``precision``, and cut at ``cap``. ``untried`` allows untried pairs.
    The mass that a row lacks to one goes to the target.
    """
    usable = np.repeat(known & ~counts.terminal, counts.n_actions) & (untried | (counts.n > 0))
    kernel = TransitionKernel(counts.successor, rows, counts.support, counts.terminal, counts.start)
    zero = np.zeros(len(usable))
    V, policy = _iterate_paths(kernel, usable, targets, zero + 1.0, zero, zero, precision, cap, 5000)
    return V, policy


def solve_visgo(
    kernel: TransitionKernel,
    usable: Bools,
    targets: Bools,
    n: Longs,
    iota: Floats,
    root: float,
    flat: float,
    precision: float,
    cap: float,
) -> tuple[Floats, Actions]:
    """VISGO, value iteration with slight goal optimism (Tarbouriech et al. 2021), for LAE and VALAE.

    Return V [B, S] and its greedy policy [B, S] for the usable pairs [X] and the targets [B, S]. With the empirical
    rows p of n [X] samples each, and iota [X],

        Q(s, a) = max{ 0, 1 + n/(n + 1) p V - max{ root sqrt(Var(p, V) iota / n), flat iota / n } },
        V = 0 on the targets,   V(s) = min{ cap, 1 + V(s0), min_a Q(s, a) }  elsewhere.

    The mass that n/(n + 1) removes goes to the goal. If ``flat`` is at least 2 root^2 times the largest V, the operator
    is monotone (lemma C.2 of Cai et al. 2022), so values rise from zero to its fixed point in any order of states.
    """
    tries = np.maximum(n, 1)
    rate = iota / tries
    bonus = tries / (tries + 1.0), root**2 * rate, flat * rate
    V, policy = _iterate_paths(kernel, usable, targets, *bonus, precision, cap, 20_000)
    return V, policy


@compiled
def _iterate_paths(kernel, usable, targets, kept, weight, flat, precision, cap, sweeps):  # type: ignore[no-untyped-def]
    """Return V [B, S] and its greedy policy [B, S] after at most this many sweeps from zero, in place.

    Q(s, a) = max{ 0, 1 + kept p V - max{ sqrt(weight Var(p, V)), flat } }; kept, weight and flat are [X].
    Ties go to the lowest action, and to any action before the reset.
    """
    n_sets, n_states = targets.shape
    n_actions = kernel.support.shape[0] // n_states
    values = np.zeros((n_sets, n_states))
    policy = np.full((n_sets, n_states), n_actions, np.int16)
    for b in range(n_sets):
        V = values[b]
        # Values rise from zero, so they are optimistic if the sweeps end early.
        for _ in range(sweeps):
            change = 0.0
            for s in range(n_states):
                if targets[b, s]:
                    continue
                best, chosen = np.inf, n_actions
                for a in range(n_actions):
                    x = s * n_actions + a
                    if not usable[x]:
                        continue
                    mean, square = 0.0, 0.0
                    for k in range(kernel.support[x]):
                        v = V[kernel.successor[x, k]]
                        mean += kernel.p[x, k] * v
                        square += kernel.p[x, k] * v * v
                    # The clamp is for rounding: the variance of equal values may come out negative, and its root NaN.
                    bonus = max(math.sqrt(weight[x] * max(square - mean * mean, 0.0)), flat[x])
                    q = max(0.0, 1.0 + kept[x] * mean - bonus)
                    if q < best:
                        best, chosen = q, a
                # The reset is last and must be strictly better, so ties go to an action.
                if 1.0 + V[kernel.start] < best:
                    best, chosen = 1.0 + V[kernel.start], n_actions
                best = min(best, cap)
                change = max(change, abs(best - V[s]))
                V[s], policy[b, s] = best, chosen
            if change <= precision:
                break
    return values, policy
