"""Steps to the certified stop on the lower-bound instance, against L, S, A and 1/epsilon.

The theory says L^3 S A / epsilon^2 up to logarithms, as an upper and as a lower bound (lemma ``lemma_LB``). The
instance is :func:`adagoal.envs.toy_models.lower_bound_instance`, a hidden good action in one of n decision states, S =
n + 3; the goal space is all states. One of the four is varied at a time around a base point, with a new place for the
good action in every seed; exponents are least-squares slopes of log median steps. n is at most A, so that the depth of
the instance does not change along the way; the slope in S is taken against n, the states that hold decisions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from adagoal.api.explore import explore
from adagoal.comparison.method_comparison import run_uninterrupted
from adagoal.comparison.method_scores import RunOutcome, TextTable
from adagoal.envs.simulator import ModelSimulator
from adagoal.envs.toy_models import lower_bound_instance
from adagoal.report.figures import COLOUR_BLIND_PALETTE, GUIDE_COLOUR
from adagoal.report.html_page import Curve, CurvePlot, curves_by_seed
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.layout import figure_with_panels

DELTA = 0.1
GOAL_RULES = dict(zip(("adagoal", "unigoal", "raregoal"), COLOUR_BLIND_PALETTE, strict=False))
"""Goal rules and their colours."""


class Point(NamedTuple):
    """One instance of the lower bound."""

    L: float = 13.0
    n: int = 2
    """Decision states."""
    A: int = 4
    epsilon: float = 1.0


class Axis(NamedTuple):
    """A quantity that is varied, with the exponent of the theory."""

    label: str
    theory: float
    """The exponent."""
    points: tuple[Point, ...]
    more: tuple[Point, ...]
    """With ``--full``."""
    value: Callable[[Point], float]


AXES = {
    "L": Axis("L", 3, tuple(Point(L=L) for L in (9, 13, 19, 27)), (Point(L=39), Point(L=55)), lambda p: p.L),
    "S": Axis(
        "decision states, S - 3", 1, tuple(Point(n=n, A=8) for n in (1, 2, 4, 8)), (Point(n=16, A=16),), lambda p: p.n
    ),
    "A": Axis("A", 1, tuple(Point(A=A) for A in (2, 4, 8, 16)), (Point(A=32),), lambda p: p.A),
    "epsilon": Axis(
        "1/epsilon", 2, tuple(Point(epsilon=e) for e in (1.0, 0.7, 0.5, 0.35)), (Point(epsilon=0.25),),
        lambda p: 1 / p.epsilon,
    ),
}  # fmt: skip


class Cell(NamedTuple):
    """One run."""

    point: Point
    rule: str
    seed: int


def along(name: str, options: ExperimentOptions) -> tuple[Point, ...]:
    """Return the points of an axis."""
    return AXES[name].points + (AXES[name].more if options.full else ())


def cells(options: ExperimentOptions) -> list[Cell]:
    """Return every point with every rule and seed. The base point is on several axes."""
    points = dict.fromkeys(point for name in AXES for point in along(name, options))
    return [Cell(point, rule, seed) for point in points for rule in GOAL_RULES for seed in options.seeds]


def measure(cell: Cell, options: ExperimentOptions) -> dict[str, Any]:
    """Run to the certified stop."""
    p, seed = cell.point, cell.seed
    best = int(np.random.default_rng([seed, 3]).integers(p.n * p.A))
    mdp = lower_bound_instance(n_decisions=p.n, n_actions=p.A, radius=p.L, epsilon=p.epsilon, best=best)
    result = run_uninterrupted(explore, ModelSimulator(mdp), p.L, p.epsilon, DELTA, goal_rule=cell.rule, seed=seed)
    return {**p._asdict(), "rule": cell.rule, "seed": seed, "steps": result.steps, "plans": result.plans}


def fit(points: Sequence[Point], name: str, rule: str, records: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return medians along an axis, and the fitted exponent with its standard error."""
    rows = []
    for point in points:
        steps = [
            r["steps"] for r in records if Point(r["L"], r["n"], r["A"], r["epsilon"]) == point and r["rule"] == rule
        ]
        rows.append((AXES[name].value(point), statistics.median(steps), min(steps), max(steps)))
    x, y = np.log([row[0] for row in rows]), np.log([row[1] for row in rows])
    (slope, intercept), residual, *_ = np.polyfit(x, y, 1, full=True)
    spread = math.sqrt(float(residual.sum()) / max(len(x) - 2, 1) / float(((x - x.mean()) ** 2).sum()))
    data: dict[str, Any] = {"axis": name, "rule": rule, "theory": AXES[name].theory}
    data |= {"exponent": round(float(slope), 3), "standard_error": round(spread, 3), "factor": math.exp(intercept)}
    return data | {"points": [dict(zip(("x", "steps", "fewest", "most"), row, strict=True)) for row in rows]}


def table(fits: Sequence[dict[str, Any]], seeds: int) -> str:
    """Return the table of exponents, with those of the theory."""
    lines = []
    for axis in AXES:
        own = {f["rule"]: f for f in fits if f["axis"] == axis}
        found = [f"{own[rule]['exponent']:.2f} +- {own[rule]['standard_error']:.2f}" for rule in GOAL_RULES]
        lines.append(["1/epsilon" if axis == "epsilon" else axis, f"{AXES[axis].theory:g}", *found])
    base = next(p for p in fits[0]["points"] if p["x"] == Point().L)
    ratios = [
        statistics.median(
            q["steps"] / p["steps"]
            for f in fits
            for g in fits
            if f["rule"] == "adagoal" and g["rule"] == rule and f["axis"] == g["axis"]
            for p, q in zip(f["points"], g["points"], strict=True)
        )
        for rule in GOAL_RULES
    ]
    lines.append(["steps, relative to AdaGoal (median)", "", *(f"{ratio:.2f}" for ratio in ratios)])
    p = Point()
    note = (
        f"Lower-bound instance, goal space all states, delta = {DELTA}, medians of {seeds} seeds. Base point: "
        f"L = {p.L:g}, {p.n} decision states, A = {p.A}, epsilon = {p.epsilon:g}, where AdaGoal takes "
        f"{base['steps']:.2e} steps."
    )
    return f"{TextTable(('exponent of', 'theory', *GOAL_RULES), lines).to_markdown()}\n{note}\n"


def figure(fits: Sequence[dict[str, Any]]) -> Figure:
    """Draw steps against L, S, A and 1/epsilon, with the slopes of the theory."""
    drawn, panes = figure_with_panels(2, (7.0, 6.0), rows=2)
    for ax, (name, axis) in zip(panes, AXES.items(), strict=True):
        for rule, colour in GOAL_RULES.items():
            data = next(f for f in fits if (f["axis"], f["rule"]) == (name, rule))
            x, y = (np.array([p[key] for p in data["points"]]) for key in ("x", "steps"))
            low, high = (np.array([p[key] for p in data["points"]]) for key in ("fewest", "most"))
            label = f"{rule}: {data['exponent']:.2f}"
            ax.errorbar(x, y, [y - low, high - y], fmt="o", color=colour, markersize=4, linewidth=1, label=label)
            ax.plot(x, data["factor"] * x ** data["exponent"], color=colour, linewidth=1)
            if rule == "adagoal":
                guide = 0.5 * y[0] * (x / x[0]) ** axis.theory
                ax.plot(x, guide, color=GUIDE_COLOUR, linestyle=":", label=f"theory: {axis.theory:g}")
        ax.set(xscale="log", yscale="log", xlabel=axis.label)
        ax.set_xticks(x, [f"{value:.3g}" for value in x])
        ax.minorticks_off()
        ax.legend(frameon=False, fontsize=8, title="exponent", title_fontsize=8)
    for left in panes[::2]:
        left.set_ylabel("steps to the certified stop")
    return drawn


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the fits."""
    fits = [fit(along(name, options), name, rule, outcomes) for name in AXES for rule in GOAL_RULES]
    seeds = len(options.seeds)
    data = {"delta": DELTA, "seeds": seeds, "fits": fits, "runs": outcomes}
    figures = {"scaling.png": figure(fits)}
    return ExperimentReport(
        fits, table(fits, seeds), data, figures, plots=[curves(name, outcomes, options) for name in AXES]
    )


def curves(name: str, records: Sequence[RunOutcome], options: ExperimentOptions) -> CurvePlot:
    """Return the curves of an axis for the page, with every seed and the slope of the theory."""
    x = {point: AXES[name].value(point) for point in along(name, options)}
    found = [(Point(r["L"], r["n"], r["A"], r["epsilon"]), r) for r in records]
    lines: list[Curve] = []
    for rule in GOAL_RULES:
        own = ((r["seed"], x[point], r["steps"]) for point, r in found if point in x and r["rule"] == rule)
        lines += curves_by_seed(rule, own)
    first, least = min(x.values()), min(lines[0].y)
    guide = [0.5 * least * (value / first) ** AXES[name].theory for value in sorted(x.values())]
    lines.append(Curve("the theory's slope", sorted(x.values()), guide))
    return CurvePlot(f"Steps against {AXES[name].label}", AXES[name].label, "steps to the certified stop", lines)


SCALING = Experiment(
    "scaling",
    cells,
    measure_run=measure,
    make_report=report,
    defaults=CATALOGUE["scaling"].defaults,
)
