"""The price of certainty: steps to the certified stop, over the steps after which the answer was right anyway.

*Certified stop*: the stopping rule ends the run. *Audit-stop*: the first of a geometric grid of step counts from which
on the exact audit (C1 and C2 of definition ``def_MGE``) of the plain empirical answer holds for good, in the same
run; the empirical answer is every goal within L + epsilon/2 in the empirical model, with its optimal policy there.
Nobody inside the run can know that this point has been passed: the ratio is what knowing it costs.

Every run is one file in ``OUT/price-runs`` and is not run again. Seconds are processor time, without compilation and
audits.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from adagoal import goals as goal_rules
from adagoal.cli import options
from adagoal.core.counts import Counts
from adagoal.core.files import read_json, write_json, write_text
from adagoal.core.policy import Policy
from adagoal.core.run import Run
from adagoal.experiments.compare import Auditor
from adagoal.loop import explore
from adagoal.mdp import solve
from adagoal.mdp.audit import audit_policies
from adagoal.tabular.certified import Certified
from adagoal.worlds import registry
from adagoal.worlds.model import TabularMDP, from_rows
from adagoal.worlds.simulator import ModelWorld

DELTA = 0.1
PER_DECADE = 12
"""Looks at the empirical answer."""
OTHERS = ("unigoal", "raregoal")
"""Goal rules to compare with, on fewer seeds and up to a cap."""
CAP = 20
"""Runs with the other rules end after this multiple of AdaGoal's steps."""
UNLIMITED = 2**62
STYLES = (
    ("audit_stop", "audit-stop", "o", "#999999"),
    ("steps", "certified, AdaGoal", "o", "#0072b2"),
    ("unigoal", "certified, UniGoal", "s", "#d55e00"),
    ("raregoal", "certified, RareGoal", "^", "#009e73"),
)

Record = dict[str, Any]


class World(NamedTuple):
    """One line of the table."""

    name: str
    env: str
    env_args: dict[str, Any]
    start_seed: int | None
    L: float
    epsilon: float


WORLDS = (
    World("two-room", "two-room", {}, None, 40, 1.0),
    World("grid 4x5, slip 0.1", "grid", {"rows": 4, "cols": 5, "slip": 0.1}, None, 10, 0.5),
    World("FrozenLake 4x4", "FrozenLake-v1", {}, None, 20, 1.0),
    World("FrozenLake 8x8", "FrozenLake-v1", {"map_name": "8x8"}, None, 40, 2.0),
    World("CliffWalking", "CliffWalking-v1", {}, None, 20, 1.0),
    World("Taxi, start seed 0", "Taxi-v4", {}, 0, 20, 1.0),
)


class _OutOfTime(Exception):
    """The run has taken its share of seconds."""


class Watch:
    """An observer that audits the empirical answer now and then, and ends runs that take too long."""

    def __init__(self, mdp: TabularMDP, world: World, seconds: float) -> None:
        self.auditor = Auditor(mdp, world.L, world.epsilon)
        self._most = world.L + world.epsilon / 2
        self._next, self._seconds = 100.0, seconds
        self._began, self._looking = time.process_time(), 0.0

    @property
    def seconds(self) -> float:
        """Processor time of the run so far, without the looks."""
        return time.process_time() - self._began - self._looking

    def __call__(self, run: Run) -> None:
        """Called after every rollout."""
        if run.steps >= self._next:
            self.look(run)
            self._next = run.steps * 10 ** (1 / PER_DECADE)
        if self.seconds > self._seconds:
            raise _OutOfTime

    def look(self, run: Run) -> None:
        """Audit the empirical answer."""
        began = time.process_time()
        model = empirical(run.counts)
        V = solve.optimal_values(model)
        goals = np.flatnonzero(V[model.start] <= self._most)
        actions = solve.optimal_policy(model, V)
        self.auditor.check(run.steps, {int(g): Policy(int(g), actions[None, :, g], model.reset_action) for g in goals})
        self._looking += time.process_time() - began


def empirical(counts: Counts) -> TabularMDP:
    """The empirical model; a pair never tried stays where it is, so that no sensible policy uses it."""
    rows = []
    for x, (support, n) in enumerate(zip(counts.support.tolist(), counts.n.tolist(), strict=True)):
        seen = zip(counts.successor[x, :support].tolist(), counts.count[x, :support].tolist(), strict=True)
        rows.append({s: c / n for s, c in seen} if n else {x // counts.n_actions: 1.0})
    return from_rows(rows, counts.n_actions, start=counts.start, terminal=counts.terminal.copy())


def measure(world: World, rule: str, seed: int, budget: int, seconds: float, watched: bool) -> Record:
    """One run to its stop, its budget, or its time; audited at the end."""
    mdp = registry.make_model(world.env, world.env_args, world.start_seed)
    assert mdp is not None
    simulator = ModelWorld(mdp)
    counts = Counts(simulator.initial_states, simulator.n_actions, simulator.start)
    estimates = Certified(counts, simulator.state_bound, world.L, world.epsilon, DELTA)
    run = Run(simulator, estimates, goal_rules.get(rule), np.random.default_rng(seed))
    watch = Watch(mdp, world, seconds)
    if not watched:
        watch._next = math.inf
    status = "seconds"
    with contextlib.suppress(_OutOfTime):
        status = explore(run, budget, watch)
    seconds = watch.seconds
    if watched:
        watch.look(run)
    X = [int(g) for g in estimates.goals if estimates.goal_state[estimates.column[g]] >= 0]
    X = [g for g in X if estimates.D[estimates.column[g]] <= world.L]
    lower, upper = ({g: estimates.bounds(g)[i] for g in X} for i in (0, 1))
    policies = {g: Policy(g, estimates.policy(g), mdp.reset_action) for g in X}
    verdict = audit_policies(mdp, X, policies, world.L, world.epsilon, lower=lower, upper=upper)
    return {
        **{
            "world": world.name,
            "rule": rule,
            "seed": seed,
            "status": status,
            "steps": run.steps,
            "plans": estimates.plans,
        },
        **{
            "seconds": round(seconds, 3),
            "goals": len(X),
            "audit": verdict.ok,
            "certificates": verdict.certificates,
        },
        "audit_stop": watch.auditor.stop,
    }


def table_row(world: World, records: Sequence[Record]) -> dict[str, Any]:
    """A world's line of the table."""
    of = {rule: [r for r in records if r["world"] == world.name and r["rule"] == rule] for rule in ("adagoal", *OTHERS)}
    own = of["adagoal"]
    steps = [r["steps"] for r in own]
    audit_stops = [r["audit_stop"] for r in own if r["audit_stop"] is not None]
    row: dict[str, Any] = {"world": world.name, "L": world.L, "epsilon": world.epsilon, "seeds": len(own)}
    row |= {"steps": statistics.median(steps), "fewest": min(steps), "most": max(steps)}
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
    done = [r for r in records if r["world"] == world.name and r["status"] == "certified"]
    return row | {"audits_passed": sum(r["audit"] for r in done), "audits": len(done)}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table, and what its columns mean."""
    head = (
        "world",
        "L",
        "eps",
        "AdaGoal: certified stop",
        "seconds",
        "audit-stop",
        "ratio",
        "UniGoal",
        "RareGoal",
        "audits",
    )
    lines = [head, ("---", *["---:"] * (len(head) - 1))]
    for row in rows:
        others = [
            f"{row[rule]:.2e}" if row[rule] else f"> {row[f'{rule}_beyond']:.1e}" if row[f"{rule}_beyond"] else "-"
            for rule in OTHERS
        ]
        unfinished = "" if row["stopped"] == row["seeds"] else f", {row['stopped']} of {row['seeds']} stopped"
        lines.append(
            (
                *(row["world"], f"{row['L']:g}", f"{row['epsilon']:g}"),
                f"{row['steps']:.2e} ({row['fewest']:.2e} to {row['most']:.2e}{unfinished})",
                f"{row['seconds']:.1f}",
                f"{row['audit_stop']:.1e}" if row["audit_stop"] else "never",
                f"{row['ratio']:.0f}" if row["ratio"] else "-",
                *others,
                f"{row['audits_passed']} of {row['audits']}",
            )
        )
    note = (
        f"Environment steps, medians over {rows[0]['seeds']} seeds (fewest to most), delta = {DELTA}; processor "
        "seconds without compilation. Audit-stop: from here on the exact audit of the plain empirical answer holds for "
        "good; ratio: the price of knowing it. UniGoal, RareGoal: certified stop with that goal rule, or '> steps' "
        f"where most runs had not stopped after {CAP} times AdaGoal's steps, or in time. Audits: of certified runs."
    )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{note}\n"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Audit-stop and certified stops of every world on one logarithmic axis."""
    figure = Figure((8.0, 0.6 + 0.55 * len(rows)), layout="constrained")
    ax = figure.subplots()
    for y, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
        if row["audit_stop"]:
            ax.plot([row["audit_stop"], row["steps"]], [y, y], color="#bbbbbb", zorder=0)
        for key, label, marker, colour in STYLES:
            steps = row[key] or row.get(f"{key}_beyond")
            if steps is not None:
                face = colour if row[key] else "none"
                ax.plot(steps, y, marker, color=colour, markerfacecolor=face, label=label if y == 0 else "_")
    ax.set_yticks(range(len(rows) - 1, -1, -1), [f"{row['world']} (L {row['L']:g})" for row in rows])
    ax.set(xscale="log", xlabel="environment steps (hollow: not stopped yet)")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


@click.command("price", epilog="Example: adagoal reproduce price --seeds 5 --out runs/price")
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Seeds of AdaGoal.")
@options.FIRST_SEED
@click.option("--other-seeds", type=click.IntRange(0, 1000), default=3, show_default=True, help="Seeds of other rules.")
@click.option("--world", "names", multiple=True, type=click.Choice([w.name for w in WORLDS]), help="Only these worlds.")
@click.option("--seconds", type=options.Positive(), default=60.0, show_default=True,
              help="Most processor seconds of a run.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/price"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def price(
    seeds: int, seed: int, other_seeds: int, names: tuple[str, ...], seconds: float, out: Path, as_json: bool
) -> None:
    """Steps to the certified stop beside the steps that sufficed, on six worlds; AdaGoal, UniGoal and RareGoal."""
    console = Console(stderr=True)
    worlds = [world for world in WORLDS if not names or world.name in names]
    for rule in ("adagoal", *OTHERS):
        measure(WORLDS[0], rule, 0, 20_000, seconds, True)  # compile
    records: list[Record] = []

    def run(world: World, rule: str, seed: int, budget: int) -> int:
        file = out / "price-runs" / f"{world.name.replace(', ', '-').replace(' ', '-')}-{rule}-{seed}.json"
        if not file.exists():
            began = time.perf_counter()
            write_json(file, measure(world, rule, seed, budget, seconds, rule == "adagoal"))
            console.print(f"{file.stem}: {time.perf_counter() - began:.1f} s with its audits", highlight=False)
        records.append(read_json(file))
        return int(records[-1]["steps"])

    for world in worlds:
        steps = statistics.median(run(world, "adagoal", seed + i, UNLIMITED) for i in range(seeds))
        for rule in OTHERS:
            for i in range(other_seeds):
                run(world, rule, seed + i, int(CAP * steps))
    rows = [table_row(world, records) for world in worlds]
    write_json(out / "price.json", {"delta": DELTA, "rows": rows, "runs": records})
    write_text(out / "price.md", markdown(rows))
    draw(rows, out / "price.png")
    click.echo(json.dumps(rows, indent=1) if as_json else markdown(rows))
