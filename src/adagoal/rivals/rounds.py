"""Rounds of planning and playing, which LAE and VALAE share (after Lim and Auer 2012).

A round plans for one goal by VISGO (:mod:`adagoal.planning.visgo`) on samples N of its own, and plays the policy from
s0 for a number of episodes. It ends

* as a *skipped* round, when N(s, a) or the sum of all N becomes a power of two: there is more to plan on;
* as a *failed* round, when the mean of all episodes is sure to exceed a limit near the optimistic value;
* as a *success* otherwise: the policy is the goal's.

N leaves out samples that a set of states or goals was chosen by: N = all counts less those that were ``dropped``.

Where goals are sets, these methods answer those that hold a state of K (:mod:`adagoal.rivals.incremental`); they do not
look at sets that are near though each of their states is far.

*Ours, in both methods:* the reset is known, as everywhere here, so that no samples of it are taken and N has none;
requirements on N are met on the way to the nearest state that lacks samples, and what is seen on the way counts, where
the papers go to one state after the other and count what is seen there; a round fails as soon as that is certain.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import MAX_TRANSITIONS
from adagoal.core.schema import COUNT_SCHEMA, ArraySchema, ArraySpec
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.core.world import ExplorationPlan, RolloutOutcome
from adagoal.planning.model import TransitionKernel
from adagoal.rivals.explorer import NEVER, PlannedRollout
from adagoal.rivals.incremental import IncrementalMethod

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
        return self.backend.visgo(kernel, n, iota, usable, goals, root, flat, 1.0 / max(16, int(n.sum())), cap)

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
