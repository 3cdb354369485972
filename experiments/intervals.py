"""What the certified bounds buy: steps to the certified stop, beside those with the bounds of model checkers.

Four methods in the same loop, with the same goal rule, the same stopping rule and the same guarantee at the same delta
and epsilon; only the statistics differ (:mod:`adagoal.baselines.interval_mdp`). Every world twice: nothing is known
beforehand, or all methods know how many successors a pair has at most, as model checkers often assume.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from adagoal.api.explore import audit, explore
from adagoal.baselines.interval_mdp import INTERVAL_BOUNDS
from adagoal.comparison.method_comparison import run_uninterrupted
from adagoal.comparison.method_scores import RunOutcome, TextTable
from adagoal.core.errors import Status
from adagoal.core.run_settings import ExplorationSettings
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.extra_models import make_known_model

DELTA = 0.1
WORLDS = {
    "chain of 10, slip 0.1": ExplorationSettings("chain", {"slip": 0.1}, radius=8, epsilon=1.0),
    "grid 4x5, slip 0.1": ExplorationSettings("grid", radius=10, epsilon=1.0),
    "trap chain": ExplorationSettings("trap-chain", radius=10, epsilon=1.0),
    "FrozenLake 4x4": ExplorationSettings("FrozenLake-v1", radius=20, epsilon=2.0),
    "CliffWalking": ExplorationSettings("CliffWalking-v1", radius=20, epsilon=1.0),
    "two-room": ExplorationSettings("two-room", radius=20, epsilon=2.0),
}
METHODS = ("certified", *sorted(INTERVAL_BOUNDS))
KNOWN = ("nothing", "branching")


class Cell(NamedTuple):
    """One run."""

    world: str
    method: str
    known: str
    seed: int


def cells(options: ExperimentOptions) -> list[Cell]:
    """Return every combination of environment, knowledge, method and seed."""
    return [
        Cell(world, method, known, seed)
        for world in WORLDS
        for known in KNOWN
        for method in METHODS
        for seed in options.seeds
    ]


def measure(cell: Cell, options: ExperimentOptions) -> dict[str, Any]:
    """Run to the certified stop or the budget, and audit a certified result."""
    setting = WORLDS[cell.world]
    given: dict[str, Any] = {} if cell.method == "certified" else {"bound": cell.method}
    if cell.known == "branching":
        given["branching"] = int(np.diff(make_known_model(setting).indptr).max())
    result = run_uninterrupted(
        explore,
        setting.env,
        setting.radius,
        setting.epsilon,
        DELTA,
        env_args=setting.env_args,
        method="certified" if cell.method == "certified" else "intervals",
        method_args=given,
        seed=cell.seed,
        budget=options.budget,
    )
    certified = result.status is Status.CERTIFIED
    right = bool(audit(result).ok) if certified else None
    return {**cell._asdict(), "steps": result.steps, "certified": certified, "right": right}


def median(outcomes: Sequence[RunOutcome]) -> float:
    """Return the median of the steps to the stop; infinite if most runs did not stop."""
    return float(statistics.median(o["steps"] if o["certified"] else math.inf for o in outcomes))


def rows(outcomes: Sequence[RunOutcome]) -> list[dict[str, Any]]:
    """Return the median of every method, by environment and knowledge; None: beyond the budget."""
    found = []
    for known in KNOWN:
        for world, setting in WORLDS.items():
            row: dict[str, Any] = {"world": world, "known": known, "L": setting.radius, "epsilon": setting.epsilon}
            for method in METHODS:
                key = (world, method, known)
                steps = median([o for o in outcomes if (o["world"], o["method"], o["known"]) == key])
                row[method] = steps if math.isfinite(steps) else None
            found.append(row)
    return found


def shown(row: dict[str, Any], method: str, budget: int) -> str:
    """Return the steps, and their ratio to those of the certified method."""
    if row[method] is None:
        return f"> {budget:.0e}"
    own = "" if method == "certified" or row["certified"] is None else f" ({row[method] / row['certified']:.3g} x)"
    return f"{row[method]:.2e}{own}"


def table(found: Sequence[dict[str, Any]], budget: int) -> str:
    """Return two tables, by prior knowledge."""
    texts = []
    for known in KNOWN:
        lines = [
            [row["world"], f"{row['L']:g}", f"{row['epsilon']:g}", *(shown(row, m, budget) for m in METHODS)]
            for row in found
            if row["known"] == known
        ]
        what = "nothing" if known == "nothing" else "the most successors of a pair"
        texts.append(
            f"Known beforehand: {what}.\n\n{TextTable(('world', 'L', 'epsilon', *METHODS), lines).to_markdown()}"
        )
    return "\n".join(texts)


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the medians."""
    found, wrong = rows(outcomes), sum(o["right"] is False for o in outcomes)
    stopped = sum(o["certified"] for o in outcomes)
    note = (
        f"Median steps to the certified stop over {len(options.seeds)} seeds, delta = {DELTA}; in brackets, how many "
        f"times those of the certified method. Of {stopped} certified answers, {wrong} failed the exact audit.\n"
    )
    data = {"delta": DELTA, "budget": options.budget, "rows": found, "runs": outcomes}
    return ExperimentReport(found, f"{table(found, options.budget)}\n{note}", data)


INTERVALS = Experiment(
    "intervals",
    cells,
    measure_run=measure,
    make_report=report,
    is_complete=lambda cell, outcome, options: outcome["certified"] or outcome["steps"] >= options.budget,
    defaults=CATALOGUE["intervals"].defaults,
)
