"""How often is a certificate broken? Thousands of runs on random worlds, held against the truth after every rollout.

A run is *broken* if anything that it ever claimed was false: a lower bound above V*(s0 -> g), an upper bound below the
value of the policy it speaks of, a bound on that policy's sub-optimality below the true one, a value table on the
wrong side of V*, or, at the stop, the condition C1 or C2 of definition ``def_MGE``. The promise is that the probability
of a broken run is at most delta, whatever the world, the goal rule and the moment of the stop.

Families: the random models of :mod:`adagoal.worlds.random_models`, and three adversarial ones: ``every-step`` plans,
tightens every bound and checks the stopping rule after each single step; ``exactly-L`` puts L (and where it can L +
epsilon too) exactly on some V*; ``extreme`` has transition probabilities within 1e-6..1e-1 of 0 and 1.

The *control* runs the same check with a delta of ``10 S A``, at which the bounds promise nothing: it must find misses,
or the check would be blind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from scipy.stats import beta

from adagoal import goals as goal_rules
from adagoal.core.counts import Counts
from adagoal.core.files import read_json, write_json
from adagoal.core.policy import Policy
from adagoal.core.run import Run
from adagoal.experiments.coverage_worlds import FAMILIES, case
from adagoal.experiments.pool import finish
from adagoal.loop import explore
from adagoal.mdp import solve
from adagoal.mdp.audit import audit_policies
from adagoal.tabular.certified import Certified
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelWorld

DELTAS = (0.1, 0.01)
BUDGET = 500_000
"""Steps after which a run ends without a stop; its intervals are checked all the same."""
EVERY_STEP_BUDGET = 600
CHUNK = 25
"""Runs per file."""
CONFIDENCE = 0.95
"""Of the Clopper-Pearson upper bounds."""
NAMES = {"lower": "lower bound", "upper": "upper bound", "gap": "sub-optimality bound", "tables": "value tables"}
KINDS = tuple(NAMES)
"""What may miss."""

Record = dict[str, Any]


class Task(NamedTuple):
    """One run."""

    family: str
    rule: str
    delta: float
    """0: the control."""
    seed: int


class Truth:
    """An observer of a run that holds everything the estimates claim against the exact solution."""

    def __init__(self, mdp: TabularMDP) -> None:
        self.mdp = mdp
        self.optimal = solve.optimal_values(mdp)
        self.first_miss: dict[str, int] = {}
        """The step count at which a kind of claim was found false for the first time."""
        self.slack = dict.fromkeys(KINDS, math.inf)
        """How near a claim about a goal other than s0 ever came to being false, in steps; negative where it was."""
        self._values: dict[tuple[int, bytes], float] = {}

    def __call__(self, run: Run) -> None:
        """Called after every rollout, and at the end."""
        estimates = run.estimates
        assert isinstance(estimates, Certified)
        start = run.world.start
        goals = np.flatnonzero(np.arange(self.mdp.n_states) != start)
        column, best = estimates.column[goals], self.optimal[start, goals]
        self._hold(run, "lower", estimates.D[column], best)
        self._hold(run, "tables", estimates.V[:, column], self.optimal[:, goals])
        proper = estimates.Y[start, column] <= estimates.cap - 1.0
        self._hold(run, "tables", self.optimal[:, goals[proper]], estimates.Y[:, column[proper]])
        finished = np.isfinite(estimates.upper[column])
        value = np.array([self.value(int(g), estimates.policy(int(g))) for g in goals[finished]])
        self._hold(run, "upper", value, estimates.upper[column[finished]])
        self._hold(run, "gap", value, best[finished] + estimates.gap[column[finished]])

    def value(self, goal: int, table: np.ndarray[Any, Any]) -> float:
        """V^pi(s0 -> g) of a stationary policy, computed once."""
        key = goal, table.tobytes()
        if key not in self._values:
            self._values[key] = float(solve.policy_values(self.mdp, table[0], goal)[self.mdp.start])
        return self._values[key]

    def _hold(self, run: Run, kind: str, small: np.ndarray[Any, Any], large: np.ndarray[Any, Any]) -> None:
        """Note where ``small <= large`` fails; pairs of infinities say nothing."""
        finite = np.isfinite(small) | np.isfinite(large)
        if not finite.any():
            return
        small, large = small[finite], large[finite]
        self.slack[kind] = min(self.slack[kind], float((large - small).min()))
        if not solve.at_most(small, large).all():
            self.first_miss.setdefault(kind, run.steps)


def run_task(task: Task) -> Record:
    """One run, checked throughout and audited at the stop."""
    mdp, L, epsilon = case(task.family, task.seed)
    world = ModelWorld(mdp)
    counts = Counts(world.initial_states, world.n_actions, world.start)
    delta = task.delta or 10.0 * mdp.n_states * mdp.n_actions
    estimates = Certified(counts, world.state_bound, L, epsilon, delta)
    run = Run(world, estimates, goal_rules.get(task.rule), np.random.default_rng([task.seed, 11]))
    truth = Truth(mdp)
    if task.family == "every-step":
        while (status := explore(run, run.steps + 1, truth)) == "budget" and run.steps < EVERY_STEP_BUDGET:
            estimates.polished[:] = 0.0  # tighten every bound again, not only when it pays
    else:
        status = explore(run, BUDGET, truth)
    truth(run)
    record: Record = {
        **task._asdict(),
        "n_states": mdp.n_states,
        "n_actions": mdp.n_actions,
        "L": L,
        "epsilon": epsilon,
    }
    record |= {"status": status, "steps": run.steps, "first_miss": truth.first_miss, "c1": None, "c2": None}
    record["slack"] = {kind: slack if math.isfinite(slack) else None for kind, slack in truth.slack.items()}
    if status == "certified":
        X = [int(g) for g in np.flatnonzero(estimates.D[estimates.column] <= L)]
        policies = {g: Policy(g, estimates.policy(g), mdp.reset_action) for g in X}
        verdict = audit_policies(mdp, X, policies, L, epsilon)
        record |= {"c1": verdict.c1, "c2": verdict.c2}
    return record


def broken(record: Record) -> bool:
    """Whether anything that the run claimed was false."""
    return bool(record["first_miss"]) or record["c1"] is False or record["c2"] is False


def tasks(runs: int, control: int, seed: int) -> list[Task]:
    """All combinations in turn, so that more runs extend fewer; then the control."""
    rules, n = list(goal_rules.RULES), len(FAMILIES)
    found = [
        Task(FAMILIES[i % n], rules[i // n % len(rules)], DELTAS[i // (n * len(rules)) % len(DELTAS)], seed + i)
        for i in range(runs)
    ]
    return found + [Task(FAMILIES[i % 8], rules[i // 8 % len(rules)], 0.0, seed + i) for i in range(control)]


def run_all(wanted: list[Task], folder: Path, jobs: int) -> list[Record]:
    """Run what the folder does not hold yet, a chunk at a time; every finished chunk is a file."""
    chunks = [wanted[first : first + CHUNK] for first in range(0, len(wanted), CHUNK)]
    files = [folder / f"chunk-{'control' if c[0].delta == 0 else 'run'}-{c[0].seed:06d}-{len(c)}.json" for c in chunks]
    both = zip(files, chunks, strict=True)
    missing = {file: (chunk,) for file, chunk in both if not (file.exists() and _same(read_json(file), chunk))}
    about = f"{len(missing)} of {len(chunks)} chunks of {CHUNK} runs"
    for _ in track(finish(_run_chunk, missing, jobs), about, len(missing), console=Console(stderr=True)):
        pass
    return [record for file in files for record in read_json(file)]


def _run_chunk(chunk: list[Task]) -> list[Record]:
    return [run_task(task) for task in chunk]


def _same(records: list[Record], chunk: list[Task]) -> bool:
    """Whether a file holds the records of these tasks."""
    return [Task(*(record[name] for name in Task._fields)) for record in records] == chunk


def clopper_pearson(failures: int, runs: int) -> float:
    """The largest probability of failure that the outcome does not rule out, at level ``CONFIDENCE``."""
    return 1.0 if failures >= runs else float(beta.ppf(CONFIDENCE, failures + 1, runs - failures))


def summary(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One row per family and delta, and one over all families."""
    rows = []
    records = list(records)
    for delta in sorted({record["delta"] for record in records}, reverse=True):
        for family in ("all", *FAMILIES):
            some = [r for r in records if r["delta"] == delta and family in ("all", r["family"])]
            if not some:
                continue
            row: dict[str, Any] = {"delta": delta or "control", "family": family, "runs": len(some)}
            row["stopped"] = sum(r["status"] == "certified" for r in some)
            row["broken"] = sum(broken(r) for r in some)
            row["at_most"] = clopper_pearson(row["broken"], len(some))
            row |= {kind: sum(kind in r["first_miss"] for r in some) for kind in KINDS}
            row |= {name: sum(r[name] is False for r in some) for name in ("c1", "c2")}
            rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The summary as Markdown."""
    names = ("delta", "family", "runs", "stopped", "broken", "at_most", *KINDS, "c1", "c2")
    lines = [
        "| " + " | ".join(names).replace("at_most", f"at most ({CONFIDENCE:.0%})") + " |",
        "| " + "--- | " * len(names),
    ]
    for row in rows:
        cells = [f"{row[name]:.4f}" if name == "at_most" else str(row[name]) for name in names]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(line.rstrip() for line in lines)


def draw(records: list[Record], rows: list[dict[str, Any]], path: Path) -> None:
    """Left: share of broken runs per family, with its upper bound, against delta. Right: how near misses came."""
    figure = Figure((11.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 1 + len(DELTAS), width_ratios=[1.0] * len(DELTAS) + [1.1])
    for ax, delta in zip(axes, DELTAS, strict=False):
        _draw_families(ax, [row for row in rows if row["delta"] == delta], delta, named=ax is axes[0])
    ax = axes[-1]
    for kind, colour in zip(("lower", "upper", "gap"), ("#0072b2", "#d55e00", "#009e73"), strict=True):
        nearest = np.sort([r["slack"][kind] for r in records if r["delta"] > 0 and r["slack"][kind] is not None])
        ax.plot(nearest, np.arange(1, len(nearest) + 1) / len(nearest), color=colour, label=NAMES[kind])
    ax.axvline(0.0, color="#666666", linewidth=0.8)
    ax.set_xscale("symlog", linthresh=1e-3)
    ax.set(xlabel="nearest it came to a miss, in steps", ylabel="share of runs", ylim=(0, 1), xlim=(-1e-3, None))
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_families(ax: Axes, rows: list[dict[str, Any]], delta: float, named: bool) -> None:
    places = np.arange(len(rows))[::-1]
    for y, row in zip(places, rows, strict=True):
        ax.plot([row["broken"] / row["runs"], row["at_most"]], [y, y], color="#0072b2", linewidth=2)
        ax.plot(row["broken"] / row["runs"], y, "o", color="#0072b2", markersize=4)
    ax.axvline(delta, color="#d55e00", linestyle="--")
    ax.annotate(f"delta = {delta:g}", (delta, 1.005), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
    names = [f"{row['family']}:  " if named else "" for row in rows]
    ax.set_yticks(places, [f"{n}{row['broken']} of {row['runs']}" for n, row in zip(names, rows, strict=True)])
    widest = max([delta, *(row["at_most"] for row in rows)])
    ax.set(xlabel=f"broken runs: share, and {CONFIDENCE:.0%} upper bound", xlim=(-0.03 * widest, 1.1 * widest))
    ax.spines[["top", "right"]].set_visible(False)


@click.command("coverage", epilog="Example: adagoal reproduce coverage --runs 2200 --jobs 2 --out docs/figures")
@click.option("--runs", type=click.IntRange(1, 1_000_000), default=2_200, show_default=True, help="Honest runs.")
@click.option("--control", type=click.IntRange(0, 100_000), default=100, show_default=True, help="Runs of the control.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=2, show_default=True, help="Processes.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/coverage"), show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def coverage(runs: int, control: int, seed: int, jobs: int, out: Path, as_json: bool) -> None:
    """How often a certificate is broken, over random worlds and all goal rules."""
    records = run_all(tasks(runs, control, seed), out / "coverage-chunks", jobs)
    rows = summary(records)
    found = [record for record in records if record["delta"] > 0 and broken(record)]
    write_json(out / "coverage.json", {"runs": runs, "control": control, "seed": seed, "rows": rows, "broken": found})
    draw(records, rows, out / "coverage.png")
    click.echo(json.dumps(rows, indent=1) if as_json else table(rows))
