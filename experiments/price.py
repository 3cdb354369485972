"""The price of certainty: steps to the certified stop, divided by the steps after which the result was correct.

*Certified stop*: the stopping rule ends the run. *Audit-stop*: the first of a geometric grid of step counts from which
on the exact audit (C1 and C2 of definition ``def_MGE``) of the plain empirical answer holds for good, in the same
run; the empirical answer is every goal within L + epsilon/2 in the empirical model, with its optimal policy there.
Nobody inside the run can know that this point has been passed: the ratio is what knowing it costs.

Every run is one file in ``OUT/price-runs`` and is not run again. Seconds are processor time, without compilation and
audits.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from adagoal.api.explore import audit
from adagoal.comparison.method_comparison import run_settings
from adagoal.comparison.method_scores import AnytimeAuditor, RunOutcome
from adagoal.core.environment import Policy
from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.model import TabularMDP, model_from_rows
from experiments import exact_policies
from experiments.catalogue import CATALOGUE
from experiments.exact_policies import optimal_policy
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.extra_models import make_known_model
from experiments.layout import ColumnFormats, figure_with_panels, table_from_rows

DELTA = 0.1
PER_DECADE = 12
"""Number of audits per decade of steps."""
OTHERS = ("unigoal", "raregoal")
"""Other goal rules, run with fewer seeds and up to a cap."""
CAP = 20
"""Runs with the other rules end after this multiple of AdaGoal's steps."""
STYLES = (
    ("audit_stop", "audit-stop", "o", "#999999"),
    ("steps", "certified, AdaGoal", "o", "#0072b2"),
    ("unigoal", "certified, UniGoal", "s", "#d55e00"),
    ("raregoal", "certified, RareGoal", "^", "#009e73"),
)


WORLDS = {
    "two-room": ExplorationSettings("two-room", radius=40, epsilon=1.0),
    "grid 4x5, slip 0.1": ExplorationSettings("grid", {"rows": 4, "cols": 5, "slip": 0.1}, radius=10, epsilon=0.5),
    "FrozenLake 4x4": ExplorationSettings("FrozenLake-v1", radius=20, epsilon=1.0),
    "FrozenLake 8x8": ExplorationSettings("FrozenLake-v1", {"map_name": "8x8"}, radius=40, epsilon=2.0),
    "CliffWalking": ExplorationSettings("CliffWalking-v1", radius=20, epsilon=1.0),
    "Taxi, start seed 0": ExplorationSettings("Taxi-v4", radius=20, epsilon=1.0, start_seed=0),
}


class Cell(NamedTuple):
    """One run."""

    world: str
    rule: str
    seed: int
    budget: int | None = None

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.world}-{self.rule}-{self.seed}"

    @property
    def setting(self) -> ExplorationSettings:
        """Settings of the run."""
        world = replace(WORLDS[self.world], delta=DELTA, goal_rule=self.rule)
        return replace(world, seed=self.seed, budget=self.budget)


class Watch:
    """An observer that audits the empirical result from time to time, and ends runs that take too long."""

    def __init__(self, setting: ExplorationSettings, seconds: float, looking: bool) -> None:
        L, epsilon = float(setting.radius), setting.epsilon
        self.auditor = AnytimeAuditor(make_known_model(setting), L, epsilon)
        self.run: ExplorationRun | None = None
        self._most = L + epsilon / 2
        self._next, self._limit = 100.0 if looking else math.inf, seconds
        self._began, self._looking = time.process_time(), 0.0

    @property
    def seconds(self) -> float:
        """Processor time so far, without the audits."""
        return time.process_time() - self._began - self._looking

    def __call__(self, run: ExplorationRun) -> bool:
        """Audit if it is time, and return False when the time is over."""
        self.run = run
        if run.steps >= self._next:
            self.look(run)
            self._next = run.steps * 10 ** (1 / PER_DECADE)
        return self.seconds <= self._limit

    def look(self, run: ExplorationRun) -> None:
        """Audit the empirical result."""
        began = time.process_time()
        known = empirical(run.counts)
        V = exact_policies.optimal_values(known)
        goals = np.flatnonzero(V[known.start] <= self._most)
        actions = optimal_policy(known, V)
        self.auditor.check_output(
            run.steps, {int(g): Policy(int(g), actions[None, :, g], known.reset_action) for g in goals}
        )
        self._looking += time.process_time() - began


def empirical(counts: TransitionCounts) -> TabularMDP:
    """Return the empirical model. A pair that was never tried stays in its state, so no good policy uses it."""
    rows = []
    for x, (support, n) in enumerate(zip(counts.support.tolist(), counts.n.tolist(), strict=True)):
        seen = zip(counts.successor[x, :support].tolist(), counts.count[x, :support].tolist(), strict=True)
        rows.append({s: c / n for s, c in seen} if n else {x // counts.n_actions: 1.0})
    return model_from_rows(rows, counts.n_actions, start=counts.start, terminal=counts.terminal.copy())


@functools.cache
def _compile() -> None:
    """Compile once in every process, before the time of a run begins."""
    for rule in ("adagoal", *OTHERS):
        _measure(Cell("two-room", rule, 0, 20_000), math.inf)


def measure(cell: Cell, options: ExperimentOptions) -> dict[str, Any]:
    """Run until the method stops or budget or time are spent, and audit the result."""
    _compile()
    return _measure(cell, options.seconds)


def _measure(cell: Cell, seconds: float) -> dict[str, Any]:
    looking = cell.rule == "adagoal"
    watch = Watch(cell.setting, seconds, looking)
    result = run_settings(cell.setting, watch)
    taken = round(watch.seconds, 3)
    if looking and watch.run is not None:
        watch.look(watch.run)
    verdict = audit(result)
    status = "seconds" if result.status is Status.INTERRUPTED else result.status
    found = {"world": cell.world, "rule": cell.rule, "seed": cell.seed, "status": status, "steps": result.steps}
    found |= {"plans": result.plans, "seconds": taken, "goals": len(result.goals), "audit": verdict.ok}
    return found | {"certificates": verdict.certificates, "audit_stop": watch.auditor.audit_stop}


def worlds(options: ExperimentOptions) -> list[str]:
    """Return the selected environments."""
    return [name for name in WORLDS if not options.world or name in options.world]


def cells(options: ExperimentOptions) -> list[Cell]:
    """Return the runs with AdaGoal's rule."""
    return [Cell(world, "adagoal", seed) for world in worlds(options) for seed in options.seeds]


def other_cells(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> list[Cell]:
    """Return the runs with other rules, up to ``CAP`` times AdaGoal's steps."""
    few = range(options.seeds[0], options.seeds[0] + options.other_seeds)
    found = []
    for world in worlds(options):
        cap = int(CAP * statistics.median(r["steps"] for r in outcomes if r["world"] == world))
        found += [Cell(world, rule, seed, cap) for rule in OTHERS for seed in few]
    return found


def table_row(world: str, records: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return the row of an environment."""
    of = {rule: [r for r in records if r["world"] == world and r["rule"] == rule] for rule in ("adagoal", *OTHERS)}
    own = of["adagoal"]
    steps = [r["steps"] for r in own]
    audit_stops = [r["audit_stop"] for r in own if r["audit_stop"] is not None]
    row: dict[str, Any] = {"world": world, "L": WORLDS[world].radius, "epsilon": WORLDS[world].epsilon}
    row |= {"seeds": len(own), "steps": statistics.median(steps), "fewest": min(steps), "most": max(steps)}
    row["stopped"] = sum(r["status"] == "certified" for r in own)
    row["seconds"] = statistics.median(r["seconds"] for r in own)
    row["audit_stop"] = statistics.median(audit_stops) if audit_stops else None
    ratios = [r["steps"] / r["audit_stop"] for r in own if r["audit_stop"]]
    row["ratio"] = statistics.median(ratios) if ratios else None
    for rule in OTHERS:
        reached = sorted(r["steps"] if r["status"] == "certified" else math.inf for r in of[rule])
        middle = statistics.median(reached) if reached else math.inf
        row[rule] = middle if math.isfinite(middle) else None
        row[f"{rule}_seconds"] = statistics.median(r["seconds"] for r in of[rule]) if reached else None
        row[f"{rule}_beyond"] = statistics.median(r["steps"] for r in of[rule]) if reached else None
    done = [r for r in records if r["world"] == world and r["status"] == "certified"]
    return row | {"audits_passed": sum(r["audit"] for r in done), "audits": len(done)}


def _stop(row: dict[str, Any]) -> str:
    unfinished = "" if row["stopped"] == row["seeds"] else f", {row['stopped']} of {row['seeds']} stopped"
    return f"{row['steps']:.2e} ({row['fewest']:.2e} to {row['most']:.2e}{unfinished})"


def _other(rule: str, row: dict[str, Any]) -> str:
    beyond = row[f"{rule}_beyond"]
    return f"{row[rule]:.2e}" if row[rule] else f"> {beyond:.1e}" if beyond else "-"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table and the meaning of its columns."""
    columns: ColumnFormats = {
        **{"world": "{world}", "L": "{L:g}", "eps": "{epsilon:g}", "AdaGoal: certified stop": _stop},
        "seconds": "{seconds:.1f}",
        "audit-stop": lambda row: f"{row['audit_stop']:.1e}" if row["audit_stop"] else "never",
        "ratio": lambda row: f"{row['ratio']:.0f}" if row["ratio"] else "-",
        **{"UniGoal": functools.partial(_other, "unigoal"), "RareGoal": functools.partial(_other, "raregoal")},
        "audits": "{audits_passed} of {audits}",
    }
    note = (
        f"Environment steps, medians over {rows[0]['seeds']} seeds (fewest to most), delta = {DELTA}; processor "
        "seconds without compilation. Audit-stop: from here on the exact audit of the plain empirical answer holds for "
        "good; ratio: the price of knowing it. UniGoal, RareGoal: certified stop with that goal rule, or '> steps' "
        f"where most runs had not stopped after {CAP} times AdaGoal's steps, or in time. Audits: of certified runs."
    )
    return f"{table_from_rows(rows, columns).to_markdown()}\n{note}\n"


def figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw audit-stop and certified stops of every environment on one logarithmic axis."""
    drawn, (ax,) = figure_with_panels(1, (8.0, 0.6 + 0.55 * len(rows)))
    for _, label, marker, colour in STYLES:  # the legend, filled whatever stopped
        ax.plot([], [], marker, color=colour, label=label)
    for y, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
        if row["audit_stop"]:
            ax.plot([row["audit_stop"], row["steps"]], [y, y], color="#bbbbbb", zorder=0)
        for key, _, marker, colour in STYLES:
            steps = row[key] or row.get(f"{key}_beyond")
            if steps is not None:
                ax.plot(steps, y, marker, color=colour, markerfacecolor=colour if row[key] else "none")
    ax.set_yticks(range(len(rows) - 1, -1, -1), [f"{row['world']} (L {row['L']:g})" for row in rows])
    ax.set(xscale="log", xlabel="environment steps (hollow: not stopped yet)")
    drawn.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return drawn


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return one row per environment."""
    rows = [table_row(world, outcomes) for world in worlds(options)]
    runs = sorted(outcomes, key=lambda r: list(WORLDS).index(r["world"]))
    return ExperimentReport(
        rows, table(rows), {"delta": DELTA, "rows": rows, "runs": runs}, {"price.png": figure(rows)}
    )


PRICE = Experiment(
    "price",
    cells,
    measure,
    report,
    follow_up_runs=other_cells,
    defaults=CATALOGUE["price"].defaults,
)
