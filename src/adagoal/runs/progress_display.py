"""What a run shows while it goes on, on standard error: a display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from adagoal.core.environment import TabularEnv
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.user_code import call_observer

ObservedT = TypeVar("ObservedT")
ObserverFunction = Callable[[ObservedT], bool | None]


class ProgressDisplay:
    """A few lines and a bar that are rewritten; a context manager. Without a terminal, or quiet, nothing is live."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        terminal = self._console.is_terminal and not quiet
        self._live_display = (
            Live(Text("starting"), console=self._console, auto_refresh=False, transient=True) if terminal else None
        )

    @property
    def is_live(self) -> bool:
        """Whether there is a display to update; else :meth:`print_line` a line now and then."""
        return self._live_display is not None

    def __enter__(self) -> ProgressDisplay:
        if self._live_display is not None:
            self._live_display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live_display is not None:
            self._live_display.stop()

    def show_lines(self, lines: list[str], share: float | None) -> None:
        """Show the lines and the share of the run that is done, None where nobody knows."""
        if self._live_display is not None:
            bar = ProgressBar(total=1.0, completed=share or 0.0, width=60, pulse=share is None)
            self._live_display.update(
                Group(*(Text(line, overflow="crop", no_wrap=True) for line in lines), bar), refresh=True
            )

    def print_line(self, line: str) -> None:
        """A plain line."""
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def observe_with_display(
    shown: Any, observe: ObserverFunction[ObservedT] | None
) -> Iterator[ObserverFunction[ObservedT] | None]:
    """The observer of a run; ``shown`` is a display that is told before it, or None."""
    if shown is None:
        yield observe
        return
    with shown:

        def both(told: ObservedT) -> bool:
            shown(told)
            return call_observer(observe, told)

        yield both


# Live progress of a run on standard error: a display on a terminal, now and then a plain line elsewhere.


REFRESH_SECONDS = 0.1
"""Seconds between two updates of the display."""
PLAIN_LINE_SECONDS = 10.0
"""Seconds between two plain lines."""
SPEED_WINDOW_SECONDS = 3.0
"""Seconds over which steps per second are averaged."""
MAX_EXTRAPOLATED_ERROR_EPSILONS = 20.0
"""No extrapolation while the error is larger than this many epsilon."""


class ExplorationProgress:
    """An observer for :func:`adagoal.explore`; use it as a context manager around the run."""

    def __init__(self, budget: int | None = None, quiet: bool = False) -> None:
        self.world: TabularEnv | None = None
        """The world of the run, once it has begun."""
        self._budget, self._quiet = budget, quiet
        self._display = ProgressDisplay(quiet)
        self._next_update_time = 0.0
        self._speed_marks: deque[tuple[float, int]] = deque()

    def __enter__(self) -> ExplorationProgress:
        self._display.__enter__()
        self._next_update_time = time.monotonic() + (0.0 if self._display.is_live else PLAIN_LINE_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def __call__(self, run: ExplorationRun) -> None:
        """Called after every rollout."""
        self.world = run.env
        now = time.monotonic()
        if self._quiet or now < self._next_update_time:
            return
        self._next_update_time = now + (REFRESH_SECONDS if self._display.is_live else PLAIN_LINE_SECONDS)
        facts, share = self._progress_facts(run, now)
        if self._display.is_live:
            first = "   ".join(facts[name] for name in ("steps", "episodes", "left") if name in facts)
            self._display.show_lines([first, "   ".join(facts[name] for name in ("goals", "error"))], share)
        else:
            self._display.print_line("  ".join(facts.values()))

    def _progress_facts(self, run: ExplorationRun, now: float) -> tuple[dict[str, str], float | None]:
        """What to show, and the share of the run that is done, if it can be guessed."""
        self._speed_marks.append((now, run.steps))
        while len(self._speed_marks) > 2 and now - self._speed_marks[0][0] > SPEED_WINDOW_SECONDS:
            self._speed_marks.popleft()
        (then, before), speed = self._speed_marks[0], math.nan
        if now > then:
            speed = (run.steps - before) / (now - then)
        estimates = run.estimates
        still = run.open_columns()
        largest = float(estimates.E[still].max(initial=0.0))
        done = int(((estimates.D <= estimates.L) & ~still & (estimates.goal_state >= 0)).sum())
        total = extrapolate_total_steps(run.trace, estimates.epsilon)
        if self._budget is not None:
            total = min(total or math.inf, float(self._budget))
        facts = {
            "steps": f"{run.steps:,} steps" + (f" ({speed:,.0f}/s)" if speed > 0 else ""),
            "episodes": f"{len(run.episode_goals):,} episodes",
            "goals": f"goals: {done} certified, {int(still.sum())} open" if estimates.guarantee
            else f"goals: {done} done, {int(still.sum())} open (no guarantee)",
            "error": f"largest error {largest:.3g}, epsilon {estimates.epsilon:g}, radius {estimates.L:g}",
        }  # fmt: skip
        if total is None:
            return facts, None
        if speed > 0:
            facts["left"] = f"about {format_duration(max(total - run.steps, 0.0) / speed)} left"
        return facts, min(run.steps / total, 1.0)


def extrapolate_total_steps(trace: list[tuple[int, int, float, int]], epsilon: float) -> float | None:
    """Steps at which the largest error may meet epsilon, None where the trace does not say.

    Once it has halved, the error falls about like one over the steps: on every world tried that was right within a
    factor of 3.
    """
    if len(trace) < 5:
        return None
    steps, _, error, _ = trace[-1]
    if (
        not 0.0
        < error
        <= min(MAX_EXTRAPOLATED_ERROR_EPSILONS * epsilon, max(largest for _, _, largest, _ in trace) / 2.0)
    ):
        return None
    return steps * max(error / epsilon, 1.0)


def format_duration(seconds: float) -> str:
    """For people."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
