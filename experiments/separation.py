"""What the reset is worth: the instance of lemma ``lemma_exp_sep``, with and without it.

In :func:`experiments.extra_models.separation_instance` a fork is met with probability eta whenever s0 is left. Without
the reset, a policy that errs in the fork loses 2 > epsilon steps, and the right action there cannot be guessed: no
learner can solve the problem before it has met the fork once. With the reset, an error in the fork costs eta (1 + V^pi)
at most.

Two curves over the diameter D of the reset-free problem, of the order 1/eta:

    with the reset   steps of the certified explorer to its stop: real runs, each one audited on the true model
    reset-free       steps until the fork is first met: no learner, but what every learner has to wait for. Nothing
                     that it does has an influence on this time, so that it is drawn from its exact law, not stepped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from adagoal.api.explore import audit, explore
from adagoal.comparison.method_comparison import run_uninterrupted
from adagoal.comparison.method_scores import RunOutcome
from adagoal.core.exploration_run import ExplorationRun
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.report.html_page import Curve, CurvePlot, curves_by_seed
from experiments import exact_policies, extra_models
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.layout import table_from_rows

ETAS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
RADIUS, EPSILON, DELTA = 10.0, 1.0, 0.1
GOAL, FORK = 1, 3
DRAWS = 10_000
"""Number of samples of the time at which the fork is first met."""
WITH_RESET = "with the reset: certified stop, measured"
WITHOUT_RESET = "without the reset: until the fork is met"
LEMMA = "the lemma's 1 / (9 eta)"
DIAMETER = "diameter D of the reset-free problem"
COLUMNS = {
    **{"eta": "{eta:.0e}", "diameter": "{diameter:.3g}", "steps, reset": "{reset_steps:.3g}"},
    **{"audits": "{audits_passed}/{runs}", "met fork": "{met_fork}/{runs}"},
    "steps, reset-free": "{reset_free_steps:.3g}",
}


class Cell(NamedTuple):
    """One run with the reset."""

    eta: float
    seed: int


def instance(eta: float, seed: int = 0) -> TabularMDP:
    """Return the instance; one of its four actions is the good one."""
    return extra_models.separation_instance(n_actions=4, radius=RADIUS, eta=eta, best=seed % 4)


def with_reset(cell: Cell, options: ExperimentOptions) -> dict[str, Any]:
    """Run the certified explorer with the goal space {g}, and audit the result."""
    mdp = instance(*cell)
    met = False

    def watch(run: ExplorationRun) -> None:
        nonlocal met
        met = bool(run.counts.seen[FORK])

    result = run_uninterrupted(
        explore, ModelSimulator(mdp), RADIUS, EPSILON, DELTA, seed=cell.seed, goals=[GOAL], observe=watch
    )
    verdict = audit(result, mdp)
    outcome = {"status": result.status, "steps": result.steps, "audit": verdict.ok, "gap": verdict.rows[0].gap}
    return outcome | {"met_fork": met}


def first_met(eta: float, seed: int) -> list[float]:
    """Return the 10%, 50% and 90% quantiles of the step at which a run without reset first meets the fork.

    The rounds before it that miss the fork are geometric in number; each takes one step to x, a geometric time there
    with zeta = 1/(L - 1), and one step back to s0.
    """
    rng = np.random.default_rng([seed, round(1 / eta)])
    rounds = rng.geometric(eta, DRAWS) - 1
    waiting = rounds + rng.negative_binomial(np.maximum(rounds, 1), 1 / (RADIUS - 1)) * (rounds > 0)
    steps = 2 * rounds + waiting + 1
    return [float(q) for q in np.quantile(steps, (0.1, 0.5, 0.9))]


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return both curves, by eta."""
    data = []
    for eta, own in zip(ETAS, np.array(outcomes, object).reshape(len(ETAS), -1).tolist(), strict=True):
        steps = np.quantile([run["steps"] for run in own], (0.1, 0.5, 0.9))
        diameter = exact_policies.diameter(instance(eta), reset=False)
        row = {"eta": eta, "diameter": diameter, "reset_steps": steps.tolist(), "reset_runs": own}
        data.append(row | {"reset_free_steps": first_met(eta, options.seeds[0])})
    rows = [
        {
            "eta": row["eta"],
            "diameter": row["diameter"],
            "reset_steps": row["reset_steps"][1],
            "audits_passed": sum(run["audit"] for run in row["reset_runs"]),
            "runs": len(row["reset_runs"]),
            "met_fork": sum(run["met_fork"] for run in row["reset_runs"]),
            "reset_free_steps": row["reset_free_steps"][1],
        }
        for row in data
    ]
    setting = {"radius": RADIUS, "epsilon": EPSILON, "delta": DELTA, "seeds": list(options.seeds), "draws": DRAWS}
    text = table_from_rows(rows, COLUMNS, left=0).to_markdown()
    found = {"separation.png": figure(data)}
    return ExperimentReport(rows, text, setting | {"rows": data}, found, plots=[panel(data, options.seeds)])


def panel(rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> CurvePlot:
    """Return the curves for the page, with those of every seed."""
    runs = [(row["diameter"], seed, run) for row in rows for seed, run in zip(seeds, row["reset_runs"], strict=True)]
    lines = curves_by_seed(WITH_RESET, ((seed, diameter, run["steps"]) for diameter, seed, run in runs))
    x = [row["diameter"] for row in rows]
    for i, share in enumerate(("10%", "median", "90%")):
        lines.append(Curve(f"{WITHOUT_RESET}, {share}", x, [row["reset_free_steps"][i] for row in rows]))
    lines.append(Curve(LEMMA, x, [1 / (9 * row["eta"]) for row in rows]))
    return CurvePlot("What the reset is worth", DIAMETER, "steps", lines)


def figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw both curves over the diameter."""
    x = [row["diameter"] for row in rows]
    drawn = Figure((6.4, 4.0), layout="constrained")
    ax = drawn.subplots()
    curves = (
        ("reset_free_steps", "#b35806", f"{WITHOUT_RESET}, a floor for every learner"),
        ("reset_steps", "#2166ac", WITH_RESET),
    )
    for name, colour, label in curves:
        low, middle, high = np.array([row[name] for row in rows]).T
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(x, middle, color=colour, marker="o", markersize=4, label=label)
    ax.plot(x, [1 / (9 * row["eta"]) for row in rows], ":", color="#555555", label=LEMMA)
    ax.set(xscale="log", yscale="log", xlabel=DIAMETER, ylabel="steps (median, 10% to 90%)")
    ax.legend(frameon=False, fontsize=8)
    ax.grid(alpha=0.3)
    return drawn


SEPARATION = Experiment(
    "separation",
    list_runs=lambda options: [Cell(eta, seed) for eta in ETAS for seed in options.seeds],
    measure_run=with_reset,
    make_report=report,
    defaults=CATALOGUE["separation"].defaults,
)
