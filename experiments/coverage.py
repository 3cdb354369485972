"""How often a certificate is wrong: thousands of runs on random models, checked exactly after every rollout.

A run is *broken* if anything that it ever claimed was false: a lower bound above V*(s0 -> g), an upper bound below the
value of the policy it speaks of, a bound on that policy's sub-optimality below the true one, a value table on the
wrong side of V*, or, at the stop, the condition C1 or C2 of definition ``def_MGE``. The promise is that the probability
of a broken run is at most delta, whatever the world, the goal rule and the moment of the stop.

Families: random models (:mod:`experiments.extra_models`), and five adversarial ones: ``every-step`` plans,
tightens every bound and checks the stopping rule after each single step; ``exactly-L`` puts L (and where it can L +
epsilon too) exactly on some V*; ``extreme`` has transition probabilities within 1e-6..1e-1 of 0 and 1; ``surprises``
looks deterministic up to one rare transition, and tries every pair equally often; ``rivals`` has a rare transition that
only the bounds on the sub-optimality depend on, and tries its pair rarely.

The *control* runs the same check with a delta of ``10 S A``, at which the bounds promise nothing: it must find misses,
or the check would be blind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adagoal import goal_rules
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.comparison.method_scores import RunOutcome
from adagoal.core.confidence_bounds import clopper_pearson_interval
from adagoal.core.environment import Policy
from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.exact.audit import audit_policies
from adagoal.loop import run_exploration
from adagoal.report.figures import COLOUR_BLIND_PALETTE, GUIDE_COLOUR
from adagoal.report.html_page import Curve, CurvePlot
from experiments import exact_policies
from experiments.arena import GOAL_RULES
from experiments.catalogue import CATALOGUE
from experiments.coverage_worlds import FAMILIES, RIVAL, case
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.layout import figure_with_panels, table_from_rows

DELTAS = (0.1, 0.01)
BUDGET = 500_000
"""Budget of a run in steps. The intervals of unfinished runs are checked too."""
EVERY_STEP_BUDGET = 600
SAMPLED_TRIES = 2_000
"""Samples of every pair, in families where the explorer does not choose pairs."""
OFTEN = 50
"""In the family ``rivals``, how much more often all other pairs are tried than the rival."""
CHUNK = 25
"""Runs per file."""
CONFIDENCE = 0.95
"""Confidence level of the Clopper-Pearson upper bounds."""
NAMES = {"lower": "lower bound", "upper": "upper bound", "gap": "sub-optimality bound", "tables": "value tables"}
KINDS = tuple(NAMES)
"""Kinds of claims that are checked."""
DRAWN = KINDS[:3]
NEAREST = 1e-3
"""Smallest distance to a violation that is drawn, in steps."""
COLUMNS = {name: f"{{{name}}}" for name in ("delta", "family", "runs", "stopped", "broken")}
COLUMNS |= {f"at most ({CONFIDENCE:.0%})": "{at_most:.4f}"} | {name: f"{{{name}}}" for name in (*KINDS, "c1", "c2")}


class Task(NamedTuple):
    """One run."""

    family: str
    rule: str
    delta: float
    """0: the control."""
    seed: int


class Truth:
    """An observer that checks every claim of the estimates against the exact solution."""

    def __init__(self, mdp: TabularMDP, goals: Sequence[solver.GoalStates] | None = None) -> None:
        """``goals``: the states of every goal; all states by default."""
        self.mdp, self.goals = mdp, range(mdp.n_states) if goals is None else goals
        self.optimal = exact_policies.optimal_values(mdp, goals)
        self.first_miss: dict[str, int] = {}
        """By kind of claim, the steps at its first violation."""
        self.slack = dict.fromkeys(KINDS, math.inf)
        """Smallest margin of a claim about a goal other than s0, in steps; negative: a violation."""
        self._values: dict[tuple[int, bytes], float] = {}

    def __call__(self, run: ExplorationRun) -> None:
        """Check all claims after a rollout, and at the end."""
        estimates = run.estimates
        assert isinstance(estimates, CertifiedExplorer)
        start = run.env.start
        goals = np.flatnonzero(np.arange(self.mdp.n_states) != start)
        column, best = estimates.column[goals], self.optimal[start, goals]
        self._hold(run, "lower", estimates.D[column], best)
        self._hold(run, "tables", estimates.V[:, column], self.optimal[:, goals])
        proper = estimates.Y[start, column] <= estimates.cap - 1.0
        self._hold(run, "tables", self.optimal[:, goals[proper]], estimates.Y[:, column[proper]])
        finished = np.isfinite(estimates.upper[column])
        value = np.array([self.value(int(g), estimates.goal_policy(int(g))) for g in goals[finished]])
        self._hold(run, "upper", value, estimates.upper[column[finished]])
        self._hold(run, "gap", value, best[finished] + estimates.gap[column[finished]])

    def value(self, goal: int, table: np.ndarray[Any, Any]) -> float:
        """Return V^pi(s0 -> g) of a stationary policy, from a cache."""
        key = goal, table.tobytes()
        if key not in self._values:
            self._values[key] = float(solver.policy_values(self.mdp, table[0], self.goals[goal])[self.mdp.start])
        return self._values[key]

    def _hold(self, run: ExplorationRun, kind: str, small: np.ndarray[Any, Any], large: np.ndarray[Any, Any]) -> None:
        """Record violations of ``small <= large``; two infinite values are no claim."""
        finite = np.isfinite(small) | np.isfinite(large)
        if not finite.any():
            return
        small, large = small[finite], large[finite]
        self.slack[kind] = min(self.slack[kind], float((large - small).min()))
        if not solver.is_at_most(small, large).all():
            self.first_miss.setdefault(kind, run.steps)


def run_task(task: Task) -> dict[str, Any]:
    """Make one run with checks after every rollout, and audit it at the stop."""
    mdp, L, epsilon = case(task.family, task.seed)
    world = ModelSimulator(mdp)
    counts = TransitionCounts(world.initial_states, world.n_actions, world.start)
    delta = task.delta or 10.0 * mdp.n_states * mdp.n_actions
    branching = 2 if task.family == "rivals" else None  # so the states between 0 and the goal have no unseen mass
    estimates = CertifiedExplorer(counts, world.state_bound, L, epsilon, delta, branching=branching)
    run = ExplorationRun(world, estimates, goal_rules.resolve_rule(task.rule), np.random.default_rng([task.seed, 11]))
    truth = Truth(mdp)
    if task.family == "every-step":
        while (status := run_exploration(run, run.steps + 1, truth)) is Status.BUDGET and run.steps < EVERY_STEP_BUDGET:
            estimates.polished[:] = 0.0  # tighten every bound again, not only when it pays
            estimates.schedule.refill_completely()
    elif task.family in ("surprises", "rivals"):
        status = sample(run, mdp, truth, often=OFTEN if task.family == "rivals" else 1)
    else:
        status = run_exploration(run, BUDGET, truth)
    truth(run)
    size = {"n_states": mdp.n_states, "n_actions": mdp.n_actions, "L": L, "epsilon": epsilon}
    record: dict[str, Any] = {**task._asdict(), **size, "status": status, "steps": run.steps}
    record |= {"first_miss": truth.first_miss, "c1": None, "c2": None}
    record["slack"] = {kind: slack if math.isfinite(slack) else None for kind, slack in truth.slack.items()}
    if status is Status.CERTIFIED:
        X = [int(g) for g in np.flatnonzero(estimates.D[estimates.column] <= L)]
        policies = {g: Policy(g, estimates.goal_policy(g), mdp.reset_action) for g in X}
        verdict = audit_policies(mdp, X, policies, L, epsilon)
        record |= {"c1": verdict.c1, "c2": verdict.c2}
    return record


def sample(run: ExplorationRun, mdp: TabularMDP, truth: Truth, often: int = 1) -> Status:
    """Try every pair of ``mdp`` equally often, or all but the rival ``often`` times as often.

    Sampling ends once every successor of the true world was seen. Bounds hold whatever chose the actions.
    """
    estimates, counts = run.estimates, run.counts
    assert isinstance(estimates, CertifiedExplorer)
    pairs = np.arange(mdp.n_states * mdp.n_actions)
    rows = [mdp.row(*divmod(int(x), mdp.n_actions)) for x in pairs]
    possible = [len(truth.mdp.row(*divmod(int(x), mdp.n_actions))[0]) for x in pairs]
    weights = np.where(pairs == RIVAL, 1, often)
    tries = 0
    while run.has_open_goals() and tries < SAMPLED_TRIES and (counts.support < possible).any():
        more = max(1, tries // 10)
        landed = [run.rng.choice(states, more * w, p=p) for (states, p), w in zip(rows, weights, strict=True)]
        counts.add_steps(np.repeat(pairs, more * weights), np.concatenate(landed).astype(np.int64))
        tries += more
        run.steps = int(counts.visits.sum())
        estimates.schedule.refill_completely()
        while estimates.refresh_columns(run.column_weights() > 0) and run.has_open_goals():
            pass
        truth(run)
    return Status.BUDGET if run.has_open_goals() else run.status_of_own_rule


def broken(record: RunOutcome) -> bool:
    """Return whether any claim of the run was false."""
    return bool(record["first_miss"]) or record["c1"] is False or record["c2"] is False


def tasks(runs: int, control: int, seed: int) -> list[Task]:
    """Return all combinations in turn, then the control. A larger number of runs extends a smaller one."""
    rules, n = GOAL_RULES, len(FAMILIES)
    found = [
        Task(FAMILIES[i % n], rules[i // n % len(rules)], DELTAS[i // (n * len(rules)) % len(DELTAS)], seed + i)
        for i in range(runs)
    ]
    return found + [Task(FAMILIES[i % 8], rules[i // 8 % len(rules)], 0.0, seed + i) for i in range(control)]


def chunks(options: ExperimentOptions) -> list[list[Task]]:
    """Return the chunks: each is a list of short runs."""
    wanted = tasks(options.runs, options.control, options.seed)
    return [wanted[first : first + CHUNK] for first in range(0, len(wanted), CHUNK)]


def file(chunk: list[Task]) -> str:
    """Return the file of a chunk, named by its first run and its length."""
    kind = "control" if chunk[0].delta == 0 else "run"
    return f"coverage-chunks/chunk-{kind}-{chunk[0].seed:06d}-{len(chunk)}.json"


def measure(chunk: list[Task], options: ExperimentOptions) -> list[dict[str, Any]]:
    """Make all runs of a chunk."""
    return [run_task(task) for task in chunk]


def same(chunk: list[Task], records: RunOutcome, options: ExperimentOptions) -> bool:
    """Return whether a file holds the records of these runs."""
    return [Task(*(record[name] for name in Task._fields)) for record in records] == chunk


def at_most(failures: int, runs: int) -> float:
    """Return the Clopper-Pearson upper bound on the failure probability, at level ``CONFIDENCE``."""
    return clopper_pearson_interval(failures, runs, 2 * CONFIDENCE - 1)[1]


def summary(records: Sequence[RunOutcome], families: Sequence[str] = FAMILIES) -> list[dict[str, Any]]:
    """Return one row per family and delta, and one over all families."""
    rows = []
    for delta in sorted({record["delta"] for record in records}, reverse=True):
        for family in ("all", *families):
            some = [r for r in records if r["delta"] == delta and family in ("all", r["family"])]
            if not some:
                continue
            row: dict[str, Any] = {"delta": delta or "control", "family": family, "runs": len(some)}
            row["stopped"] = sum(r["status"] == "certified" for r in some)
            row["broken"] = sum(broken(r) for r in some)
            row["at_most"] = at_most(row["broken"], len(some))
            row |= {kind: sum(kind in r["first_miss"] for r in some) for kind in KINDS}
            row |= {name: sum(r[name] is False for r in some) for name in ("c1", "c2")}
            rows.append(row)
    return rows


def figure(records: Sequence[RunOutcome], rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the share of violated runs per family with its upper bound, and the distribution of margins."""
    drawn, axes = figure_with_panels(1 + len(DELTAS), (11.5, 4.6), width_ratios=[1.0] * len(DELTAS) + [1.1])
    for ax, delta in zip(axes, DELTAS, strict=False):
        _draw_families(ax, [row for row in rows if row["delta"] == delta], delta, named=ax is axes[0])
    ax = axes[-1]
    for kind, colour in zip(DRAWN, COLOUR_BLIND_PALETTE, strict=False):
        slack = nearest(records, kind)
        ax.plot(slack, shares(slack), color=colour, label=NAMES[kind])
    ax.axvline(0.0, color=GUIDE_COLOUR, linewidth=0.8)
    ax.set_xscale("symlog", linthresh=1e-3)
    ax.set(xlabel="nearest it came to a miss, in steps", ylabel="share of runs", ylim=(0, 1), xlim=(-1e-3, None))
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    return drawn


def _draw_families(ax: Axes, rows: Sequence[dict[str, Any]], delta: float, named: bool) -> None:
    places = np.arange(len(rows))[::-1]
    for y, row in zip(places, rows, strict=True):
        ax.plot([row["broken"] / row["runs"], row["at_most"]], [y, y], color=COLOUR_BLIND_PALETTE[0], linewidth=2)
        ax.plot(row["broken"] / row["runs"], y, "o", color=COLOUR_BLIND_PALETTE[0], markersize=4)
    ax.axvline(delta, color=COLOUR_BLIND_PALETTE[1], linestyle="--")
    ax.annotate(f"delta = {delta:g}", (delta, 1.005), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
    names = [f"{row['family']}:  " if named else "" for row in rows]
    ax.set_yticks(places, [f"{n}{row['broken']} of {row['runs']}" for n, row in zip(names, rows, strict=True)])
    widest = max([delta, *(row["at_most"] for row in rows)])
    ax.set(xlabel=f"broken runs: share, and {CONFIDENCE:.0%} upper bound", xlim=(-0.03 * widest, 1.1 * widest))
    ax.locator_params(axis="x", nbins=4)


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the table by family and delta, with every violated run."""
    records = [record for chunk in outcomes for record in chunk]
    rows = summary(records)
    found = [record for record in records if record["delta"] > 0 and broken(record)]
    data = {"runs": options.runs, "control": options.control, "seed": options.seed, "rows": rows, "broken": found}
    text = table_from_rows(rows, COLUMNS, left=2).to_markdown()
    return ExperimentReport(rows, text, data, {"coverage.png": figure(records, rows)}, plots=[misses(records)])


def misses(records: Sequence[RunOutcome]) -> CurvePlot:
    """Return the distribution of margins for the page; smaller margins than :data:`NEAREST` are drawn there."""
    lines = []
    for kind in DRAWN:
        slack = nearest(records, kind)
        lines.append(Curve(NAMES[kind], np.maximum(slack, NEAREST).tolist(), shares(slack).tolist()))
    return CurvePlot(
        "How near to a miss", f"nearest it came to a miss, in steps (from {NEAREST:g})", "share of runs", lines
    )


def nearest(records: Sequence[RunOutcome], kind: str) -> np.ndarray[Any, Any]:
    """Return the smallest margin of each honest run, sorted."""
    return np.sort([r["slack"][kind] for r in records if r["delta"] > 0 and r["slack"][kind] is not None])


def shares(found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the cumulative shares of sorted values."""
    return np.arange(1, len(found) + 1) / len(found)


COVERAGE = Experiment(
    "coverage",
    chunks,
    measure,
    report,
    outcome_file=file,
    is_complete=same,
    defaults=CATALOGUE["coverage"].defaults,
)
