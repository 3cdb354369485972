"""What the paper's constants would cost: samples until its stopping rule is met, computed on the known model.

Nobody could run these. The empirical kernel is taken to be the true one and every pair to have the same number of
samples; bisection finds the number at which the rule of the paper stops (eq. ``stopping_rule``), with the constants as
printed and with the better split of the horizon and epsilon (see tabular/paper.py). A fixed start state is used
where the price experiment uses one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adagoal.core.files import write_json
from adagoal.experiments.price import DELTA, WORLDS
from adagoal.experiments.samples import for_ucbvi
from adagoal.tabular.paper import horizon
from adagoal.worlds import registry

LARGE = 100
"""Worlds with more states than this take minutes; ask for them with --all."""


@click.command("constants", epilog="Example: adagoal reproduce constants")
@click.option("--all", "everything", is_flag=True, help=f"Also worlds of more than {LARGE} states.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/constants"))
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def constants(everything: bool, out: Path, as_json: bool) -> None:
    """Samples that the paper's own constants need, as printed and rebalanced, on the worlds of the price table."""
    rows: list[dict[str, Any]] = []
    for world in WORLDS:
        mdp = registry.make_model(world.env, world.env_args, world.start_seed)
        assert mdp is not None
        if mdp.n_states > LARGE and not everything:
            continue
        row: dict[str, Any] = {"world": world.name, "L": world.L, "epsilon": world.epsilon, "delta": DELTA}
        for bonus in ("literal", "rebalanced"):
            per_pair, total = for_ucbvi(mdp, world.L, world.epsilon, DELTA, bonus)
            H = horizon(world.L, world.epsilon, bonus)
            row[bonus] = {"H": H, "per_pair": float(f"{per_pair:.3g}"), "total": float(f"{total:.3g}")}
        rows.append(row)
        click.echo(f"{world.name}: done", err=True)
    write_json(out / "constants.json", rows)
    click.echo(json.dumps(rows, indent=1) if as_json else table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: steps in all, by world."""
    lines = ["| world | L | epsilon | as printed | rebalanced |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in rows:
        totals = f"{row['literal']['total']:.1e} | {row['rebalanced']['total']:.1e}"
        lines.append(f"| {row['world']} | {row['L']:g} | {row['epsilon']:g} | {totals} |")
    return "\n".join(lines)
