"""What a comparison says: a table and a figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.table import Table as Screen

from adagoal import methods
from adagoal.compare.anytime_audit import PER_DECADE
from adagoal.compare.experiment import Outcome
from adagoal.compare.tables import COLOURS, GREY, Table
from adagoal.core.types import Floats
from adagoal.report.curves import Line, Panel, seeded

STYLES = ("-", "--", ":", "-.")
LOWEST, HIGHEST = 1e-3, 1e3
"""Errors drawn, in units of epsilon: what is smaller or larger is drawn there."""
HEAD = ("world", "method", "goal rule", "runs", "own stop", "audit-stop", "own / audit", "audit holds", "seconds")
NOTE = (
    "Medians over the seeds, in environment steps. Own stop: the method's own rule ends the run (so many runs of all, "
    "where not all do); audit-stop: the first step from which the exact audit of the current output holds for "
    "good; audit holds: runs whose final output passes."
)


@dataclass(frozen=True)
class Score:
    """One method with one goal rule on one world, over its seeds."""

    world: str
    method: str
    goal_rule: str
    guarantee: bool
    runs: int
    stopped: int
    own_stop: float
    """Median, infinite where most runs did not stop within the budget."""
    audit_stop: float
    holds: int
    """Runs whose final output passes the audit."""
    seconds: float
    budget: int | None

    @property
    def key(self) -> tuple[str, str, str]:
        """What the runs have in common."""
        return self.world, self.method, self.goal_rule

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of ``HEAD``."""
        price = self.own_stop / self.audit_stop if math.isfinite(self.own_stop) and self.audit_stop > 0 else math.nan
        method = self.method if self.guarantee else f"{self.method} (no guarantee)"
        return (
            *(self.world, method, self.goal_rule, str(self.runs)),
            self._steps(self.own_stop) + ("" if self.stopped == self.runs else f" ({self.stopped}/{self.runs})"),
            self._steps(self.audit_stop),
            f"{price:.3g}" if price > 0 else "-",
            f"{self.holds}/{self.runs}",
            f"{self.seconds:.1f}",
        )

    def to_dict(self) -> dict[str, object]:
        """Plain types for JSON; an infinite number becomes None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}

    def _steps(self, steps: float) -> str:
        """Infinite: beyond the budget, or never, where the runs had ended by themselves before."""
        over = f"> {self.budget:,}" if self.budget and self.stopped < self.runs else "never"
        return f"{steps:,.0f}" if math.isfinite(steps) else over


def group(records: Iterable[Outcome]) -> dict[tuple[str, str, str], list[Outcome]]:
    """Outcomes by world, method and goal rule."""
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    for record in records:
        setting = record["setting"]
        world = " ".join([setting["env"], *(f"{k}={v}" for k, v in setting["env_args"].items())])
        method = ":".join([setting["method"], *(f"{k}={v}" for k, v in setting["method_args"].items())])
        rule = setting["goal_rule"] if methods.get(setting["method"]).asks_rule else "own"
        found.setdefault((world, method, rule), []).append(record)
    return found


def scores(records: Iterable[Outcome]) -> list[Score]:
    """One per world, method and goal rule, as they come."""
    return [
        Score(
            *key,
            guarantee=runs[0]["guarantee"],
            runs=len(runs),
            stopped=sum(run["own_stop"] is not None for run in runs),
            own_stop=_median(run["own_stop"] for run in runs),
            audit_stop=_median(run["audit_stop"] for run in runs),
            holds=sum(run["final"]["c1"] and run["final"]["c2"] for run in runs),
            seconds=statistics.median(run["wall_seconds"] for run in runs),
            budget=runs[0]["setting"]["budget"],
        )
        for key, runs in group(records).items()
    ]


def _median(steps: Iterable[int | None]) -> float:
    return float(statistics.median(math.inf if s is None else s for s in steps))


def table(found: Sequence[Score]) -> Table:
    """The table."""
    return Table(HEAD, [score.cells() for score in found], left=3)


def live(records: Sequence[Outcome], most: int) -> Screen:
    """The table so far; if it is too long for the screen, the lines whose runs ended last."""
    found = scores(records)
    if len(found) > most:
        latest = [score.key for score in scores(reversed(records))[: max(most, 1)]]
        found = [score for score in found if score.key in latest]
    return table(found).screen()


def figure(records: Sequence[Outcome]) -> Figure:
    """The true error of the current output against steps, a panel per world: median and quartiles over the seeds."""
    groups = group(records)
    worlds = list(dict.fromkeys(world for world, _, _ in groups))
    columns = min(len(worlds), 3)
    lines = -(-len(worlds) // columns)
    drawn = Figure((1.0 + 4.6 * columns, 0.6 + 3.4 * lines), layout="constrained")
    axes = drawn.subplots(lines, columns, squeeze=False).ravel()
    for ax in axes[len(worlds) :]:
        ax.set_axis_off()
    kinds = list(dict.fromkeys((method, rule) for _, method, rule in groups))
    looks = _looks(kinds)
    for ax, world in zip(axes, worlds, strict=False):
        inside = {key[1:]: runs for key, runs in groups.items() if key[0] == world}
        floor, ceiling, epsilon = _range(inside.values())
        for kind, runs in inside.items():
            _curve(ax, runs, floor, ceiling, *looks[kind], ", ".join(kind))
        ax.axhline(epsilon, color=GREY, linewidth=0.8)
        ax.annotate("epsilon", (1, epsilon), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)
        ax.axhline(ceiling, color="#cccccc", linewidth=0.8)
        ax.annotate("a goal is missing, or reached badly", (0.02, ceiling), xycoords=("axes fraction", "data"),
                    va="bottom", fontsize=7)  # fmt: skip
        ax.set(xscale="log", yscale="log", ylim=(floor / 2, 3 * ceiling), xlabel="steps", title=world)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("true error of the current output, in steps")
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color=GREY, linestyle="", marker="o", markersize=4))
    names = [*labels, "all runs have stopped by themselves"]
    drawn.legend(
        handles, names, loc="outside lower center", ncols=min(columns + 1, len(names)), frameon=False, fontsize=8
    )
    return drawn


def _looks(kinds: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Colour and style of every method with its rule: a colour each where there are enough, else one per rule."""
    if len(kinds) <= len(COLOURS):
        return {kind: (COLOURS[i], STYLES[i % len(STYLES)]) for i, kind in enumerate(kinds)}
    methods, rules = (list(dict.fromkeys(part)) for part in zip(*kinds, strict=True))
    return {
        (method, rule): (COLOURS[rules.index(rule) % len(COLOURS)], STYLES[methods.index(method) % len(STYLES)])
        for method, rule in kinds
    }


def panels(records: Sequence[Outcome]) -> list[Panel]:
    """The same curves for the page, with those of every seed."""
    groups = group(records)
    found = []
    for world in dict.fromkeys(world for world, _, _ in groups):
        inside = {", ".join(key[1:]): runs for key, runs in groups.items() if key[0] == world}
        floor, ceiling, epsilon = _range(inside.values())
        lines: list[Line] = []
        for name, runs in inside.items():
            steps, errors = _errors(runs, floor, ceiling)
            seeds = [run["setting"]["seed"] for run in runs]
            errors_of = zip(seeds, errors.tolist(), strict=True)
            lines += seeded(
                name, ((seed, x, y) for seed, ys in errors_of for x, y in zip(steps.tolist(), ys, strict=True))
            )
        marks = {"epsilon": epsilon, "a goal is missing, or reached badly": ceiling}
        found.append(Panel(world, "steps", "true error of the current output, in steps", lines, marks))
    return found


def _range(groups: Iterable[Sequence[Outcome]]) -> tuple[float, float, float]:
    """The smallest and the largest error that are drawn, and epsilon, of the runs on one world."""
    runs = [run for group in groups for run in group]
    epsilon = float(runs[0]["setting"]["epsilon"])
    finite = [check[1] for run in runs for check in run["checks"] if check[1] is not None]
    return LOWEST * epsilon, min(4.0 * max([epsilon, *finite]), HIGHEST * epsilon), epsilon


def _errors(runs: Sequence[Outcome], floor: float, ceiling: float) -> tuple[Floats, Floats]:
    """Steps [n] and errors [runs, n]; a run that has stopped keeps its last output."""
    last = max(1, *(run["checks"][-1][0] for run in runs))  # 0 steps if the start is the only goal; the axis is a log
    first = max(1, min(run["checks"][0][0] for run in runs))
    steps = np.geomspace(first, last, max(2, math.ceil(PER_DECADE * math.log10(max(last / first, 1.1))) + 1))
    errors = np.full((len(runs), len(steps)), ceiling)
    for i, run in enumerate(runs):
        when, error = np.array([(c[0], np.inf if c[1] is None else c[1]) for c in run["checks"]]).T
        place = np.searchsorted(when, steps * (1 + 1e-12), side="right") - 1
        errors[i, place >= 0] = np.clip(error[place[place >= 0]], floor, ceiling)
    return steps, errors


def _curve(
    ax: Axes, runs: Sequence[Outcome], floor: float, ceiling: float, colour: str, style: str, label: str
) -> None:
    """Median and quartiles of the runs' errors; a dot where all have stopped."""
    steps, errors = _errors(runs, floor, ceiling)
    low, middle, high = np.quantile(errors, (0.25, 0.5, 0.75), axis=0)
    ax.plot(steps, middle, color=colour, linestyle=style, label=label)
    if all(run["own_stop"] is not None for run in runs):
        ax.plot(steps[-1], middle[-1], color=colour, marker="o", markersize=4)
    ax.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
