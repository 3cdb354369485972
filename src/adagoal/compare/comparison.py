"""Methods and goal rules side by side, with two stopping notions.

*Own stop*: the step at which the method's own rule ends the run. *Audit-stop*: the first step from which its answer is
right for good (:mod:`adagoal.compare.anytime_audit`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from adagoal import goals as goal_rules
from adagoal import methods
from adagoal.api.explore import audit
from adagoal.compare.anytime_audit import Auditor
from adagoal.compare.experiment import Experiment, Options, Outcome, Report
from adagoal.compare.output import NOTE, figure, live, panels, scores, table
from adagoal.compare.single_run import run
from adagoal.core.checks import pair
from adagoal.core.errors import InputError
from adagoal.runs.asked import Given as Goals
from adagoal.runs.asked import as_given, asked, space
from adagoal.runs.session import Session
from adagoal.runs.setting import Setting
from adagoal.worlds import registry
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelWorld

SEVERAL = {"method": "methods", "method_args": "methods", "goal_rule": "goal_rules", "env": "worlds"}
"""Arguments of a run, and those of a comparison that stand for several of them."""


def settings(
    worlds: Mapping[str, Mapping[str, Any]],
    method_specs: Iterable[str],
    rules: Sequence[str],
    seeds: int,
    constants: str | None = None,
    seed: int = 0,
    goals: Goals | None = None,
    **common: Any,
) -> list[Setting]:
    """Every combination, checked: ``worlds`` maps a name to its radius, epsilon and env_args.

    Seeds are counted from ``seed`` on. A method that decides by itself where to go is run once a seed, whatever the
    rules. ``constants`` are those of the methods that have some and are given none
    (:func:`adagoal.methods.with_constants`).
    """
    found, wanted = [], asked(goals)
    common |= {"goal_space": wanted.states, "goal_sets": wanted.spec}
    choices = [parse_method(spec) for spec in method_specs]
    names = [method for method, _ in choices]
    for env, options in worlds.items():
        _model(env, options.get("env_args", {}))
        world, _ = registry.make_world(env, options.get("env_args", {}), None, None)
        for method, arguments in zip(names, methods.with_constants(constants, choices), strict=True):
            for rule in rules if methods.get(method).asks_rule else rules[:1]:
                choice: dict[str, Any] = {"env": env, "method": method, "method_args": arguments, "goal_rule": rule}
                runs = [Setting(**choice, **options, **common, seed=seed + i) for i in range(seeds)]
                try:  # what is wrong is said before anything is run
                    Session.start(runs[0], world, goal_rules.get(rule), wanted.code)
                except InputError as error:
                    raise InputError(error.reason, SEVERAL.get(error.name or "", error.name)) from None
                found += runs
    return found


def parse_method(spec: str) -> tuple[str, dict[str, Any]]:
    """A method and its arguments from ``name:key=value:key=value``."""
    name, *pairs = spec.split(":")
    try:
        methods.get(name)
        return name, dict(map(pair, pairs))
    except InputError as error:
        raise InputError(error.reason, "methods") from None


def measure(setting: Setting, options: Options) -> dict[str, Any]:
    """One run to its own stop or its budget, audited on the way."""
    mdp = _model(setting.env, setting.env_args)
    code = asked(as_given(setting)).code
    auditor = Auditor(mdp, float(setting.radius), setting.epsilon, space(setting, ModelWorld(mdp), code))
    result = run(setting, auditor)
    auditor.check(result.steps, {g: result.policy(g) for g in result.goals})
    verdict = audit(result, mdp)
    return {
        "setting": asdict(setting),
        "status": result.status,
        "guarantee": result.guarantee,
        "steps": result.steps,
        "episodes": result.episodes,
        "plans": result.plans,
        "wall_seconds": result.wall_seconds,
        "own_stop": result.steps if result.status.finished else None,
        "audit_stop": auditor.stop,
        "final": {"ok": verdict.ok, "c1": verdict.c1, "c2": verdict.c2, "certificates": verdict.certificates},
        "checks": [[c.steps, c.error if math.isfinite(c.error) else None, c.holds] for c in auditor.checks],
    }


def kept(setting: Setting, outcome: Outcome, options: Options) -> bool:
    """The name of the file holds the setting."""
    whole = {"own_stop", "audit_stop", "final", "checks"} <= outcome.keys()
    return bool(outcome["setting"]["seed"] == setting.seed and whole)


def file(setting: Setting) -> str:
    """Where a finished run is kept: a name for people, and a digest of the whole setting and of the user's code."""
    code = goal_rules.source(setting.goal_rule) + goal_rules.source(str((setting.goal_sets or {}).get("file", "")))
    text = json.dumps(asdict(setting), sort_keys=True) + code
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{setting.env}-{setting.method}-{setting.goal_rule}")
    return os.path.join("cells", f"{name}-seed{setting.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json")


def line(outcome: Outcome) -> str:
    """A run in words."""
    setting = outcome["setting"]
    what = f"{setting['env']} {setting['method']} {setting['goal_rule']} seed {setting['seed']}"
    return f"{what}: own stop {outcome['own_stop'] or 'none'}, audit-stop {outcome['audit_stop'] or 'none'}"


def cells(options: Options) -> list[Setting]:
    """What ``adagoal compare`` was asked for."""
    return settings(options.worlds, options.methods, options.goal_rules, len(options.seeds), **options.common)


def report(outcomes: Sequence[Outcome], options: Options) -> Report:
    """One table and one figure."""
    rows = [score.to_dict() for score in scores(outcomes)]
    text = f"{table(scores(outcomes)).markdown()}\n{NOTE}\n"
    data, figures = {"rows": rows, "runs": outcomes}, {"figure.png": figure(outcomes)}
    return Report(rows, text, data, figures, panels=panels(outcomes))


def _model(env: str, env_args: Mapping[str, Any]) -> TabularMDP:
    model = registry.make_model(env, env_args, None)
    if model is None:
        raise InputError(f"no exact model is known of {env}, so that nothing can be audited", name="env")
    return model


COMPARE = Experiment("compare", cells, measure, report, file=file, kept=kept, line=line, live=live, stem="table")
