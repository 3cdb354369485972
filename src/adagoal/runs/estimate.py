"""What a whole run will cost, from its beginning: steps, seconds, memory.

The steps come from :func:`adagoal.runs.progress.expected_total`, which says nothing before the largest error has
halved: that takes a twentieth to a fifth of a run. The time of a run is taken for b steps + c ln(steps): steps and what
is done for each of them, and plans, which come whenever the counts have grown by some factor. b and c follow from the
last two doublings of the steps. By then nearly all states within reach are known and their tables are allocated: the
memory is that of this process at its largest so far.
"""

from __future__ import annotations

import bisect
import math
import resource
from dataclasses import dataclass

from adagoal.core.run import Observer, Run
from adagoal.runs.progress import duration, expected_total


@dataclass(frozen=True)
class Estimate:
    """The cost of a run from its beginning to its end."""

    steps: float
    seconds: float
    bytes: int
    done: float
    """The share of the steps that is done"""

    def __str__(self) -> str:
        return (
            f"about {self.steps:.1e} steps, {duration(self.seconds)} and {self.bytes / 1e6:,.0f} MB in all; "
            f"{100 * self.done:.0f}% of the steps are done"
        )


class Estimating:
    """An observer that ends a run as soon as its cost can be told; another one is called first."""

    def __init__(self, observe: Observer) -> None:
        self.found: Estimate | None = None
        self._observe = observe
        self._marks: list[tuple[int, float]] = [(0, 0.0)]  # steps and seconds, whenever the steps have grown by 2%

    def __call__(self, run: Run) -> bool:
        """Called after every rollout."""
        wanted = self._observe(run) is not False
        if run.steps >= 1.02 * self._marks[-1][0]:
            self._marks.append((run.steps, run.seconds))
            self.found = self._estimate(run)
        return wanted and self.found is None

    def _estimate(self, run: Run) -> Estimate | None:
        total = expected_total(run.trace, run.estimates.epsilon)
        if total is None:
            return None
        steps, total = run.steps, max(total, float(run.steps))
        last, before = self._since(steps / 2), self._since(steps / 4)
        b = max(4.0 * (last - (before - last)) / steps, 0.0)
        c = max(last - b * steps / 2, 0.0) / math.log(2.0)
        seconds = run.seconds + b * (total - steps) + c * math.log(total / steps)
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Estimate(total, seconds, largest, steps / total)

    def _since(self, steps: float) -> float:
        """Seconds since there were so many steps."""
        place = min(bisect.bisect_left(self._marks, (int(steps), 0.0)), len(self._marks) - 1)
        return self._marks[-1][1] - self._marks[place][1]
