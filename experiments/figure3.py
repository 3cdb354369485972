"""Figures 1 and 3 of the paper: which goals UniGoal, RareGoal and AdaGoal select on the two-room grid.

The setting of appendix ``app_exp`` (label ``fig:gridworld_goals_sampled``): 52 states, 1000 episodes of at most H = 50
steps, L = 40, alpha = 0.1, simplified bonus, all goals planned before every episode. Three rows of maps, one per rule,
by three windows of time; figure 1 is the row of AdaGoal. Beside the picture, a table of the claim: how often a goal was
one of the 4 states of the bottom-right room, and one of the 10 states of the first room that are farthest from s0.

The layout is not in the paper's text; ours is described in :mod:`adagoal.envs.toy_models`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from adagoal.api.explore import explore
from adagoal.comparison.method_comparison import run_uninterrupted
from adagoal.comparison.method_scores import RunOutcome
from adagoal.core.array_types import Floats, Longs
from adagoal.core.exploration_run import ExplorationRun
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.report.html_page import Curve, CurvePlot, curves_by_seed
from adagoal.runs.result import StateMetadata
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.layout import ColumnFormats, table_from_rows

GOAL_RULES = {"UniGoal": "unigoal", "RareGoal": "raregoal:alpha=0.1", "AdaGoal": "adagoal"}
"""Goal rules, by their names in the figure."""
L, H, EPISODES = 40.0, 50, 1000
WINDOWS = 3
FARTHEST = 10
GROUPS = {"second_room": "bottom-right room", "farthest": "10 farthest of room one"}
"""Groups of states, by their names in the data and in the table."""
BLOCKS = 20
"""Number of points of a curve on the page."""
MAP = ListedColormap(colormaps["YlGnBu"](np.linspace(0.0, 0.85, 256)))
"""Colour map for colour-blind readers, without the grey of the walls."""
NEVER = 1e-9
"""An epsilon so small that no run stops before its last episode."""


class Cell(NamedTuple):
    """One run: a goal rule by its name in the figure, a seed, and a number of episodes."""

    rule: str
    seed: int
    episodes: int


def cells(options: ExperimentOptions, rules: Sequence[str]) -> list[Cell]:
    """Return every rule with every seed."""
    return [Cell(rule, seed, EPISODES) for rule in rules for seed in options.seeds]


def selected_goals(cell: Cell, options: ExperimentOptions) -> list[int]:
    """Return the goal of every episode of one run."""

    def go_on(run: ExplorationRun) -> bool:
        return len(run.episode_goals) < cell.episodes

    method = {"method": "ucbvi", "method_args": {"bonus": "simplified", "horizon": H}}
    rule = GOAL_RULES[cell.rule]
    result = run_uninterrupted(
        explore, "two-room", L, NEVER, 0.1, **method, goal_rule=rule, seed=cell.seed, observe=go_on
    )
    goals: list[int] = result.arrays["episode_goals"].tolist()
    return goals


def places() -> dict[str, Longs]:
    """Return the groups of states."""
    mdp = toy_models.two_room_grid()
    assert mdp.layout is not None
    text = toy_models.TWO_ROOM_LAYOUT.splitlines()
    second = np.array([text[r][c] == "B" for r, c in mdp.layout.cells.tolist()])
    distance = np.where(second, -1.0, solver.optimal_distances(mdp))
    return {"second_room": np.flatnonzero(second), "farthest": np.sort(np.argsort(distance)[-FARTHEST:])}


def report(
    outcomes: Sequence[RunOutcome], options: ExperimentOptions, name: str, rules: Sequence[str]
) -> ExperimentReport:
    """Return selections by window and state, and the table of shares."""
    states, groups = toy_models.two_room_grid().n_states, places()
    selected: dict[str, list[list[int]]] = {}
    rows = []
    for rule, runs in zip(rules, np.array(outcomes).reshape(len(rules), len(options.seeds), -1), strict=True):
        parts = np.array_split(runs, WINDOWS, axis=1)
        selected[rule] = [np.bincount(part.ravel(), minlength=states).tolist() for part in parts]
        first = 0
        for part in parts:
            row: dict[str, Any] = {"rule": rule, "first": first, "last": first + part.shape[1] - 1, "seeds": len(runs)}
            rows.append(row | {name: _spread(np.isin(part, group).mean(axis=1)) for name, group in groups.items()})
            first += part.shape[1]
    setting = {"env": "two-room", "L": L, "H": H, "episodes": first, "bonus": "simplified", "rules": GOAL_RULES}
    data = {"setting": setting, "seeds": list(options.seeds), "rows": rows, "selected": selected}
    data |= {name: group.tolist() for name, group in groups.items()}
    curves = [panel(outcomes, options, rules, group) for group in groups.items()]
    return ExperimentReport(
        rows, table_from_rows(rows, COLUMNS).to_markdown(), data, {f"{name}.png": figure(data)}, plots=curves
    )


def panel(
    outcomes: Sequence[RunOutcome], options: ExperimentOptions, rules: Sequence[str], group: tuple[str, Longs]
) -> CurvePlot:
    """Return the share of goals in a group of states, over blocks of episodes, with every seed."""
    name, states = group
    runs = np.isin(np.array(outcomes).reshape(len(rules), len(options.seeds), -1), states)
    blocks = np.array_split(np.arange(runs.shape[-1]), min(BLOCKS, runs.shape[-1]))
    lines: list[Curve] = []
    for rule, own in zip(rules, runs, strict=True):
        lines += curves_by_seed(rule, ((seed, float(block[-1] + 1), float(run[block].mean()))
                               for seed, run in zip(options.seeds, own, strict=True) for block in blocks))  # fmt: skip
    return CurvePlot(f"Goals in the {GROUPS[name]}", "episodes", "share of episodes", lines, log_axes=False)


def _spread(share: np.ndarray[Any, Any]) -> dict[str, float | None]:
    """Return mean, standard deviation and range over the seeds."""
    deviation = round(float(share.std(ddof=1)), 4) if len(share) > 1 else None
    mean, least, most = (round(float(value), 4) for value in (share.mean(), share.min(), share.max()))
    return {"mean": mean, "sd": deviation, "min": least, "max": most}


def _share(name: str) -> Callable[[dict[str, Any]], str]:
    """Return the format of a column: mean over the seeds and standard deviation."""
    return lambda row: f"{row[name]['mean']:.1%}" + ("" if row[name]["sd"] is None else f" +- {row[name]['sd']:.1%}")


COLUMNS: ColumnFormats = {
    **{"rule": "{rule}", "episodes": "{first}-{last}", "seeds": "{seeds}"},
    **{head: _share(name) for name, head in GROUPS.items()},
}


def figure(data: dict[str, Any]) -> Figure:
    """Draw maps: one row per rule, one column per window."""
    world = ModelSimulator(toy_models.two_room_grid())
    view = StateMetadata.from_env(world)
    assert view.layout is not None
    rules = list(data["selected"])
    shares = {rule: [np.array(s) / max(sum(s), 1) for s in data["selected"][rule]] for rule in rules}
    norm = PowerNorm(0.5, 0.0, max(float(share.max()) for rule in rules for share in shares[rule]))
    height = 3.0 * view.layout.shape[0] / view.layout.shape[1]
    drawn = Figure((3.0 * WINDOWS + 1.2, len(rules) * (height + 0.3)), layout="constrained")
    axes = drawn.subplots(len(rules), WINDOWS, squeeze=False)
    for i, rule in enumerate(rules):
        windows = [row for row in data["rows"] if row["rule"] == rule]
        for j, row in enumerate(windows):
            ax = axes[i, j]
            image = _draw_map(ax, view, shares[rule][j], norm)
            ax.set_title(f"{rule}, episodes {row['first']} to {row['last']}", fontsize=9)
    seeds = len(data["seeds"])
    label = "share of episodes" + (f", mean of {seeds} seeds" if seeds > 1 else "")
    drawn.colorbar(image, ax=axes, shrink=0.6, label=label)
    return drawn


def _draw_map(ax: Axes, view: StateMetadata, values: Floats, norm: Normalize) -> AxesImage:
    """Draw ``values`` [S] on the grid, its walls, and a star at the start."""
    assert view.layout is not None
    assert view.start is not None
    (rows, columns), cells = view.layout.shape, view.layout.cells
    grid, background = np.full((rows, columns), np.nan), np.ones((rows, columns, 3))
    grid[tuple(cells.T)] = values
    background[view.layout.walls] = to_rgb("#3d434b")
    ax.imshow(background, interpolation="nearest")
    image = ax.imshow(np.ma.masked_invalid(grid), cmap=MAP, norm=norm, interpolation="nearest")
    row, column = cells[view.start]
    ax.plot(column, row, marker="*", color="white", markeredgecolor="black", markersize=9, markeredgewidth=0.8)
    ax.hlines(np.arange(0.5, rows - 1), -0.5, columns - 0.5, colors="white", linewidth=0.5)
    ax.vlines(np.arange(0.5, columns - 1), -0.5, rows - 0.5, colors="white", linewidth=0.5)
    ax.set_axis_off()
    return image


def _declared(name: str, rules: Sequence[str]) -> Experiment:
    return Experiment(
        name,
        functools.partial(cells, rules=rules),
        selected_goals,
        functools.partial(report, name=name, rules=rules),
        outcome_folder="figure3-runs",
        defaults=CATALOGUE[name].defaults,
    )


FIGURE1 = _declared("figure1", ("AdaGoal",))
FIGURE3 = _declared("figure3", tuple(GOAL_RULES))
