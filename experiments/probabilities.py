"""How often a certified probability is wrong: random models, checked exactly after every rollout.

A run is *broken* if it ever claimed something false: a lower bound above the probability of its policy, an upper bound
below the largest one, or at the stop the condition C1 or C2 of docs/probabilities.md. The promise is that the
probability of a broken run is at most delta. The *control* runs the same check with balls and unseen masses that are
50 times too small: it must find misses, or the check would be blind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from adagoal import goal_rules
from adagoal.comparison.method_scores import RunOutcome
from adagoal.core.array_types import Bools
from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.goal_space import GoalSpace
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact.audit import audit_probabilities, largest_probabilities, policy_probability
from adagoal.exact.solver import is_at_most
from adagoal.loop import run_exploration
from adagoal.planning.model_arrays import EmpiricalModel
from adagoal.runs.exploration_session import build_result
from adagoal.tabular.reach_probabilities import ReachProbabilities, RestartedBalls
from experiments.catalogue import CATALOGUE
from experiments.coverage import BUDGET, CHUNK, COLUMNS, at_most, broken
from experiments.coverage_worlds import case
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.layout import table_from_rows

FAMILIES = ("sparse", "dense", "deterministic", "waiting", "rare exits", "traps", "extreme")
DELTA = 0.1


class Task(NamedTuple):
    """One run."""

    family: str
    rule: str
    delta: float  # 0: the control
    seed: int


class WeakenedBalls(RestartedBalls):
    """The control: what the bounds rest on is divided by 50."""

    def model(self) -> EmpiricalModel:
        """Return the sets, far too small."""
        model = super().model()
        return model._replace(r=model.r / 50, q=model.q / 50)


class ReachTruth:
    """An observer that checks every claim of the estimates against the exact solution."""

    def __init__(self, mdp: TabularMDP, within: int, avoid: Bools) -> None:
        self.mdp, self.avoid = mdp, avoid
        self.optimal = largest_probabilities(mdp, range(mdp.n_states), within, avoid)
        self.first_miss: dict[str, int] = {}  # by kind of claim, the steps at its first violation
        self._values: dict[tuple[int, bytes], float] = {}

    def __call__(self, run: ExplorationRun) -> None:
        """Check all claims after a rollout, and at the end."""
        for goal in range(self.mdp.n_states):
            lower, upper = run.estimates.distance_bounds(goal)
            if not is_at_most(self.optimal[goal], upper):
                self.first_miss.setdefault("upper", run.steps)
            # A policy is computed for goals that were seen.
            if lower > 0 and not is_at_most(lower, self.value(goal, run.estimates.goal_policy(goal))):
                self.first_miss.setdefault("lower", run.steps)

    def value(self, goal: int, table: np.ndarray[Any, Any]) -> float:
        """Return the probability of a policy, from a cache."""
        key = goal, table.tobytes()
        if key not in self._values:
            self._values[key] = policy_probability(self.mdp, table, goal, self.avoid)
        return self._values[key]


def run_task(task: Task, budget: int = BUDGET) -> dict[str, Any]:
    """Make one run with checks after every rollout, and audit it at the stop."""
    mdp, rng = case(task.family, task.seed).mdp, np.random.default_rng([task.seed, 23])
    within, epsilon = int(rng.integers(2, 16)), float(rng.choice([0.1, 0.2, 0.3]))
    p = float(rng.uniform(epsilon + 0.01, 0.95))
    # In half of the worlds one state must be avoided.
    avoid = np.arange(mdp.n_states) == (rng.integers(1, mdp.n_states) if rng.random() < 0.5 else -1)
    world = ModelSimulator(mdp)
    counts = TransitionCounts(world.initial_states, world.n_actions, world.start)
    space = GoalSpace.from_states(mdp.n_states, mdp.n_states)
    sizes = mdp.n_states, mdp.n_states * mdp.n_actions, mdp.n_states
    sets = (RestartedBalls if task.delta else WeakenedBalls)(counts, *sizes, task.delta or DELTA, mdp.n_states)
    estimates = ReachProbabilities("certified", counts, sets, space, within, p, epsilon, lambda n: avoid)
    rule = goal_rules.resolve_rule(task.rule)
    run = ExplorationRun(world, estimates, rule, np.random.default_rng([task.seed, 11]), goal_space=space)
    truth = ReachTruth(mdp, within, avoid)
    status = run_exploration(run, budget, truth)
    truth(run)
    target: dict[str, Any] = {"within": within, "probability": p, "epsilon": epsilon}
    record: dict[str, Any] = {**task._asdict(), **target, "status": status, "steps": run.steps}
    record |= {"first_miss": truth.first_miss, "c1": None, "c2": None}
    if status is Status.CERTIFIED:
        # The result that a user gets: goals that were never seen are not in it.
        result = build_result(ExplorationSettings(task.family, radius=within, **target), run, status)
        policies = {g: result.policy(g) for g in result.goals}
        goals = {g: g for g in range(mdp.n_states)}
        verdict = audit_probabilities(
            mdp, result.goals, policies, within, p, epsilon, avoid, result.certificates, goals
        )
        record |= {"c1": verdict.c1, "c2": verdict.c2}
    return record


def tasks(runs: int, control: int, seed: int) -> list[Task]:
    """Return the families in turn with two goal rules, then the control."""
    rules, n = ("adagoal", "unigoal"), len(FAMILIES)
    return [
        Task(FAMILIES[i % n], rules[i // n % 2], delta, seed + i)
        for delta, count in ((DELTA, runs), (0.0, control))
        for i in range(count)
    ]


def chunks(options: ExperimentOptions) -> list[list[Task]]:
    """Return the chunks: each is a list of short runs."""
    wanted = tasks(options.runs, options.control, options.seed)
    return [wanted[first : first + CHUNK] for first in range(0, len(wanted), CHUNK)]


def file(chunk: list[Task]) -> str:
    """Return the file of a chunk, named by its first run and its length."""
    kind = "control" if chunk[0].delta == 0 else "run"
    return f"probabilities-chunks/chunk-{kind}-{chunk[0].seed:06d}-{len(chunk)}.json"


def measure(chunk: list[Task], options: ExperimentOptions) -> list[dict[str, Any]]:
    """Make all runs of a chunk."""
    return [run_task(task) for task in chunk]


def same(chunk: list[Task], records: RunOutcome, options: ExperimentOptions) -> bool:
    """Return whether a file holds the records of these runs."""
    return [Task(*(record[name] for name in Task._fields)) for record in records] == chunk


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the table by family."""
    records = [record for chunk in outcomes for record in chunk]
    rows = []
    for delta in (DELTA, 0.0):
        for family in ("all", *FAMILIES):
            some = [r for r in records if r["delta"] == delta and family in ("all", r["family"])]
            if not some:
                continue
            wrong = sum(map(broken, some))
            row: dict[str, Any] = {"delta": delta or "control", "family": family, "runs": len(some), "broken": wrong}
            row |= {"stopped": sum(r["status"] == "certified" for r in some), "at_most": at_most(wrong, len(some))}
            row |= {kind: sum(kind in r["first_miss"] for r in some) for kind in ("lower", "upper")}
            rows.append(row | {name: sum(r[name] is False for r in some) for name in ("c1", "c2")})
    columns = {name: text for name, text in COLUMNS.items() if name not in ("gap", "tables")}
    return ExperimentReport(rows, table_from_rows(rows, columns, left=2).to_markdown(), {"rows": rows})


PROBABILITIES = Experiment(
    "probabilities",
    chunks,
    measure,
    report,
    outcome_file=file,
    is_complete=same,
    defaults=CATALOGUE["probabilities"].defaults,
)
