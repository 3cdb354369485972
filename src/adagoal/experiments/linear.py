"""What linear mixtures buy: steps to the certified stop against the number of states, and against d.

    states   windy boxes of 10^n cells, n = 2, 3, 4, the start in the middle; d = 4, L = 10, epsilon = 1, and 50 goals
             at the same distances from the start in each of them. Tabular certified beside the linear methods, up to a
             budget of steps and seconds.
    kernels  the 10 x 10 box with d = 2, 4, 8, 16 wind regimes, and the exponent of d that fits best.
    methods  all methods on one small world, with the widths of their intervals at the stop; for ``vtr`` the computed
             number of samples that its constants need.

Every run is audited on the true model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from adagoal import goals as goal_rules
from adagoal.envs.simulator import ModelWorld
from adagoal.linear import families
from adagoal.linear.vtr import samples_needed
from adagoal.loop import Run, explore
from adagoal.mdp import solve
from adagoal.mdp.audit import audit_policies
from adagoal.mdp.model import TabularMDP
from adagoal.methods import Problem, build
from adagoal.policy import Policy
from adagoal.storage import write_json
from adagoal.tabular.counts import Counts

RADIUS, EPSILON, DELTA = 10.0, 1.0, 0.1
SHAPES = ("10x10", "10x10x10", "10x10x10x10")
KERNELS = (2, 4, 8, 16)
PROFILE = (4, 8, 12, 16, 10)
"""Goals at distance 1, 2, 3, ... from the start: 50 in all."""
LINEAR = ("likelihood", "vtr-pooled")
MOST_STEPS, MOST_SECONDS = 10**8, {"certified": 90.0}
"""When runs are given up; the seconds for the tabular method only."""
COLOURS = {"likelihood": "#2166ac", "vtr-pooled": "#1b7837", "certified": "#b35806"}


class Task(NamedTuple):
    """One run."""

    shape: str
    d: int
    method: str
    seed: int
    even: bool = False
    """All winds equally likely, instead of falling weights."""


def world(task: Task) -> TabularMDP:
    """The true model."""
    theta = [0.6] + [0.4 / (task.d - 1)] * (task.d - 1) if task.even else None
    return families.windy(shape=task.shape, d=task.d, theta=theta)


def goal_space(shape: str) -> NDArray[np.int64]:
    """50 goals, as many at each distance from the start in every world."""
    sides = [int(side) for side in shape.split("x")]
    cells = np.stack(np.unravel_index(np.arange(math.prod(sides)), sides), axis=1)
    distance = np.abs(cells - np.array(sides) // 2).sum(axis=1)
    rng = np.random.default_rng(0)
    rings = [rng.choice(np.flatnonzero(distance == k + 1), size, replace=False) for k, size in enumerate(PROFILE)]
    return np.sort(np.concatenate(rings))


def measure(task: Task) -> dict[str, Any]:
    """One run to its stop, or to the end of the budget, and its audit."""
    mdp, goals = world(task), goal_space(task.shape)
    run_world = ModelWorld(mdp)
    counts = Counts(run_world.initial_states, run_world.n_actions, run_world.start)
    estimates = build(task.method, Problem(run_world, counts, RADIUS, EPSILON, DELTA, goals), {})
    run = Run(run_world, estimates, goal_rules.adagoal, np.random.default_rng(task.seed))
    status, budget = "budget", 10**4
    while status == "budget" and run.steps < MOST_STEPS and run.seconds < MOST_SECONDS.get(task.method, math.inf):
        status, budget = explore(run, budget), math.ceil(1.2 * budget)
    chosen = [int(g) for g in goals if estimates.D[estimates.column[g]] <= RADIUS]
    bounds = {g: estimates.bounds(g) for g in chosen}
    audit = audit_policies(
        *(mdp, chosen, {g: Policy(g, estimates.policy(g), mdp.reset_action) for g in chosen}, RADIUS, EPSILON),
        goal_space=goals.tolist(),
        lower={g: low for g, (low, _) in bounds.items()},
        upper={g: up for g, (_, up) in bounds.items()},
    )
    finished = status == "certified"
    return {
        **task._asdict(),
        "states": mdp.n_states,
        "status": status,
        "steps": run.steps,
        "seconds": run.seconds,
        "plans": estimates.plans,
        "goals": len(chosen),
        "audit": audit.ok if finished else None,
        "width": float(np.mean([up - low for low, up in bounds.values()])) if finished and bounds else None,
        "farthest": float(np.max(solve.distances(mdp, goals.tolist()))),
        "warnings": run_world.warnings,
    }


def measurements(tasks: list[Task], jobs: int) -> Iterator[dict[str, Any]]:
    """All runs, in order."""
    if jobs == 1:
        yield from map(measure, tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(measure, tasks)


def exponent(rows: list[dict[str, Any]]) -> float:
    """b of the best fit  steps ~ d^b."""
    return float(np.polyfit(np.log([row["d"] for row in rows]), np.log([row["steps"] for row in rows]), 1)[0])


def draw(rows: list[dict[str, Any]], over: str, label: str, path: Path) -> None:
    """Median steps (and range) to the stop over ``over``; hollow triangles where runs were given up before it."""
    figure = Figure((5.6, 3.8), layout="constrained")
    ax = figure.subplots()
    for method, colour in COLOURS.items():
        own = [row for row in rows if row["method"] == method]
        finished = [row for row in own if row["status"] == "certified"]
        xs = sorted({row[over] for row in finished})
        steps = [[row["steps"] for row in finished if row[over] == x] for x in xs]
        if xs:
            ax.fill_between(xs, [min(s) for s in steps], [max(s) for s in steps], color=colour, alpha=0.2, linewidth=0)
            ax.plot(xs, [float(np.median(s)) for s in steps], "o-", color=colour, markersize=4, label=method)
        given_up = [row for row in own if row["status"] != "certified"]
        if given_up:
            places = [row[over] for row in given_up], [row["steps"] for row in given_up]
            ax.plot(*places, "^", color=colour, fillstyle="none", label=f"{method}, given up")
    ax.set(xscale="log", yscale="log", xlabel=label, ylabel="steps to the certified stop")
    ax.legend(frameon=False, fontsize=8)
    ax.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


@click.command(
    "linear",
    help="Linear mixtures: steps to the certified stop against the number of states and of kernels.",
    epilog="Example: adagoal reproduce linear --seeds 5 --out docs/figures",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Runs per point.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes.")
@click.option(
    "--part",
    type=click.Choice(["states", "kernels", "methods", "all"]),
    default="all",
    show_default=True,
    help="Which.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/linear"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def linear(seeds: int, seed: int, jobs: int, part: str, out: Path, as_json: bool) -> None:
    every = range(seed, seed + seeds)
    tasks = {
        "states": [Task(shape, 4, m, s) for shape in SHAPES for m in LINEAR for s in every]
        + [Task(shape, 4, "certified", s) for shape in SHAPES for s in every[:2]],
        "kernels": [Task("10x10", d, m, s, even=True) for d in KERNELS for m in LINEAR for s in every],
        "methods": [Task("10x10", 4, m, s) for m in (*LINEAR, "certified") for s in every],
    }
    found: dict[str, Any] = {}
    for name in tasks if part == "all" else [part]:
        rows: list[dict[str, Any]] = []
        found[name] = {"radius": RADIUS, "epsilon": EPSILON, "delta": DELTA, "rows": rows}
        for row in measurements(tasks[name], jobs):
            rows.append(row)
            write_json(out / f"linear-{name}.json", found[name])
            if not as_json:
                click.echo(line(row))
        if name == "kernels":
            found[name]["exponents"] = {m: exponent([row for row in rows if row["method"] == m]) for m in LINEAR}
            draw(rows, "d", "number of kernels d", out / "linear-kernels.png")
        if name == "states":
            draw(rows, "states", "number of states S (d = 4, L = 10, 50 goals)", out / "linear-states.png")
        if name == "methods":
            need = samples_needed(world(tasks[name][0]), goal_space("10x10"), RADIUS, EPSILON, DELTA)
            found[name]["vtr_samples_needed"] = need
            if not as_json:
                click.echo(f"vtr would need {need:.3g} samples: its stop is not reached in practice")
        write_json(out / f"linear-{name}.json", found[name])
    if as_json:
        click.echo(json.dumps(found, indent=1))


def line(row: dict[str, Any]) -> str:
    """A run in words."""
    verdict = {True: "audit ok", False: "AUDIT FAILS", None: "not finished"}[row["audit"]]
    width = "-" if row["width"] is None else f"{row['width']:.3f}"
    return (
        f"{row['method']:>11}  S {row['states']:>6}  d {row['d']:>2}  seed {row['seed']}  steps {row['steps']:>11,}  "
        f"{row['seconds']:>7.1f} s  width {width}  {verdict}"
    )
