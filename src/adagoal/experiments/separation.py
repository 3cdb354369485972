"""What the reset is worth: the instance of lemma ``lemma_exp_sep``, with and without it.

In :func:`adagoal.worlds.toys.separation` a fork is met with probability eta whenever s0 is left. Without the reset, a
policy that errs in the fork loses 2 > epsilon steps, and the right action there cannot be guessed: no learner can
solve the problem before it has met the fork once. With the reset, an error in the fork costs eta (1 + V^pi) at most.

Two curves over the diameter D of the reset-free problem, of the order 1/eta:

    with the reset   steps of the certified explorer to its stop: real runs, each one audited on the true model
    reset-free       steps until the fork is first met: no learner, but what every learner has to wait for. Nothing
                     that it does has an influence on this time, so that it is drawn from its exact law, not stepped.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.figure import Figure

from adagoal import goals as goal_rules
from adagoal.core.counts import Counts
from adagoal.core.files import write_json
from adagoal.core.policy import Policy
from adagoal.core.run import Run
from adagoal.loop import explore
from adagoal.mdp import solve
from adagoal.mdp.audit import audit_policies
from adagoal.methods import Problem, build
from adagoal.worlds import toys
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelWorld

ETAS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
RADIUS, EPSILON, DELTA = 10.0, 1.0, 0.1
GOAL, FORK = 1, 3
DRAWS = 10_000
"""Draws of the time at which the fork is first met."""


def instance(eta: float, seed: int = 0) -> TabularMDP:
    """The world, with one of its four actions hidden as the good one."""
    return toys.separation(n_actions=4, radius=RADIUS, eta=eta, best=seed % 4)


def with_reset(task: tuple[float, int]) -> dict[str, Any]:
    """One run of the certified explorer with the goal space {g}, and its audit."""
    eta, seed = task
    mdp = instance(eta, seed)
    world = ModelWorld(mdp)
    counts = Counts(world.initial_states, world.n_actions, world.start)
    estimates = build("certified", Problem(world, counts, RADIUS, EPSILON, DELTA, np.array([GOAL])), {})
    run = Run(world, estimates, goal_rules.adagoal, np.random.default_rng(seed))
    status = explore(run, 2**62)
    policy = Policy(GOAL, estimates.policy(GOAL), mdp.reset_action)
    audit = audit_policies(mdp, [GOAL], {GOAL: policy}, RADIUS, EPSILON, [GOAL])
    return {
        "status": status,
        "steps": run.steps,
        "audit": audit.ok,
        "gap": audit.rows[0].gap,
        "met_fork": bool(counts.seen[FORK]),
    }


def first_met(eta: float, seed: int) -> list[float]:
    """10%, 50% and 90% quantile of the reset-free step at which the fork is first met.

    The rounds before it that miss the fork are geometric in number; each takes one step to x, a geometric time there
    with zeta = 1/(L - 1), and one step back to s0.
    """
    rng = np.random.default_rng([seed, round(1 / eta)])
    rounds = rng.geometric(eta, DRAWS) - 1
    waiting = rounds + rng.negative_binomial(np.maximum(rounds, 1), 1 / (RADIUS - 1)) * (rounds > 0)
    steps = 2 * rounds + waiting + 1
    return [float(q) for q in np.quantile(steps, (0.1, 0.5, 0.9))]


def reproduce(etas: tuple[float, ...], seeds: range, jobs: int) -> dict[str, Any]:
    """All runs, by eta."""
    tasks = [(eta, seed) for eta in etas for seed in seeds]
    if jobs > 1:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            runs = list(pool.map(with_reset, tasks))
    else:
        runs = [with_reset(task) for task in tasks]
    rows = []
    for eta in etas:
        own = [run for task, run in zip(tasks, runs, strict=True) if task[0] == eta]
        steps = np.array([run["steps"] for run in own])
        rows.append(
            {
                "eta": eta,
                "diameter": solve.diameter(instance(eta), reset=False),
                "reset_steps": [float(q) for q in np.quantile(steps, (0.1, 0.5, 0.9))],
                "reset_runs": own,
                "reset_free_steps": first_met(eta, seeds[0]),
            }
        )
    return {"radius": RADIUS, "epsilon": EPSILON, "delta": DELTA, "seeds": list(seeds), "draws": DRAWS, "rows": rows}


def draw(data: dict[str, Any], path: Path) -> None:
    """Both curves over the diameter."""
    rows = data["rows"]
    x = [row["diameter"] for row in rows]
    figure = Figure((6.4, 4.0), layout="constrained")
    ax = figure.subplots()
    curves = (
        ("reset_free_steps", "#b35806", "without the reset: until the fork is met, a floor for every learner"),
        ("reset_steps", "#2166ac", "with the reset: certified stop, measured"),
    )
    for name, colour, label in curves:
        low, middle, high = np.array([row[name] for row in rows]).T
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(x, middle, color=colour, marker="o", markersize=4, label=label)
    ax.plot(x, [1 / (9 * row["eta"]) for row in rows], ":", color="#555555", label="the lemma's 1 / (9 eta)")
    ax.set(
        xscale="log", yscale="log", xlabel="diameter D of the reset-free problem", ylabel="steps (median, 10% to 90%)"
    )
    ax.legend(frameon=False, fontsize=8)
    ax.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per eta."""
    return [
        {
            "eta": row["eta"],
            "diameter": row["diameter"],
            "reset_steps": row["reset_steps"][1],
            "audits_passed": sum(run["audit"] for run in row["reset_runs"]),
            "runs": len(row["reset_runs"]),
            "met_fork": sum(run["met_fork"] for run in row["reset_runs"]),
            "reset_free_steps": row["reset_free_steps"][1],
        }
        for row in rows
    ]


@click.command(
    "separation",
    help="What the reset is worth: steps with and without it on the instance of the separation lemma.",
    epilog="Example: adagoal reproduce separation --seeds 20 --out docs/figures",
)
@click.option("--seeds", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Runs per eta.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/separation"), show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def separation(seeds: int, seed: int, jobs: int, out: Path, as_json: bool) -> None:
    data = reproduce(ETAS, range(seed, seed + seeds), jobs)
    write_json(out / "separation.json", data)
    draw(data, out / "separation.png")
    rows = table(data["rows"])
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    click.echo(
        f"{'eta':>7} {'diameter':>10} {'steps, reset':>13} {'audits':>7} {'met fork':>9} {'steps, reset-free':>18}"
    )
    for row in rows:
        audits, met = f"{row['audits_passed']}/{row['runs']}", f"{row['met_fork']}/{row['runs']}"
        numbers = f"{row['eta']:>7.0e} {row['diameter']:>10.3g} {row['reset_steps']:>13.3g}"
        click.echo(f"{numbers} {audits:>7} {met:>9} {row['reset_free_steps']:>18.3g}")
