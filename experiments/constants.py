"""What the paper's constants would cost: samples until its stopping rule is met, computed on the known model.

Nobody could run these. The empirical kernel is taken to be the true one and every pair to have the same number of
samples; bisection finds the number at which the rule of the paper stops (eq. ``stopping_rule``), with the constants as
printed and with the better split of the horizon and epsilon (see tabular/ucbvi.py). A fixed start state is used
where the price experiment uses one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from adagoal.core.run_settings import ExplorationSettings
from adagoal.tabular.ucbvi import planning_horizon
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.extra_models import make_known_model
from experiments.layout import table_from_rows
from experiments.price import DELTA, WORLDS
from experiments.required_samples import for_ucbvi

LARGE = 100
"""Environments with more states take minutes, so they need --all."""


class Cell(NamedTuple):
    """One environment."""

    name: str
    setting: ExplorationSettings


def cells(options: ExperimentOptions) -> list[Cell]:
    """Return the environments of the price table."""
    found = [Cell(name, setting) for name, setting in WORLDS.items()]
    return [cell for cell in found if options.all or make_known_model(cell.setting).n_states <= LARGE]


def measure(cell: Cell, options: ExperimentOptions) -> dict[str, Any]:
    """Compute the samples for both splits of horizon and epsilon."""
    mdp, L, epsilon = make_known_model(cell.setting), float(cell.setting.radius), cell.setting.epsilon
    row: dict[str, Any] = {"world": cell.name, "L": cell.setting.radius, "epsilon": epsilon, "delta": DELTA}
    for bonus in ("literal", "rebalanced"):
        per_pair, total = for_ucbvi(mdp, L, epsilon, DELTA, bonus)
        H = planning_horizon(L, epsilon, bonus)
        row[bonus] = {"H": H, "per_pair": float(f"{per_pair:.3g}"), "total": float(f"{total:.3g}")}
    return row


COLUMNS = {
    **{"world": "{world}", "L": "{L:g}", "epsilon": "{epsilon:g}"},
    **{"as printed": "{literal[total]:.1e}", "rebalanced": "{rebalanced[total]:.1e}"},
}


CONSTANTS = Experiment(
    "constants",
    cells,
    measure_run=measure,
    make_report=lambda rows, options: ExperimentReport(rows, table_from_rows(rows, COLUMNS).to_markdown(), rows),
    defaults=CATALOGUE["constants"].defaults,
)
