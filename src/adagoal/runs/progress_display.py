"""Progress of a run on standard error: a live display on a terminal or in a notebook, plain lines elsewhere.

Every kind of run has a subclass of :class:`ProgressDisplay` that says what to show; the display is the same.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.user_code import call_observer

if TYPE_CHECKING:  # functions import Rich, because only a display needs it
    from rich.console import RenderableType
    from rich.live import Live

REFRESH_SECONDS = 0.1
"""Seconds between two updates of a live display."""
PLAIN_LINE_SECONDS = 10.0
"""Seconds between two plain lines of an exploration."""

ObservedT = TypeVar("ObservedT")
ObserverFunction = Callable[[ObservedT], bool | None]


class Progress(NamedTuple):
    """What a display shows at one moment."""

    lines: Sequence[str]
    share: float | None = None  # finished share of the run; None: unknown
    plain_line: str = ""  # what is printed if the display is not live; empty: nothing
    table: RenderableType | None = None  # shown in place of the lines and the bar


class ProgressDisplay:
    """An observer that shows the progress of a run. Use it as a context manager around the run."""

    throttled = True  # False: describe every call, for runs that call rarely
    ticking = False  # True: describe again every second, for displays with a clock

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, quiet=quiet)
        # In a notebook Rich draws into a widget, which needs ipywidgets.
        in_notebook = self._console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self.is_live = not quiet and (self._console.is_terminal or in_notebook)
        self._is_quiet = quiet
        self._live_display: Live | None = None
        self._observed: tuple[Any, ...] | None = None
        self._shown = Progress(["starting"])
        self._next_update_time = 0.0

    def describe(self, *observed: Any) -> Progress:
        """Return what to show about the observed state of the run."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        from rich.live import Live

        self._next_update_time = time.monotonic() + (0.0 if self.is_live else PLAIN_LINE_SECONDS)
        if self.is_live:  # a new one each time: a Live that was stopped would move the cursor up again
            self._live_display = Live(
                console=self._console,
                get_renderable=self._render,
                auto_refresh=self.ticking,
                refresh_per_second=1,
                transient=True,
            )
            self._live_display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live_display is not None:
            self._live_display.stop()
            self._live_display = None

    def __call__(self, *observed: Any) -> None:
        """Update the display, if it is time."""
        now = time.monotonic()
        if self._is_quiet or (self.throttled and now < self._next_update_time):
            return
        self._next_update_time = now + (REFRESH_SECONDS if self.is_live else PLAIN_LINE_SECONDS)
        self._observed, self._shown = observed, self.describe(*observed)
        if self._live_display is not None:
            self._live_display.refresh()
        elif self._shown.plain_line:
            self.print_line(self._shown.plain_line)

    def print_line(self, line: str) -> None:
        """Print a line that stays, above a live display."""
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        if self.ticking and self._observed is not None:
            self._shown = self.describe(*self._observed)
        if self._shown.table is not None:
            return self._shown.table
        share = self._shown.share
        bar = ProgressBar(total=1.0, completed=share or 0.0, width=60, pulse=share is None)
        return Group(*(Text(line, overflow="crop", no_wrap=True) for line in self._shown.lines), bar)


@contextmanager
def observe_with_display(
    display: ProgressDisplay | None, observe: ObserverFunction[ObservedT] | None
) -> Iterator[ObserverFunction[ObservedT] | None]:
    """Yield an observer that updates the display and then calls ``observe``; without a display ``observe`` itself."""
    if display is None:
        yield observe
        return
    with display:

        def both(observed: ObservedT) -> bool:
            display(observed)
            return call_observer(observe, observed)

        yield both


class ExplorationProgress(ProgressDisplay):
    """Progress of an exploration: steps, goals, the largest error, and the time that is left."""

    def __init__(self, budget: int | None = None, quiet: bool = False) -> None:
        super().__init__(quiet)
        self._budget = budget
        self._recent_steps: deque[tuple[float, int]] = deque()  # times and steps of the last seconds, for the speed

    def describe(self, run: ExplorationRun) -> Progress:
        """Return steps, goals and errors of the run so far."""
        now = time.monotonic()
        self._recent_steps.append((now, run.steps))
        while len(self._recent_steps) > 2 and now - self._recent_steps[0][0] > 3.0:
            self._recent_steps.popleft()
        then, before = self._recent_steps[0]
        speed = (run.steps - before) / (now - then) if now > then else math.nan
        estimates, is_open = run.estimates, run.open_columns()
        n_done = int(((estimates.D <= estimates.L) & ~is_open & (estimates.goal_state >= 0)).sum())
        total = extrapolate_total_steps(run.trace, estimates.epsilon)
        if self._budget is not None:
            total = min(total or math.inf, float(self._budget))
        steps = f"{run.steps:,} steps" + (f" ({speed:,.0f}/s)" if speed > 0 else "")
        episodes = f"{len(run.episode_goals):,} episodes"
        goals = f"goals: {n_done} certified, {int(is_open.sum())} open"
        if not estimates.guarantee:
            goals = f"goals: {n_done} done, {int(is_open.sum())} open (no guarantee)"
        largest = float(estimates.E[is_open].max(initial=0.0))
        error = f"largest error {largest:.3g}, epsilon {estimates.epsilon:g}, radius {estimates.L:g}"
        left = []
        if total is not None and speed > 0:
            left = [f"about {format_duration(max(total - run.steps, 0.0) / speed)} left"]
        share = None if total is None else min(run.steps / total, 1.0)
        lines = ["   ".join([steps, episodes, *left]), "   ".join([goals, error])]
        return Progress(lines, share, "  ".join([steps, episodes, goals, error, *left]))


class CertificationProgress(ProgressDisplay):
    """Progress of a certification; nothing is printed if the display is not live."""

    def describe(self, n_open: int, n_rollouts: int) -> Progress:
        """Return the number of open cells and of rollouts."""
        return Progress([f"{n_open} open cells  {n_rollouts} rollouts"])


def extrapolate_total_steps(trace: list[tuple[int, int, float, int]], epsilon: float) -> float | None:
    """Return the steps at which the largest error may reach epsilon, or None if it is too early to say.

    Once the error has halved, it falls about like one over the steps. On every environment tried the estimate was
    right within a factor of 3.
    """
    if len(trace) < 5:
        return None
    steps, _, error, _ = trace[-1]
    # Far from the end the error falls in jumps, so an extrapolation over more than a factor of 20 misleads.
    if not 0.0 < error <= min(20.0 * epsilon, max(largest for _, _, largest, _ in trace) / 2.0):
        return None
    return steps * max(error / epsilon, 1.0)


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, for people."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
