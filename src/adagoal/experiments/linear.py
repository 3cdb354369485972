"""What linear mixtures buy: steps to the certified stop against the number of states, and against d.

    states   S = 100, 1,000, 10,000 with d = 4, A = 4, L = 10, epsilon = 1 and the same 50 goals near the start: S is
             all that changes. On windy grids the states that S adds lie beyond reach, in trees of rooms within it.
             Tabular certified beside the linear methods.
    kernels  d = 2, 4, 8, 16 on the 10 x 10 grid, with wind regimes whose gusts grow with d, and with weather maps that
             are all alike; the exponents that fit best, and what they are made of.
    methods  all methods on one world, with the widths of their intervals at the stop; for ``vtr`` the computed number
             of samples that its constants need, and how far a short run gets.
    misfit   worlds that are no mixture: how many runs warn, and how many are wrong (misfit.py).

Every run is audited on the true model. Each is a file in ``OUT/linear-runs`` and is not run again; one that was killed
or given up goes on from its checkpoint.
"""

from __future__ import annotations

import functools
import json
import resource
import shutil
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from adagoal import api
from adagoal.envs import registry
from adagoal.experiments import misfit
from adagoal.linear.vtr import samples_needed
from adagoal.loop import Run
from adagoal.mdp import solve
from adagoal.mdp.model import TabularMDP
from adagoal.session import CHECKPOINT
from adagoal.storage import read_json, write_json, write_text

RADIUS, EPSILON, DELTA = 10.0, 1.0, 0.1
SIZES = {100: "10x10", 1_000: "25x40", 10_000: "100x100"}
"""Numbers of states, with the shapes of their grids."""
KERNELS = (2, 4, 8, 16)
NEAR, BEYOND = 4, 10
"""Goals on a grid: every cell up to this many steps from the start, and so many one step farther; 50 in all."""
LINEAR = ("likelihood", "vtr-pooled")
VTR_BUDGET = 100_000
COLOURS = {"likelihood": "#0072b2", "vtr-pooled": "#009e73", "certified": "#d55e00"}
"""Of Okabe and Ito's palette."""
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

Row = dict[str, Any]
Part = tuple[dict[str, Any], str]
Runs = Callable[[Sequence["Task"]], list[Row]]


class Task(NamedTuple):
    """One run."""

    family: str
    """The world is mixture-FAMILY."""
    states: int
    d: int
    method: str
    seed: int
    even: bool = False
    """All kernels but the first equally likely, instead of falling weights."""
    budget: int | None = None

    @property
    def name(self) -> str:
        """Of its file."""
        return "-".join(map(str, self[:5])) + ("-even" if self.even else "")

    @property
    def env_args(self) -> dict[str, Any]:
        """What the world is built from."""
        size = {"rooms": self.states} if self.family == "tree" else {"shape": SIZES[self.states]}
        theta = [0.6] + [0.4 / (self.d - 1)] * (self.d - 1)
        return size | {"d": self.d} | ({"theta": theta} if self.even else {})

    def model(self) -> TabularMDP:
        """The true one."""
        mdp = registry.make_model(f"mixture-{self.family}", self.env_args, None)
        assert mdp is not None
        return mdp


def goal_space(task: Task) -> NDArray[np.int64]:
    """50 goals near the start, the same for every S: rooms 1..50 of a tree, or cells around the middle of a grid."""
    if task.family == "tree":
        return np.arange(1, 51)
    sides = [int(side) for side in SIZES[task.states].split("x")]
    cells = np.stack(np.unravel_index(np.arange(task.states), sides), axis=1)
    offset = cells - np.array(sides) // 2
    distance = np.abs(offset).sum(axis=1)
    inner = np.flatnonzero((distance > 0) & (distance <= NEAR))
    ring = np.flatnonzero((distance == NEAR + 1) & (offset.max(axis=1) <= NEAR))  # those that fit into every grid
    return np.sort(np.concatenate([inner, np.random.default_rng(0).choice(ring, BEYOND, replace=False)]))


def measure(task: Task, folder: Path, minutes: float) -> Row:
    """One run to its stop, or until it has taken its minutes, and its audit."""

    def watch(run: Run) -> None:
        if run.seconds > 60 * minutes:
            raise KeyboardInterrupt

    place = folder / task.name
    if (place / CHECKPOINT).exists():
        result = api.resume(place, observe=watch)
    else:
        result = api.explore(
            *(f"mixture-{task.family}", RADIUS, EPSILON, DELTA),
            method=task.method,
            seed=task.seed,
            goal_space=goal_space(task).tolist(),
            env_args=task.env_args,
            budget=task.budget,
            out=place,
            observe=watch,
        )
    finished = result.status == "certified"
    mdp = task.model()
    widths = [result.certificates[g].upper - result.certificates[g].lower for g in result.goals] if finished else []
    row = {
        **task._asdict(),
        "status": result.status,
        "steps": result.steps,
        "seconds": round(result.wall_seconds, 2),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "plans": result.plans,
        "goals": len(result.goals),
        "audit": api.audit(result, mdp).ok if finished else None,
        "width": float(np.mean(widths)) if widths else None,
        "error": max(result.errors.values(), default=0.0),
        "farthest": float(np.max(solve.distances(mdp, goal_space(task).tolist()))),
        "warnings": result.warnings,
    }
    if "theta" in result.arrays:
        row["radius"] = float(result.arrays["theta_radius"][0])
        row["half_range"] = half_range(mdp, goal_space(task), result.arrays["visits"])
    if finished:
        shutil.rmtree(place)
    return row


def half_range(mdp: TabularMDP, goals: NDArray[np.int64], visits: NDArray[np.int64]) -> float:
    """Half the range of V*_g over the possible successors, root mean square over goals and pairs by their visits.

    What ``vtr-pooled`` takes for the standard deviation of the noise.
    """
    m = mdp.mixture
    assert m is not None
    V = np.minimum(solve.optimal_values(mdp, goals.tolist())[m.successors], RADIUS)
    most, least = (f.reduceat(V, m.indptr[:-1], axis=0) for f in (np.maximum, np.minimum))
    weights = np.repeat(visits, m.n_actions)
    return float(np.sqrt(np.average(((most - least) ** 2).mean(axis=1) / 4, weights=weights)))


def run_all(tasks: Sequence[Task], folder: Path, jobs: int, minutes: float, quiet: bool) -> list[Row]:
    """Every run is a process of its own, so that its memory is its own, and a file that is not made again."""

    def over(row: Row) -> bool:
        return bool(row["status"] != "interrupted" or row["seconds"] >= 60 * minutes)

    files = {task: folder / f"{task.name}.json" for task in tasks}
    missing = [task for task, file in files.items() if not (file.exists() and over(read_json(file)))]
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(measure, task, folder, minutes): task for task in missing}
        try:
            for future in as_completed(futures):
                write_json(files[futures[future]], future.result())
                if not quiet:
                    click.echo(line(future.result()))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [read_json(file) for file in files.values()]


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """b of the best fit  y ~ x^b."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def middle(rows: Iterable[Row], key: str = "steps") -> float:
    """The median of a column over the seeds."""
    return float(statistics.median(row[key] for row in rows))


# --- states ---------------------------------------------------------------------------------------------------------


def states_tasks(seeds: range) -> list[Task]:
    """The linear methods first. Tabular certified takes one seed where S is largest."""
    families = ("windy", "tree")
    few = {size: seeds if size < max(SIZES) else seeds[:1] for size in SIZES}
    return [Task(family, S, 4, m, s) for family in families for S in SIZES for m in LINEAR for s in seeds] + [
        Task(family, S, 4, "certified", s) for S in SIZES for family in families for s in few[S]
    ]


def states_table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| world | method | " + " | ".join(f"S = {S:,}" for S in SIZES) + " |", "|---|---|" + "---|" * len(SIZES)]
    for family in ("windy", "tree"):
        for method in COLOURS:
            cells = []
            for S in SIZES:
                own = [r for r in rows if (r["family"], r["method"], r["states"]) == (family, method, S)]
                done = [r for r in own if r["status"] == "certified"]
                passed = sum(r["audit"] for r in done)
                spread = (
                    f" [{min(r['steps'] for r in own):,}, {max(r['steps'] for r in own):,}]" if len(own) > 1 else ""
                )
                text = f"{'' if len(done) == len(own) else '> '}{middle(own):,.0f}{spread}"
                text += f"; audits {passed}/{len(done)}" if done else "; given up"
                cells.append(f"{text}; {middle(own, 'seconds'):.0f} s, {max(r['megabytes'] for r in own):,} MB")
            lines.append(f"| {family} | `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def states_figure(rows: list[Row], path: Path) -> None:
    """Two panels, one per family."""
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
    save(figure, path)


def curves(ax: Axes, rows: list[Row], over: str) -> None:
    """Medians and ranges; hollow triangles where a run was given up before its stop."""
    for method, colour in COLOURS.items():
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


def save(figure: Figure, path: Path) -> None:
    """As a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


# --- kernels --------------------------------------------------------------------------------------------------------


def kernels_tasks(seeds: range) -> list[Task]:
    """Both families, on the smallest grid."""
    S = min(SIZES)
    return [
        Task(family, S, d, m, s, True)
        for family in ("windy", "weather")
        for d in KERNELS
        for m in LINEAR
        for s in seeds
    ]


def kernels_fits(rows: list[Row]) -> list[dict[str, Any]]:
    """Per family and method: medians, exponents in d and in d - 1, and the parts of the steps (docs/linear.md)."""
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
    """Markdown: the steps with their exponents, and what they are made of."""
    lines = ["| world | method | " + " | ".join(f"d = {d}" for d in KERNELS) + " | exponent of d | of d − 1 |"]
    lines.append("|---|---|" + "---|" * (len(KERNELS) + 2))
    for f in fits:
        steps = " | ".join(f"{p['steps']:,.0f}" for p in f["points"])
        fit = f"{f['exponent']:.1f} | {f['exponent_in_d_minus_1']:.1f}"
        lines.append(f"| {f['family']} | `{f['method']}` | {steps} | {fit} |")
    lines += ["", "| world | method | part | " + " | ".join(f"d = {d}" for d in KERNELS) + " |"]
    lines.append("|---|---|---|" + "---|" * len(KERNELS))
    for f in fits:
        for key, words in PARTS_OF_THE_STEPS.items():
            if key == "half_range" and f["method"] == "likelihood":
                continue  # it has no part in the likelihood
            lines.append(
                f"| {f['family']} | `{f['method']}` | {words} | "
                + " | ".join(f"{p[key]:.3g}" for p in f["points"])
                + " |"
            )
    return "\n".join(lines) + "\n"


def kernels_figure(rows: list[Row], fits: list[dict[str, Any]], path: Path) -> None:
    """Two panels, one per family, with the slope 2."""
    figure = Figure((9.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, family in zip(axes, ("windy", "weather"), strict=True):
        curves(ax, [row for row in rows if row["family"] == family], "d")
        for f in fits:
            if f["family"] == family:
                last = f["points"][-1]
                text = f"$d^{{{f['exponent']:.1f}}}$, $(d-1)^{{{f['exponent_in_d_minus_1']:.1f}}}$"
                at = {"textcoords": "offset points", "xytext": (-4, 7), "ha": "right", "fontsize": 8}
                ax.annotate(text, (last["d"], last["steps"]), color=COLOURS[f["method"]], **at)
        guide = 500 * (np.array(KERNELS, float) / KERNELS[0]) ** 2
        ax.plot(KERNELS, guide, ":", color="#666666", label="slope 2")
        ax.set(xlabel="number of kernels d", title=TITLES[family])
        ax.title.set_fontsize(9)
        ax.set_xticks(KERNELS, [str(d) for d in KERNELS])
        ax.minorticks_off()
    axes[0].set_ylabel("steps to the certified stop")
    axes[0].legend(frameon=False, fontsize=8)
    save(figure, path)


# --- methods --------------------------------------------------------------------------------------------------------


def methods_tasks(seeds: range) -> list[Task]:
    """The runs of the smallest grid, and a short one of ``vtr``."""
    own = [Task("windy", min(SIZES), 4, m, s) for m in COLOURS for s in seeds]
    return [*own, Task("windy", min(SIZES), 4, "vtr", seeds[0], budget=VTR_BUDGET)]


def methods_table(rows: list[Row], need: float) -> str:
    """Markdown."""
    lines = ["| method | samples | seconds | mean width upper − lower at the stop | runs | audits passed |"]
    lines.append("|---|---|---|---|---|---|")
    for method in COLOURS:
        own = [row for row in rows if row["method"] == method]
        done = [row for row in own if row["status"] == "certified"]
        width = f"{middle(done, 'width'):.2f}" if done else "–"
        steps, more = middle(own), "" if len(done) == len(own) else "> "
        verdict = f"{len(done)}/{len(own)} stopped | {sum(row['audit'] for row in done)}/{len(done)}"
        lines.append(f"| `{method}` | {more}{steps:,.0f} | {middle(own, 'seconds'):.1f} | {width} | {verdict} |")
    short = next(row for row in rows if row["method"] == "vtr")
    lines.append(f"| `vtr` | {need:.2g} (computed) | – | – | – | – |")
    note = f"`vtr` after {short['steps']:,} steps, {short['seconds']:.0f} s: largest error bound {short['error']:.1f}."
    return "\n".join([*lines, "", note]) + "\n"


# --- the parts: their data, and a table in Markdown -------------------------------------------------------------------


def states_part(seeds: range, runs: Runs, out: Path) -> Part:
    """Steps against S."""
    rows = runs(states_tasks(seeds))
    states_figure(rows, out / "linear-states.png")
    return {"rows": rows}, states_table(rows)


def kernels_part(seeds: range, runs: Runs, out: Path) -> Part:
    """Steps against d."""
    rows = runs(kernels_tasks(seeds))
    fits = kernels_fits(rows)
    kernels_figure(rows, fits, out / "linear-kernels.png")
    return {"rows": rows, "fits": fits}, kernels_table(fits)


def methods_part(seeds: range, runs: Runs, out: Path) -> Part:
    """All methods on one world."""
    task = Task("windy", min(SIZES), 4, "vtr", 0)
    rows = runs(methods_tasks(seeds))
    need = samples_needed(task.model(), goal_space(task), RADIUS, EPSILON, DELTA)
    return {"rows": rows, "vtr_samples_needed": need}, methods_table(rows, need)


def misfit_part(seeds: range, runs: Runs, out: Path) -> Part:
    """Worlds that are no mixture."""
    task = Task("windy", min(SIZES), 4, "likelihood", 0)
    setting = misfit.Setting(task.model(), goal_space(task).tolist(), RADIUS, EPSILON, DELTA)
    rows = misfit.run_all(out / "linear-runs", 4 * len(seeds), setting)
    return {"rows": rows}, misfit.table(rows)


PARTS = {"states": states_part, "kernels": kernels_part, "methods": methods_part, "misfit": misfit_part}


@click.command(
    "linear",
    help="Linear mixtures: steps to the certified stop against the number of states and of kernels.",
    epilog="Example: adagoal reproduce linear --part states --seeds 5 --out runs/linear",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Runs per point.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Give a run up after so many; with more of them it goes on later.",
)
@click.option(
    "--part",
    type=click.Choice([*PARTS, "all"]),
    default="all",
    show_default=True,
    help="Which.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/linear"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON.")
def linear(seeds: int, seed: int, jobs: int, minutes: float, part: str, out: Path, as_json: bool) -> None:
    found: dict[str, Any] = {}
    for name in PARTS if part == "all" else [part]:
        runs = functools.partial(run_all, folder=out / "linear-runs", jobs=jobs, minutes=minutes, quiet=as_json)
        data, table = PARTS[name](range(seed, seed + seeds), runs, out)
        found[name] = {"radius": RADIUS, "epsilon": EPSILON, "delta": DELTA, **data}
        write_json(out / f"linear-{name}.json", found[name])
        write_text(out / f"linear-{name}.md", table)
        if not as_json:
            click.echo(table)
    if as_json:
        click.echo(json.dumps(found, indent=1))


def line(row: Row) -> str:
    """A run in words."""
    verdict = {True: "audit ok", False: "AUDIT FAILS", None: "not finished"}[row["audit"]]
    width = "-" if row["width"] is None else f"{row['width']:.3f}"
    return (
        f"{row['family']:>7} {row['method']:>11}  S {row['states']:>6}  d {row['d']:>2}  seed {row['seed']}  "
        f"steps {row['steps']:>11,}  {row['seconds']:>7.1f} s  {row['megabytes']:>5} MB  width {width}  {verdict}"
    )
