"""What a comparison says: a table and a figure."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.table import Table as Screen

from adagoal import methods
from adagoal.compare.anytime_audit import CHECKS_PER_DECADE
from adagoal.compare.experiment import RunOutcome
from adagoal.core.file_io import bytes_content, write_atomically
from adagoal.core.types import Floats
from adagoal.report.curve_page import Curve, CurvePanel, curves_by_seed

LINE_STYLES = ("-", "--", ":", "-.")
MIN_DRAWN_ERROR_EPSILONS, MAX_DRAWN_ERROR_EPSILONS = 1e-3, 1e3
"""Errors drawn, in units of epsilon: what is smaller or larger is drawn there."""
SCORE_COLUMNS = (
    "world",
    "method",
    "goal rule",
    "runs",
    "own stop",
    "audit-stop",
    "own / audit",
    "audit holds",
    "seconds",
)
SCORE_TABLE_NOTE = (
    "Medians over the seeds, in environment steps. Own stop: the method's own rule ends the run (so many runs of all, "
    "where not all do); audit-stop: the first step from which the exact audit of the current output holds for "
    "good; audit holds: runs whose final output passes."
)


@dataclass(frozen=True)
class MethodScore:
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
    def group_key(self) -> tuple[str, str, str]:
        """What the runs have in common."""
        return self.world, self.method, self.goal_rule

    def table_cells(self) -> tuple[str, ...]:
        """As text, in the order of ``HEAD``."""
        price = self.own_stop / self.audit_stop if math.isfinite(self.own_stop) and self.audit_stop > 0 else math.nan
        method = self.method if self.guarantee else f"{self.method} (no guarantee)"
        return (
            *(self.world, method, self.goal_rule, str(self.runs)),
            self._format_steps(self.own_stop) + ("" if self.stopped == self.runs else f" ({self.stopped}/{self.runs})"),
            self._format_steps(self.audit_stop),
            f"{price:.3g}" if price > 0 else "-",
            f"{self.holds}/{self.runs}",
            f"{self.seconds:.1f}",
        )

    def to_dict(self) -> dict[str, object]:
        """Plain types for JSON; an infinite number becomes None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}

    def _format_steps(self, steps: float) -> str:
        """Infinite: beyond the budget, or never, where the runs had ended by themselves before."""
        over = f"> {self.budget:,}" if self.budget and self.stopped < self.runs else "never"
        return f"{steps:,.0f}" if math.isfinite(steps) else over


def group_outcomes(records: Iterable[RunOutcome]) -> dict[tuple[str, str, str], list[RunOutcome]]:
    """Outcomes by world, method and goal rule."""
    found: dict[tuple[str, str, str], list[RunOutcome]] = {}
    for record in records:
        setting = record["setting"]
        world = " ".join([setting["env"], *(f"{k}={v}" for k, v in setting["env_args"].items())])
        method = ":".join([setting["method"], *(f"{k}={v}" for k, v in setting["method_args"].items())])
        rule = setting["goal_rule"] if methods.find_method(setting["method"]).uses_goal_rule else "own"
        found.setdefault((world, method, rule), []).append(record)
    return found


def compute_scores(records: Iterable[RunOutcome]) -> list[MethodScore]:
    """One per world, method and goal rule, as they come."""
    return [
        MethodScore(
            *key,
            guarantee=runs[0]["guarantee"],
            runs=len(runs),
            stopped=sum(run["own_stop"] is not None for run in runs),
            own_stop=_median_steps(run["own_stop"] for run in runs),
            audit_stop=_median_steps(run["audit_stop"] for run in runs),
            holds=sum(run["final"]["c1"] and run["final"]["c2"] for run in runs),
            seconds=statistics.median(run["wall_seconds"] for run in runs),
            budget=runs[0]["setting"]["budget"],
        )
        for key, runs in group_outcomes(records).items()
    ]


def _median_steps(steps: Iterable[int | None]) -> float:
    return float(statistics.median(math.inf if s is None else s for s in steps))


def make_score_table(found: Sequence[MethodScore]) -> TextTable:
    """The table."""
    return TextTable(SCORE_COLUMNS, [score.table_cells() for score in found], n_left_columns=3)


def live_score_table(records: Sequence[RunOutcome], most: int) -> Screen:
    """The table so far; if it is too long for the screen, the lines whose runs ended last."""
    found = compute_scores(records)
    if len(found) > most:
        latest = [score.group_key for score in compute_scores(reversed(records))[: max(most, 1)]]
        found = [score for score in found if score.group_key in latest]
    return make_score_table(found).to_rich_table()


def draw_error_figure(records: Sequence[RunOutcome]) -> Figure:
    """The true error of the current output against steps, a panel per world: median and quartiles over the seeds."""
    groups = group_outcomes(records)
    worlds = list(dict.fromkeys(world for world, _, _ in groups))
    columns = min(len(worlds), 3)
    lines = -(-len(worlds) // columns)
    drawn = Figure((1.0 + 4.6 * columns, 0.6 + 3.4 * lines), layout="constrained")
    axes = drawn.subplots(lines, columns, squeeze=False).ravel()
    for ax in axes[len(worlds) :]:
        ax.set_axis_off()
    kinds = list(dict.fromkeys((method, rule) for _, method, rule in groups))
    looks = _choose_line_looks(kinds)
    for ax, world in zip(axes, worlds, strict=False):
        inside = {key[1:]: runs for key, runs in groups.items() if key[0] == world}
        floor, ceiling, epsilon = _drawn_error_range(inside.values())
        for kind, runs in inside.items():
            _draw_error_curve(ax, runs, floor, ceiling, *looks[kind], ", ".join(kind))
        ax.axhline(epsilon, color=GUIDE_COLOUR, linewidth=0.8)
        ax.annotate("epsilon", (1, epsilon), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)
        ax.axhline(ceiling, color="#cccccc", linewidth=0.8)
        ax.annotate("a goal is missing, or reached badly", (0.02, ceiling), xycoords=("axes fraction", "data"),
                    va="bottom", fontsize=7)  # fmt: skip
        ax.set(xscale="log", yscale="log", ylim=(floor / 2, 3 * ceiling), xlabel="steps", title=world)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("true error of the current output, in steps")
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color=GUIDE_COLOUR, linestyle="", marker="o", markersize=4))
    names = [*labels, "all runs have stopped by themselves"]
    drawn.legend(
        handles, names, loc="outside lower center", ncols=min(columns + 1, len(names)), frameon=False, fontsize=8
    )
    return drawn


def _choose_line_looks(kinds: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Colour and style of every method with its rule: a colour each where there are enough, else one per rule."""
    if len(kinds) <= len(COLOUR_BLIND_PALETTE):
        return {kind: (COLOUR_BLIND_PALETTE[i], LINE_STYLES[i % len(LINE_STYLES)]) for i, kind in enumerate(kinds)}
    methods, rules = (list(dict.fromkeys(part)) for part in zip(*kinds, strict=True))
    return {
        (method, rule): (
            COLOUR_BLIND_PALETTE[rules.index(rule) % len(COLOUR_BLIND_PALETTE)],
            LINE_STYLES[methods.index(method) % len(LINE_STYLES)],
        )
        for method, rule in kinds
    }


def make_error_panels(records: Sequence[RunOutcome]) -> list[CurvePanel]:
    """The same curves for the page, with those of every seed."""
    groups = group_outcomes(records)
    found = []
    for world in dict.fromkeys(world for world, _, _ in groups):
        inside = {", ".join(key[1:]): runs for key, runs in groups.items() if key[0] == world}
        floor, ceiling, epsilon = _drawn_error_range(inside.values())
        lines: list[Curve] = []
        for name, runs in inside.items():
            steps, errors = _interpolate_errors(runs, floor, ceiling)
            seeds = [run["setting"]["seed"] for run in runs]
            errors_of = zip(seeds, errors.tolist(), strict=True)
            lines += curves_by_seed(
                name, ((seed, x, y) for seed, ys in errors_of for x, y in zip(steps.tolist(), ys, strict=True))
            )
        marks = {"epsilon": epsilon, "a goal is missing, or reached badly": ceiling}
        found.append(CurvePanel(world, "steps", "true error of the current output, in steps", lines, marks))
    return found


def _drawn_error_range(groups: Iterable[Sequence[RunOutcome]]) -> tuple[float, float, float]:
    """The smallest and the largest error that are drawn, and epsilon, of the runs on one world."""
    runs = [run for group in groups for run in group]
    epsilon = float(runs[0]["setting"]["epsilon"])
    finite = [check[1] for run in runs for check in run["checks"] if check[1] is not None]
    return (
        MIN_DRAWN_ERROR_EPSILONS * epsilon,
        min(4.0 * max([epsilon, *finite]), MAX_DRAWN_ERROR_EPSILONS * epsilon),
        epsilon,
    )


def _interpolate_errors(runs: Sequence[RunOutcome], floor: float, ceiling: float) -> tuple[Floats, Floats]:
    """Steps [n] and errors [runs, n]; a run that has stopped keeps its last output."""
    last = max(1, *(run["checks"][-1][0] for run in runs))  # 0 steps if the start is the only goal; the axis is a log
    first = max(1, min(run["checks"][0][0] for run in runs))
    steps = np.geomspace(first, last, max(2, math.ceil(CHECKS_PER_DECADE * math.log10(max(last / first, 1.1))) + 1))
    errors = np.full((len(runs), len(steps)), ceiling)
    for i, run in enumerate(runs):
        when, error = np.array([(c[0], np.inf if c[1] is None else c[1]) for c in run["checks"]]).T
        place = np.searchsorted(when, steps * (1 + 1e-12), side="right") - 1
        errors[i, place >= 0] = np.clip(error[place[place >= 0]], floor, ceiling)
    return steps, errors


def _draw_error_curve(
    ax: Axes, runs: Sequence[RunOutcome], floor: float, ceiling: float, colour: str, style: str, label: str
) -> None:
    """Median and quartiles of the runs' errors; a dot where all have stopped."""
    steps, errors = _interpolate_errors(runs, floor, ceiling)
    low, middle, high = np.quantile(errors, (0.25, 0.5, 0.75), axis=0)
    ax.plot(steps, middle, color=colour, linestyle=style, label=label)
    if all(run["own_stop"] is not None for run in runs):
        ax.plot(steps[-1], middle[-1], color=colour, marker="o", markersize=4)
    ax.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


# What every experiment writes with: one table, one way to save a figure.


COLOUR_BLIND_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette, which colour-blind people can tell apart."""
GUIDE_COLOUR = "#666666"

ColumnFormats = Mapping[str, str | Callable[[Any], str]]
"""By its head, what a column shows of a row: a format of its fields ("{steps:.2e}"), or a function of the row."""


@dataclass(frozen=True)
class TextTable:
    """Texts in rows below a head; all columns but the first ``left`` are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left_columns: int = 1

    @staticmethod
    def from_rows(rows: Iterable[Mapping[str, Any]], columns: ColumnFormats, left: int = 1) -> TextTable:
        """From plain data."""
        cells = [[c.format(**row) if isinstance(c, str) else c(row) for c in columns.values()] for row in rows]
        return TextTable(list(columns), cells, left)

    def to_markdown(self) -> str:
        """As Markdown."""
        rule = ["---"] * self.n_left_columns + ["---:"] * (len(self.header) - self.n_left_columns)
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.header, rule, *self.rows)) + "\n"

    def to_rich_table(self) -> Screen:
        """For a terminal."""
        table = Screen(box=None, pad_edge=False, header_style="bold", caption_justify="left")
        for i, name in enumerate(self.header):
            table.add_column(name, justify="left" if i < self.n_left_columns else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG. It is drawn before the file is opened, so a kill meanwhile leaves nothing behind."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    write_atomically(path, bytes_content(drawn.getvalue()))


def figure_with_panels(columns: int, size: tuple[float, float], **options: object) -> tuple[Figure, list[Axes]]:
    """A figure with its panels in one row, without the frames that nobody reads."""
    figure = Figure(size, layout="constrained")
    axes = list(figure.subplots(1, columns, squeeze=False, **options).ravel())  # type: ignore[call-overload]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
