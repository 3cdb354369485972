"""The arena: every method on the same worlds, with both stopping notions (see :mod:`adagoal.experiments.compare`).

Each finished run is a file in the folder of the arena, so that it can be stopped and goes on where it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from adagoal import goals
from adagoal.cli import options
from adagoal.core.files import write_json, write_text
from adagoal.experiments import arena_bounds
from adagoal.experiments import compare as engine
from adagoal.experiments.compare_command import run_cells
from adagoal.experiments.compare_output import Row, figure, group, rows
from adagoal.runs.setting import Setting
from adagoal.worlds import registry

WORLDS: tuple[dict[str, Any], ...] = (
    {"env": "two-room", "radius": 40.0},
    {"env": "lower-bound", "env_args": {"n_decisions": 4}, "radius": 10.0, "epsilon": 0.5},
    {"env": "grid", "radius": 8.0},
    {"env": "grid", "env_args": {"slip": 0.0}, "radius": 8.0},
    {"env": "rare-exit", "radius": 10.0},
    {"env": "FrozenLake-v1", "radius": 20.0},
    {"env": "CliffWalking-v1", "radius": 20.0},
    {"env": "fan", "radius": 4.0},
    {"env": "trap-chain", "radius": 10.0},
)
"""Grids with and without slip, a rare exit beyond the radius, ``fan``, whose incrementally reachable set is smaller
than G_L, and ``trap-chain``, whose trap is left by the reset alone. Epsilon is 1 where nothing is said."""
RULES = tuple(goals.RULES)
"""Goal rules of the certified estimates; all others play AdaGoal's, or their own."""
UCBVI = "ucbvi:bonus=simplified:horizon=50:lazy=true"
OTHERS = (
    *("bayes", UCBVI),
    *("ucbexplore:constants=paper", "ucbexplore:constants=scaled=0.01", "ucbexplore:constants=scaled=0.001"),
    *("disco:constants=paper", "disco:constants=scaled=0.0001", "disco:constants=scaled=0.00001"),
    *("gosprl:constants=paper", "gosprl:constants=scaled=0.01", "gosprl:constants=scaled=0.001"),
)
DRAWN = (
    *(("certified", "adagoal"), ("certified", "unigoal"), ("bayes", "adagoal"), (UCBVI, "adagoal")),
    ("ucbexplore:constants=scaled=0.01", "adagoal"),
    ("disco:constants=scaled=0.0001", "adagoal"),
    ("gosprl:constants=scaled=0.01", "adagoal"),
)
"""What the figure shows: methods with their goal rules."""
BUDGET = 20_000_000
"""Steps of a run, at most. Few plans are made late, so that the last ten million steps take a second or two."""
SOUND = 0.9
"""Share of runs whose final output must pass the audit for a method to count as a winner."""


def cells(seeds: int, budget: int, seed: int = 0) -> list[Setting]:
    """Every run of the arena, seed by seed, so that a stopped arena has whole seeds."""
    found: list[Setting] = []
    for world in WORLDS:
        given = {"epsilon": 1.0, "budget": budget, **{k: v for k, v in world.items() if k != "env"}}
        worlds = {world["env"]: given}
        found += engine.settings(worlds, ("certified",), RULES, seeds, seed=seed)
        found += engine.settings(worlds, OTHERS, ("adagoal",), seeds, seed=seed)
    return sorted(found, key=lambda setting: setting.seed)


def matrix(found: Sequence[Row], notion: str) -> str:
    """Markdown: methods against worlds, medians of ``own_stop`` or ``audit_stop``; the best sound one in bold."""
    worlds = list(dict.fromkeys(row.world for row in found))
    kinds = list(dict.fromkeys((row.method, row.goal_rule) for row in found))
    by = {(row.world, row.method, row.goal_rule): row for row in found}
    best = {world: _best((row for row in found if row.world == world), notion) for world in worlds}
    lines = ["| method | goal rule | " + " | ".join(worlds) + " |", "| --- | --- |" + " ---: |" * len(worlds)]
    for method, rule in kinds:
        texts = [_cell(by[world, method, rule], notion, best[world]) for world in worlds]
        lines.append(f"| {method} | {rule} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _best(found: Iterable[Row], notion: str) -> float:
    return min((float(getattr(row, notion)) for row in found if row.holds >= SOUND * row.runs), default=math.inf)


def _cell(row: Row, notion: str, best: float) -> str:
    """Median steps; how many runs ended well, where not all did."""
    steps = float(getattr(row, notion))
    text = f"{steps:,.0f}" if math.isfinite(steps) else "-"
    sound = row.holds >= SOUND * row.runs
    if math.isfinite(steps) and sound and steps <= best:
        text = f"**{text}**"
    return text if row.holds == row.runs else f"{text} ({row.holds}/{row.runs})"


def summary(records: Sequence[engine.Record]) -> str:
    """Markdown: over all worlds, how many runs of a method stopped by themselves, and how many of these were right."""
    lines = ["| method | goal rule | worlds where all runs stopped | runs stopped | of these right |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    by: dict[tuple[str, str], list[list[engine.Record]]] = {}
    for (_, method, rule), runs in group(records).items():
        by.setdefault((method, rule), []).append(runs)
    for (method, rule), worlds in by.items():
        every = [run for runs in worlds for run in runs]
        stopped = [run for run in every if run["own_stop"] is not None]
        whole = sum(all(run["own_stop"] is not None for run in runs) for runs in worlds)
        right = sum(run["final"]["c1"] and run["final"]["c2"] for run in stopped)
        lines.append(f"| {method} | {rule} | {whole} of {len(worlds)} | {len(stopped)} of {len(every)} | {right} |")
    return "\n".join(lines)


def asked(records: Sequence[engine.Record]) -> dict[tuple[str, str], float]:
    """By world and method: steps that a rival's own rule asks for, at least, with its paper's constants."""
    found = {}
    for (world, method, _), runs in group(records).items():
        setting = runs[0]["setting"]
        if setting["method_args"].get("constants") == "paper":
            mdp = registry.make_model(setting["env"], setting["env_args"], None)
            assert mdp is not None
            rival = arena_bounds.RIVALS[setting["method"]]
            found[world, method] = rival(mdp, setting["radius"], setting["epsilon"], setting["delta"])
    return found


def bounds(records: Sequence[engine.Record]) -> str:
    """Markdown: :func:`asked`."""
    found = asked(records)
    worlds, names = (list(dict.fromkeys(part)) for part in zip(*found, strict=True))
    lines = ["| method | " + " | ".join(worlds) + " |", "| --- |" + " ---: |" * len(worlds)]
    for name in names:
        steps = [found[world, name] for world in worlds]
        texts = [f"{s:.1e}".replace("e+0", "e").replace("e+", "e") if math.isfinite(s) else "never ends" for s in steps]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def report(records: Sequence[engine.Record], seeds: int, budget: int) -> str:
    """The tables, in Markdown."""
    found = rows(records)
    return (
        f"Median steps over {seeds} seeds, budget {budget:,} steps; -: not within the budget for most seeds; (k/n): "
        "the final output of only k of n runs passes the exact audit; bold: the fewest steps on that world among the "
        f"methods whose output passes in {SOUND:.0%} of the runs.\n\n"
        f"**Own stop**\n\n{matrix(found, 'own_stop')}\n\n**Audit-stop**\n\n{matrix(found, 'audit_stop')}\n\n"
        f"**Over all worlds**\n\n{summary(records)}\n\n"
        f"**What the papers' constants ask for**: steps to the own stop, at least, computed\n\n{bounds(records)}\n"
    )


def drawn(records: Sequence[engine.Record]) -> list[engine.Record]:
    """The records of ``DRAWN``."""
    chosen = [(*engine.parse_method(spec), rule) for spec, rule in DRAWN]
    settings = [record["setting"] for record in records]
    kinds = [(setting["method"], setting["method_args"], setting["goal_rule"]) for setting in settings]
    return [record for record, kind in zip(records, kinds, strict=True) if kind in chosen]


def data(records: Sequence[engine.Record]) -> list[dict[str, Any]]:
    """The rows, each with what its runs did, seed by seed, and with :func:`asked`."""
    least = {key: steps if math.isfinite(steps) else None for key, steps in asked(records).items()}
    return [
        {
            **row.to_dict(),
            **({"asked": least[row.world, row.method]} if (row.world, row.method) in least else {}),
            "each": {
                **{name: [run[name] for run in runs] for name in ("steps", "own_stop", "audit_stop", "wall_seconds")},
                "passes": [run["final"]["c1"] and run["final"]["c2"] for run in runs],
            },
        }
        for row, runs in zip(rows(records), group(records).values(), strict=True)
    ]


@click.command(epilog="Example: adagoal reproduce arena --seeds 10 --jobs 2 --out runs/arena")
@click.option("--seeds", type=click.IntRange(1, 1000), default=10, show_default=True, help="Runs of each.")
@options.FIRST_SEED
@click.option("--budget", type=options.Count(), default=BUDGET, show_default=True, help="Steps of a run, at most.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=2, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/arena"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
@options.QUIET
def arena(seeds: int, seed: int, budget: int, jobs: int, out: Path, as_json: bool, quiet: bool) -> None:
    """AdaGoal against UcbExplore, DisCo, GOSPRL and every goal rule, on the standard worlds.

    Writes arena.md, arena.json and arena.png. Stopped by Ctrl-C, the same command goes on where it was.
    """
    records = run_cells(cells(seeds, budget, seed), out, jobs, quiet)
    text = report(records, seeds, budget)
    write_text(out / "arena.md", text)
    write_json(out / "arena.json", data(records))
    figure(drawn(records)).savefig(out / "arena.png", dpi=150)
    click.echo(json.dumps([row.to_dict() for row in rows(records)], indent=1) if as_json else text)
