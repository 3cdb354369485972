"""Algorithm 1 of the paper (label ``algo``), in the form that serves every tabular and linear world.

The loop does not know which world it runs in. It asks *estimates* for a distance D and an error E per goal, a *goal
rule* for weights over the goals, a *world* to play the estimates' policies, and stops by the paper's rule
(eq. ``stopping_rule``): no goal with D <= L has an error above epsilon.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from adagoal.core.run import Estimates, Run, note


def explore(run: Run, budget: int, observe: Callable[[Run], None] = lambda run: None) -> str:
    """Algorithm 1. Returns "certified" (stopped by the rule) or "budget"; ``observe`` is called after every rollout."""
    estimates = cast(Estimates, run.estimates)
    while run.open_columns().any():
        if run.steps >= budget:
            return "budget"
        began = time.perf_counter()
        # (i) goal selection: the rule decides on up-to-date estimates of the goals that it favours
        weights = run.column_weights()
        while estimates.refresh(weights > 0) and run.open_columns().any():
            weights = run.column_weights()
        if not run.open_columns().any():
            break
        # (ii) policy execution, and (iii) update: the world adds what it sees to the counts of the estimates
        outcome = run.world.rollout(
            estimates.plan(), weights, estimates.counts, run.rng, budget - run.steps, estimates.episodes_per_plan
        )
        note(run, outcome, time.perf_counter() - began)
        observe(run)
    return "certified"
