"""What the bounds of a result measure, in words and numbers: expected steps, or probabilities.

In a run with ``radius`` a certificate bounds expected steps: the best policy needs at least *lower*, the returned one
at most *upper*. In a run with ``within`` it bounds probabilities: the returned policy reaches the goal with at least
*lower*, no policy with more than *upper*. Texts, figures and pages read the difference here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from adagoal.runs.result import Result


class Measure(NamedTuple):
    """Words and numbers for the bounds of a result."""

    quantity: str  # on axes and in tables
    unit: str  # after a number
    threshold: float  # decides whether a goal belongs to the result
    threshold_text: str
    top: float  # end of an axis
    scope: str  # of the goals of the result: "... goals within 40 steps"
    beyond: str  # of the other goals
    promise: str  # what a certified result says about its goals and policies
    owners: tuple[str, str]  # whose value the lower and the upper bound are
    digits: int  # of a number on a map
    sign: int  # 1 if small bounds are good, -1 if large ones are

    def sort_key(self, row: dict[str, Any]) -> tuple[float, int]:
        """Sort rows of :meth:`Result.table`, the best goals first."""
        return self.sign * row["lower"], row["goal"]


def measure_of(result: Result) -> Measure:
    """Return what the bounds of this result measure."""
    epsilon, k, p = result.setting.epsilon, result.setting.within, result.setting.probability
    if k is None or p is None:
        L = result.radius
        return Measure(
            quantity="expected steps",
            unit=" steps",
            threshold=L,
            threshold_text=f"radius {L:g}",
            top=L + epsilon,
            scope=f"within {L:g} steps",
            beyond="beyond the radius",
            promise=f"is reached by its policy in at most {L + epsilon:g} expected steps and at most {epsilon:g} more "
            f"than the best policy needs, and no goal that can be reached within {L:g} steps is missing.",
            owners=("best policy", "returned policy"),
            digits=0,
            sign=1,
        )
    return Measure(
        quantity=f"probability within {k} steps",
        unit="",
        threshold=p,
        threshold_text=f"probability {p:g}",
        top=1.0,
        scope=f"within {k} steps with probability at least {p:g}",
        beyond="below the probability",
        promise=f"is reached by its policy within {k} steps with a probability of at least {max(p - epsilon, 0.0):g} "
        f"and at most {epsilon:g} less than that of the best policy, and no goal that can be reached with probability "
        f"{p:g} is missing.",
        owners=("returned policy", "best policy"),
        digits=2,
        sign=-1,
    )
