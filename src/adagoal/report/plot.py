"""``adagoal.plot``: one Matplotlib figure of a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from adagoal.core.errors import InputError
from adagoal.report import require_figures_extra
from adagoal.report.curve_page import CurvePlot, curves_by_seed
from adagoal.runs.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from adagoal.runs.train_result import TrainResult


def plot(run: Result | TrainResult) -> Figure:
    """Return a Matplotlib figure: the bounds of every goal, or the success of trained policies over the steps.

    A notebook shows the figure below the cell; ``plot(run).savefig("figure.png")`` writes it.

    Parameters
    ----------
    run: the result of an exploration or of training.

    Examples
    --------
    >>> len(adagoal.plot(result).axes) > 1
    True
    """
    require_figures_extra()
    if isinstance(run, Result):
        from adagoal.report.figures import exploration_figures

        figure, _ = exploration_figures(run, run.view)["goals.png"]
        return show_in_notebooks(figure)
    # Here, because explorations need none of the packages of training.
    from adagoal.runs.train_result import TrainResult

    if not isinstance(run, TrainResult):
        raise InputError(f"must be the result of an exploration or of training, got {type(run).__name__}", "run")
    return plot_curves([learning_curves(run)])


def learning_curves(trained: TrainResult) -> CurvePlot:
    """Return the success in the tests of training runs, over the steps."""
    runs = enumerate(trained.history.configs)
    points = [(config.seed, row["steps"], row["success"]) for run, config in runs for row in trained.curve(run)]
    first = trained.history.configs[0]
    lines = curves_by_seed(first.goal_rule, points)
    return CurvePlot(first.env, "steps", "share of test goals reached", lines, log_axes=False)


def plot_curves(plots: list[CurvePlot]) -> Figure:
    """Return the figure of some curves."""
    from adagoal.report.figures import draw_curve_plots

    return show_in_notebooks(draw_curve_plots(plots))


def show_in_notebooks(figure: Figure) -> Figure:
    """Return the figure, which a notebook then shows also if pyplot was never imported."""
    from adagoal.report.figures import figure_to_png

    vars(figure)["_repr_png_"] = partial(figure_to_png, figure)
    return figure
