"""What linear mixtures buy: steps to the certified stop against the number of states, and against d.

    states   S = 100, 1,000, 10,000 with d = 4, A = 4, L = 10, epsilon = 1 and the same 50 goals near the start: S is
             all that changes. On windy grids the states that S adds lie beyond reach, in trees of rooms within it.
             Tabular certified beside the linear methods.
    kernels  d = 2, 4, 8, 16 on the 10 x 10 grid, with wind regimes whose gusts grow with d, and with weather maps that
             are all alike; the exponents that fit best, and what they are made of.
    methods  all methods on one world, with the widths of their intervals at the stop; for ``vtr`` the computed number
             of samples that its constants need, and how far a short run gets.
    misfit   worlds that are no mixture: how many runs warn, and how many are wrong (misfit.py).

Every run is audited on the true model, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adagoal.comparison.method_scores import RunOutcome
from adagoal.parallel.engines import TaskResources
from experiments import linear_output, misfit
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.linear_output import KERNELS, LINEAR, METHODS
from experiments.linear_runs import FOLDER, SIZES, Cell, line, measure, over

VTR_BUDGET = 100_000


def states_cells(options: ExperimentOptions) -> list[Cell]:
    """Return the runs, linear methods first. The tabular method has one seed for the largest S."""
    families, seeds = ("windy", "tree"), options.seeds
    few = {size: seeds if size < max(SIZES) else seeds[:1] for size in SIZES}
    return [Cell(family, S, 4, m, s) for family in families for S in SIZES for m in LINEAR for s in seeds] + [
        Cell(family, S, 4, "certified", s) for S in SIZES for family in families for s in few[S]
    ]


def kernels_cells(options: ExperimentOptions) -> list[Cell]:
    """Return the runs of both families on the smallest grid."""
    S = min(SIZES)
    return [
        Cell(family, S, d, m, s, True)
        for family in ("windy", "weather")
        for d in KERNELS
        for m in LINEAR
        for s in options.seeds
    ]


def methods_cells(options: ExperimentOptions) -> list[Cell]:
    """Return the runs on the smallest grid, and a short one of ``vtr``."""
    own = [Cell("windy", min(SIZES), 4, m, s) for m in METHODS for s in options.seeds]
    return [*own, Cell("windy", min(SIZES), 4, "vtr", options.seeds[0], budget=VTR_BUDGET)]


def _part(
    name: str,
    cells: Callable[[ExperimentOptions], list[Cell]],
    report: Callable[[Sequence[RunOutcome], ExperimentOptions], ExperimentReport],
) -> Experiment:
    return Experiment(
        f"linear-{name}",
        cells,
        measure,
        report,
        outcome_folder=FOLDER,
        is_complete=over,
        describe_outcome=line,
        task_resources=lambda options: TaskResources(fresh_process=True),
        defaults=CATALOGUE["linear"].defaults,
    )


PARTS = {
    "states": _part("states", states_cells, linear_output.states),
    "kernels": _part("kernels", kernels_cells, linear_output.kernels),
    "methods": _part("methods", methods_cells, linear_output.methods),
    "misfit": Experiment(
        "linear-misfit",
        misfit.cells,
        misfit.measure,
        linear_output.misfits,
        outcome_folder=FOLDER,
        is_complete=misfit.kept,
        defaults=CATALOGUE["linear"].defaults,
    ),
}
