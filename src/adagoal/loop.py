"""The loops that drive a run: Algorithm 1 of the paper (label ``algo``), and one for methods that need no goal rule.

Algorithm 1 serves every tabular and linear environment. It asks *estimates* for a distance D and an error E per goal,
and a *goal rule* for weights over the goals. The *environment* plays the policies of the estimates. The loop stops by
the paper's rule (eq. ``stopping_rule``): no goal with D <= L has an error above epsilon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun, PlanningEstimates, RunObserver, record_rollout

if TYPE_CHECKING:
    from adagoal.baselines.self_directed import SelfDirectedMethod


def run_exploration(run: ExplorationRun, budget: int, observe: RunObserver = lambda run: None) -> Status:
    """Run Algorithm 1. ``observe`` is called after every rollout; if it returns False, the run is interrupted."""
    estimates = cast(PlanningEstimates, run.estimates)
    while run.has_open_goals():
        if run.steps >= budget:
            return Status.BUDGET
        with run.measure_seconds():
            # (i) Goal selection. Estimates plan lazily, and fresh bounds of the chosen goals may make the rule prefer
            # others: choose again until the estimates of the chosen goals are up to date.
            weights = run.column_weights()
            while estimates.refresh_columns(weights > 0) and run.has_open_goals():
                weights = run.column_weights()
            # The last update may have closed the last goal; a rollout would then be wasted.
            if not run.has_open_goals():
                break
            # (ii) Policy execution and (iii) update: the environment adds transitions to the counts of the estimates.
            plan = estimates.exploration_plan()
            limits = budget - run.steps, plan.max_episodes
            record_rollout(run, run.env.rollout(plan, weights, estimates.counts, run.rng, limits))
        # Observers may draw or save, so they run outside the measured time.
        if observe(run) is False:
            return Status.INTERRUPTED
    return run.status_of_own_rule


def run_self_directed(run: ExplorationRun, budget: int, observe: RunObserver = lambda run: None) -> Status:
    """Play a method's rollouts until its own rule stops it, the budget is spent, or ``observe`` returns False."""
    method, one, c = cast("SelfDirectedMethod", run.estimates), np.ones(1), run.counts
    while True:
        with run.measure_seconds():  # includes next_rollout, since most methods plan longer than they play
            rollout = method.next_rollout()
            # Before the budget: a method that has stopped has an answer, although no step is left.
            if rollout is None:
                return run.status_of_own_rule
            if run.steps >= budget:
                return Status.BUDGET
            if rollout.reset_first:
                # An episode whose goal is s0 and whose only action is the reset.
                resets = np.full((1, c.n_states, 1), c.n_actions, np.int16)
                to_start = ExplorationPlan(resets, np.array([c.start]), NO_LIMIT, np.full(len(c.n), NO_LIMIT))
                run.steps += run.env.rollout(to_start, one, c, run.rng, (1, 1)).steps
            # The reset may have taken the last step of the budget, and a rollout needs at least one.
            max_steps = max(min(rollout.max_steps, budget - run.steps), 1)
            outcome = run.env.rollout(rollout.plan, one, c, run.rng, (max_steps, rollout.max_episodes))
            # Targets of sets are numbered after the states, so the method follows new states before it records.
            method.grow_with_counts()
            method.record_outcome(outcome)
            record_rollout(run, outcome)
        if observe(run) is False:
            return Status.INTERRUPTED
