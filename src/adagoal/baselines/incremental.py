"""Methods that answer a set K of states, grown from s0 state by state with policies restricted to K.

*Goals that are sets.* K is grown over states all the same. A set that holds a state of K is in the answer: a policy for
that state, which stops at any state of the set, can only be faster. A set of several states may be near though each of
them is far (the middle of ``toys.fan``). Such sets are looked at once no state is left to add to K, as the candidates
were: for policies restricted to K, a set outside K is one more state outside K. A set of one state is that state.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines import self_directed
from adagoal.baselines.self_directed import NEVER, PlannedRollout, SelfDirectedMethod
from adagoal.core.environment import ExplorationPlan, RolloutOutcome
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySchema, ArraySpec
from adagoal.core.transition_data import MAX_TRANSITIONS
from adagoal.core.types import Actions, Bools, Floats, Ints, Longs
from adagoal.planning.model_arrays import TransitionKernel
from adagoal.planning.shortest_paths import solve_visgo


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
        rows = self_directed.optimistic_rows(c, self.c, self.effective_delta, ~self.known_states & ~to)
        (V,), (policy,) = self_directed.solve_restricted_paths(
            c, rows, self.known_states, to[None], precision, self._value_cap
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


# Rounds of planning and playing, which LAE and VALAE share (after Lim and Auer 2012).
#
# A round plans for one goal by VISGO (:mod:`adagoal.planning.shortest_paths`) on samples N of its own, and plays the
# policy from s0 for a number of episodes. It ends
#
# * as a *skipped* round, when N(s, a) or the sum of all N becomes a power of two: there is more to plan on;
# * as a *failed* round, when the mean of all episodes is sure to exceed a limit near the optimistic value;
# * as a *success* otherwise: the policy is the goal's.
#
# N leaves out samples that a set of states or goals was chosen by: N = all counts less those that were ``dropped``.
#
# Where goals are sets, these methods answer those that hold a state of K (:mod:`adagoal.baselines.incremental`); they
# do not look at sets that are near though each of their states is far.
#
# *Ours, in both methods:* the reset is known, as everywhere here, so that no samples of it are taken and N has none;
# requirements on N are met on the way to the nearest state that lacks samples, and what is seen on the way counts,
# where the papers go to one state after the other and count what is seen there; a round fails as soon as that is
# certain.


SAMPLE_COUNTS = ArraySpec("int64", ("S*A", "K"), low=0, high=MAX_TRANSITIONS)


def next_power_of_two(n: Any) -> Any:
    """The next power of two above n."""
    return np.ldexp(1.0, np.frexp(n)[1]).astype(np.int64)


class RoundBasedMethod(IncrementalMethod):
    """See the module's text."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **IncrementalMethod.ARRAY_SCHEMA,
        "dropped": SAMPLE_COUNTS,
        "table": ArraySpec("int16", ("S", "S"), low=0, high="A"),
        "done": ArraySpec("bool", ("S",)),
        "trial": ArraySpec("int16", ("S",), low=0, high="A"),
        "ends": ArraySpec("int64", ("S*A",), low=0),
    }
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **IncrementalMethod.FACTS_SCHEMA,
        "phase": COUNT_SCHEMA,
        "round": {"type": "integer", "minimum": 1, "maximum": 2**62},
        "target": {"type": "integer", "minimum": -1, "maximum": 2**31},
        "estimate": {"type": "number", "minimum": 0},
        **{"end": COUNT_SCHEMA, "episodes": COUNT_SCHEMA, "steps": COUNT_SCHEMA},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        S, A = self.counts.n_states, self.counts.n_actions
        self.relative_accuracy = min(self.epsilon / self.L, 1.0)
        """The accuracy that the papers call epsilon"""
        self.phase, self.round_number = 0, 1
        self.dropped_samples = np.zeros_like(self.counts.count)
        """[X, K]"""
        self.policy_table = np.full((S, S), A, np.int16)
        """[S, G] the policy of every goal that has one"""
        self.is_final: Bools = np.arange(S) == self.counts.start
        """[S] goals whose policy is final"""
        self.round_goal = -1
        """The goal of the round under way, -1 between rounds"""
        self.trial_policy: Actions = np.full(S, A, np.int16)
        """[S] its policy"""
        self.optimistic_value = 0.0
        """The optimistic value of its goal, from s0"""
        self.pair_limits, self.total_limit = np.zeros(len(self.counts.n), np.int64), 0
        """[X] the counts of the pairs, and the sum of N, at which it is skipped"""
        self._episodes_played, self._steps_played = 0, 0

    @property
    def round_samples(self) -> Longs:
        """[X, K] N."""
        return self.counts.count - self._pad_samples(self.dropped_samples)

    def _pad_samples(self, array: Longs) -> Longs:
        """[X, K] samples, with zeros for successors that were found later."""
        return np.pad(array, ((0, 0), (0, self.counts.count.shape[1] - array.shape[1])))

    def collect_per_pair(self, number: float, kept: Longs | int = 0) -> PlannedRollout | None:
        """Collect until every pair of K x A has so many samples; None once they are there. Those ``kept`` are extra."""
        before = (self._pad_samples(self.dropped_samples) + kept).sum(1)
        return self.collect_samples(before + float(number), self.known_states, self._value_cap)

    def plan_with_visgo(
        self, goals: Longs, iota: Floats, root: float, flat: float, cap: float
    ) -> tuple[Floats, Actions]:
        """V [B, S] and policies [B, S] restricted to K, from N; iota [X]."""
        c, N = self.counts, self.round_samples
        n = N.sum(1)
        rows: Floats = N / np.maximum(n, 1)[:, None]
        kernel = TransitionKernel(c.successor, rows, c.support, c.terminal, c.start)
        usable = np.repeat(self.known_states & ~c.terminal, c.n_actions)
        self.plans += len(goals)
        precision = 1.0 / max(16, int(n.sum()))
        found: tuple[Floats, Actions] = solve_visgo(kernel, n, iota, usable, goals, root, flat, precision, cap)
        return found

    def begin_round(self, goal: int, V: Floats, policy: Actions) -> None:
        """A new round, with the policy of VISGO."""
        self.round_goal, self.optimistic_value, self.trial_policy = int(goal), float(V[self.counts.start]), policy
        self._episodes_played = self._steps_played = 0
        n = self.round_samples.sum(1)
        self.pair_limits, self.total_limit = self.counts.n - n + next_power_of_two(n), int(next_power_of_two(n.sum()))

    def continue_round(self, episodes: int, limit: float) -> PlannedRollout | bool:
        """The next move of the round; or True where so many episodes took at most ``limit`` steps on average."""
        total, inside = int(self.round_samples.sum()), np.repeat(self.known_states, self.counts.n_actions)
        allowed = math.floor(min(float(episodes) * limit, NEVER / 4))
        skipped = total >= self.total_limit or bool((inside & (self.counts.n >= self.pair_limits)).any())
        if skipped or self._steps_played > allowed or self._episodes_played >= episodes:
            self.round_goal, self.round_number = -1, self.round_number + 1
            return not skipped and self._steps_played <= allowed
        plan = ExplorationPlan(
            np.ascontiguousarray(self.trial_policy[None, :, None]), np.array([self.round_goal]), NEVER, self.pair_limits
        )
        fresh = self._steps_played == 0 and self._episodes_played == 0
        return PlannedRollout(
            plan,
            episodes - self._episodes_played,
            min(allowed + 1 - self._steps_played, self.total_limit - total),
            fresh,
        )

    def record_outcome(self, outcome: RolloutOutcome) -> None:
        """Count the episodes and steps of a round, without the way back to s0."""
        if self.round_goal >= 0:
            self._episodes_played += len(outcome.goals)
            self._steps_played += outcome.steps - len(outcome.goals)
            self.credit_goal(outcome, self.round_goal)

    @property
    @abstractmethod
    def answer_distances(self) -> Floats:
        """[S] at most L for the states of the answer, else infinite."""

    @abstractmethod
    def policy_to_state(self, state: int) -> Actions:
        """[1, S] the policy for a state of the answer."""

    @property
    def D(self) -> Floats:
        """[N] near; for a set the smallest of its states."""
        if self.space.goals_are_states:
            return self.answer_distances
        D = np.full(len(self.column) + 1, np.inf)  # the last entry is for states of no set, whose number is -1
        np.minimum.at(D, self.space.goals_of_states, self.answer_distances[:, None])
        return D[:-1]

    def goal_policy(self, goal: int) -> Actions:
        """[1, S] for a set that of its nearest state, which can only be faster for the set."""
        return self.policy_to_state(
            goal if self.space.goals_are_states else self.nearest_member(goal, self.answer_distances <= self.L)
        )

    def method_state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """What is known, and where the round stands."""
        arrays = {
            "known": self.known_states,
            "table": self.policy_table,
            "done": self.is_final,
            "trial": self.trial_policy,
            "ends": self.pair_limits,
        }
        facts = {
            "phase": self.phase,
            "round": self.round_number,
            "target": self.round_goal,
            "estimate": self.optimistic_value,
        }
        under_way = {"end": self.total_limit, "episodes": self._episodes_played, "steps": self._steps_played}
        return {**arrays, "dropped": self._pad_samples(self.dropped_samples)}, {**facts, **under_way}

    def restore_method_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        self.check_known_states(arrays["known"])
        self.check_sample_counts(arrays["dropped"])
        if facts["target"] >= self.counts.n_states:
            raise ValueError("the goal of the round is no state")
        self.known_states, self.policy_table, self.is_final = (
            np.array(arrays[name]) for name in ("known", "table", "done")
        )
        self.dropped_samples, self.trial_policy, self.pair_limits = (
            np.array(arrays[name]) for name in ("dropped", "trial", "ends")
        )
        self.phase, self.round_number, self.round_goal = facts["phase"], facts["round"], facts["target"]
        self.optimistic_value, self.total_limit = float(facts["estimate"]), facts["end"]
        self._episodes_played, self._steps_played = facts["episodes"], facts["steps"]

    def check_sample_counts(self, samples: Longs) -> None:
        """Samples from a checkpoint are samples that were counted."""
        if samples.shape != self.counts.count.shape or (samples > self.counts.count).any():
            raise ValueError("the samples left out are not samples that were counted")
