"""Runs with a wrong mixture: how many end with a warning, and how many with a wrong result.

The true world strays from the windy 10 x 10 grid of the linear experiment: with probability eta a step ends in one of
the pair's possible successors, uniformly, everywhere, in five cells near the start, or at the start alone. That is no
mixture of the kernels, but every transition is one that some kernel allows. And for false alarms, true mixtures: small
grids with random weather maps and random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from adagoal.api.explore import audit, explore
from adagoal.comparison.method_comparison import run_uninterrupted
from adagoal.comparison.method_scores import RunOutcome, TextTable
from adagoal.core.errors import Status
from adagoal.envs import mixture_models
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from experiments import linear_runs
from experiments.experiment import ExperimentOptions

ETAS = (0.05, 0.1, 0.2, 0.4)
PLACES = {"everywhere": tuple(range(100)), "five cells": (44, 45, 54, 56, 65), "the start": (55,)}
METHODS = ("likelihood", "vtr-pooled")
FALSE_ALARM_BUDGET = 20_000


class Point(NamedTuple):
    """Runs that differ by their seed only; eta = 0 stands for true mixtures."""

    method: str
    place: str
    eta: float
    epsilon: float

    @property
    def name(self) -> str:
        """Name of its file."""
        return "misfit-" + "-".join(map(str, self)).replace(" ", "_")


def cells(options: ExperimentOptions) -> list[Point]:
    """Return all groups of runs."""
    epsilon = linear_runs.EPSILON
    strays = [Point(method, place, eta, epsilon) for method in METHODS for place in PLACES for eta in ETAS]
    return [Point(method, "nowhere", 0.0, 0.3) for method in METHODS] + strays


def runs(point: Point, options: ExperimentOptions) -> int:
    """Return the number of runs: four per seed, and ten times as many for true mixtures."""
    return len(options.seeds) * (4 if point.eta else 40)


def kept(point: Point, outcome: RunOutcome, options: ExperimentOptions) -> bool:
    """Return whether the file has all runs."""
    return bool(outcome["runs"] == runs(point, options))


def stray(mdp: TabularMDP, eta: float, cells: tuple[int, ...]) -> TabularMDP:
    """Return the model mixed with a share eta of uniform successors, in the given cells."""
    m = mdp.mixture
    assert m is not None
    p = np.asarray(mdp.kernel()[m.pair_of_entry, m.successors]).ravel()
    share = np.where(np.isin(m.pair_of_entry // m.n_actions, cells), eta, 0.0)
    changed = (1.0 - share) * p + share / np.diff(m.indptr)[m.pair_of_entry]
    return replace(mdp, indptr=m.indptr, successors=m.successors, probabilities=changed)


def measure(point: Point, options: ExperimentOptions) -> dict[str, Any]:
    """Count the runs that warned, and the runs that were wrong (C1, C2, or a certificate)."""
    cell = linear_runs.Cell("windy", min(linear_runs.SIZES), 4, "likelihood", 0)
    mdp, goals = cell.model(), linear_runs.goal_space(cell).tolist()
    warned = wrong = silent = 0
    steps = []
    for seed in range(runs(point, options)):
        world, among, budget = stray(mdp, point.eta, PLACES.get(point.place, ())), goals, None
        if point.eta == 0.0:
            theta = np.random.default_rng(seed).dirichlet(np.ones(4)).tolist()
            world, budget = mixture_models.weather_mixture(shape="4x5", seed=seed, theta=theta), FALSE_ALARM_BUDGET
            among = list(range(world.n_states))
        result = run_uninterrupted(
            explore,
            *(ModelSimulator(world), linear_runs.RADIUS, point.epsilon, linear_runs.DELTA),
            method=point.method,
            seed=seed,
            goals=among,
            budget=budget,
        )
        stopped = result.status is Status.CERTIFIED or (result.status is Status.VOID and not result.open_goals)
        bad = stopped and not audit(result, world).ok
        warned, wrong = warned + bool(result.void), wrong + bad
        silent += bad and not result.void
        steps.append(result.steps)
    outcome = {"runs": len(steps), "warned": warned, "wrong": wrong, "wrong_unwarned": silent}
    return {**point._asdict(), **outcome, "steps": float(np.median(steps))}


def table(rows: Sequence[RunOutcome]) -> str:
    """Return the table in Markdown."""
    lines = []
    for method in METHODS:
        for place in PLACES:
            own = [r for r in rows if (r["method"], r["place"]) == (method, place)]
            texts = [f"{r['warned']} / {r['wrong']} / {r['wrong_unwarned']} of {r['runs']}" for r in own]
            lines.append([f"`{method}`", place, *texts])
    true = ", ".join(f"`{r['method']}` {r['warned']} of {r['runs']}" for r in rows if not r["eta"])
    shown = TextTable(["method", "strays", *(f"η = {eta:g}" for eta in ETAS)], lines, n_left_columns=2).to_markdown()
    return f"{shown}\nWarned / wrong answers / wrong and not warned. True mixtures accused: {true}.\n"
