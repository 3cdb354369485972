"""The outcome of ``adagoal.compare``: audits during the runs, the table of scores, and curves of the true error.

The *audit-stop* is the first check after which no check fails. A check is the exact audit (C1 and C2 of definition
``def_MGE``) of what the method would return now. Checks happen :data:`CHECKS_PER_DECADE` times per decade of steps,
between two rollouts, so they do not change the run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from adagoal import methods
from adagoal.core.array_types import Floats
from adagoal.core.environment import Policy, renumber_policies
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.goal_space import GoalSpace
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.exact.solver import GoalStates
from adagoal.report.html_page import Curve, CurvePlot, curves_by_seed
from adagoal.report.show import plot_curves
from adagoal.runs.result import to_data_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RunOutcome = Any
"""What a run measured, as read from its file: a dictionary or a list."""
# Checks while the steps grow by a factor of 10. With 8 an audit-stop is about 33% too large at most.
CHECKS_PER_DECADE = 8
FIRST_CHECK_STEPS = 100


@dataclass(frozen=True)
class AuditCheck:
    """One audit of the output of a run."""

    steps: int
    error: float  # max of V^pi_g - V* over the goals of G_L; infinite if one is missing
    holds: bool  # C1 and C2


class AnytimeAuditor:
    """An observer that audits the current output of a run at a geometric grid of step counts."""

    def __init__(self, mdp: TabularMDP, radius: float, epsilon: float, goals: GoalSpace | None = None) -> None:
        """Solve the model. ``goals`` are all states by default; sets must cover every state of the model."""
        self.checks: list[AuditCheck] = []
        self._mdp, self._epsilon = mdp, epsilon
        goals = goals or GoalSpace.from_states(mdp.n_states, mdp.n_states)
        self._goal_states: list[GoalStates] = [
            g if goals.goals_are_states else np.flatnonzero(goals.states_of_goal(g)).tolist()
            for g in range(goals.n_goal_numbers)
        ]
        space = np.isin(np.arange(goals.n_goal_numbers), goals.goal_numbers)
        self._optimal_values = solver.optimal_distances(mdp, self._goal_states)
        self._within_radius = space & solver.is_at_most(self._optimal_values, radius)
        self._within_tolerance = space & solver.is_at_most(self._optimal_values, radius + epsilon)
        self._next_check_steps = float(FIRST_CHECK_STEPS)
        self._cached_values: dict[int, tuple[bytes, float]] = {}

    def __call__(self, run: ExplorationRun) -> None:
        """Audit the run after a rollout, if a check is due."""
        if run.steps < self._next_check_steps:
            return
        estimates = run.estimates
        columns = estimates.column[estimates.goals]
        in_X = (estimates.goal_state[columns] >= 0) & (estimates.D[columns] <= estimates.L)
        reset = run.env.n_actions
        policies = {int(g): Policy(int(g), estimates.goal_policy(g), reset) for g in estimates.goals[in_X]}
        # The states of a large model are numbered as they are met.
        if isinstance(run.env, ModelSimulator) and run.env.initial_states < run.env.state_bound:
            policies = renumber_policies(policies, run.env.model_states, self._mdp.n_states)
        self.check_output(run.steps, policies)
        # A rollout may pass several checks, which would audit the same output.
        while self._next_check_steps <= run.steps:
            self._next_check_steps *= 10 ** (1 / CHECKS_PER_DECADE)

    def check_output(self, steps: int, policies: Mapping[int, Policy]) -> None:
        """Audit the goals X, given by their policies."""
        X = np.zeros(len(self._goal_states), bool)
        values = np.full(len(self._goal_states), np.inf)
        for goal, policy in policies.items():
            X[goal], values[goal] = True, self._cached_policy_value(goal, policy)
        # Infinity is at most infinity, so a policy that may miss its goal would pass without the first test.
        c1 = (
            np.isfinite(values[X]).all() and solver.is_at_most(values[X], self._optimal_values[X] + self._epsilon).all()
        )
        c2 = (X | ~self._within_radius).all() and (self._within_tolerance | ~X).all()
        gaps = values[self._within_radius] - self._optimal_values[self._within_radius]
        # By rounding, the value of an optimal policy can be slightly below the optimal value.
        self.checks.append(AuditCheck(steps, max(float(gaps.max(initial=0.0)), 0.0), bool(c1 and c2)))

    def _cached_policy_value(self, goal: int, policy: Policy) -> float:
        # Between two checks few policies change, and a value costs the solution of a linear system.
        table = policy.actions.tobytes()
        if self._cached_values.get(goal, (b"", 0.0))[0] != table:
            self._cached_values[goal] = table, solver.policy_value(self._mdp, policy, self._goal_states[goal])
        return self._cached_values[goal][1]

    @property
    def audit_stop(self) -> int | None:
        """Steps at the audit-stop; None if the last check failed."""
        first = None
        for check in reversed(self.checks):
            if not check.holds:
                break
            first = check.steps
        return first


SCORE_TABLE_NOTE = (
    "Medians over the seeds, in environment steps. Own stop: the method's own rule ends the run (in brackets: how many "
    "runs did, if not all); audit-stop: the first step after which the exact audit of the current output always holds; "
    "audit holds: runs whose final output passes."
)


@dataclass(frozen=True)
class MethodScore:
    """One method with one goal rule in one environment, over its seeds."""

    world: str  # the environment with its arguments
    method: str
    goal_rule: str
    guarantee: bool
    runs: int
    stopped: int
    own_stop: float  # median; infinite if most runs did not stop within the budget
    audit_stop: float
    holds: int  # runs whose final output passes the audit
    seconds: float
    budget: int | None

    def table_cells(self) -> tuple[str, ...]:
        """Return the row of the table (:func:`make_score_table`)."""
        ratio = self.own_stop / self.audit_stop if math.isfinite(self.own_stop) and self.audit_stop > 0 else math.nan
        method = self.method if self.guarantee else f"{self.method} (no guarantee)"
        return (
            *(self.world, method, self.goal_rule, str(self.runs)),
            self._format_steps(self.own_stop) + ("" if self.stopped == self.runs else f" ({self.stopped}/{self.runs})"),
            self._format_steps(self.audit_stop),
            f"{ratio:.3g}" if ratio > 0 else "-",
            f"{self.holds}/{self.runs}",
            f"{self.seconds:.1f}",
        )

    def to_dict(self) -> dict[str, object]:
        """Return plain types for JSON; an infinite number becomes None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}

    def _format_steps(self, steps: float) -> str:
        if math.isfinite(steps):
            return f"{steps:,.0f}"
        # With a larger budget a run that stopped by itself would not have changed its output.
        return f"> {self.budget:,}" if self.budget and self.stopped < self.runs else "never"


@dataclass(frozen=True)
class TextTable:
    """A table of texts. The first ``n_left_columns`` are aligned to the left, the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_left_columns: int = 1

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---"] * self.n_left_columns + ["---:"] * (len(self.header) - self.n_left_columns)
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.header, rule, *self.rows)) + "\n"


@dataclass(frozen=True)
class Comparison:
    """Outcome of :func:`adagoal.compare`; ``print`` shows its table."""

    outcomes: Sequence[RunOutcome] = field(repr=False)
    """What every run measured: its settings, its stop, its final audit, and the checks on the way."""

    @property
    def scores(self) -> list[MethodScore]:
        """One score for each environment, method and goal rule, over the seeds."""
        return compute_scores(self.outcomes)

    def __repr__(self) -> str:
        scores = self.scores
        worlds = ", ".join(dict.fromkeys(score.world for score in scores))
        return f"<Comparison in {worlds}: {len(scores)} methods and goal rules, {len(self.outcomes)} runs>"

    def __str__(self) -> str:
        return f"{make_score_table(self.scores).to_markdown()}\n{SCORE_TABLE_NOTE}\n"

    def _repr_html_(self) -> str:
        table = make_score_table(self.scores)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
        header = "".join(f"<th>{escape(name)}</th>" for name in table.header)
        return f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table><p>{SCORE_TABLE_NOTE}</p>"

    def frame(self) -> Any:
        """Return the scores as a pandas data frame, one row for each environment, method and goal rule."""
        return to_data_frame([score.to_dict() for score in self.scores])

    def plot(self) -> Figure:
        """Return a Matplotlib figure: the true error of the current output over the steps."""
        return plot_curves(make_error_plots(self.outcomes))


def group_outcomes(records: Iterable[RunOutcome]) -> dict[tuple[str, str, str], list[RunOutcome]]:
    """Return the outcomes by environment, method and goal rule."""
    groups: dict[tuple[str, str, str], list[RunOutcome]] = {}
    for record in records:
        setting = record["setting"]
        world = " ".join([setting["env"], *(f"{k}={v}" for k, v in setting["env_args"].items())])
        method = ":".join([setting["method"], *(f"{k}={v}" for k, v in setting["method_args"].items())])
        # A method without goal rules ran once for all rules, so the rule in its settings means nothing.
        rule = setting["goal_rule"] if methods.find_method(setting["method"]).uses_goal_rule else "own"
        groups.setdefault((world, method, rule), []).append(record)
    return groups


def compute_scores(records: Iterable[RunOutcome]) -> list[MethodScore]:
    """Return one score for each environment, method and goal rule, in the order of the records."""
    return [
        MethodScore(
            *key,
            guarantee=runs[0]["guarantee"],
            runs=len(runs),
            stopped=sum(run["own_stop"] is not None for run in runs),
            own_stop=_median_steps(run["own_stop"] for run in runs),
            audit_stop=_median_steps(run["audit_stop"] for run in runs),
            holds=sum(run["final"]["c1"] and run["final"]["c2"] for run in runs),
            seconds=statistics.median(run["wall_seconds"] for run in runs),
            budget=runs[0]["setting"]["budget"],
        )
        for key, runs in group_outcomes(records).items()
    ]


def _median_steps(steps: Iterable[int | None]) -> float:
    # A run that did not stop counts as infinite: leaving it out would favour methods that seldom stop.
    return float(statistics.median(math.inf if s is None else s for s in steps))


def make_score_table(scores: Sequence[MethodScore]) -> TextTable:
    """Return the table of scores."""
    header = ("world", "method", "goal rule", "runs", "own stop", "audit-stop", "own / audit", "audit holds", "seconds")
    return TextTable(header, [score.table_cells() for score in scores], n_left_columns=3)


def make_error_plots(records: Sequence[RunOutcome]) -> list[CurvePlot]:
    """Return the true error of the current output over the steps, one plot per environment."""
    groups = group_outcomes(records)
    plots = []
    for world in dict.fromkeys(world for world, _, _ in groups):
        inside = {", ".join(key[1:]): runs for key, runs in groups.items() if key[0] == world}
        floor, ceiling, epsilon = _drawn_error_range(inside.values())
        lines: list[Curve] = []
        for name, runs in inside.items():
            steps, errors = _interpolate_errors(runs, floor, ceiling)
            by_seed = zip((run["setting"]["seed"] for run in runs), errors.tolist(), strict=True)
            points = ((seed, x, y) for seed, ys in by_seed for x, y in zip(steps.tolist(), ys, strict=True))
            lines += curves_by_seed(name, points)
        marks = {"epsilon": epsilon, "a goal is missing, or its policy is poor": ceiling}
        plots.append(CurvePlot(world, "steps", "true error of the current output, in steps", lines, marks))
    return plots


def _drawn_error_range(groups: Iterable[Sequence[RunOutcome]]) -> tuple[float, float, float]:
    """Return the smallest and the largest error to draw, and epsilon, for the runs in one environment."""
    runs = [run for group in groups for run in group]
    epsilon = float(runs[0]["setting"]["epsilon"])
    finite = [check[1] for run in runs for check in run["checks"] if check[1] is not None]
    # The axis is logarithmic, so it shows an error of 0 at a thousandth of epsilon and an infinite one at the top.
    return 1e-3 * epsilon, min(4.0 * max([epsilon, *finite]), 1e3 * epsilon), epsilon


def _interpolate_errors(runs: Sequence[RunOutcome], floor: float, ceiling: float) -> tuple[Floats, Floats]:
    """Return steps [n] and errors [runs, n]; a run that has stopped keeps its last output."""
    # A run takes 0 steps if the start is its only goal, and the grid is geometric.
    last = max(1, *(run["checks"][-1][0] for run in runs))
    first = max(1, min(run["checks"][0][0] for run in runs))
    steps = np.geomspace(first, last, max(2, math.ceil(CHECKS_PER_DECADE * math.log10(max(last / first, 1.1))) + 1))
    errors = np.full((len(runs), len(steps)), ceiling)
    for i, run in enumerate(runs):
        when, error = np.array([(c[0], np.inf if c[1] is None else c[1]) for c in run["checks"]]).T
        # geomspace rounds, so the last point of the grid may be just below the last check.
        place = np.searchsorted(when, steps * (1 + 1e-12), side="right") - 1
        errors[i, place >= 0] = np.clip(error[place[place >= 0]], floor, ceiling)
    return steps, errors
