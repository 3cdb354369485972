"""The runs of ``adagoal reproduce linear``: each a process of its own, audited on the true model, and a file.

A run that was killed or given up goes on from its checkpoint; a finished one is not run again.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from adagoal.api import explore as api
from adagoal.core.files import read_json
from adagoal.core.run import Run
from adagoal.core.types import Longs
from adagoal.experiments.pool import finish
from adagoal.mdp import solve
from adagoal.runs.saved import find
from adagoal.worlds import registry
from adagoal.worlds.model import TabularMDP

RADIUS, EPSILON, DELTA = 10.0, 1.0, 0.1
SIZES = {100: "10x10", 1_000: "25x40", 10_000: "100x100"}
"""Numbers of states, with the shapes of their grids."""
NEAR, BEYOND = 4, 10
"""Goals on a grid: every cell up to this many steps from the start, and so many one step farther; 50 in all."""

Row = dict[str, Any]


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


def goal_space(task: Task) -> Longs:
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
    if find(place) is not None:
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


def half_range(mdp: TabularMDP, goals: Longs, visits: Longs) -> float:
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
    for _, row in finish(measure, {files[task]: (task, folder, minutes) for task in missing}, jobs, fresh=True):
        if not quiet:
            click.echo(line(row))
    return [read_json(file) for file in files.values()]


def line(row: Row) -> str:
    """A run in words."""
    verdict = {True: "audit ok", False: "AUDIT FAILS", None: "not finished"}[row["audit"]]
    width = "-" if row["width"] is None else f"{row['width']:.3f}"
    return (
        f"{row['family']:>7} {row['method']:>11}  S {row['states']:>6}  d {row['d']:>2}  seed {row['seed']}  "
        f"steps {row['steps']:>11,}  {row['seconds']:>7.1f} s  {row['megabytes']:>5} MB  width {width}  {verdict}"
    )
