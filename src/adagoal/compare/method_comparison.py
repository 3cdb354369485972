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
from pathlib import Path
from typing import Any

from adagoal import goal_rules, methods
from adagoal.api.explore import audit
from adagoal.compare.anytime_audit import AnytimeAuditor
from adagoal.compare.comparison_output import (
    SCORE_TABLE_NOTE,
    compute_scores,
    draw_error_figure,
    live_score_table,
    make_error_panels,
    make_score_table,
)
from adagoal.compare.experiment import Experiment, ExperimentOptions, ExperimentReport, RunOutcome
from adagoal.compare.experiment_runner import run_settings
from adagoal.core.argument_checks import parse_key_value
from adagoal.core.errors import InputError
from adagoal.core.file_io import is_folder_locked, read_json
from adagoal.envs import registry
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.report import curve_page
from adagoal.runs.exploration_session import ExplorationSession
from adagoal.settings.exploration import ExplorationSettings
from adagoal.settings.goal_spec import GoalsArgument as Goals
from adagoal.settings.goal_spec import build_goal_space, parse_goals, to_goals_argument

SEVERAL = {"method": "methods", "method_args": "methods", "goal_rule": "goal_rules", "env": "worlds"}
"""Arguments of a run, and those of a comparison that stand for several of them."""


def build_settings(
    worlds: Mapping[str, Mapping[str, Any]],
    method_specs: Iterable[str],
    rules: Sequence[str],
    seeds: int,
    constants: str | None = None,
    seed: int = 0,
    goals: Goals | None = None,
    **common: Any,
) -> list[ExplorationSettings]:
    """Every combination, checked: ``worlds`` maps a name to its radius, epsilon and env_args.

    Seeds are counted from ``seed`` on. A method that decides by itself where to go is run once a seed, whatever the
    rules. ``constants`` are those of the methods that have some and are given none
    (:func:`adagoal.methods.apply_constants`).
    """
    found, wanted = [], parse_goals(goals)
    common |= {"goal_space": wanted.states, "goal_sets": wanted.description}
    choices = [parse_method_spec(spec) for spec in method_specs]
    names = [method for method, _ in choices]
    for env, options in worlds.items():
        _require_known_model(env, options.get("env_args", {}))
        world, _ = registry.make_single_env(env, options.get("env_args", {}), None, None)
        for method, arguments in zip(names, methods.apply_constants(constants, choices), strict=True):
            for rule in rules if methods.find_method(method).uses_goal_rule else rules[:1]:
                choice: dict[str, Any] = {"env": env, "method": method, "method_args": arguments, "goal_rule": rule}
                runs = [ExplorationSettings(**choice, **options, **common, seed=seed + i) for i in range(seeds)]
                try:  # what is wrong is said before anything is run
                    ExplorationSession.from_settings(runs[0], world, goal_rules.resolve_rule(rule), wanted.code)
                except InputError as error:
                    raise InputError(error.reason, SEVERAL.get(error.name or "", error.name)) from None
                found += runs
    return found


def parse_method_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """A method and its arguments from ``name:key=value:key=value``."""
    name, *pairs = spec.split(":")
    try:
        methods.find_method(name)
        return name, dict(map(parse_key_value, pairs))
    except InputError as error:
        raise InputError(error.reason, "methods") from None


def measure_audited_run(setting: ExplorationSettings, options: ExperimentOptions) -> dict[str, Any]:
    """One run to its own stop or its budget, audited on the way."""
    mdp = _require_known_model(setting.env, setting.env_args)
    code = parse_goals(to_goals_argument(setting)).code
    auditor = AnytimeAuditor(
        mdp, float(setting.radius), setting.epsilon, build_goal_space(setting, ModelSimulator(mdp), code)
    )
    result = run_settings(setting, auditor)
    auditor.check_output(result.steps, {g: result.policy(g) for g in result.goals})
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
        "audit_stop": auditor.audit_stop,
        "final": {"ok": verdict.ok, "c1": verdict.c1, "c2": verdict.c2, "certificates": verdict.certificates},
        "checks": [[c.steps, c.error if math.isfinite(c.error) else None, c.holds] for c in auditor.checks],
    }


def is_complete_outcome(setting: ExplorationSettings, outcome: RunOutcome, options: ExperimentOptions) -> bool:
    """The name of the file holds the setting."""
    whole = {"own_stop", "audit_stop", "final", "checks"} <= outcome.keys()
    return bool(outcome["setting"]["seed"] == setting.seed and whole)


def outcome_file_name(setting: ExplorationSettings) -> str:
    """Where a finished run is kept: a name for people, and a digest of the whole setting and of the user's code."""
    code = goal_rules.rule_source_text(setting.goal_rule) + goal_rules.rule_source_text(
        str((setting.goal_sets or {}).get("file", ""))
    )
    text = json.dumps(asdict(setting), sort_keys=True) + code
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{setting.env}-{setting.method}-{setting.goal_rule}")
    return os.path.join("cells", f"{name}-seed{setting.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json")


def describe_outcome(outcome: RunOutcome) -> str:
    """A run in words."""
    setting = outcome["setting"]
    what = f"{setting['env']} {setting['method']} {setting['goal_rule']} seed {setting['seed']}"
    return f"{what}: own stop {outcome['own_stop'] or 'none'}, audit-stop {outcome['audit_stop'] or 'none'}"


def settings_from_options(options: ExperimentOptions) -> list[ExplorationSettings]:
    """What ``adagoal compare`` was asked for."""
    return build_settings(options.worlds, options.methods, options.goal_rules, len(options.seeds), **options.common)


def comparison_report(outcomes: Sequence[RunOutcome], options: ExperimentOptions) -> ExperimentReport:
    """One table and one figure."""
    rows = [score.to_dict() for score in compute_scores(outcomes)]
    text = f"{make_score_table(compute_scores(outcomes)).to_markdown()}\n{SCORE_TABLE_NOTE}\n"
    data, figures = {"rows": rows, "runs": outcomes}, {"figure.png": draw_error_figure(outcomes)}
    return ExperimentReport(rows, text, data, figures, panels=make_error_panels(outcomes))


def _require_known_model(env: str, env_args: Mapping[str, Any]) -> TabularMDP:
    model = registry.make_exact_model(env, env_args, None)
    if model is None:
        raise InputError(f"no exact model is known of {env}, so that nothing can be audited", name="env")
    return model


COMPARE = Experiment(
    "compare",
    settings_from_options,
    measure_audited_run,
    comparison_report,
    outcome_file=outcome_file_name,
    is_complete=is_complete_outcome,
    describe_outcome=describe_outcome,
    live_table=live_score_table,
    file_stem="table",
)


# What a live page of a comparison shows: the runs that are finished so far, from their files.


RUNS_FOLDER = "cells"
"""Where a comparison, and the arena, keep their runs."""


class FolderComparison:
    """A folder of ``compare`` or of the arena."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def version_stamp(self) -> str:
        """Which runs there are, when the last one came, and whether more are on their way."""
        times = [file.stat().st_mtime_ns for file in self._list_outcome_files()]
        return f"{len(times)} {max(times, default=0)} {is_folder_locked(self._folder)}"

    def render_page(self) -> str:
        """The page of the runs so far."""
        report = self._build_report()
        return curve_page.render_curve_page(f"adagoal: {self._folder.name}", report.text, report.panels, live=True)

    def pack_data(self) -> bytes:
        """Its data."""
        report = self._build_report()
        return curve_page.pack_curve_data(
            report.text, report.panels, running=is_folder_locked(self._folder), stops=False
        )

    def pack_policy(self, goal: int) -> bytes:
        """A comparison has none."""
        raise InputError("a comparison shows no policies", "goal")

    def request_stop(self) -> None:
        """A comparison is stopped where it runs."""
        raise InputError("a comparison is stopped by Ctrl-C, and goes on with the same command")

    def _list_outcome_files(self) -> list[Path]:
        return sorted((self._folder / RUNS_FOLDER).glob("*.json"))

    def _build_report(self) -> ExperimentReport:
        outcomes = [read_json(file) for file in self._list_outcome_files()]
        if not outcomes:
            raise InputError(f"{self._folder}: no run is finished yet")
        try:
            return comparison_report(outcomes, ExperimentOptions())
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            raise InputError(
                f"{self._folder / RUNS_FOLDER}: holds a file that is damaged, or no run of compare"
            ) from None
