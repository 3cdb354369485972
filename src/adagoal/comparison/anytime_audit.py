"""An observer that audits the current output of a run exactly, to find out since when it is correct.

The *audit-stop* is the first check after which no check fails. A check is the exact audit (C1 and C2 of definition
``def_MGE``) of what the method would return now. Checks happen :data:`CHECKS_PER_DECADE` times per decade of steps,
between two rollouts, so they do not change the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.goal_space import GoalSpace
from adagoal.core.tabular_policy import Policy
from adagoal.envs.model import TabularMDP
from adagoal.exact import solver
from adagoal.exact.solver import GoalStates

# Checks while the steps grow by a factor of 10. With 8 an audit-stop is about 33% too large at most.
CHECKS_PER_DECADE = 8
FIRST_CHECK_STEPS = 100


@dataclass(frozen=True)
class AuditCheck:
    """One audit of the output of a run."""

    steps: int
    error: float  # max of V^pi_g - V* over the goals of G_L; infinite if one is missing
    holds: bool  # C1 and C2


class AnytimeAuditor:
    """An observer that audits the current output of a run at a geometric grid of step counts."""

    def __init__(self, mdp: TabularMDP, radius: float, epsilon: float, goals: GoalSpace | None = None) -> None:
        """Solve the model. ``goals`` are all states by default; sets must cover every state of the model."""
        self.checks: list[AuditCheck] = []
        self._mdp, self._epsilon = mdp, epsilon
        goals = goals or GoalSpace.from_states(mdp.n_states, mdp.n_states)
        self._goal_states: list[GoalStates] = [
            g if goals.goals_are_states else np.flatnonzero(goals.states_of_goal(g)).tolist()
            for g in range(goals.n_goal_numbers)
        ]
        space = np.isin(np.arange(goals.n_goal_numbers), goals.goal_numbers)
        self._optimal_values = solver.optimal_distances(mdp, self._goal_states)
        self._within_radius = space & solver.is_at_most(self._optimal_values, radius)
        self._within_tolerance = space & solver.is_at_most(self._optimal_values, radius + epsilon)
        self._next_check_steps = float(FIRST_CHECK_STEPS)
        self._cached_values: dict[int, tuple[bytes, float]] = {}

    def __call__(self, run: ExplorationRun) -> None:
        """Audit the run after a rollout, if a check is due."""
        if run.steps < self._next_check_steps:
            return
        estimates = run.estimates
        columns = estimates.column[estimates.goals]
        in_X = (estimates.goal_state[columns] >= 0) & (estimates.D[columns] <= estimates.L)
        reset = run.env.n_actions
        self.check_output(
            run.steps, {int(g): Policy(int(g), estimates.goal_policy(g), reset) for g in estimates.goals[in_X]}
        )
        # A rollout may pass several checks, which would audit the same output.
        while self._next_check_steps <= run.steps:
            self._next_check_steps *= 10 ** (1 / CHECKS_PER_DECADE)

    def check_output(self, steps: int, policies: Mapping[int, Policy]) -> None:
        """Audit the goals X, given by their policies."""
        X = np.zeros(len(self._goal_states), bool)
        values = np.full(len(self._goal_states), np.inf)
        for goal, policy in policies.items():
            X[goal], values[goal] = True, self._cached_policy_value(goal, policy)
        # Infinity is at most infinity, so a policy that may miss its goal would pass without the first test.
        c1 = (
            np.isfinite(values[X]).all() and solver.is_at_most(values[X], self._optimal_values[X] + self._epsilon).all()
        )
        c2 = (X | ~self._within_radius).all() and (self._within_tolerance | ~X).all()
        gaps = values[self._within_radius] - self._optimal_values[self._within_radius]
        # By rounding, the value of an optimal policy can be slightly below the optimal value.
        self.checks.append(AuditCheck(steps, max(float(gaps.max(initial=0.0)), 0.0), bool(c1 and c2)))

    def _cached_policy_value(self, goal: int, policy: Policy) -> float:
        # Between two checks few policies change, and a value costs the solution of a linear system.
        table = policy.actions.tobytes()
        if self._cached_values.get(goal, (b"", 0.0))[0] != table:
            self._cached_values[goal] = table, solver.policy_value(self._mdp, policy, self._goal_states[goal])
        return self._cached_values[goal][1]

    @property
    def audit_stop(self) -> int | None:
        """Steps at the audit-stop; None if the last check failed."""
        first = None
        for check in reversed(self.checks):
            if not check.holds:
                break
            first = check.steps
        return first
