"""Figures 1 and 3 of the paper: which goals UniGoal, RareGoal and AdaGoal select on the two-room grid.

The setting of appendix ``app_exp`` (label ``fig:gridworld_goals_sampled``): 52 states, 1000 episodes of at most H = 50
steps, L = 40, alpha = 0.1, simplified bonus, all goals planned before every episode. Three rows of maps, one per rule,
by three windows of time; figure 1 is the row of AdaGoal. Beside the picture, a table of the claim: how often a goal was
one of the 4 states of the bottom-right room, and one of the 10 states of the first room that are farthest from s0.

The layout is not in the paper's text; ours is described in :mod:`adagoal.worlds.grid`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure

from adagoal import goals as goal_rules
from adagoal.core.counts import Counts
from adagoal.core.files import write_json
from adagoal.core.run import Run
from adagoal.core.types import Longs
from adagoal.loop import explore
from adagoal.mdp import solve
from adagoal.report.maps import draw_map, map_size
from adagoal.report.view import View
from adagoal.tabular.paper import UCBVI
from adagoal.worlds import grid
from adagoal.worlds.simulator import ModelWorld

RULES = {"UniGoal": "unigoal", "RareGoal": "raregoal:alpha=0.1", "AdaGoal": "adagoal"}
L, H, EPISODES = 40.0, 50, 1000
WINDOWS = 3
FARTHEST = 10
MAP = ListedColormap(colormaps["YlGnBu"](np.linspace(0.0, 0.85, 256)))
"""Safe for the colour-blind, and nowhere like the grey of the walls."""
NEVER = 1e-9
"""An accuracy that stops no run before its last episode."""


class Task(NamedTuple):
    """One run: a goal rule by its name in the figure, a seed, and a number of episodes."""

    rule: str
    seed: int
    episodes: int


class _Enough(Exception):
    """All episodes were played."""


def selected_goals(task: Task) -> list[int]:
    """The goal of every episode of one run."""
    world = ModelWorld(grid.two_room())
    counts = Counts(world.initial_states, world.n_actions, world.start)
    estimates = UCBVI(counts, L, NEVER, 0.1, None, "simplified", H)
    run = Run(world, estimates, goal_rules.get(RULES[task.rule]), np.random.default_rng(task.seed))

    def stop(run: Run) -> None:
        if len(run.episode_goals) >= task.episodes:
            raise _Enough

    with contextlib.suppress(_Enough):
        explore(run, 2**62, stop)
    return run.episode_goals


def places() -> dict[str, Longs]:
    """The states that the claim is about."""
    mdp = grid.two_room()
    assert mdp.layout is not None
    text = grid.TWO_ROOMS["left"].splitlines()
    second = np.array([text[r][c] == "B" for r, c in mdp.layout.cells.tolist()])
    distance = np.where(second, -1.0, solve.distances(mdp))
    return {"second_room": np.flatnonzero(second), "farthest": np.sort(np.argsort(distance)[-FARTHEST:])}


def reproduce(rules: Iterable[str], seeds: Iterable[int], jobs: int, episodes: int = EPISODES) -> dict[str, Any]:
    """Run every rule with every seed; selections by window and state, and the table of the claim."""
    tasks = [Task(rule, seed, episodes) for rule in rules for seed in seeds]
    if jobs > 1:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            chosen = list(pool.map(selected_goals, tasks))
    else:
        chosen = [selected_goals(task) for task in tasks]
    states = grid.two_room().n_states
    groups = places()
    selected: dict[str, list[list[int]]] = {}
    rows = []
    for rule in rules:
        runs = np.array([goals for task, goals in zip(tasks, chosen, strict=True) if task.rule == rule])
        parts = np.array_split(runs, WINDOWS, axis=1)
        selected[rule] = [np.bincount(part.ravel(), minlength=states).tolist() for part in parts]
        first = 0
        for part in parts:
            row: dict[str, Any] = {"rule": rule, "first": first, "last": first + part.shape[1] - 1, "seeds": len(runs)}
            for name, group in groups.items():
                share = np.isin(part, group).mean(axis=1)
                row[name] = {"mean": round(float(share.mean()), 4)}
                row[name]["sd"] = round(float(share.std(ddof=1)), 4) if len(share) > 1 else None
                row[name] |= {"min": round(float(share.min()), 4), "max": round(float(share.max()), 4)}
            rows.append(row)
            first += part.shape[1]
    setting = {"env": "two-room", "L": L, "H": H, "episodes": episodes, "bonus": "simplified", "rules": RULES}
    data = {"setting": setting, "seeds": sorted({task.seed for task in tasks}), "rows": rows, "selected": selected}
    return data | {name: group.tolist() for name, group in groups.items()}


def draw(data: dict[str, Any], path: Path) -> None:
    """One row of maps per rule, one column per window."""
    world = ModelWorld(grid.two_room())
    view = View.of(world)
    assert view.layout is not None
    rules = list(data["selected"])
    shares = {rule: [np.array(s) / max(sum(s), 1) for s in data["selected"][rule]] for rule in rules}
    norm = PowerNorm(0.5, 0.0, max(float(share.max()) for rule in rules for share in shares[rule]))
    width, height = map_size(view.layout, WINDOWS)
    figure = Figure((width + 1.2, len(rules) * (height + 0.3)), layout="constrained")
    axes = figure.subplots(len(rules), WINDOWS, squeeze=False)
    everywhere = np.ones(len(view.layout.cells), bool)
    for i, rule in enumerate(rules):
        windows = [row for row in data["rows"] if row["rule"] == rule]
        for j, row in enumerate(windows):
            ax = axes[i, j]
            image = draw_map(*(ax, view, shares[rule][j], norm, MAP), shown=everywhere, seen=everywhere)
            ax.set_title(f"{rule}, episodes {row['first']} to {row['last']}", fontsize=9)
    seeds = len(data["seeds"])
    label = "share of episodes" + (f", mean of {seeds} seeds" if seeds > 1 else "")
    figure.colorbar(image, ax=axes, shrink=0.6, label=label)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def table(rows: list[dict[str, Any]]) -> str:
    """The claim in words and numbers."""
    head = f"{'rule':<9} {'episodes':>9} {'seeds':>5}   {'bottom-right room':<22} {'10 farthest of room one':<22}"
    lines = [head]
    for row in rows:
        cells = [_cell(row[name]) for name in ("second_room", "farthest")]
        span = f"{row['first']}-{row['last']}"
        lines.append(f"{row['rule']:<9} {span:>9} {row['seeds']:>5}   {cells[0]:<22} {cells[1]:<22}".rstrip())
    return "\n".join(lines)


def _cell(share: dict[str, Any]) -> str:
    return f"{share['mean']:6.1%}" + ("" if share["sd"] is None else f" +- {share['sd']:5.1%}")


def _command(name: str, rules: tuple[str, ...], about: str) -> click.Command:
    @click.command(name, help=about, epilog=f"Example: adagoal reproduce {name} --seeds 20 --jobs 2 --out docs/figures")
    @click.option("--seeds", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Runs per rule.")
    @click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
    @click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes.")
    @click.option(
        "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs") / name, show_default=True
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
    def command(seeds: int, seed: int, jobs: int, out: Path, as_json: bool) -> None:
        began = time.perf_counter()
        data = reproduce(rules, range(seed, seed + seeds), jobs)
        write_json(out / f"{name}.json", data)
        draw(data, out / f"{name}.png")
        click.echo(json.dumps(data["rows"], indent=1) if as_json else table(data["rows"]))
        click.echo(f"{out / name}.png, {out / name}.json, {time.perf_counter() - began:.1f} s", err=True)

    return command


figure1 = _command("figure1", ("AdaGoal",), "Figure 1: the goals that AdaGoal selects over 1000 episodes.")
figure3 = _command("figure3", tuple(RULES), "Figure 3: the goals that UniGoal, RareGoal and AdaGoal select.")
