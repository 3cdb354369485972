"""``adagoal compare``: run methods and goal rules, save outcomes, feed the live page, and measure two stopping times.

*Own stop*: the step at which the method's own rule ends the run. *Audit-stop*: the first step after which its output
stays correct (:mod:`adagoal.comparison.method_scores`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adagoal import goal_rules, methods
from adagoal.api.explore import audit, explore
from adagoal.comparison.method_scores import AnytimeAuditor, Comparison, RunOutcome, make_error_plots
from adagoal.core.environment import renumber_policies
from adagoal.core.errors import InputError, Status, UnfinishedError
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.file_io import folder_lock, read_json, remove_partial_files, write_json, write_text
from adagoal.core.goal_spec import GoalsArgument as Goals
from adagoal.core.goal_spec import build_goal_space, parse_goals, to_goals_argument
from adagoal.core.run_settings import ComparisonOptions, ExecutionOptions, ExplorationSettings
from adagoal.core.validation import (
    check_arguments,
    check_folder_path,
    document_settings,
    parse_key_value,
    refuse_unknown_arguments,
)
from adagoal.envs import registry
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.parallel import engines
from adagoal.report.html_page import ReportPage, curve_page
from adagoal.report.live_server import ReportSource
from adagoal.runs.exploration_session import ExplorationSession
from adagoal.runs.progress_display import Progress, ProgressDisplay, in_notebook
from adagoal.runs.result import Result, find_model_states, numbers_states_as_met


def settings_by_env(
    envs: Sequence[str], radius: Sequence[float], epsilon: Sequence[float], env_args: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the settings of every environment, from one number for all or one for each."""
    # the mapping below would drop the first of two equal names
    for env in envs:
        if envs.count(env) > 1:
            raise InputError(f"{env} is given {envs.count(env)} times; give each environment once", "env")
    radii, accuracies = _one_per_env("radius", radius, len(envs)), _one_per_env("epsilon", epsilon, len(envs))
    return {
        env: {"radius": L, "epsilon": accuracy, "env_args": env_args}
        for env, L, accuracy in zip(envs, radii, accuracies, strict=True)
    }


def _one_per_env(name: str, numbers: Sequence[float], n_envs: int) -> Sequence[float]:
    if len(numbers) not in (1, n_envs):
        text = f"must be one number, or one for each environment ({n_envs}), got {len(numbers)} numbers"
        raise InputError(text, name)
    return list(numbers) * n_envs if len(numbers) == 1 else numbers


def build_settings(
    env_settings: Mapping[str, Mapping[str, Any]],
    method_specs: Iterable[str],
    rules: Sequence[str],
    seeds: int,
    constants: str | None = None,
    seed: int = 0,
    goals: Goals | None = None,
    **common: Any,
) -> list[ExplorationSettings]:
    """Return the checked settings of every combination; ``env_settings`` are those of :func:`settings_by_env`.

    Seeds are ``seed``, ``seed + 1``, and so on. A method that uses no goal rule runs once per seed, whatever the rules.
    ``constants`` applies to methods that have constants and were given none (:func:`adagoal.methods.apply_constants`).
    """
    settings, parsed_goals = [], parse_goals(goals)
    plurals = {"method": "methods", "method_args": "methods", "goal_rule": "goal_rules"}
    common |= {"goal_space": parsed_goals.states, "goal_sets": parsed_goals.description}
    choices = [parse_method_spec(spec) for spec in dict.fromkeys(method_specs)]
    names = [method for method, _ in choices]
    for env, options in env_settings.items():
        _require_known_model(env, options.get("env_args", {}))
        made, _ = registry.make_single_env(env, options.get("env_args", {}), None, None)
        for method, arguments in zip(names, methods.apply_constants(constants, choices), strict=True):
            # A method without goal rules would give the same run for every rule.
            for rule in dict.fromkeys(rules) if methods.find_method(method).uses_goal_rule else rules[:1]:
                choice: dict[str, Any] = {"env": env, "method": method, "method_args": arguments, "goal_rule": rule}
                runs = [ExplorationSettings(**choice, **options, **common, seed=seed + i) for i in range(seeds)]
                # Report bad input before the first run, not after hours.
                try:
                    ExplorationSession.from_settings(runs[0], made, goal_rules.resolve_rule(rule), parsed_goals.code)
                except InputError as error:
                    raise InputError(error.reason, plurals.get(error.name or "", error.name)) from None
                settings += runs
    return settings


def parse_method_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the method and its arguments from ``name:key=value:key=value``."""
    name, *pairs = spec.split(":")
    try:
        methods.find_method(name)
        return name, dict(map(parse_key_value, pairs))
    except InputError as error:
        raise InputError(error.reason, "methods") from None


def collect_outcomes(
    measure: Callable[..., RunOutcome],
    tasks: Mapping[str, tuple[Any, ...]],
    folder: Path,
    engine: engines.Engine,
    display: RunsProgress,
    is_complete: Callable[[str, RunOutcome], bool] = lambda name, outcome: True,
    describe: Callable[[RunOutcome], str] | None = None,
    resources: engines.TaskResources | None = None,
) -> dict[str, RunOutcome]:
    """Return the outcome of ``measure(*arguments)`` for every task, by the name of its file below ``folder``.

    Outcomes that the folder holds are not repeated, so runs that were stopped continue where they were. ``is_complete``
    says whether the content of a file is the outcome of this task; if not, the run is repeated.
    """
    outcomes = {name: _load_outcome(folder, name, is_complete) for name in tasks}
    missing = {name: arguments for name, arguments in tasks.items() if outcomes[name] is None}
    with display:
        display.begin(describe, len(tasks) - len(missing), len(tasks))
        try:
            for name, measured in engine.map(measure, missing, resources or engines.TaskResources()):
                write_json(folder / name, measured)
                # Read it back: JSON turns tuples into lists, and new outcomes must look like old ones.
                outcomes[name] = read_json(folder / name)
                display.add_outcome(name, outcomes[name])
        except (KeyboardInterrupt, UnfinishedError) as error:
            # Without a finished run or a checkpoint there is nothing to continue.
            if any(folder.glob("*")):
                saved = f"{display.n_done} of {display.n_total} runs are saved in {folder}"
                error.add_note(f"{saved}; the same command continues")
            raise
    return outcomes


def _load_outcome(folder: Path, name: str, is_complete: Callable[[str, RunOutcome], bool]) -> RunOutcome | None:
    if not (folder / name).exists():
        return None
    outcome = read_json(folder / name)
    try:
        return outcome if is_complete(name, outcome) else None
    except (KeyError, TypeError, IndexError, AttributeError):
        raise InputError(f"{folder / name}: damaged or incomplete; remove it to repeat this run") from None


class RunsProgress(ProgressDisplay):
    """Progress of many runs: a bar if the display is live, else one line per finished run."""

    throttled = False

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        self._describe_outcome: Callable[[RunOutcome], str] | None = None
        self._last_outcome, self._started = "", 0.0
        self.n_done = self.n_total = 0

    def begin(self, describe: Callable[[RunOutcome], str] | None, n_done: int, total: int) -> None:
        """Show a number of runs; ``n_done`` are in the folder already, and ``describe`` puts an outcome into words."""
        self._describe_outcome, self.n_done, self.n_total = describe, n_done, total
        self._last_outcome, self._started = "", time.monotonic()
        if 0 < n_done < total:
            self.print_line(f"{n_done} of {total} runs are in the folder already")
        self()

    def add_outcome(self, name: str, outcome: RunOutcome) -> None:
        """Show that a run has finished."""
        self.n_done += 1
        self._last_outcome = name if self._describe_outcome is None else self._describe_outcome(outcome)
        self()

    def describe(self) -> Progress:
        """Return the number of runs, and the last outcome."""
        seconds = time.monotonic() - self._started
        state = f"{self.n_done} of {self.n_total} runs"
        plain_line = f"{state}: {self._last_outcome}" if self._last_outcome else ""
        share = self.n_done / max(self.n_total, 1)
        return Progress([f"{state}, {seconds:,.0f} s   {self._last_outcome}"], share, plain_line)


def run_uninterrupted(
    run: Callable[..., Any],
    *arguments: Any,
    observe: Callable[[ExplorationRun], bool | None] = lambda run: None,
    **options: Any,
) -> Result:
    """Call :func:`adagoal.explore` or resume; raise TaskInterrupted if a signal, and not ``observe``, ended the run."""
    is_stopped = False

    def track_stop(run: ExplorationRun) -> bool:
        nonlocal is_stopped
        is_stopped = observe(run) is False
        return not is_stopped

    # The display of the experiment is the only one, also in a notebook.
    result: Result = run(*arguments, observe=track_stop, progress=False, **options)
    # A signal and an observer give the same status, but a run cut short by a signal must not become an outcome.
    if result.status is Status.INTERRUPTED and not is_stopped:
        raise engines.TaskInterrupted("the run was asked to stop")
    return result


def run_settings(setting: ExplorationSettings, observe: Callable[[ExplorationRun], bool | None]) -> Result:
    """Run the exploration with these settings."""
    given = {name: value for name, value in vars(setting).items() if name not in ("goal_space", "goal_sets")}
    return run_uninterrupted(explore, **given, goals=to_goals_argument(setting), observe=observe)


def measure_audited_run(setting: ExplorationSettings) -> dict[str, Any]:
    """Run until the method stops or the budget is spent, with audits on the way."""
    mdp = _require_known_model(setting.env, setting.env_args)
    code = parse_goals(to_goals_argument(setting)).code
    auditor = AnytimeAuditor(
        mdp, float(setting.radius), setting.epsilon, build_goal_space(setting, ModelSimulator(mdp), code)
    )
    result = run_settings(setting, auditor)
    # The auditor checks at fixed steps, so the output at the end needs a check of its own.
    policies = {g: result.policy(g) for g in result.goals}
    if numbers_states_as_met(result):
        policies = renumber_policies(policies, find_model_states(result, mdp.n_states), mdp.n_states)
    auditor.check_output(result.steps, policies)
    verdict = audit(result, mdp)
    copied = "status", "guarantee", "steps", "episodes", "plans", "wall_seconds"
    return {
        "setting": asdict(setting),
        **{name: getattr(result, name) for name in copied},
        "own_stop": result.steps if result.status.finished else None,
        "audit_stop": auditor.audit_stop,
        "final": {"ok": verdict.ok, "c1": verdict.c1, "c2": verdict.c2, "certificates": verdict.certificates},
        # JSON has no infinity.
        "checks": [[c.steps, c.error if math.isfinite(c.error) else None, c.holds] for c in auditor.checks],
    }


def is_complete_outcome(setting: ExplorationSettings, outcome: RunOutcome) -> bool:
    """Return whether a file holds this run. Its name has a digest of all settings, so few fields are compared."""
    has_all = {"own_stop", "audit_stop", "final", "checks"} <= outcome.keys()
    return bool(outcome["setting"]["seed"] == setting.seed and has_all)


def outcome_file_name(setting: ExplorationSettings) -> str:
    """Return the file of a run: a readable name, and a digest of all settings and of the user's code."""
    # Outcomes of an edited goal rule or goal file must not be reused, so the digest covers the code.
    code = goal_rules.rule_source_text(setting.goal_rule) + goal_rules.rule_source_text(
        str((setting.goal_sets or {}).get("file", ""))
    )
    text = json.dumps(asdict(setting), sort_keys=True) + code
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{setting.env}-{setting.method}-{setting.goal_rule}")
    return os.path.join("cells", f"{name}-seed{setting.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json")


def describe_outcome(outcome: RunOutcome) -> str:
    """Return the outcome of a run in words."""
    setting = outcome["setting"]
    name = f"{setting['env']} {setting['method']} {setting['goal_rule']} seed {setting['seed']}"
    return f"{name}: own stop {outcome['own_stop'] or 'none'}, audit-stop {outcome['audit_stop'] or 'none'}"


def _require_known_model(env: str, env_args: Mapping[str, Any]) -> TabularMDP:
    model = registry.make_exact_model(env, env_args, None)
    if model is None:
        raise InputError(
            f"the exact model of {env} is not known, so runs cannot be audited; choose another", name="env"
        )
    return model


class ComparisonFolderSource(ReportSource):
    """The live page of a comparison or of the arena: the runs that are finished so far."""

    def version_stamp(self) -> str:
        times = [file.stat().st_mtime_ns for file in self._list_outcome_files()]
        return f"{len(times)} {max(times, default=0)} {self.is_running()}"

    def current_page(self) -> ReportPage:
        outcomes = [read_json(file) for file in self._list_outcome_files()]
        if not outcomes:
            raise InputError(f"{self.folder}: no run is finished yet; try again later")
        try:
            return curve_page(f"adagoal: {self.folder.name}", str(Comparison(outcomes)), make_error_plots(outcomes))
        # Other programs may have written the files, so any of these means a damaged or foreign one.
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            folder = self.folder / "cells"
            raise InputError(f"{folder}: a file is damaged, or not from adagoal compare; remove it") from None

    def pack_data(self) -> bytes:
        return self.current_page().pack_data(running=self.is_running(), stops=False)  # without a stop button

    def request_stop(self) -> None:
        raise InputError("a comparison cannot be stopped from its page; press Ctrl-C in its terminal")

    def _list_outcome_files(self) -> list[Path]:
        return sorted((self.folder / "cells").glob("*.json"))


@refuse_unknown_arguments
@document_settings(ExplorationSettings, ExecutionOptions, ComparisonOptions)
def compare(
    env: str | Sequence[str],
    methods: str | Sequence[str] = "certified",
    *,
    radius: float | Sequence[float],
    epsilon: float | Sequence[float] = 1.0,
    delta: float = 0.1,
    goal_rules: str | Sequence[str] = ("adagoal", "unigoal"),
    seeds: int = 5,
    seed: int = 0,
    budget: int = 10**7,
    constants: str | None = None,
    goals: Goals | None = None,
    env_args: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Run methods and goal rules on environments with a known model, and audit every run exactly while it runs.

    Runs are in other processes: a script needs the guard ``if __name__ == "__main__":`` around the call.

    Parameters
    ----------
    env: the name of an environment, or several names. Other processes make the environments, so objects do not work.
    methods: methods by name, or as "NAME:KEY=VALUE" with an argument.
    radius, epsilon: one number, or one for each environment.
    goal_rules: goal rules by name, or "FILE.py:FUNCTION". A method without goal rules runs once.
    budget: steps after which a run ends.
    constants: "paper" or "scaled=c", for methods with constants of a paper that are given none.
    goals: as for :func:`adagoal.explore`, but functions must be in a file: "FILE.py:NAME".
    out: folder for the outcomes, the table and the figure; the same call continues in it. By default nothing is saved.
    progress: show a progress display; by default in notebooks only.

    Examples
    --------
    >>> comparison = adagoal.compare("chain", radius=3, goal_rules="adagoal", seeds=1, env_args={"n_states": 4})
    >>> [(score.method, score.holds) for score in comparison.scores]
    [('certified', 1)]
    """
    check_arguments(ComparisonOptions, seeds=seeds, seed=seed, jobs=jobs)
    if callable(goals) or (isinstance(goals, Mapping) and any(map(callable, goals.values()))):
        raise InputError("runs are in other processes; write functions into a file and give FILE.py:NAME", "goals")
    env_settings = settings_by_env(
        _as_names("env", env), _as_numbers(radius), _as_numbers(epsilon), dict(env_args or {})
    )
    common: dict[str, Any] = {"delta": delta, "budget": budget, "goals": goals}
    names, rules = _as_names("methods", methods), _as_names("goal_rules", goal_rules)
    settings = build_settings(env_settings, names, rules, seeds, constants, seed, **common)
    tasks = {outcome_file_name(setting): (setting,) for setting in settings}
    display = RunsProgress(quiet=not (in_notebook() if progress is None else progress))
    with contextlib.ExitStack() as stack:
        # Absolute, because environments may change the current folder.
        temporary = None if out is not None else stack.enter_context(tempfile.TemporaryDirectory())
        folder = check_folder_path("out", temporary or out)
        chosen = engines.make_engine(engine, jobs, address, display.print_line)
        stack.enter_context(contextlib.closing(chosen))
        stack.enter_context(folder_lock(folder))
        for place in (folder, folder / "cells"):
            remove_partial_files(place)
        outcomes = collect_outcomes(
            *(measure_audited_run, tasks, folder, chosen, display),
            lambda name, outcome: is_complete_outcome(tasks[name][0], outcome),
            describe_outcome,
        )
        comparison = Comparison(list(outcomes.values()))
        # The table, the page and the figure are for a folder that stays.
        if temporary is None:
            _write_tables(comparison, folder)
    return comparison


def _write_tables(comparison: Comparison, folder: Path) -> None:
    """Write the table, the page with the curves and, if Matplotlib (the extra ``figures``) is installed, the figure."""
    rows = [score.to_dict() for score in comparison.scores]
    write_json(folder / "table.json", {"rows": rows, "runs": comparison.outcomes})
    write_text(folder / "table.md", str(comparison))
    if importlib.util.find_spec("matplotlib") is not None:
        from adagoal.report.figures import save_figure

        save_figure(comparison.plot(), folder / "figure.png")
    page = curve_page("adagoal: compare", str(comparison), make_error_plots(comparison.outcomes))
    write_text(folder / "table.html", page.render())


def _as_names(argument: str, names: Any) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Sequence) else ()
    if not listed or not all(isinstance(name, str) for name in listed):
        raise InputError(f"must be one or more names, got {names!r}", argument)
    return listed


def _as_numbers(numbers: Any) -> tuple[Any, ...]:
    return tuple(numbers) if isinstance(numbers, Sequence) and not isinstance(numbers, str) else (numbers,)
