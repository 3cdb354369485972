"""The runs of ``python -m experiments linear``, audited on the true model.

One that was killed or given up goes on from its checkpoint.
"""

from __future__ import annotations

import resource
import shutil
from typing import Any, NamedTuple

import numpy as np

from adagoal.api.explore import audit, explore, resume
from adagoal.comparison.method_comparison import run_uninterrupted
from adagoal.comparison.method_scores import RunOutcome
from adagoal.core.array_types import Longs
from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.run_settings import ExplorationSettings
from adagoal.envs.model import TabularMDP
from adagoal.exact import solver
from adagoal.runs.run_folder import find_saved_run
from experiments import exact_policies
from experiments.experiment import ExperimentOptions
from experiments.extra_models import make_known_model

FOLDER = "linear-runs"
RADIUS, EPSILON, DELTA = 10.0, 1.0, 0.1
SIZES = {100: "10x10", 1_000: "25x40", 10_000: "100x100"}
"""Numbers of states and shapes of their grids."""
NEAR, BEYOND = 4, 10
"""Goals on a grid: every cell up to this many steps from the start, and so many one step farther; 50 in all."""


class Cell(NamedTuple):
    """One run."""

    family: str
    """The environment is mixture-FAMILY."""
    states: int
    d: int
    method: str
    seed: int
    even: bool = False
    """Give all kernels but the first the same weight, instead of falling weights."""
    budget: int | None = None

    @property
    def name(self) -> str:
        """Name of its file."""
        return "-".join(map(str, self[:5])) + ("-even" if self.even else "")

    @property
    def env_args(self) -> dict[str, Any]:
        """Arguments of the environment."""
        size = {"rooms": self.states} if self.family == "tree" else {"shape": SIZES[self.states]}
        theta = [0.6] + [0.4 / (self.d - 1)] * (self.d - 1)
        return size | {"d": self.d} | ({"theta": theta} if self.even else {})

    def model(self) -> TabularMDP:
        """Return the true model."""
        return make_known_model(ExplorationSettings(f"mixture-{self.family}", self.env_args))


def goal_space(cell: Cell) -> Longs:
    """Return 50 goals near the start, the same for every S: rooms 1..50 of a tree, or cells around the middle."""
    if cell.family == "tree":
        return np.arange(1, 51)
    sides = [int(side) for side in SIZES[cell.states].split("x")]
    cells = np.stack(np.unravel_index(np.arange(cell.states), sides), axis=1)
    offset = cells - np.array(sides) // 2
    distance = np.abs(offset).sum(axis=1)
    inner = np.flatnonzero((distance > 0) & (distance <= NEAR))
    ring = np.flatnonzero((distance == NEAR + 1) & (offset.max(axis=1) <= NEAR))  # those that fit into every grid
    return np.sort(np.concatenate([inner, np.random.default_rng(0).choice(ring, BEYOND, replace=False)]))


def measure(cell: Cell, options: ExperimentOptions) -> dict[str, Any]:
    """Run until the method stops or the time is over, and audit the result."""

    def in_time(run: ExplorationRun) -> bool:
        return bool(run.seconds <= 60 * options.minutes)

    place = options.out / FOLDER / cell.name
    if find_saved_run(place) is not None:
        result = run_uninterrupted(resume, place, observe=in_time)
    else:
        result = run_uninterrupted(
            explore,
            *(f"mixture-{cell.family}", RADIUS, EPSILON, DELTA),
            method=cell.method,
            seed=cell.seed,
            goals=goal_space(cell).tolist(),
            env_args=cell.env_args,
            budget=cell.budget,
            out=place,
            observe=in_time,
        )
    finished = result.status is Status.CERTIFIED
    mdp = cell.model()
    widths = [result.certificates[g].upper - result.certificates[g].lower for g in result.goals] if finished else []
    error = max(result.errors.values(), default=0.0)
    row = {
        **cell._asdict(),
        "status": result.status,
        "steps": result.steps,
        "seconds": round(result.wall_seconds, 2),
        "megabytes": _megabytes(),
        "plans": result.plans,
        "goals": len(result.goals),
        "audit": audit(result, mdp).ok if finished else None,
        "width": float(np.mean(widths)) if widths else None,
        "error": error if np.isfinite(error) else None,
        "farthest": float(np.max(solver.optimal_distances(mdp, goal_space(cell).tolist()))),
        "warnings": result.warnings,
    }
    if "theta" in result.arrays:
        row["radius"] = float(result.arrays["theta_radius"][0])
        row["half_range"] = half_range(mdp, goal_space(cell), result.arrays["visits"])
    if finished:
        shutil.rmtree(place)
    return row


def _megabytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def half_range(mdp: TabularMDP, goals: Longs, visits: Longs) -> float:
    """Return half the range of V*_g over possible successors, as root mean square over goals and visited pairs.

    What ``vtr-pooled`` takes for the standard deviation of the noise.
    """
    m = mdp.mixture
    assert m is not None
    V = np.minimum(exact_policies.optimal_values(mdp, goals.tolist())[m.successors], RADIUS)
    most, least = (f.reduceat(V, m.indptr[:-1], axis=0) for f in (np.maximum, np.minimum))
    weights = np.repeat(visits, m.n_actions)
    return float(np.sqrt(np.average(((most - least) ** 2).mean(axis=1) / 4, weights=weights)))


def over(cell: Cell, outcome: RunOutcome, options: ExperimentOptions) -> bool:
    """Return False for a run that ran out of time, if it may take longer now."""
    return bool(outcome["status"] != Status.INTERRUPTED or outcome["seconds"] >= 60 * options.minutes)


def line(row: RunOutcome) -> str:
    """Return the outcome of a run in words."""
    verdict = {True: "audit ok", False: "AUDIT FAILS", None: "not finished"}[row["audit"]]
    width = "-" if row["width"] is None else f"{row['width']:.3f}"
    return (
        f"{row['family']:>7} {row['method']:>11}  S {row['states']:>6}  d {row['d']:>2}  seed {row['seed']}  "
        f"steps {row['steps']:>11,}  {row['seconds']:>7.1f} s  "
        f"{row['megabytes'] or '-':>5} MB  width {width}  {verdict}"
    )
