"""How far certified runs are from what is possible: their steps over an instance lower bound.

The limit is computed from the exact model, which no learner sees. Beside it are certified runs on the same worlds, as
many as there are seeds, and the evidence that they hold when they stop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from adagoal.api.explore import audit
from adagoal.comparison.method_comparison import run_settings
from adagoal.comparison.method_scores import RunOutcome
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.transition_data import TransitionCounts
from experiments import instance_bound
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.extra_models import make_known_model
from experiments.layout import ColumnFormats, table_from_rows
from experiments.price import DELTA, WORLDS


class Cell(NamedTuple):
    """The lower bound of an environment or, with a seed, a run."""

    world: str
    seed: int | None = None

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.world}-{'limit' if self.seed is None else self.seed}"


def worlds(options: ExperimentOptions) -> list[str]:
    """Return the selected environments."""
    return [name for name in WORLDS if not options.world or name in options.world]


def cells(options: ExperimentOptions) -> list[Cell]:
    """Return the lower bound of every environment, and the runs."""
    return [Cell(world, seed) for world in worlds(options) for seed in (None, *options.seeds)]


def measure(cell: Cell, options: ExperimentOptions) -> dict[str, Any]:
    """Compute the lower bound for delta, or run to the stop."""
    setting: ExplorationSettings = replace(WORLDS[cell.world], delta=DELTA)
    began = time.process_time()
    found: dict[str, Any] = {"world": cell.world, "seed": cell.seed}
    if cell.seed is None:
        least = instance_bound.limit(make_known_model(setting), float(setting.radius), setting.epsilon, options.rounds)
        found |= {"steps": least.steps * instance_bound.kl(DELTA), "models": least.models, "finished": least.finished}
        return found | {"seconds": round(time.process_time() - began, 1)}
    kept: dict[str, TransitionCounts] = {}
    result = run_settings(replace(setting, seed=cell.seed), lambda run: kept.update(counts=run.estimates.counts))
    held = instance_bound.evidence(make_known_model(setting), kept["counts"].n, float(setting.radius), setting.epsilon)
    return found | {"steps": result.steps, "status": result.status, "audit": audit(result).ok, **held._asdict()}


def table_row(world: str, outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return the row of an environment."""
    own = [r for r in outcomes if r["world"] == world]
    least = next(r for r in own if r["seed"] is None)
    runs = [r for r in own if r["seed"] is not None]
    row = {"world": world, "L": WORLDS[world].radius, "epsilon": WORLDS[world].epsilon, "limit": least["steps"]}
    row |= {"models": least["models"], "finished": least["finished"], "seconds": least["seconds"]}
    row["certified"] = statistics.median(r["steps"] for r in runs)
    for name in instance_bound.Evidence._fields:
        row[name] = None if any(r[name] is None for r in runs) else statistics.median(r[name] for r in runs)
    row["audits"] = f"{sum(r['audit'] for r in runs)} of {len(runs)}"
    return row | {"ratio": row["certified"] / row["limit"] if row["limit"] else None}


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return one row per environment."""
    rows = [table_row(world, outcomes) for world in worlds(options)]
    columns: ColumnFormats = {
        **{"world": "{world}", "L": "{L:g}", "eps": "{epsilon:g}"},
        "limit": lambda row: f"{row['limit']:.2g}{'' if row['finished'] else ' (at least)'}",
        "certified stop": "{certified:.2e}",
        "ratio": lambda row: f"{row['ratio']:.0f}" if row["ratio"] else "-",
        "tilts": lambda row: "-" if row["tilts"] is None else f"{row['tilts']:.0f}",
        "jumps": lambda row: "-" if row["jumps"] is None else f"{row['jumps']:.0f}",
        **{"models": "{models}", "seconds": "{seconds:.0f}", "audits": "{audits}"},
    }
    note = (
        f"Environment steps at delta = {DELTA}. Limit: a lower bound for algorithms that return the goals within L "
        "with one fixed optimal policy each (instance_bound.py); '(at least)' where more rounds would raise "
        "it. Models: in which that answer is wrong, and which must be told apart. Certified stop: median of the seeds. "
        f"Tilts, jumps: the evidence at the stop, in nats; any algorithm needs {instance_bound.kl(DELTA):.2f}; "
        "against the cheapest model that changes known transitions, and against the cheapest with one never seen. "
        "Seconds: processor time of the limit."
    )
    text = f"{table_from_rows(rows, columns).to_markdown()}\n{note}\n"
    return ExperimentReport(rows, text, {"delta": DELTA, "rows": rows, "runs": list(outcomes)})


LIMIT = Experiment("limit", cells, measure, report, defaults=CATALOGUE["limit"].defaults)
