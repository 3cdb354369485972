"""Methods and goal rules side by side, with two stopping notions.

*Own stop*: the step at which the method's own rule ends the run. *Audit-stop*: the first step from which the exact
audit (C1 and C2 of definition ``def_MGE``) of what the method would return holds for good. The output is looked at
:data:`PER_DECADE` times a decade of steps, between two rollouts, so that looking does not change the run; the
audit-stop is the first of these looks after which none fails.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adagoal import goals as goal_rules
from adagoal import methods
from adagoal.api import explore as api
from adagoal.core.checks import pair
from adagoal.core.errors import InputError
from adagoal.core.files import alone_in, read_json
from adagoal.core.policy import Policy
from adagoal.core.run import Run
from adagoal.experiments.pool import finish
from adagoal.mdp import solve
from adagoal.runs.session import Session
from adagoal.runs.setting import Setting
from adagoal.worlds import registry
from adagoal.worlds.model import TabularMDP

PER_DECADE = 8
FIRST = 100
"""Steps at which the output is looked at for the first time."""

Record = dict[str, Any]
"""One finished run, ready for JSON; see :func:`run_cell`."""


@dataclass(frozen=True)
class Check:
    """One look at the output of a run."""

    steps: int
    error: float
    """max of V^pi_g - V* over the goals of G_L, infinite where one is missing"""
    holds: bool
    """C1 and C2"""


class Auditor:
    """An observer of a run that audits its current output exactly, at a geometric grid of step counts."""

    def __init__(self, mdp: TabularMDP, radius: float, epsilon: float, goal_space: Iterable[int] | None = None) -> None:
        self.checks: list[Check] = []
        self._mdp, self._epsilon = mdp, epsilon
        space = (
            np.ones(mdp.n_states, bool) if goal_space is None else np.isin(np.arange(mdp.n_states), list(goal_space))
        )
        self._optimal = solve.distances(mdp)
        self._within = space & solve.at_most(self._optimal, radius)
        self._tolerated = space & solve.at_most(self._optimal, radius + epsilon)
        self._next = float(FIRST)
        self._values: dict[int, tuple[bytes, float]] = {}

    def __call__(self, run: Run) -> None:
        """Called after every rollout."""
        if run.steps < self._next:
            return
        estimates = run.estimates
        columns = estimates.column[estimates.goals]
        believed = (estimates.goal_state[columns] >= 0) & (estimates.D[columns] <= estimates.L)
        reset = run.world.n_actions
        self.check(run.steps, {int(g): Policy(int(g), estimates.policy(g), reset) for g in estimates.goals[believed]})
        while self._next <= run.steps:
            self._next *= 10 ** (1 / PER_DECADE)

    def check(self, steps: int, policies: Mapping[int, Policy]) -> None:
        """Audit the goals X with their policies."""
        X = np.zeros(self._mdp.n_states, bool)
        values = np.full(self._mdp.n_states, np.inf)
        for goal, policy in policies.items():
            X[goal], values[goal] = True, self._value(goal, policy)
        c1 = np.isfinite(values[X]).all() and solve.at_most(values[X], self._optimal[X] + self._epsilon).all()
        c2 = (X | ~self._within).all() and (self._tolerated | ~X).all()
        gaps = values[self._within] - self._optimal[self._within]
        self.checks.append(Check(steps, max(float(gaps.max(initial=0.0)), 0.0), bool(c1 and c2)))

    def _value(self, goal: int, policy: Policy) -> float:
        """V^pi, computed again only where the policy has changed."""
        table = policy.actions.tobytes()
        if self._values.get(goal, (b"", 0.0))[0] != table:
            self._values[goal] = table, solve.policy_value(self._mdp, policy, goal)
        return self._values[goal][1]

    @property
    def stop(self) -> int | None:
        """The audit-stop, None where the last look failed."""
        first = None
        for check in reversed(self.checks):
            if not check.holds:
                break
            first = check.steps
        return first


def settings(
    worlds: Mapping[str, Mapping[str, Any]],
    method_specs: Iterable[str],
    rules: Sequence[str],
    seeds: int,
    constants: str | None = None,
    seed: int = 0,
    **common: Any,
) -> list[Setting]:
    """Every combination, checked: ``worlds`` maps a name to its radius, epsilon and env_args.

    Seeds are counted from ``seed`` on. A method that decides by itself where to go is run once a seed, whatever the
    rules. ``constants`` are those of the methods that have some and are given none
    (:func:`adagoal.methods.with_constants`).
    """
    found = []
    choices = [parse_method(spec) for spec in method_specs]
    names = [method for method, _ in choices]
    for env, options in worlds.items():
        _model(env, options.get("env_args", {}))
        world, _ = registry.make_world(env, options.get("env_args", {}), None, None)
        for method, arguments in zip(names, methods.with_constants(constants, choices), strict=True):
            for rule in rules[:1] if method in methods.EXPLORERS else rules:
                choice: dict[str, Any] = {"env": env, "method": method, "method_args": arguments, "goal_rule": rule}
                runs = [Setting(**choice, **options, **common, seed=seed + i) for i in range(seeds)]
                Session.start(runs[0], world, goal_rules.get(rule))  # what is wrong is said before anything is run
                found += runs
    return found


def parse_method(spec: str) -> tuple[str, dict[str, Any]]:
    """A method and its arguments from ``name:key=value:key=value``."""
    name, *pairs = spec.split(":")
    if name not in methods.METHODS:
        raise InputError(f"--methods: unknown method {name!r}; choose from {', '.join(methods.METHODS)}")
    return name, dict(pair(text) for text in pairs)


def run_cell(setting: Setting) -> Record | None:
    """One run to its own stop or its budget, audited on the way; None where it was interrupted."""
    mdp = _model(setting.env, setting.env_args)
    auditor = Auditor(mdp, float(setting.radius), setting.epsilon, setting.goal_space)
    result = api.explore(**asdict(setting), observe=auditor)
    if result.status == "interrupted":
        return None
    auditor.check(result.steps, {g: result.policy(g) for g in result.goals})
    verdict = api.audit(result, mdp)
    return {
        "setting": asdict(setting),
        "status": result.status,
        "guarantee": result.guarantee,
        "steps": result.steps,
        "episodes": result.episodes,
        "plans": result.plans,
        "wall_seconds": result.wall_seconds,
        "own_stop": result.steps if result.status in ("certified", "stopped") else None,
        "audit_stop": auditor.stop,
        "final": {"ok": verdict.ok, "c1": verdict.c1, "c2": verdict.c2, "certificates": verdict.certificates},
        "checks": [[c.steps, c.error if math.isfinite(c.error) else None, c.holds] for c in auditor.checks],
    }


def run_all(
    cells: list[Setting], folder: Path, jobs: int, done: Callable[[Record], None] = lambda record: None
) -> list[Record]:
    """Run what the folder does not hold yet, ``jobs`` at a time; ``done`` is told of every run as it ends."""
    files = {folder / cell_file(cell): cell for cell in cells}
    records: dict[Path, Record] = {file: _kept(file) for file in files if file.exists()}
    for record in records.values():
        done(record)
    with alone_in(folder):
        for file, record in finish(run_cell, {f: (cell,) for f, cell in files.items() if f not in records}, jobs):
            records[file] = record
            done(record)
    return [records[folder / cell_file(cell)] for cell in cells]


def _kept(file: Path) -> Record:
    """A run that the folder holds."""
    record: Record = read_json(file)
    if not (isinstance(record, dict) and {"setting", "own_stop", "audit_stop", "final", "checks"} <= record.keys()):
        raise InputError(f"{file}: damaged or incomplete; remove it to run this again")
    return record


def cell_file(setting: Setting) -> str:
    """Where a finished run is kept: a name for people, and a digest of the whole setting and of the user's rule."""
    text = json.dumps(asdict(setting), sort_keys=True) + goal_rules.source(setting.goal_rule)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{setting.env}-{setting.method}-{setting.goal_rule}")
    return os.path.join("cells", f"{name}-seed{setting.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json")


def _model(env: str, env_args: Mapping[str, Any]) -> TabularMDP:
    model = registry.make_model(env, env_args, None)
    if model is None:
        raise InputError(f"ENV: no exact model is known of {env}, so that nothing can be audited")
    return model
