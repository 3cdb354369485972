"""The arena: every method on the same worlds, with both stopping notions (see
:mod:`adagoal.comparison.method_comparison`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from adagoal.comparison import method_comparison
from adagoal.comparison.method_scores import (
    MethodScore,
    RunOutcome,
    TextTable,
    compute_scores,
    group_outcomes,
    make_error_plots,
)
from adagoal.core.run_settings import ExplorationSettings
from adagoal.report.figures import draw_curve_plots
from experiments import required_steps
from experiments.catalogue import CATALOGUE
from experiments.experiment import Experiment, ExperimentOptions, ExperimentReport
from experiments.extra_models import make_known_model

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
GOAL_RULES = (
    *("adagoal", "adagoal-proportional", "proportional", "argmax", "unigoal", "raregoal"),
    *("skewfit", "mega", "goid", "progress", "goexplore"),
)
"""Rules that the certified method is run with. All other methods use AdaGoal's rule or none."""
UCBVI = "ucbvi:bonus=simplified:horizon=50:lazy=true"
OTHERS = (
    *("bayes", UCBVI),
    *("ucbexplore:constants=paper", "ucbexplore:constants=scaled=0.001", "ucbexplore:constants=scaled=0.0001"),
    *("disco:constants=paper", "disco:constants=scaled=0.0001", "disco:constants=scaled=0.00001"),
    *("valae:constants=paper", "valae:constants=scaled=0.00001", "valae:constants=scaled=0.000001"),
    *("lae:constants=paper", "lae:constants=scaled=0.002", "lae:constants=scaled=0.001"),
    *("gosprl:constants=paper", "gosprl:constants=scaled=0.01", "gosprl:constants=scaled=0.001"),
)
DRAWN = (
    *(("certified", "adagoal"), ("certified", "unigoal"), ("bayes", "adagoal"), (UCBVI, "adagoal")),
    ("ucbexplore:constants=scaled=0.001", "adagoal"),
    ("disco:constants=scaled=0.0001", "adagoal"),
    ("lae:constants=scaled=0.001", "adagoal"),
    ("gosprl:constants=scaled=0.01", "adagoal"),
)
"""Methods and goal rules in the figure."""
SOUND = 0.9
"""Share of runs whose final output must pass the audit for a method to count as a winner."""


def cells(options: ExperimentOptions) -> list[ExplorationSettings]:
    """Return all runs, seed by seed: if the arena is stopped, the first seeds are complete."""
    found: list[ExplorationSettings] = []
    first, seeds = options.seeds[0], len(options.seeds)
    for world in WORLDS:
        given = {"epsilon": 1.0, "budget": options.budget, **{k: v for k, v in world.items() if k != "env"}}
        worlds = {world["env"]: given}
        found += method_comparison.build_settings(worlds, ("certified",), GOAL_RULES, seeds, seed=first)
        found += method_comparison.build_settings(worlds, OTHERS, ("adagoal",), seeds, seed=first)
    return sorted(found, key=lambda setting: setting.seed)


def matrix(found: Iterable[tuple[tuple[str, ...], str, str]], head: tuple[str, ...]) -> str:
    """Return a Markdown table of lines against environments, from (line, environment, text)."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for line, world, text in found:
        lines.setdefault(line, {})[world] = text
    worlds = list(dict.fromkeys(world for texts in lines.values() for world in texts))
    rows = [[*line, *(texts[world] for world in worlds)] for line, texts in lines.items()]
    return TextTable((*head, *worlds), rows, n_left_columns=len(head)).to_markdown()


def stops(found: Sequence[MethodScore], notion: str) -> str:
    """Return a Markdown table of median stops; the best sound method of an environment is bold."""
    best: dict[str, float] = {}
    for score in found:
        if sound(score):
            best[score.world] = min(best.get(score.world, math.inf), getattr(score, notion))

    def text(score: MethodScore) -> str:
        steps = float(getattr(score, notion))
        shown = f"{steps:,.0f}" if math.isfinite(steps) else "-"
        if math.isfinite(steps) and sound(score) and steps <= best[score.world]:
            shown = f"**{shown}**"
        return shown if score.holds == score.runs else f"{shown} ({score.holds}/{score.runs})"

    return matrix((((s.method, s.goal_rule), s.world, text(s)) for s in found), ("method", "goal rule"))


def sound(score: MethodScore) -> bool:
    """Return whether enough of the final outputs pass the audit."""
    return score.holds >= SOUND * score.runs


def passes(outcome: RunOutcome) -> bool:
    """Return whether the final output passes the audit."""
    return bool(outcome["final"]["c1"] and outcome["final"]["c2"])


def summary(outcomes: Sequence[RunOutcome]) -> str:
    """Return a Markdown table: how many runs of each method stopped, and how many of them were correct."""
    by: dict[tuple[str, str], list[list[RunOutcome]]] = {}
    for (_, method, rule), runs in group_outcomes(outcomes).items():
        by.setdefault((method, rule), []).append(runs)
    lines = []
    for (method, rule), worlds in by.items():
        every = [run for runs in worlds for run in runs]
        stopped = [run for run in every if run["own_stop"] is not None]
        whole = sum(all(run["own_stop"] is not None for run in runs) for runs in worlds)
        shares = f"{whole} of {len(worlds)}", f"{len(stopped)} of {len(every)}"
        lines.append((method, rule, *shares, str(sum(map(passes, stopped)))))
    head = ("method", "goal rule", "worlds where all runs stopped", "runs stopped", "of these right")
    return TextTable(head, lines, n_left_columns=2).to_markdown()


def asked(outcomes: Sequence[RunOutcome]) -> dict[tuple[str, str], float]:
    """Return, by environment and method, the steps that a baseline needs at least with its paper's constants."""
    found = {}
    for (world, method, _), runs in group_outcomes(outcomes).items():
        setting = ExplorationSettings(**runs[0]["setting"])
        if setting.method_args.get("constants") == "paper":
            rival = required_steps.RIVALS[setting.method]
            found[world, method] = rival(
                make_known_model(setting), float(setting.radius), setting.epsilon, setting.delta
            )
    return found


def tables(outcomes: Sequence[RunOutcome], least: dict[tuple[str, str], float], options: ExperimentOptions) -> str:
    """Return all tables."""
    found = compute_scores(outcomes)
    bounds = (((name,), world, _power(steps)) for (world, name), steps in least.items())
    return (
        f"Median steps over {len(options.seeds)} seeds, budget {options.budget:,} steps; -: not within the budget for "
        "most seeds; (k/n): the final output of only k of n runs passes the exact audit; bold: the fewest steps on "
        f"that world among the methods whose output passes in {SOUND:.0%} of the runs.\n\n"
        f"**Own stop**\n\n{stops(found, 'own_stop')}\n**Audit-stop**\n\n{stops(found, 'audit_stop')}\n"
        f"**Over all worlds**\n\n{summary(outcomes)}\n"
        f"**What the papers' constants ask for**: steps to the own stop, at least, computed\n\n"
        f"{matrix(bounds, ('method',))}"
    )


def _power(steps: float) -> str:
    return f"{steps:.1e}".replace("e+0", "e").replace("e+", "e") if math.isfinite(steps) else "never ends"


def report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """Return the tables, and data of every seed."""
    least = asked(outcomes)
    data: list[dict[str, Any]] = []
    for score, runs in zip(compute_scores(outcomes), group_outcomes(outcomes).values(), strict=True):
        each = {name: [run[name] for run in runs] for name in ("steps", "own_stop", "audit_stop", "wall_seconds")}
        row = score.to_dict()
        if (score.world, score.method) in least:
            bound = least[score.world, score.method]
            row["asked"] = bound if math.isfinite(bound) else None
        data.append({**row, "each": {**each, "passes": [passes(run) for run in runs]}})
    rows = [score.to_dict() for score in compute_scores(outcomes)]
    plots = make_error_plots(drawn(outcomes))
    figures = {"arena.png": draw_curve_plots(plots)}
    return ExperimentReport(rows, tables(outcomes, least, options), data, figures, plots=plots)


def drawn(outcomes: Sequence[RunOutcome]) -> list[RunOutcome]:
    """Return the outcomes of ``DRAWN``."""
    chosen = [(*method_comparison.parse_method_spec(spec), rule) for spec, rule in DRAWN]
    settings = [outcome["setting"] for outcome in outcomes]
    kinds = [(setting["method"], setting["method_args"], setting["goal_rule"]) for setting in settings]
    return [outcome for outcome, kind in zip(outcomes, kinds, strict=True) if kind in chosen]


def measure(setting: ExplorationSettings, options: ExperimentOptions) -> RunOutcome:
    """Run a method with audits on the way."""
    return method_comparison.measure_audited_run(setting)


ARENA = Experiment(
    "arena",
    cells,
    measure,
    report,
    outcome_file=method_comparison.outcome_file_name,
    is_complete=lambda setting, outcome, options: method_comparison.is_complete_outcome(setting, outcome),
    describe_outcome=method_comparison.describe_outcome,
    defaults=CATALOGUE["arena"].defaults,
)
