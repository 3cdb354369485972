"""A goal rule of one's own, for ``--goal-rule benchmarks/deep_rules.py:mixed``."""

from __future__ import annotations

from adagoal.core.array_types import Floats
from adagoal.goal_rules import GoalInfo, adagoal, adagoal_proportional, rule


@rule("D", "E")
def mixed(known: GoalInfo) -> Floats:
    """Half of the episodes at the most uncertain reachable goal, half in proportion to the uncertainty."""
    first, second = adagoal(known), adagoal_proportional(known)
    return 0.5 * first / first.sum() + 0.5 * second / second.sum()
