"""States whose number is not declared: how often a certificate is wrong, and what a declared number would save.

*Coverage.* Runs on worlds that go on beyond what most runs meet: queues, trees, lattices, random graphs that grow, and
counters that jump. The learner is not told the number of states, so its union is over the order of discovery
(docs/theory-more.md, lemma 14). Goals are all states, which are discovered, or random sets of states, which are fixed
before the run. The worlds are cut off, so every claim can be checked exactly after every rollout, also the claims about
goals that were never seen. A run is *broken* if one of them was ever false. The *control* runs the same check with
radii and unseen masses that are 50 times too small: it must find misses.

*Queue.* A queue without a bound on its length, as a Gymnasium environment: as it is, and with a declared number of
states, 10,000 or 20.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from adagoal import goal_rules
from adagoal.api.explore import explore
from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.comparison.method_comparison import run_uninterrupted
from adagoal.comparison.method_scores import RunOutcome, TextTable
from adagoal.core.array_types import Longs
from adagoal.core.environment import Policy
from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.goal_space import GoalSpace, PredicateLabeler
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact.audit import audit_policies
from adagoal.loop import run_exploration
from experiments.catalogue import CATALOGUE
from experiments.coverage import CHUNK, COLUMNS, Truth, broken, summary
from experiments.coverage_worlds import Case
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.layout import table_from_rows

DELTAS = (0.1, 0.3)
RULES = ("adagoal", "unigoal", "raregoal")
GOALS = ("states", "sets")
BUDGET = 300_000
"""Budget of a run in steps. The intervals of unfinished runs are checked too."""
SIZE = 150
"""States of most worlds: more than most runs meet."""

Row = dict[int, float]
"""Probabilities by successor."""


def queue(rng: np.random.Generator) -> list[Row]:
    """Action 0 serves a queue, action 1 admits to it; each may do the opposite."""
    up, down = rng.uniform(0.05, 0.2), rng.uniform(0.05, 0.2)
    rows: list[Row] = []
    for n in range(SIZE):
        for rise, fall in ((up, 0.8 - up), (0.8 - down, down)):
            rows.append(_merged((min(n + 1, SIZE - 1), rise), (max(n - 1, 0), fall), (n, 1.0 - rise - fall)))
    return rows


def jumps(rng: np.random.Generator) -> list[Row]:
    """A counter that rises by up to 40, so a pair has rare successors of every kind, or falls to half its value."""
    ratio = rng.uniform(0.3, 0.6)
    rows: list[Row] = []
    for n in range(SIZE):
        rise = [(m, ratio ** (m - n)) for m in range(n + 1, min(n + 41, SIZE))] or [(n, 1.0)]
        total = sum(p for _, p in rise)
        rows.append(_merged(*((m, p / total) for m, p in rise)))
        rows.append(_merged((n // 2, 0.9), (n, 0.1)))
    return rows


def tree(rng: np.random.Generator) -> list[Row]:
    """A binary tree: an action leads to its child, sometimes to the other one or nowhere. Only the reset leads back."""
    slip, n = rng.uniform(0.02, 0.3), 255
    rows: list[Row] = []
    for s in range(n):
        children = [2 * s + 1, 2 * s + 2] if 2 * s + 2 < n else [s, s]
        for child, other in (children, children[::-1]):
            rows.append(_merged((child, 1.0 - slip), (other, slip / 2), (s, slip / 2)))
    return rows


def lattice(rng: np.random.Generator) -> list[Row]:
    """Two queues at once: action 0 admits to the first, action 1 to the second, and the other one may be served."""
    side, served = 14, rng.uniform(0.05, 0.3)
    rows: list[Row] = []
    for s in range(side * side):
        a, b = divmod(s, side)
        first = [(min(a + 1, side - 1) * side + b, 1.0 - served), (a * side + max(b - 1, 0), served)]
        second = [(a * side + min(b + 1, side - 1), 1.0 - served), (max(a - 1, 0) * side + b, served)]
        rows += [_merged(*first), _merged(*second)]
    return rows


def growth(rng: np.random.Generator) -> list[Row]:
    """A random graph that grows: every pair leads to a newer state, to an older one, and rarely to a much newer one."""
    rows: list[Row] = []
    for s in range(SIZE):
        for _ in range(2):
            newer, near = min(s + int(rng.integers(1, 12)), SIZE - 1), int(rng.integers(max(s - 9, 0), s + 1))
            rare, p = int(rng.integers(s, min(s + 60, SIZE))), 10 ** rng.uniform(-4, -1)
            rows.append(_merged((newer, 0.7), (near, 0.3 - p), (rare, p)))
    return rows


def side_doors(rng: np.random.Generator) -> list[Row]:
    """A corridor that looks deterministic. Every hop leads rarely to a state of its own that nothing else leads to."""
    n, p = SIZE // 2, 10 ** rng.uniform(-4, -1)
    rows: list[Row] = []
    for s in range(n):
        rows += [_merged((min(s + 1, n - 1), 1.0 - p), (n + s, p)), {max(s - 1, 0): 1.0}]
    return rows + [{0: 1.0}] * (2 * n)


FAMILIES: dict[str, Callable[[np.random.Generator], list[Row]]] = {
    **{"queue": queue, "jumps": jumps, "tree": tree},
    **{"lattice": lattice, "growth": growth, "side doors": side_doors},
}


def _merged(*entries: tuple[int, float]) -> Row:
    row: Row = {}
    for state, p in entries:
        if p > 0:
            row[state] = row.get(state, 0.0) + p
    return row


def case(family: str, seed: int) -> Case:
    """Return the random world of a run, its radius and its accuracy."""
    rng = np.random.default_rng([seed, 29])
    mdp = model_from_rows(FAMILIES[family](rng), 2, name=family)
    return Case(mdp, float(rng.uniform(2, 4)), float(rng.choice([1.0, 2.0])))


class Task(NamedTuple):
    """One run."""

    family: str
    rule: str
    delta: float  # 0: the control
    seed: int
    goals: str = "states"


class FixedSets(GoalSpace):
    """Random sets of states, fixed before the run. Their members are found as the world numbers its states."""

    def __init__(self, mdp: TabularMDP, env: ModelSimulator, seed: int) -> None:
        rng = np.random.default_rng([seed, 31])
        # Most members are few steps from the start, which is state 0.
        others = np.arange(1, mdp.n_states)
        self.sets = [
            rng.choice(others, rng.integers(1, 5), replace=False, p=0.9**others / sum(0.9**others)).tolist()
            for _ in range(rng.integers(1, 9))
        ]
        labeler = PredicateLabeler({f"set {g}": members.__contains__ for g, members in enumerate(self.sets)})
        super().__init__(np.full((env.initial_states, 1), -1), len(self.sets), labeler=labeler)
        self._env, self._n_added = env, 0

    def grow_states(self, n_states: int) -> None:
        """Add rows, and the states that were met since the last call."""
        super().grow_states(n_states)
        new, self._n_added = self._env.model_states.tolist()[self._n_added :], len(self._env.model_states)
        for number, state in enumerate(new, self._n_added - len(new)):
            self.add_state(number, state, str(state))


class WeakenedSets(ConfidenceSets):
    """The control: what the bounds rest on is divided by 50."""

    def compute_radii(self, pairs: Longs, threads: Executor | None) -> None:
        """Compute the radii, far too small."""
        super().compute_radii(pairs, threads)
        for bounds in (self._radii.r_low, self._radii.r, self._radii.q):
            bounds[pairs] /= 50


class DiscoveredTruth(Truth):
    """Checks the claims of a run that numbers states as it meets them, and those about states never met."""

    def __init__(self, mdp: TabularMDP, env: ModelSimulator, sets: list[list[int]] | None = None) -> None:
        super().__init__(mdp, sets)
        self._env, self._sets = env, sets

    def __call__(self, run: ExplorationRun) -> None:
        """Check all claims after a rollout, and at the end."""
        estimates, met = run.estimates, self._env.model_states
        assert isinstance(estimates, CertifiedExplorer)
        n, others = len(met), np.setdiff1d(np.arange(self.mdp.n_states), met)
        if self._sets is None:
            # The start is the first state. Goals never met have column 0.
            goals, column = np.append(met[1:], others), np.append(estimates.column[1:n], np.zeros(len(others), int))
        else:
            goals, column = np.arange(len(self._sets)), estimates.column
        best = self.optimal[self.mdp.start, goals]
        self._hold(run, "lower", estimates.D[column], best)
        own = column > 0
        self._hold(run, "tables", estimates.V[:n, column[own]], self.optimal[np.ix_(met, goals[own])])
        self._hold(
            run, "tables", estimates.V[:n, 0], self.optimal[np.ix_(met, goals[~own])].min(axis=1, initial=np.inf)
        )
        proper = estimates.Y[0, column] <= estimates.cap - 1.0
        self._hold(run, "tables", self.optimal[np.ix_(met, goals[proper])], estimates.Y[:n, column[proper]])
        finished = np.isfinite(estimates.upper[column])
        value = np.array([self.value(int(g), self.policy(run, int(g))) for g in goals[finished]])
        self._hold(run, "upper", value, estimates.upper[column[finished]])
        self._hold(run, "gap", value, best[finished] + estimates.gap[column[finished]])

    def policy(self, run: ExplorationRun, goal: int) -> np.ndarray[Any, Any]:
        """Return [1, S] the policy for a goal, all in the numbers of the model."""
        met = self._env.model_states
        number = goal if self._sets is not None else int(np.flatnonzero(met == goal)[0])
        table = np.full((1, self.mdp.n_states), self.mdp.reset_action, np.int16)
        table[0, met] = run.estimates.goal_policy(number)[0, : len(met)]
        return table


def run_task(task: Task) -> dict[str, Any]:
    """Make one run with checks after every rollout, and audit it at the stop."""
    mdp, L, epsilon = case(task.family, task.seed)
    env = ModelSimulator(mdp)
    env.number_states_if_large(least=0)
    counts = TransitionCounts(env.initial_states, env.n_actions, env.start)
    fixed = FixedSets(mdp, env, task.seed) if task.goals == "sets" else None
    space = fixed or GoalSpace.from_states(counts.n_states, math.inf)
    sets = ConfidenceSets if task.delta else WeakenedSets
    estimates = CertifiedExplorer(counts, None, L, epsilon, task.delta or DELTAS[0], space, confidence=sets)
    rule, rng = goal_rules.resolve_rule(task.rule), np.random.default_rng([task.seed, 11])
    members = None if fixed is None else fixed.sets
    run, truth = ExplorationRun(env, estimates, rule, rng, goal_space=space), DiscoveredTruth(mdp, env, members)
    status = run_exploration(run, BUDGET, truth)
    truth(run)
    record: dict[str, Any] = {**task._asdict(), "L": L, "epsilon": epsilon, "status": status, "steps": run.steps}
    record |= {"met": len(env.model_states), "first_miss": truth.first_miss, "c1": None, "c2": None}
    if status is Status.CERTIFIED:
        goals = env.model_states if members is None else np.arange(len(members))
        X = goals[estimates.D[estimates.column[: len(goals)]] <= L].tolist()
        policies = {g: Policy(g, truth.policy(run, g), mdp.reset_action) for g in X}
        sets_of_goals = None if members is None else dict(enumerate(members))
        verdict = audit_policies(mdp, X, policies, L, epsilon, sets=sets_of_goals)
        record |= {"c1": verdict.c1, "c2": verdict.c2}
    return record


def tasks(runs: int, control: int, seed: int) -> list[Task]:
    """Return the families in turn, then the control; rounds have the deltas, and pairs of rounds the goals, in turn."""
    names, n = list(FAMILIES), len(FAMILIES)

    def task(i: int, delta: float) -> Task:
        return Task(names[i % n], RULES[i // n % 3], delta, seed + i, GOALS[i // (2 * n) % 2])

    return [task(i, DELTAS[i // n % 2]) for i in range(runs)] + [task(i, 0.0) for i in range(control)]


def chunks(options: ExperimentOptions) -> list[list[Task]]:
    """Return the chunks: each is a list of short runs."""
    wanted = tasks(options.runs, options.control, options.seeds.start)
    return [wanted[first : first + CHUNK] for first in range(0, len(wanted), CHUNK)]


def file(chunk: list[Task]) -> str:
    """Return the file of a chunk, named by its first run and its length."""
    kind = "control" if chunk[0].delta == 0 else "run"
    return f"discovery-chunks/chunk-{kind}-{chunk[0].seed:06d}-{len(chunk)}.json"


def measure(chunk: list[Task], options: ExperimentOptions) -> list[dict[str, Any]]:
    """Make all runs of a chunk."""
    return [run_task(task) for task in chunk]


def same(chunk: list[Task], records: RunOutcome, options: ExperimentOptions) -> bool:
    """Return whether a file holds the records of these runs."""
    return [Task(*(record[name] for name in Task._fields)) for record in records] == chunk


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the table by goals, family and delta, with every broken run."""
    records = [record for chunk in outcomes for record in chunk]
    rows = [
        {"goals": goals, **row}
        for goals in GOALS
        for row in summary([record for record in records if record["goals"] == goals], tuple(FAMILIES))
    ]
    found = [record for record in records if record["delta"] > 0 and broken(record)]
    text = table_from_rows(rows, {"goals": "{goals}"} | COLUMNS, left=3).to_markdown()
    return ExperimentReport(rows, text, {"rows": rows, "broken": found})


class Queue(gymnasium.Env[Any, int]):
    """A queue of any length: action 0 serves, action 1 admits. ``declared``: the number of states to declare."""

    def __init__(self, declared: int | None = None) -> None:
        self.action_space: Any = spaces.Discrete(2)
        lengths = spaces.Box(0, 2**31, (1,), np.int64)
        self.observation_space = lengths if declared is None else spaces.Discrete(declared)
        self._length, self._declared = 0, declared

    def _observation(self) -> Any:
        return np.array([self._length]) if self._declared is None else self._length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Empty the queue."""
        super().reset(seed=seed)
        self._length = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Serve or admit."""
        u, (rise, fall) = self.np_random.random(), ((0.1, 0.6), (0.7, 0.1))[action]
        if u < rise:
            self._length += 1
        elif u > 1.0 - fall and self._length:
            self._length -= 1
        return self._observation(), 0.0, False, False, {}


class QueueRun(NamedTuple):
    """One run of the comparison."""

    declared: int | None
    seed: int


def queue_runs(options: ExperimentOptions) -> list[QueueRun]:
    """Return all runs."""
    return [QueueRun(declared, seed) for declared in (None, 10_000, 20) for seed in options.seeds]


def measure_queue(run: QueueRun, options: ExperimentOptions) -> dict[str, Any]:
    """Certify the queue at radius 12."""
    result = run_uninterrupted(explore, Queue(run.declared), 12.0, 1.0, 0.1, seed=run.seed)
    return {**run._asdict(), "steps": result.steps, "status": result.status, "goals": len(result.goals)}


def report_queue(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the medians."""
    rows: list[dict[str, Any]] = []
    for declared in (None, 10_000, 20):
        some = [o for o in outcomes if o["declared"] == declared]
        steps = statistics.median(o["steps"] for o in some)
        rows.append({"declared": declared, "certified": sum(o["status"] == "certified" for o in some), "steps": steps})
    lines = []
    for row in rows:
        number = "none" if row["declared"] is None else f"{row['declared']:,}"
        certified = f"{row['certified']} of {len(options.seeds)}"
        lines.append([number, certified, f"{row['steps']:,.0f}", f"{row['steps'] / rows[1]['steps']:.2f}"])
    text = TextTable(("declared states", "certified", "median steps", "ratio"), lines).to_markdown()
    return ExperimentReport(rows, text, {"rows": rows, "runs": outcomes})


PARTS = {
    "coverage": Experiment(
        "discovery",
        chunks,
        measure,
        report,
        outcome_file=file,
        is_complete=same,
        defaults=CATALOGUE["discovery"].defaults,
    ),
    "queue": Experiment("queue", queue_runs, measure_queue, report_queue, defaults=CATALOGUE["discovery"].defaults),
}
