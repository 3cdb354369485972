"""Methods that grow a set K of states from s0, with policies restricted to K: what UcbExplore, DisCo, LAE, VALAE share.

*Goals that are sets.* K is a set of states all the same. A set that contains a state of K is in the answer. UcbExplore
and DisCo also consider sets outside K, once no state is left to add to K; LAE and VALAE do not.

*Targets.* A number below S is a state, S + g is the set g.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.baselines.self_directed import (
    PlannedRollout,
    SelfDirectedMethod,
    optimistic_rows,
    solve_restricted_paths,
    solve_visgo,
)
from adagoal.core.array_types import Actions, Bools, Floats, Ints, Longs
from adagoal.core.environment import NO_LIMIT, ExplorationPlan, RolloutOutcome
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySchema, ArraySpec
from adagoal.core.transition_data import MAX_TRANSITIONS
from adagoal.planning.model_arrays import TransitionKernel


class IncrementalMethod(SelfDirectedMethod):
    """A self-directed method with a set K of known states."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **SelfDirectedMethod.ARRAY_SCHEMA,
        "known_states": ArraySpec("bool", ("S",)),
        "added_sets": ArraySpec("bool", ("G",)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known_states: Bools = np.arange(self.counts.n_states) == self.counts.start  # [S]: the set K
        self.added_sets: Bools = np.zeros(self.n_sets, bool)  # [G]: sets of the answer without a state of K
        self._value_cap = 4.0 * (self.L + 2.0)  # values are cut here; larger ones are beyond L anyway
        self._cached_plans: dict[int, tuple[Floats, Actions]] = {}
        self._cache_key = (-1, b"")

    def grow_with_counts(self) -> None:
        """Add discovered states, none of them known, and sets."""
        super().grow_with_counts()
        self.known_states = np.pad(self.known_states, (0, self.counts.n_states - len(self.known_states)))
        self.added_sets = np.pad(self.added_sets, (0, self.n_sets - len(self.added_sets)))

    @property
    def D(self) -> Floats:
        """0 on K, or on the sets with a state of K and the added sets; infinite elsewhere [N]."""
        # A policy for a state of a set, stopped in any state of the set, can only be faster.
        found = self.known_states
        if not self.space.goals_are_states:
            found = self._sets_with_state(self.known_states) | self.added_sets
        return np.pad(np.where(found, 0.0, np.inf), (0, len(self.column) - len(found)), constant_values=np.inf)

    def _sets_with_state(self, states: Bools) -> Bools:
        """Sets [G] that contain one of the states [S]."""
        # The last entry is for states of no set, whose number is -1.
        found = np.zeros(self.n_sets + 1, bool)
        found[self.space.goals_of_states[: len(states)][states]] = True
        return found[:-1]

    def waiting_sets(self, seen: Bools) -> Longs:
        """Targets: sets of several states, some of them ``seen`` [S] and none in K, that were not added yet."""
        # A set of several states may be near although each of them is far (the middle of ``toys.fan``). A set of one
        # state is left to the candidates that are states.
        members = self.space.goals_of_states[self.space.goals_of_states >= 0]
        several = np.bincount(members, minlength=self.n_sets)[: self.n_sets] > 1
        outside = ~self._sets_with_state(self.known_states) & ~self.added_sets
        return self.counts.n_states + np.flatnonzero(self._sets_with_state(seen) & outside & several)

    def target_masks(self, targets: Longs | Ints) -> Bools:
        """States of each target [B, S]."""
        S = self.counts.n_states
        sets = [self.space.states_of_goal(g)[:S] for g in (targets[targets >= S] - S).tolist()]
        masks: Bools = targets[:, None] == np.arange(S)
        masks[targets >= S] = np.array(sets).reshape(len(sets), S)
        return masks

    def nearest_member(self, goal: int, states: Bools) -> int:
        """Return the state of a set, among ``states`` [S], with the smallest optimistic value from s0."""
        among, start = np.flatnonzero(states), self.counts.start
        plans, inside = self.consolidated_plans(among), self.space.states_of_goal(goal)
        return int(min(among[inside[among]], key=lambda s: plans[int(s)][0][start]))

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        known, seen = arrays["known_states"], self.counts.seen
        if not known[self.counts.start] or (known & ~seen).any():
            raise ValueError("the known states are not states that were seen, from the start on")
        if self.n_sets and (arrays["added_sets"] & ~self._sets_with_state(seen)).any():
            raise ValueError("a set was added none of whose states was seen")

    def discovery_trials(self) -> float:
        """Trials of every pair of K x A that discover every state reachable from K within L: L log(4 |K|^2 / delta).

        ``constants`` does not scale this number, because it is small.
        """
        # Such a state, or set, has a pair of K x A that leads to it with probability at least 1/L, and
        # (1 - 1/L)^n <= exp(-n/L).
        return self.L * math.log(4.0 * int(self.known_states.sum()) ** 2 / self.delta)

    def sample_known_pairs(self, required: float) -> PlannedRollout | None:
        """Collect ``required`` samples of every pair of K x A; None once they are there."""
        return self.collect_samples(np.full(len(self.counts.n), required), self.known_states, self._value_cap)

    def plan_restricted(self, targets: Longs | Ints) -> Iterator[tuple[int, Floats, Actions]]:
        """Yield each target with optimistic values [S] and policy [S] restricted to K, up to min(epsilon, 1)/(6L)."""
        precision = min(self.epsilon, 1.0) / (6 * self.L)
        for target, mask in zip(targets.tolist(), self.target_masks(targets), strict=True):
            self.plans += 1
            # For policies restricted to K, all states outside K but the target are one (self_directed.py).
            rows = optimistic_rows(self.counts, self.c, self.effective_delta, ~self.known_states & ~mask)
            problem = rows, self.known_states, mask[None], precision, self._value_cap
            (V,), (policy,) = solve_restricted_paths(self.counts, *problem)
            yield target, V, policy

    def nearest_target(self, targets: Longs | Ints) -> tuple[int, Floats, Actions] | None:
        """Return the entry of :meth:`plan_restricted` with the smallest value from s0; None if that exceeds L."""
        start = self.counts.start
        best = min(self.plan_restricted(targets), key=lambda plan: float(plan[1][start]), default=None)
        return best if best is not None and best[1][start] <= self.L else None

    def consolidated_plans(self, targets: Longs) -> dict[int, tuple[Floats, Actions]]:
        """Cached :meth:`plan_restricted` on all samples so far, for the answer; not counted as plans of the run."""
        key = int(self.counts.n.sum()), targets.tobytes()
        if key != self._cache_key:
            # The answer may be asked for at any time, by a report for instance, and must not change the run.
            plans = self.plans
            self._cached_plans = {target: (V, policy) for target, V, policy in self.plan_restricted(targets)}
            self.plans, self._cache_key = plans, key
        return self._cached_plans


class TrialMethod(IncrementalMethod):
    """An incremental method that tests a policy before it accepts it (after Lim and Auer 2012).

    A *trial* plays the policy of one target from s0 for a number of episodes. It fails as soon as their mean number of
    steps is certain to exceed a limit.
    """

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **IncrementalMethod.ARRAY_SCHEMA,
        "policy_table": ArraySpec("int16", ("S", "T"), low=0, high="A"),
        "trial_policy": ArraySpec("int16", ("S",), low=0, high="A"),
    }
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **IncrementalMethod.FACTS_SCHEMA,
        "trial_target": {"type": "integer", "minimum": -1},
        "trial_episodes": COUNT_SCHEMA,
        "trial_steps": COUNT_SCHEMA,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        S, A = self.counts.n_states, self.counts.n_actions
        self.policy_table = np.full((S, S + self.n_sets), A, np.int16)  # [S, T]: the accepted policies
        self.trial_target = -1  # -1 between trials
        self.trial_policy: Actions = np.full(S, A, np.int16)
        self.trial_episodes = self.trial_steps = 0

    def grow_with_counts(self) -> None:
        """Add discovered states and sets; columns and targets of sets move, since they follow those of states."""
        before, S, A = len(self.known_states), self.counts.n_states, self.counts.n_actions
        super().grow_with_counts()
        if self.policy_table.shape != (S, S + self.n_sets):
            old = self.policy_table
            self.policy_table = np.full((S, S + self.n_sets), A, np.int16)
            self.policy_table[:before, :before] = old[:, :before]
            self.policy_table[:before, S : S + old.shape[1] - before] = old[:, before:]
            self.trial_policy = np.pad(self.trial_policy, (0, S - before), constant_values=A)
            self.trial_target += S - before if self.trial_target >= before else 0

    def begin_trial(self, target: int, policy: Actions) -> None:
        """Start a trial of a policy [S]."""
        self.trial_target, self.trial_policy = int(target), np.ascontiguousarray(policy)
        self.trial_episodes = self.trial_steps = 0

    def continue_trial(
        self, episodes: int, max_mean: float, thresholds: Longs, max_steps: int = NO_LIMIT
    ) -> PlannedRollout | bool:
        """Return the next rollout of the trial or, at its end, whether the mean is at most ``max_mean``.

        A rollout ends at the counts ``thresholds`` [X], and after ``max_steps``.
        """
        # A rollout takes at most one step more than the limit allows: then failure is certain, and the round may end.
        allowed = math.floor(min(float(episodes) * max_mean, NO_LIMIT / 4))
        if self.trial_steps > allowed or self.trial_episodes >= episodes:
            return self.trial_steps <= allowed
        S, goal, goals_of_states = self.counts.n_states, self.trial_target, None
        if goal >= S:
            goal, goals_of_states = goal - S, self.space.goals_of_states
        table = self.trial_policy[None, :, None]
        return PlannedRollout(
            ExplorationPlan(table, np.array([goal]), NO_LIMIT, thresholds, goals_of_states),
            episodes - self.trial_episodes,
            min(allowed + 1 - self.trial_steps, max_steps),
            # Later rollouts of a trial continue an episode that a threshold or the budget has cut.
            reset_first=self.trial_steps == 0 and self.trial_episodes == 0,
        )

    def record_outcome(self, outcome: RolloutOutcome) -> None:
        """Count the episodes and steps of a trial."""
        if self.trial_target >= 0:
            self.trial_episodes += len(outcome.goals)
            # The reset after each episode is no step of the policy.
            self.trial_steps += outcome.steps - len(outcome.goals)
            if self.n_sets and self.trial_target < self.counts.n_states:
                # In the history of the run, an episode to a state is one to the first set that contains it.
                outcome.goals = [int(self.space.goals_of_states[self.trial_target, 0])] * len(outcome.goals)

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        if facts["trial_target"] >= sizes["T"]:
            raise ValueError("the target of the trial is neither a state nor a set")


class VisgoConstants(NamedTuple):
    """Constants of the bonus in :func:`~adagoal.baselines.self_directed.solve_visgo`, and the cap of its values."""

    root: float  # c_1, before the square root
    flat: float  # c_2, before 1/n
    cap: float


class RoundBasedMethod(TrialMethod):
    """A method of rounds, each with a plan and a trial: what LAE and VALAE share.

    A round plans for one state by VISGO on samples N of its own, and tests the policy in a trial whose limit is near
    the optimistic value. It ends

    * as *skipped*, when N(s, a) or the sum of all N reaches a power of two: there is more data to plan on;
    * as *failed*, when the trial fails;
    * as a *success* otherwise: the policy becomes that of the state.

    N is all counts less ``dropped_samples``, by which the states themselves were chosen.

    *Ours, in both methods:* The reset is known, so N contains no samples of it. Requirements on N are met on the way to
    the nearest state that lacks samples. A round fails as soon as that is certain.
    """

    N_PHASES: ClassVar[int]
    visgo: VisgoConstants

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **TrialMethod.ARRAY_SCHEMA,
        "dropped_samples": ArraySpec("int64", ("S*A", "K"), low=0, high=MAX_TRANSITIONS),
        "is_final": ArraySpec("bool", ("S",)),
        "pair_limits": ArraySpec("int64", ("S*A",), low=0),
    }
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **TrialMethod.FACTS_SCHEMA,
        "phase": COUNT_SCHEMA,
        "round_number": {"type": "integer", "minimum": 1, "maximum": 2**62},
        "optimistic_value": {"type": "number", "minimum": 0, "maximum": 2**62},
        "total_limit": COUNT_SCHEMA,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.relative_accuracy = min(self.epsilon / self.L, 1.0)  # the accuracy that the papers call epsilon
        self.phase, self.round_number = 0, 1
        self.dropped_samples = np.zeros_like(self.counts.count)  # [X, K]
        self.is_final: Bools = np.arange(self.counts.n_states) == self.counts.start  # [S]: states with a final policy
        self.optimistic_value = 0.0  # of the target of the round, from s0
        self.pair_limits = np.zeros(len(self.counts.n), np.int64)  # [X]: counts at which the round is skipped
        self.total_limit = 0  # sum of N at which it is skipped

    def grow_with_counts(self) -> None:
        """Make room for new successors of a pair."""
        super().grow_with_counts()
        self.dropped_samples = self.pad_samples(self.dropped_samples)

    def pad_samples(self, samples: Longs) -> Longs:
        """Return samples [X, K] with zeros for successors that were discovered later."""
        new = self.counts.count.shape[1] - samples.shape[1]
        return np.pad(samples, ((0, 0), (0, new))) if new else samples

    @property
    def round_samples(self) -> Longs:
        """N [X, K]."""
        return self.counts.count - self.dropped_samples

    def collect_per_pair(self, number: float, before: Longs | int = 0) -> PlannedRollout | None:
        """Collect ``number`` samples per pair of K x A, not counting ``before`` [X, K]; None once they are there."""
        # Every transition on the way counts; the papers count only what is observed where they went on purpose.
        excluded = (self.dropped_samples + before).sum(1)
        return self.collect_samples(excluded + float(number), self.known_states, self._value_cap)

    def plan_with_visgo(self, states: Longs, iota: Floats) -> tuple[Floats, Actions]:
        """Values [B, S] and policies [B, S] restricted to K, from N; iota [X] is the logarithm of the bonus."""
        c, N = self.counts, self.round_samples
        n = N.sum(1)
        rows: Floats = N / np.maximum(n, 1)[:, None]
        kernel = TransitionKernel(c.successor, rows, c.support, c.terminal, c.start)
        usable = np.repeat(self.known_states & ~c.terminal, c.n_actions)
        self.plans += len(states)
        root, flat, cap = self.visgo
        # The precision of LAE. That of VALAE is halved in every skipped round, and soon too small for a computer.
        precision = 1.0 / max(16, int(n.sum()))
        targets = states[:, None] == np.arange(c.n_states)
        return solve_visgo(kernel, usable, targets, n, iota, root, flat, precision, cap)

    def begin_round(self, state: int, V: Floats, policy: Actions) -> None:
        """Start a round with the values and the policy of VISGO."""
        self.begin_trial(state, policy)
        self.optimistic_value = float(V[self.counts.start])
        n = self.round_samples.sum(1)
        self.pair_limits, self.total_limit = self.counts.n - n + next_power_of_two(n), int(next_power_of_two(n.sum()))

    def begin_next_member(self, iota: Floats) -> None:
        """Start a round for a state of K without a final policy; stop if all policies are final."""
        open_states = np.flatnonzero(self.known_states & ~self.is_final)[:1]
        self.stopped = not len(open_states)
        if not self.stopped:
            V, policy = self.plan_with_visgo(open_states, iota)
            self.begin_round(open_states[0], V[0], policy[0])

    def continue_round(self, episodes: int, max_mean: float) -> PlannedRollout | bool:
        """Return the next rollout of the round or, at its end, whether it was a success."""
        total, inside = int(self.round_samples.sum()), np.repeat(self.known_states, self.counts.n_actions)
        answer: PlannedRollout | bool = False
        if total < self.total_limit and not (inside & (self.counts.n >= self.pair_limits)).any():
            answer = self.continue_trial(episodes, max_mean, self.pair_limits, self.total_limit - total)
        if not isinstance(answer, PlannedRollout):
            if answer:
                self.policy_table[:, self.trial_target] = self.trial_policy
            self.trial_target, self.round_number = -1, self.round_number + 1
        return answer

    @property
    @abstractmethod
    def answer_distances(self) -> Floats:
        """At most L for the states of the answer, infinite for the others [S]."""

    def policy_to_state(self, state: int) -> Actions:
        """Return the policy [1, S] of the last successful round of a state."""
        return np.ascontiguousarray(self.policy_table[None, :, state])

    @property
    def D(self) -> Floats:
        """Distances of the answer [N]; that of a set is the smallest of its states."""
        if self.space.goals_are_states:
            return self.answer_distances
        # The last entry is for states of no set, whose number is -1.
        D = np.full(len(self.column) + 1, np.inf)
        np.minimum.at(D, self.space.goals_of_states, self.answer_distances[:, None])
        return D[:-1]

    def goal_policy(self, goal: int) -> Actions:
        """Return the policy [1, S]; for a set that of its nearest state, which can only be faster for the set."""
        states = self.space.goals_are_states
        return self.policy_to_state(goal if states else self.nearest_member(goal, self.answer_distances <= self.L))

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        if facts["phase"] >= self.N_PHASES:
            raise ValueError(f"there is no phase {facts['phase']}")
        if facts["trial_target"] >= sizes["S"]:
            raise ValueError("the goal of the round is no state")
        self.check_sample_counts(arrays["dropped_samples"])

    def check_sample_counts(self, samples: Longs) -> None:
        """Check that samples [X, K] of a checkpoint are among the counts."""
        if samples.shape != self.counts.count.shape or (samples > self.counts.count).any():
            raise ValueError("the samples left out are not samples that were counted")


def next_power_of_two(n: Any) -> Any:
    """Smallest power of two above n."""
    return np.ldexp(1.0, np.frexp(n)[1]).astype(np.int64)
