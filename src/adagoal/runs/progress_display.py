"""Progress of a run on standard error, and an estimate of what the whole run will cost.

Progress is a live display on a terminal (by Rich) or in a notebook (as HTML), and plain lines elsewhere. Every kind of
run has a subclass of :class:`ProgressDisplay` that says what to show; the display is the same.
"""

from __future__ import annotations

import contextlib
import math
import resource
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

from adagoal.core.compiled_code import watch_compilation
from adagoal.core.exploration_run import ExplorationRun, RunObserver
from adagoal.core.user_code import call_observer

# Functions import Rich, because only a display needs it.
if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from adagoal.deep.training_history import TrainingHistory

PLAIN_LINE_SECONDS = 10.0  # between two plain lines of an exploration
COMPILATION_LINE_SECONDS = 2.0  # between two plain lines about compilation

ObservedT = TypeVar("ObservedT")
ObserverFunction = Callable[[ObservedT], bool | None]


class Progress(NamedTuple):
    """What a display shows at one moment."""

    lines: Sequence[str]
    share: float | None = None  # finished share of the run; None: unknown
    plain_line: str = ""  # what is printed if the display is not live; empty: nothing


class ProgressDisplay:
    """An observer that shows the progress of a run. Use it as a context manager around the run."""

    throttled = True  # False: describe every call, for runs that call rarely

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, quiet=quiet)
        self._in_notebook = in_notebook()
        self.is_live = not quiet and (self._console.is_terminal or self._in_notebook)
        self.is_quiet = quiet
        self._live_display: Live | _NotebookDisplay | None = None
        self._shown = Progress(["starting"])
        self._next_update_time = 0.0
        self._compilation = contextlib.ExitStack()
        self._next_compilation_time = 0.0

    def describe(self, *observed: Any) -> Progress:
        """Return what to show about the observed state of the run."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        from rich.live import Live

        # Plain lines start after a pause, so short runs print none.
        self._next_update_time = time.monotonic() + (0.0 if self.is_live else PLAIN_LINE_SECONDS)
        # A new one each time: a Live that was stopped would move the cursor up again.
        if self.is_live and self._in_notebook:
            self._live_display = _NotebookDisplay(self._render_html)
        elif self.is_live:
            self._live_display = Live(
                console=self._console, get_renderable=self._render, auto_refresh=False, transient=True
            )
        # Something is on the screen before the first rollout, which may have to wait for compilation.
        if self._live_display is not None:
            self._live_display.start(refresh=True)
        if not self.is_quiet:
            self._compilation.enter_context(watch_compilation(self._show_compilation))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._compilation.close()
        if self._live_display is not None:
            self._live_display.stop()
            self._live_display = None

    def _show_compilation(self, line: str) -> None:
        now = time.monotonic()
        if self._live_display is not None:
            self._shown = Progress([line])
            self._live_display.refresh()
        elif now >= self._next_compilation_time:
            self._next_compilation_time = now + COMPILATION_LINE_SECONDS
            self.print_line(line)

    def __call__(self, *observed: Any) -> None:
        """Update the display, if it is time."""
        now = time.monotonic()
        # Described only when shown: a run calls this after every rollout.
        if self.is_quiet or (self.throttled and now < self._next_update_time):
            return
        self._next_update_time = now + (0.1 if self.is_live else PLAIN_LINE_SECONDS)
        self._shown = self.describe(*observed)
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

        share = self._shown.share
        bar = ProgressBar(total=1.0, completed=share or 0.0, width=60, pulse=share is None)
        return Group(*(Text(line, overflow="crop", no_wrap=True) for line in self._shown.lines), bar)

    def _render_html(self) -> str:
        # A bar without a value moves by itself.
        value = "" if self._shown.share is None else f' value="{self._shown.share:.3f}"'
        lines = "<br>".join(map(escape, self._shown.lines))
        return f'<div>{lines}</div><progress style="width:30em"{value}></progress>'


class _NotebookDisplay:
    """An output of a notebook cell that is replaced, and removed at the end. Unlike Rich it needs no ipywidgets."""

    def __init__(self, render: Callable[[], str]) -> None:
        self._render, self._handle = render, cast(Any, None)

    def start(self, refresh: bool) -> None:
        from IPython.display import display

        self._handle = display(self._bundle(self._render()), raw=True, display_id=True)

    def refresh(self) -> None:
        self._handle.update(self._bundle(self._render()), raw=True)

    def stop(self) -> None:
        self._handle.update(self._bundle(""), raw=True)

    def _bundle(self, html: str) -> dict[str, str]:
        return {"text/html": html, "text/plain": ""}


def in_notebook() -> bool:
    """Return whether this process runs the cells of a notebook, not the lines of a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


@contextlib.contextmanager
def observe_with_display(
    make_display: Callable[[], ProgressDisplay], progress: bool | None, observe: ObserverFunction[ObservedT] | None
) -> Iterator[ObserverFunction[ObservedT] | None]:
    """Yield an observer that updates a display and then calls ``observe``; without a display ``observe`` itself.

    If ``progress`` is None, only notebooks have a display.
    """
    if not (in_notebook() if progress is None else progress):
        yield observe
        return
    with make_display() as display:

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
        # The speed of the last 3 seconds: a run becomes faster, because new states make its early plans frequent.
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
        # Without a guarantee nothing may be called certified, not even while the run goes on.
        if not estimates.guarantee:
            goals = f"goals: {n_done} done, {int(is_open.sum())} open (no guarantee)"
        largest = float(estimates.E[is_open].max(initial=0.0))
        # Estimates of probabilities have the radius 1 - p.
        probability = None if run.setting is None else run.setting.probability
        target = f"radius {estimates.L:g}" if probability is None else f"probability {probability:g}"
        error = f"largest error {largest:.3g}, epsilon {estimates.epsilon:g}, {target}"
        left = []
        if total is not None and speed > 0:
            left = [f"about {format_duration(max(total - run.steps, 0.0) / speed)} left"]
        share = None if total is None else min(run.steps / total, 1.0)
        lines = ["   ".join([steps, episodes, *left]), "   ".join([goals, error])]
        return Progress(lines, share, "  ".join([steps, episodes, goals, error, *left]))


class TrainingProgress(ProgressDisplay):
    """Progress of training: one plain line per test if the display is not live. ``opening`` is printed first."""

    throttled = False

    def __init__(self, quiet: bool = False, opening: str = "") -> None:
        super().__init__(quiet)
        self._opening = opening
        self._first_cycle: tuple[float, int] | None = None  # time and steps: everything before is start-up
        self._test_text = ""

    def describe(self, history: TrainingHistory) -> Progress:
        """Return the steps, the speed, what the goal rule works with, and the last test result."""
        rows = history.rows[-len(history.configs) :]
        done, planned = history.steps_before_cycle(rows[0]["cycle"] + 1), history.configs[0].steps
        now = time.monotonic()
        if self._first_cycle is None:
            # Compilation and the start of workers would make the speed look too low for a long time.
            self._first_cycle = now, done
            if self._opening:
                self.print_line(self._opening)
        then, before = self._first_cycle
        speed = (done - before) / max(now - then, 1e-9)
        is_tested = "success" in rows[0]
        if is_tested:
            success = " ".join(f"{row['success']:.2f}" for row in rows)
            self._test_text = f"  success {success} (at {rows[0]['steps']})"  # a cycle begins with its test
        estimates = ""
        if all("radius" in row for row in rows):  # absent from the last test, and for rules without D and E
            L, share, E = (
                statistics.fmean(row.get(k, math.nan) for row in rows) for k in ("radius", "reachable", "error")
            )
            estimates = f"  L {L:.3g}, {share:.0%} of goals with D <= L, E {E:.2g}"
        line = f"{done} / {planned} steps  {speed:.0f} steps/s a run{estimates}{self._test_text}"
        return Progress([line], min(done / planned, 1.0), line if is_tested else "")


class CertificationProgress(ProgressDisplay):
    """Progress of a certification; nothing is printed if the display is not live."""

    def describe(self, n_open: int, n_rollouts: int) -> Progress:
        """Return the number of open cells and of rollouts."""
        return Progress([f"{n_open} open cells  {n_rollouts} rollouts"])


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
        # Not after every rollout: an estimate reads the whole trace, and the marks would grow with the run.
        if run.steps >= 1.02 * self._marks[-1][0]:
            self._marks.append((run.steps, run.seconds))
            self.cost_estimate = self._estimate_cost(run)
        return proceed and self.cost_estimate is None

    def _estimate_cost(self, run: ExplorationRun) -> CostEstimate | None:
        total = extrapolate_total_steps(run.trace, run.estimates.epsilon)
        # Before a quarter of the steps is done, the largest error is too noisy for an estimate of the cost.
        if total is None or total > 4 * run.steps:
            return None
        # Early steps are slower: new states make plans frequent. So the rest is charged at the pace of the last half.
        steps, seconds = next(mark for mark in self._marks if mark[0] >= run.steps / 2)
        pace = (run.seconds - seconds) / max(run.steps - steps, 1)
        # The peak so far stands for the whole run: the tables of the known states are allocated by now.
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return CostEstimate(total, run.seconds + pace * (total - run.steps), memory, run.steps / total)


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
