"""What the paper's constants would cost: samples until its stopping rule is met, computed on the known model.

Nobody could run these. The empirical kernel is taken to be the true one and every pair to have the same number of
samples; bisection finds the number at which the rule of the paper stops (eq. ``stopping_rule``), with the constants as
printed and with the better split of the horizon and epsilon (see tabular/paper.py). A fixed start state is used
where the price experiment uses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adagoal.experiments.declare import Experiment, Option, Options, Outcome, Report
from adagoal.experiments.output import Table
from adagoal.experiments.price import DELTA, WORLDS, PricedWorld
from adagoal.experiments.samples import for_ucbvi
from adagoal.tabular.paper import horizon

LARGE = 100
"""Worlds with more states than this take minutes; ask for them with --all."""


def cells(options: Options) -> list[PricedWorld]:
    """The worlds of the price table."""
    return [world for world in WORLDS if options.all or world.mdp.n_states <= LARGE]


def measure(world: PricedWorld, options: Options) -> dict[str, Any]:
    """Both splits of the horizon and epsilon."""
    row: dict[str, Any] = {"world": world.name, "L": world.L, "epsilon": world.epsilon, "delta": DELTA}
    for bonus in ("literal", "rebalanced"):
        per_pair, total = for_ucbvi(world.mdp, world.L, world.epsilon, DELTA, bonus)
        H = horizon(world.L, world.epsilon, bonus)
        row[bonus] = {"H": H, "per_pair": float(f"{per_pair:.3g}"), "total": float(f"{total:.3g}")}
    return row


def report(rows: Sequence[Outcome], options: Options) -> Report:
    """Steps in all, by world."""
    lines = [
        (
            row["world"],
            f"{row['L']:g}",
            f"{row['epsilon']:g}",
            *(f"{row[b]['total']:.1e}" for b in ("literal", "rebalanced")),
        )
        for row in rows
    ]
    return Report(rows, Table(("world", "L", "epsilon", "as printed", "rebalanced"), lines).markdown(), rows)


CONSTANTS = Experiment(
    "constants",
    cells,
    file=lambda world: f"constants-runs/{world.name.replace(', ', '-').replace(' ', '-')}.json",
    measure=measure,
    report=report,
    options=(Option("all", bool, False, f"Also worlds of more than {LARGE} states."),),
    seeds=None,
)
