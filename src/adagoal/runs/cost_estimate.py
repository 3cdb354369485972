"""Estimate what a whole exploration will cost (steps, seconds, memory), from the progress of its beginning."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from adagoal.core.exploration_run import ExplorationRun, RunObserver
from adagoal.core.user_code import call_observer
from adagoal.runs.progress_display import extrapolate_total_steps, format_duration

# The estimate waits until this many times the steps so far suffice: before that the largest error is too noisy.
MAX_EXTRAPOLATION_FACTOR = 4


@dataclass(frozen=True)
class CostEstimate:
    """Cost of a run from its beginning to its end."""

    steps: float
    seconds: float
    bytes: int
    done: float  # share of the steps that is done

    def __str__(self) -> str:
        return (
            f"about {self.steps:.1e} steps, {format_duration(self.seconds)} and {self.bytes / 1e6:,.0f} MB in all; "
            f"{100 * self.done:.0f}% of the steps are done"
        )


class CostEstimator:
    """Observer that ends a run as soon as its cost can be estimated; it calls another observer first."""

    def __init__(self, observe: RunObserver) -> None:
        self.cost_estimate: CostEstimate | None = None
        self._observe = observe
        self._marks: list[tuple[int, float]] = [(0, 0.0)]  # steps and seconds, each time the steps have grown by 2%

    def __call__(self, run: ExplorationRun) -> bool:
        """Called after every rollout."""
        proceed = call_observer(self._observe, run)
        if run.steps >= 1.02 * self._marks[-1][0]:
            self._marks.append((run.steps, run.seconds))
            self.cost_estimate = self._estimate_cost(run)
        return proceed and self.cost_estimate is None

    def _estimate_cost(self, run: ExplorationRun) -> CostEstimate | None:
        total = extrapolate_total_steps(run.trace, run.estimates.epsilon)
        if total is None or total > MAX_EXTRAPOLATION_FACTOR * run.steps:
            return None
        # Early steps are slower: new states make plans frequent. So the rest is charged at the pace of the last half.
        steps, seconds = next(mark for mark in self._marks if mark[0] >= run.steps / 2)
        pace = (run.seconds - seconds) / max(run.steps - steps, 1)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the tables of the known states are there
        return CostEstimate(total, run.seconds + pace * (total - run.steps), memory, run.steps / total)
