"""``adagoal.compare``: methods and goal rules in the same environments, from Python."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adagoal import parallel
from adagoal.api.argument_names import refuse_unknown_arguments
from adagoal.comparison.comparison_output import Comparison
from adagoal.comparison.experiment_runner import ExperimentProgress, collect_outcomes, run_experiment
from adagoal.comparison.method_comparison import COMPARE, pair_worlds
from adagoal.core.argument_checks import check_folder_path
from adagoal.core.errors import InputError
from adagoal.runs.progress_display import in_notebook
from adagoal.settings.exploration import ComparisonOptions, ExecutionOptions, ExplorationSettings
from adagoal.settings.fields import check_arguments, document_settings
from adagoal.settings.goal_spec import GoalsArgument as Goals


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
    worlds = pair_worlds(_as_names("env", env), _as_numbers(radius), _as_numbers(epsilon), dict(env_args or {}))
    common = {"delta": delta, "constants": constants, "budget": budget, "goals": goals, "seed": seed}
    display = ExperimentProgress(quiet=not (in_notebook() if progress is None else progress))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else None
        options = COMPARE.fill_in_defaults(
            worlds=worlds,
            methods=_as_names("methods", methods),
            goal_rules=_as_names("goal_rules", goal_rules),
            common=common,
            seeds=seeds,
            seed=seed,
            out=folder or check_folder_path("out", out),
            quiet=display.is_quiet,
        )
        runs = COMPARE.list_runs(options)
        chosen = stack.enter_context(
            contextlib.closing(parallel.make_engine(engine, jobs, address, display.print_line))
        )
        # The page and the figure are for a folder that stays.
        if folder is not None:
            return Comparison(collect_outcomes(COMPARE, runs, options, chosen, display))
        return Comparison(run_experiment(COMPARE, options, chosen, display).data["runs"])


def _as_names(argument: str, names: Any) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Sequence) else ()
    if not listed or not all(isinstance(name, str) for name in listed):
        raise InputError(f"must be one or more names, got {names!r}", argument)
    return tuple(dict.fromkeys(listed))


def _as_numbers(numbers: Any) -> tuple[Any, ...]:
    return tuple(numbers) if isinstance(numbers, Sequence) and not isinstance(numbers, str) else (numbers,)
