"""Algorithm 1 of the paper (label ``algo``), in the form that serves every tabular and linear world.

The loop does not know which world it runs in. It asks *estimates* for a distance D and an error E per goal, a *goal
rule* for weights over the goals, a *world* to play the estimates' policies, and stops by the paper's rule
(eq. ``stopping_rule``): no goal with D <= L has an error above epsilon.
"""

from __future__ import annotations

from typing import cast

from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun, PlanningEstimates, RunObserver, record_rollout


def run_exploration(run: ExplorationRun, budget: int, observe: RunObserver = lambda run: None) -> Status:
    """Algorithm 1. ``observe`` is called after every rollout; where it returns False the run is interrupted."""
    estimates = cast(PlanningEstimates, run.estimates)
    while run.has_open_goals():
        if run.steps >= budget:
            return Status.BUDGET
        with run.measure_seconds():
            # (i) goal selection: the rule decides on up-to-date estimates of the goals that it favours
            weights = run.column_weights()
            while estimates.refresh_columns(weights > 0) and run.has_open_goals():
                weights = run.column_weights()
            if not run.has_open_goals():
                break
            # (ii) policy execution, and (iii) update: the world adds what it sees to the counts of the estimates
            outcome = run.env.rollout(
                estimates.exploration_plan(),
                weights,
                estimates.counts,
                run.rng,
                budget - run.steps,
                estimates.episodes_per_plan,
            )
            record_rollout(run, outcome)
        if observe(run) is False:
            return Status.INTERRUPTED
    return run.status_of_own_rule
