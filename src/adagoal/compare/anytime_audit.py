"""When was the answer of a run right? An observer that audits it exactly on the way.

*Audit-stop*: the first step from which the exact audit (C1 and C2 of definition ``def_MGE``) of what the method would
return holds for good. The output is looked at :data:`PER_DECADE` times a decade of steps, between two rollouts, so that
looking does not change the run; the audit-stop is the first of these looks after which none fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adagoal.core.goalspace import GoalSpace
from adagoal.core.policy import Policy
from adagoal.core.run import Run
from adagoal.mdp import solve
from adagoal.mdp.targets import Goal
from adagoal.worlds.model import TabularMDP

PER_DECADE = 8
FIRST = 100
"""Steps at which the output is looked at for the first time."""


@dataclass(frozen=True)
class Check:
    """One look at the output of a run."""

    steps: int
    error: float
    """max of V^pi_g - V* over the goals of G_L, infinite where one is missing"""
    holds: bool
    """C1 and C2"""


class Auditor:
    """An observer of a run that audits its current output exactly, at a geometric grid of step counts."""

    def __init__(self, mdp: TabularMDP, radius: float, epsilon: float, goals: GoalSpace | None = None) -> None:
        """``goals`` are all states unless given; where they are sets, every state of the model has been sorted."""
        self.checks: list[Check] = []
        self._mdp, self._epsilon = mdp, epsilon
        goals = goals or GoalSpace.states(mdp.n_states, mdp.n_states)
        self._states: list[Goal] = [
            g if goals.own else np.flatnonzero(goals.inside(g)).tolist() for g in range(goals.size)
        ]
        space = np.isin(np.arange(goals.size), goals.numbers)
        self._optimal = solve.distances(mdp, self._states)
        self._within = space & solve.at_most(self._optimal, radius)
        self._tolerated = space & solve.at_most(self._optimal, radius + epsilon)
        self._next = float(FIRST)
        self._values: dict[int, tuple[bytes, float]] = {}

    def __call__(self, run: Run) -> None:
        """Called after every rollout."""
        if run.steps < self._next:
            return
        estimates = run.estimates
        columns = estimates.column[estimates.goals]
        believed = (estimates.goal_state[columns] >= 0) & (estimates.D[columns] <= estimates.L)
        reset = run.world.n_actions
        self.check(run.steps, {int(g): Policy(int(g), estimates.policy(g), reset) for g in estimates.goals[believed]})
        while self._next <= run.steps:
            self._next *= 10 ** (1 / PER_DECADE)

    def check(self, steps: int, policies: Mapping[int, Policy]) -> None:
        """Audit the goals X with their policies."""
        X = np.zeros(len(self._states), bool)
        values = np.full(len(self._states), np.inf)
        for goal, policy in policies.items():
            X[goal], values[goal] = True, self._value(goal, policy)
        c1 = np.isfinite(values[X]).all() and solve.at_most(values[X], self._optimal[X] + self._epsilon).all()
        c2 = (X | ~self._within).all() and (self._tolerated | ~X).all()
        gaps = values[self._within] - self._optimal[self._within]
        self.checks.append(Check(steps, max(float(gaps.max(initial=0.0)), 0.0), bool(c1 and c2)))

    def _value(self, goal: int, policy: Policy) -> float:
        """V^pi, computed again only where the policy has changed."""
        table = policy.actions.tobytes()
        if self._values.get(goal, (b"", 0.0))[0] != table:
            self._values[goal] = table, solve.policy_value(self._mdp, policy, self._states[goal])
        return self._values[goal][1]

    @property
    def stop(self) -> int | None:
        """The audit-stop, None where the last look failed."""
        first = None
        for check in reversed(self.checks):
            if not check.holds:
                break
            first = check.steps
        return first
