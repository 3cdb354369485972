"""What linear mixtures buy: steps to the certified stop against the number of states, and against d.

    states   S = 100, 1,000, 10,000 with d = 4, A = 4, L = 10, epsilon = 1 and the same 50 goals near the start: S is
             all that changes. On windy grids the states that S adds lie beyond reach, in trees of rooms within it.
             Tabular certified beside the linear methods.
    kernels  d = 2, 4, 8, 16 on the 10 x 10 grid, with wind regimes whose gusts grow with d, and with weather maps that
             are all alike; the exponents that fit best, and what they are made of.
    methods  all methods on one world, with the widths of their intervals at the stop; for ``vtr`` the computed number
             of samples that its constants need, and how far a short run gets.
    misfit   worlds that are no mixture: how many runs warn, and how many are wrong (misfit.py).

Every run is audited on the true model. Each is a file in ``OUT/linear-runs`` and is not run again; one that was killed
or given up goes on from its checkpoint.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from adagoal.cli import options
from adagoal.core.files import write_json, write_text
from adagoal.experiments import linear_output, misfit
from adagoal.experiments.linear_output import COLOURS, KERNELS, LINEAR
from adagoal.experiments.linear_runs import DELTA, EPSILON, RADIUS, SIZES, Row, Task, goal_space, run_all
from adagoal.experiments.samples import for_vtr

VTR_BUDGET = 100_000

Part = tuple[dict[str, Any], str]
"""Of a part: its data, and a table in Markdown."""
Runs = Callable[[Sequence[Task]], list[Row]]


def states_tasks(seeds: range) -> list[Task]:
    """The linear methods first. Tabular certified takes one seed where S is largest."""
    families = ("windy", "tree")
    few = {size: seeds if size < max(SIZES) else seeds[:1] for size in SIZES}
    return [Task(family, S, 4, m, s) for family in families for S in SIZES for m in LINEAR for s in seeds] + [
        Task(family, S, 4, "certified", s) for S in SIZES for family in families for s in few[S]
    ]


def kernels_tasks(seeds: range) -> list[Task]:
    """Both families, on the smallest grid."""
    S = min(SIZES)
    return [
        Task(family, S, d, m, s, True)
        for family in ("windy", "weather")
        for d in KERNELS
        for m in LINEAR
        for s in seeds
    ]


def methods_tasks(seeds: range) -> list[Task]:
    """The runs of the smallest grid, and a short one of ``vtr``."""
    own = [Task("windy", min(SIZES), 4, m, s) for m in COLOURS for s in seeds]
    return [*own, Task("windy", min(SIZES), 4, "vtr", seeds[0], budget=VTR_BUDGET)]


def states_part(seeds: range, runs: Runs, out: Path) -> Part:
    """Steps against S."""
    rows = runs(states_tasks(seeds))
    linear_output.states_figure(rows, out / "linear-states.png")
    return {"rows": rows}, linear_output.states_table(rows)


def kernels_part(seeds: range, runs: Runs, out: Path) -> Part:
    """Steps against d."""
    rows = runs(kernels_tasks(seeds))
    fits = linear_output.kernels_fits(rows)
    linear_output.kernels_figure(rows, fits, out / "linear-kernels.png")
    return {"rows": rows, "fits": fits}, linear_output.kernels_table(fits)


def methods_part(seeds: range, runs: Runs, out: Path) -> Part:
    """All methods on one world."""
    task = Task("windy", min(SIZES), 4, "vtr", 0)
    rows = runs(methods_tasks(seeds))
    need = for_vtr(task.model(), goal_space(task), RADIUS, EPSILON, DELTA)
    return {"rows": rows, "vtr_samples_needed": need}, linear_output.methods_table(rows, need)


def misfit_part(seeds: range, runs: Runs, out: Path) -> Part:
    """Worlds that are no mixture."""
    task = Task("windy", min(SIZES), 4, "likelihood", 0)
    setting = misfit.Setting(task.model(), goal_space(task).tolist(), RADIUS, EPSILON, DELTA)
    rows = misfit.run_all(out / "linear-runs", 4 * len(seeds), setting)
    return {"rows": rows}, misfit.table(rows)


PARTS = {"states": states_part, "kernels": kernels_part, "methods": methods_part, "misfit": misfit_part}


@click.command(
    "linear",
    help="Linear mixtures: steps to the certified stop against the number of states and of kernels.",
    epilog="Example: adagoal reproduce linear --part states --seeds 5 --out runs/linear",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Runs per point.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processes.")
@click.option(
    "--minutes",
    type=options.Positive(),
    default=10.0,
    show_default=True,
    help="Give a run up after so many; with more of them it goes on later.",
)
@click.option(
    "--part",
    type=click.Choice([*PARTS, "all"]),
    default="all",
    show_default=True,
    help="Which.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/linear"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON.")
def linear(seeds: int, seed: int, jobs: int, minutes: float, part: str, out: Path, as_json: bool) -> None:
    found: dict[str, Any] = {}
    for name in PARTS if part == "all" else [part]:
        runs = functools.partial(run_all, folder=out / "linear-runs", jobs=jobs, minutes=minutes, quiet=as_json)
        data, table = PARTS[name](range(seed, seed + seeds), runs, out)
        found[name] = {"radius": RADIUS, "epsilon": EPSILON, "delta": DELTA, **data}
        write_json(out / f"linear-{name}.json", found[name])
        write_text(out / f"linear-{name}.md", table)
        if not as_json:
            click.echo(table)
    if as_json:
        click.echo(json.dumps(found, indent=1))
