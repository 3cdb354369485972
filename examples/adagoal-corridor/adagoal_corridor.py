"""A world, a goal rule and a method, declared as entry points in ``pyproject.toml``.

Once the package is installed (``pip install examples/adagoal-corridor``) they have names like our own::

    adagoal explore corridor --env-arg length=8 --radius 12 --goal-rule nearby --method cautious
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import adagoal
from adagoal.core.array_types import Floats
from adagoal.core.exploration_run import PlanningEstimates
from adagoal.goal_rules import GoalInfo, rule
from adagoal.methods import ExplorationProblem, Method, build_certified


def corridor(*, length: int = 6, slip: float = 0.1) -> adagoal.Model:
    """A corridor: action 0 goes back, action 1 onwards, and with probability ``slip`` nothing happens."""
    P = np.zeros((length, 2, length))
    for place in range(length):
        for action, ahead in enumerate((max(place - 1, 0), min(place + 1, length - 1))):
            P[place, action, ahead] += 1 - slip
            P[place, action, place] += slip
    return adagoal.Model.from_dense(P, name="corridor")


@rule("D", "E")
def nearby(known: GoalInfo) -> Floats:
    """In proportion to E / (1 + D) among the goals believed reachable: what is uncertain and near comes first."""
    weights = np.where(known.eligible & (known.D <= known.L), known.E / (1 + known.D), 0.0)
    return weights if weights.any() else known.eligible.astype(float)


def cautious(problem: ExplorationProblem) -> PlanningEstimates:
    """Certified bounds at a tenth of delta."""
    return build_certified(replace(problem, delta=problem.delta / 10))


CAUTIOUS = Method(cautious, radius_can_grow=True)
