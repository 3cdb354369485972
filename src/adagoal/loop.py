"""Algorithm 1 of the paper (label ``algo``), for every tabular and linear environment.

The loop asks *estimates* for a distance D and an error E per goal, and a *goal rule* for weights over the goals. The
*environment* plays the policies of the estimates. The loop stops by the paper's rule (eq. ``stopping_rule``): no goal
with D <= L has an error above epsilon.
"""

from __future__ import annotations

from typing import cast

from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun, PlanningEstimates, RunObserver, record_rollout


def run_exploration(run: ExplorationRun, budget: int, observe: RunObserver = lambda run: None) -> Status:
    """Run Algorithm 1. ``observe`` is called after every rollout; if it returns False, the run is interrupted."""
    estimates = cast(PlanningEstimates, run.estimates)
    while run.has_open_goals():
        if run.steps >= budget:
            return Status.BUDGET
        with run.measure_seconds():
            # (i) Goal selection: choose again until the estimates of the chosen goals are up to date.
            weights = run.column_weights()
            while estimates.refresh_columns(weights > 0) and run.has_open_goals():
                weights = run.column_weights()
            if not run.has_open_goals():
                break
            # (ii) Policy execution and (iii) update: the environment adds transitions to the counts of the estimates.
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
