"""Tables and figures of ``python -m experiments linear``, from its outcomes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adagoal.comparison.method_scores import RunOutcome, TextTable
from adagoal.report.figures import COLOUR_BLIND_PALETTE, GUIDE_COLOUR
from adagoal.report.html_page import CurvePlot, curves_by_seed
from experiments import misfit
from experiments.experiment import ExperimentOptions, ExperimentReport
from experiments.linear_runs import DELTA, EPSILON, RADIUS, SIZES, Cell, goal_space
from experiments.required_samples import for_vtr

KERNELS = (2, 4, 8, 16)
LINEAR = ("likelihood", "vtr-pooled")
METHODS = {
    "likelihood": COLOUR_BLIND_PALETTE[0],
    "vtr-pooled": COLOUR_BLIND_PALETTE[2],
    "certified": COLOUR_BLIND_PALETTE[1],
}
"""Methods and their colours."""
PARTS_OF_THE_STEPS = {
    "radius": "squared radius r²",
    "half_range": "half range h",
    "steps_over_law": "steps / ((d − 1) r² h²)",
}
TITLES = {
    "windy": "gusts grow with d (mixture-windy)",
    "weather": "all winds alike (mixture-weather)",
    "grid": "windy grids: S grows beyond reach",
    "tree": "trees of rooms: S grows within reach",
}


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return b of the best fit  y ~ x^b."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def middle(rows: Iterable[RunOutcome], key: str = "steps") -> float:
    """Return the median of a column over the seeds."""
    return float(statistics.median(row[key] for row in rows))


def states_table(rows: Sequence[RunOutcome]) -> str:
    """Return the table in Markdown."""
    lines = []
    for family in ("windy", "tree"):
        for method in METHODS:
            own = [[r for r in rows if (r["family"], r["method"], r["states"]) == (family, method, S)] for S in SIZES]
            lines.append([family, f"`{method}`", *map(_point, own)])
    return TextTable(["world", "method", *(f"S = {S:,}" for S in SIZES)], lines, n_left_columns=2).to_markdown()


def _point(own: Sequence[RunOutcome]) -> str:
    """Return steps with their range, audits, seconds and memory as text."""
    done = [r for r in own if r["status"] == "certified"]
    steps = [r["steps"] for r in own]
    spread = f" [{min(steps):,}, {max(steps):,}]" if len(own) > 1 else ""
    text = f"{'' if len(done) == len(own) else '> '}{middle(own):,.0f}{spread}"
    text += f"; audits {sum(r['audit'] for r in done)}/{len(done)}" if done else "; given up"
    return f"{text}; {middle(own, 'seconds'):.0f} s, {max(r['megabytes'] or 0 for r in own):,} MB"


def states_figure(rows: Sequence[RunOutcome]) -> Figure:
    """Draw two panels, one per family."""
    figure = Figure((9.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (family, title) in zip(axes, (("windy", "grid"), ("tree", "tree")), strict=True):
        curves(ax, [row for row in rows if row["family"] == family], "states")
        ax.set(xlabel="number of states S", title=TITLES[title])
        ax.title.set_fontsize(9)
    axes[0].set_ylabel("steps to the certified stop")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    figure.suptitle("d = 4, A = 4, L = 10, ε = 1, the same 50 goals near the start", fontsize=9)
    return figure


def curves(ax: Axes, rows: Sequence[RunOutcome], over: str) -> None:
    """Draw medians and ranges, and a hollow triangle for each run that ran out of time."""
    for method, colour in METHODS.items():
        own = [row for row in rows if row["method"] == method]
        done = [row for row in own if row["status"] == "certified"]
        xs = sorted({row[over] for row in done})
        steps = [[row["steps"] for row in done if row[over] == x] for x in xs]
        if xs:
            ax.fill_between(xs, [min(s) for s in steps], [max(s) for s in steps], color=colour, alpha=0.2, linewidth=0)
            ax.plot(xs, [statistics.median(s) for s in steps], "o-", color=colour, markersize=4, label=method)
        short = [(row[over], row["steps"]) for row in own if row["status"] != "certified"]
        if short:
            ax.plot(
                *zip(*short, strict=True), "^", color=colour, fillstyle="none", label=f"{method}, given up: needs more"
            )
    ax.set(xscale="log", yscale="log")
    ax.grid(alpha=0.3)


def line_panels(rows: Sequence[RunOutcome], titles: Mapping[str, str], over: str, label: str) -> list[CurvePlot]:
    """Return the same curves for the page, one plot per family, without runs that ran out of time."""
    found = []
    for family, title in titles.items():
        done = [row for row in rows if (row["family"], row["status"]) == (family, "certified")]
        points = {m: [(row["seed"], row[over], row["steps"]) for row in done if row["method"] == m] for m in METHODS}
        lines = [line for method in METHODS for line in curves_by_seed(method, points[method])]
        found.append(CurvePlot(TITLES[title], label, "steps to the certified stop", lines))
    return found


def kernels_fits(rows: Sequence[RunOutcome]) -> list[dict[str, Any]]:
    """Return medians, exponents in d and d - 1, and factors of the steps, by family and method."""
    fits = []
    for family in ("windy", "weather"):
        for method in LINEAR:
            own = [[r for r in rows if (r["family"], r["method"], r["d"]) == (family, method, d)] for d in KERNELS]
            points = []
            for d, runs in zip(KERNELS, own, strict=True):
                parts = {key: middle(runs, key) for key in ("steps", "radius", "half_range", "farthest")}
                law = (d - 1) * parts["radius"] * (parts["half_range"] ** 2 if method == "vtr-pooled" else 1.0)
                points.append({"d": d, **parts, "law": law, "steps_over_law": parts["steps"] / law})
            steps = [p["steps"] for p in points]
            fit = {"family": family, "method": method, "points": points, "exponent": exponent(KERNELS, steps)}
            fit["exponent_in_d_minus_1"] = exponent([d - 1 for d in KERNELS], steps)
            fit["exponent_of_law"] = exponent(KERNELS, [p["law"] for p in points])
            fits.append(fit)
    return fits


def kernels_table(fits: list[dict[str, Any]]) -> str:
    """Return two Markdown tables: the steps with their exponents, and the factors of the steps."""
    over = [f"d = {d}" for d in KERNELS]
    steps, parts = [], []
    for f in fits:
        name = [f["family"], f"`{f['method']}`"]
        exponents = f"{f['exponent']:.1f}", f"{f['exponent_in_d_minus_1']:.1f}"
        steps.append([*name, *(f"{p['steps']:,.0f}" for p in f["points"]), *exponents])
        for key, words in PARTS_OF_THE_STEPS.items():
            if key != "half_range" or f["method"] != "likelihood":  # it has no part in the likelihood
                parts.append([*name, words, *(f"{p[key]:.3g}" for p in f["points"])])
    first = TextTable(["world", "method", *over, "exponent of d", "of d − 1"], steps, n_left_columns=2)
    return (
        f"{first.to_markdown()}\n{TextTable(['world', 'method', 'part', *over], parts, n_left_columns=3).to_markdown()}"
    )


def kernels_figure(rows: Sequence[RunOutcome], fits: list[dict[str, Any]]) -> Figure:
    """Draw two panels, one per family, with the slope 2."""
    figure = Figure((9.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, family in zip(axes, ("windy", "weather"), strict=True):
        curves(ax, [row for row in rows if row["family"] == family], "d")
        for f in fits:
            if f["family"] == family:
                last = f["points"][-1]
                text = f"$d^{{{f['exponent']:.1f}}}$, $(d-1)^{{{f['exponent_in_d_minus_1']:.1f}}}$"
                at = {"textcoords": "offset points", "xytext": (-4, 7), "ha": "right", "fontsize": 8}
                ax.annotate(text, (last["d"], last["steps"]), color=METHODS[f["method"]], **at)
        guide = 500 * (np.array(KERNELS, float) / KERNELS[0]) ** 2
        ax.plot(KERNELS, guide, ":", color=GUIDE_COLOUR, label="slope 2")
        ax.set(xlabel="number of kernels d", title=TITLES[family])
        ax.title.set_fontsize(9)
        ax.set_xticks(KERNELS, [str(d) for d in KERNELS])
        ax.minorticks_off()
    axes[0].set_ylabel("steps to the certified stop")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def methods_table(rows: Sequence[RunOutcome], need: float) -> str:
    """Return the table in Markdown."""
    lines = []
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        done = [row for row in own if row["status"] == "certified"]
        samples = f"{'' if len(done) == len(own) else '> '}{middle(own):,.0f}"
        width = f"{middle(done, 'width'):.2f}" if done else "–"
        verdict = f"{len(done)}/{len(own)} stopped", f"{sum(row['audit'] for row in done)}/{len(done)}"
        lines.append([f"`{method}`", samples, f"{middle(own, 'seconds'):.1f}", width, *verdict])
    lines.append(["`vtr`", f"{need:.2g} (computed)", *"––––"])
    head = ["method", "samples", "seconds", "mean width upper − lower at the stop", "runs", "audits passed"]
    short = next(row for row in rows if row["method"] == "vtr")
    bound = "no error bound yet" if short["error"] is None else f"largest error bound {short['error']:.1f}"
    note = f"`vtr` after {short['steps']:,} steps, {short['seconds']:.0f} s: {bound}."
    return f"{TextTable(head, lines).to_markdown()}\n{note}\n"


def states(rows: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the report of steps against S."""
    panels = line_panels(rows, {"windy": "grid", "tree": "tree"}, "states", "number of states S")
    return _report({"rows": rows}, states_table(rows), {"linear-states.png": states_figure(rows)}, panels)


def kernels(rows: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the report of steps against d."""
    fits = kernels_fits(rows)
    figures = {"linear-kernels.png": kernels_figure(rows, fits)}
    panels = line_panels(rows, {"windy": "windy", "weather": "weather"}, "d", "number of kernels d")
    return _report({"rows": rows, "fits": fits}, kernels_table(fits), figures, panels)


def methods(rows: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the report of all methods in one environment."""
    cell = Cell("windy", min(SIZES), 4, "vtr", 0)
    need = for_vtr(cell.model(), goal_space(cell), RADIUS, EPSILON, DELTA)
    return _report({"rows": rows, "vtr_samples_needed": need}, methods_table(rows, need))


def misfits(rows: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the report of environments that are no mixture."""
    return _report({"rows": rows}, misfit.table(rows))


def _report(
    found: dict[str, Any], text: str, figures: dict[str, Figure] | None = None, panels: Sequence[CurvePlot] = ()
) -> ExperimentReport:
    data = {"radius": RADIUS, "epsilon": EPSILON, "delta": DELTA, **found}
    return ExperimentReport(data, text, data, figures or {}, plots=panels)
