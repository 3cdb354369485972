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

from adagoal.core.counts import MOST
from adagoal.core.schema import COUNT, Array, Schema
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.core.world import Outcome, Plan
from adagoal.planning.model import Kernel
from adagoal.rivals.explorer import NEVER, Move
from adagoal.rivals.incremental import Incremental

SAMPLES = Array("int64", ("S*A", "K"), low=0, high=MOST)


def power(n: Any) -> Any:
    """The next power of two above n."""
    return np.ldexp(1.0, np.frexp(n)[1]).astype(np.int64)


class Rounds(Incremental):
    """See the module's text."""

    SCHEMA: ClassVar[Schema] = {
        **Incremental.SCHEMA,
        "dropped": SAMPLES,
        "table": Array("int16", ("S", "S"), low=0, high="A"),
        "done": Array("bool", ("S",)),
        "trial": Array("int16", ("S",), low=0, high="A"),
        "ends": Array("int64", ("S*A",), low=0),
    }
    FACTS: ClassVar[dict[str, Any]] = {
        **Incremental.FACTS,
        "phase": COUNT,
        "round": {"type": "integer", "minimum": 1, "maximum": 2**62},
        "target": {"type": "integer", "minimum": -1, "maximum": 2**31},
        "estimate": {"type": "number", "minimum": 0},
        **{"end": COUNT, "episodes": COUNT, "steps": COUNT},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        S, A = self.counts.n_states, self.counts.n_actions
        self.relative = min(self.epsilon / self.L, 1.0)
        """The accuracy that the papers call epsilon"""
        self.phase, self.round = 0, 1
        self.dropped = np.zeros_like(self.counts.count)
        """[X, K]"""
        self.table = np.full((S, S), A, np.int16)
        """[S, G] the policy of every goal that has one"""
        self.done: Bools = np.arange(S) == self.counts.start
        """[S] goals whose policy is final"""
        self.target = -1
        """The goal of the round under way, -1 between rounds"""
        self.trial: Actions = np.full(S, A, np.int16)
        """[S] its policy"""
        self.estimate = 0.0
        """The optimistic value of its goal, from s0"""
        self.ends, self.end = np.zeros(len(self.counts.n), np.int64), 0
        """[X] the counts of the pairs, and the sum of N, at which it is skipped"""
        self._episodes, self._steps = 0, 0

    @property
    def samples(self) -> Longs:
        """[X, K] N."""
        return self.counts.count - self._wide(self.dropped)

    def _wide(self, array: Longs) -> Longs:
        """[X, K] samples, with zeros for successors that were found later."""
        return np.pad(array, ((0, 0), (0, self.counts.count.shape[1] - array.shape[1])))

    def gather(self, number: float, kept: Longs | int = 0) -> Move | None:
        """Collect until every pair of K x A has so many samples; None once they are there. Those ``kept`` are extra."""
        before = (self._wide(self.dropped) + kept).sum(1)
        return self.collect(before + float(number), self.known, self._far)

    def visgo(self, goals: Longs, iota: Floats, root: float, flat: float, cap: float) -> tuple[Floats, Actions]:
        """V [B, S] and policies [B, S] restricted to K, from N; iota [X]."""
        c, N = self.counts, self.samples
        n = N.sum(1)
        rows: Floats = N / np.maximum(n, 1)[:, None]
        kernel = Kernel(c.successor, rows, c.support, c.terminal, c.start)
        usable = np.repeat(self.known & ~c.terminal, c.n_actions)
        self.plans += len(goals)
        return self.backend.visgo(kernel, n, iota, usable, goals, root, flat, 1.0 / max(16, int(n.sum())), cap)

    def begin(self, goal: int, V: Floats, policy: Actions) -> None:
        """A new round, with the policy of VISGO."""
        self.target, self.estimate, self.trial = int(goal), float(V[self.counts.start]), policy
        self._episodes = self._steps = 0
        n = self.samples.sum(1)
        self.ends, self.end = self.counts.n - n + power(n), int(power(n.sum()))

    def evaluate(self, episodes: int, limit: float) -> Move | bool:
        """The next move of the round; or True where so many episodes took at most ``limit`` steps on average."""
        total, inside = int(self.samples.sum()), np.repeat(self.known, self.counts.n_actions)
        allowed = math.floor(min(float(episodes) * limit, NEVER / 4))
        skipped = total >= self.end or bool((inside & (self.counts.n >= self.ends)).any())
        if skipped or self._steps > allowed or self._episodes >= episodes:
            self.target, self.round = -1, self.round + 1
            return not skipped and self._steps <= allowed
        plan = Plan(np.ascontiguousarray(self.trial[None, :, None]), np.array([self.target]), NEVER, self.ends)
        fresh = self._steps == 0 and self._episodes == 0
        return Move(plan, episodes - self._episodes, min(allowed + 1 - self._steps, self.end - total), fresh)

    def learn(self, outcome: Outcome) -> None:
        """Count the episodes and steps of a round, without the way back to s0."""
        if self.target >= 0:
            self._episodes += len(outcome.goals)
            self._steps += outcome.steps - len(outcome.goals)
            self.credit(outcome, self.target)

    @property
    @abstractmethod
    def near(self) -> Floats:
        """[S] at most L for the states of the answer, else infinite."""

    @abstractmethod
    def way_to(self, state: int) -> Actions:
        """[1, S] the policy for a state of the answer."""

    @property
    def D(self) -> Floats:
        """[N] near; for a set the smallest of its states."""
        if self.space.own:
            return self.near
        D = np.full(len(self.column) + 1, np.inf)  # the last entry is for states of no set, whose number is -1
        np.minimum.at(D, self.space.at, self.near[:, None])
        return D[:-1]

    def policy(self, goal: int) -> Actions:
        """[1, S] for a set that of its nearest state, which can only be faster for the set."""
        return self.way_to(goal if self.space.own else self.member(goal, self.near <= self.L))

    def memory(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """What is known, and where the round stands."""
        arrays = {"known": self.known, "table": self.table, "done": self.done, "trial": self.trial, "ends": self.ends}
        facts = {"phase": self.phase, "round": self.round, "target": self.target, "estimate": self.estimate}
        under_way = {"end": self.end, "episodes": self._episodes, "steps": self._steps}
        return {**arrays, "dropped": self._wide(self.dropped)}, {**facts, **under_way}

    def remember(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`memory`."""
        self.check_known(arrays["known"])
        self.check_samples(arrays["dropped"])
        if facts["target"] >= self.counts.n_states:
            raise ValueError("the goal of the round is no state")
        self.known, self.table, self.done = (np.array(arrays[name]) for name in ("known", "table", "done"))
        self.dropped, self.trial, self.ends = (np.array(arrays[name]) for name in ("dropped", "trial", "ends"))
        self.phase, self.round, self.target = facts["phase"], facts["round"], facts["target"]
        self.estimate, self.end = float(facts["estimate"]), facts["end"]
        self._episodes, self._steps = facts["episodes"], facts["steps"]

    def check_samples(self, samples: Longs) -> None:
        """Samples from a checkpoint are samples that were counted."""
        if samples.shape != self.counts.count.shape or (samples > self.counts.count).any():
            raise ValueError("the samples left out are not samples that were counted")
