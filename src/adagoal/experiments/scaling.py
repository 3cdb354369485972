"""Steps to the certified stop on the lower-bound instance, against L, S, A and 1/epsilon.

The theory says L^3 S A / epsilon^2 up to logarithms, as an upper and as a lower bound (lemma ``lemma_LB``). The
instance is :func:`adagoal.worlds.toys.lower_bound`, a hidden good action in one of n decision states, S = n + 3; the
goal space is all states. One of the four is varied at a time around a base point, with a new place for the good action
in every seed; exponents are least-squares slopes of log median steps. n is at most A, so that the depth of the
instance does not change along the way; the slope in S is taken against n, the states that hold decisions.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from adagoal import goals as goal_rules
from adagoal.cli import options
from adagoal.core.counts import Counts
from adagoal.core.files import read_json, write_json, write_text
from adagoal.core.run import Run
from adagoal.experiments.pool import finish
from adagoal.loop import explore
from adagoal.tabular.certified import Certified
from adagoal.worlds.simulator import ModelWorld
from adagoal.worlds.toys import lower_bound

DELTA = 0.1
RULES = {"adagoal": "#0072b2", "unigoal": "#d55e00", "raregoal": "#009e73"}
"""Goal rules and their colours."""
BUDGET = 2**62

Record = dict[str, Any]


class Point(NamedTuple):
    """One instance of the lower bound."""

    L: float = 13.0
    n: int = 2
    """Decision states."""
    A: int = 4
    epsilon: float = 1.0


class Axis(NamedTuple):
    """What is varied, and what the theory says about it."""

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


def measure(point: Point, rule: str, seed: int) -> Record:
    """One run to the certified stop."""
    best = int(np.random.default_rng([seed, 3]).integers(point.n * point.A))
    mdp = lower_bound(n_decisions=point.n, n_actions=point.A, radius=point.L, epsilon=point.epsilon, best=best)
    world = ModelWorld(mdp)
    counts = Counts(world.initial_states, world.n_actions, world.start)
    estimates = Certified(counts, world.state_bound, point.L, point.epsilon, DELTA)
    run = Run(world, estimates, goal_rules.get(rule), np.random.default_rng(seed))
    explore(run, BUDGET)
    return {**point._asdict(), "rule": rule, "seed": seed, "steps": run.steps, "plans": estimates.plans}


def run_all(axes: dict[str, tuple[Point, ...]], seeds: range, folder: Path, jobs: int) -> list[Record]:
    """Every point with every rule and seed; each run is a file, and is not run again."""
    points = list(dict.fromkeys(point for points in axes.values() for point in points))
    wanted = [(point, rule, seed) for point in points for rule in RULES for seed in seeds]
    files = {task: folder / ("-".join(map(str, (*task[0], *task[1:]))) + ".json") for task in wanted}
    missing = {file: task for task, file in files.items() if not file.exists()}
    done = finish(measure, missing, jobs)
    for _ in track(done, f"{len(missing)} runs", len(missing), console=Console(stderr=True)):
        pass
    return [read_json(file) for file in files.values()]


def fit(points: Sequence[Point], name: str, rule: str, records: Sequence[Record]) -> dict[str, Any]:
    """Medians along an axis, and the exponent with its standard error."""
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


def markdown(fits: Sequence[dict[str, Any]], seeds: int) -> str:
    """Exponents beside the theory's."""
    names = {"L": "L", "S": "S", "A": "A", "epsilon": "1/epsilon"}
    lines = ["| exponent of | theory | " + " | ".join(RULES) + " |", "| --- | ---: |" + " ---: |" * len(RULES)]
    for axis, name in names.items():
        own = {f["rule"]: f for f in fits if f["axis"] == axis}
        cells = [f"{own[rule]['exponent']:.2f} +- {own[rule]['standard_error']:.2f}" for rule in RULES]
        lines.append(f"| {name} | {AXES[axis].theory:g} | " + " | ".join(cells) + " |")
    base = next(p for p in fits[0]["points"] if p["x"] == Point().L)
    ratios = [
        statistics.median(
            q["steps"] / p["steps"]
            for f in fits
            for g in fits
            if f["rule"] == "adagoal" and g["rule"] == rule and f["axis"] == g["axis"]
            for p, q in zip(f["points"], g["points"], strict=True)
        )
        for rule in RULES
    ]
    lines.append("| steps, relative to AdaGoal (median) | | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    p = Point()
    note = (
        f"Lower-bound instance, goal space all states, delta = {DELTA}, medians of {seeds} seeds. Base point: "
        f"L = {p.L:g}, {p.n} decision states, A = {p.A}, epsilon = {p.epsilon:g}, where AdaGoal takes "
        f"{base['steps']:.2e} steps."
    )
    return "\n".join(lines) + f"\n\n{note}\n"


def draw(fits: Sequence[dict[str, Any]], path: Path) -> None:
    """Four panels: steps against L, S, A and 1/epsilon, with the theory's slope."""
    figure = Figure((11.5, 3.6), layout="constrained")
    for ax, (name, axis) in zip(figure.subplots(1, 4), AXES.items(), strict=True):
        for rule, colour in RULES.items():
            data = next(f for f in fits if (f["axis"], f["rule"]) == (name, rule))
            x, y = (np.array([p[key] for p in data["points"]]) for key in ("x", "steps"))
            low, high = (np.array([p[key] for p in data["points"]]) for key in ("fewest", "most"))
            label = f"{rule}: {data['exponent']:.2f}"
            ax.errorbar(x, y, [y - low, high - y], fmt="o", color=colour, markersize=4, linewidth=1, label=label)
            ax.plot(x, data["factor"] * x ** data["exponent"], color=colour, linewidth=1)
            if rule == "adagoal":
                guide = 0.5 * y[0] * (x / x[0]) ** axis.theory
                ax.plot(x, guide, color="#666666", linestyle=":", label=f"theory: {axis.theory:g}")
        ax.set(xscale="log", yscale="log", xlabel=axis.label)
        ax.set_xticks(x, [f"{value:.3g}" for value in x])
        ax.minorticks_off()
        ax.legend(frameon=False, fontsize=7, title="exponent", title_fontsize=7)
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("steps to the certified stop")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


@click.command("scaling", epilog="Example: adagoal reproduce scaling --jobs 2 --out runs/scaling")
@click.option("--full", is_flag=True, help="Wider ranges; takes several times as long.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Runs per point and rule.")
@options.FIRST_SEED
@click.option("--jobs", type=click.IntRange(1, 1024), default=2, show_default=True, help="Processes.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/scaling"), show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print the fits as JSON.")
def scaling(full: bool, seeds: int, seed: int, jobs: int, out: Path, as_json: bool) -> None:
    """Steps to the certified stop against L, S, A and 1/epsilon, beside the theory's exponents."""
    axes = {name: axis.points + (axis.more if full else ()) for name, axis in AXES.items()}
    records = run_all(axes, range(seed, seed + seeds), out / "scaling-runs", jobs)
    fits = [fit(points, name, rule, records) for name, points in axes.items() for rule in RULES]
    write_json(out / "scaling.json", {"delta": DELTA, "seeds": seeds, "fits": fits, "runs": records})
    write_text(out / "scaling.md", markdown(fits, seeds))
    draw(fits, out / "scaling.png")
    click.echo(json.dumps(fits, indent=1) if as_json else markdown(fits, seeds))
