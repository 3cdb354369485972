"""Resume or load the run in a folder, an exploration or training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagoal.core.argument_checks import check_folder_path
from adagoal.core.errors import InputError
from adagoal.runs.folder_reader import is_training_folder, require_run_folder

if TYPE_CHECKING:
    from adagoal.deep.rollouts import RolloutFactory
    from adagoal.goal_rules import GoalRule
    from adagoal.runs.result import Result
    from adagoal.runs.train_result import TrainResult


def resume(
    path: str | Path,
    budget: int | None = None,
    *,
    env: Any = None,
    goal_rule: str | GoalRule | None = None,
    trust: bool = False,
    step_timeout: float | None = None,
    progress: bool | None = None,
    observe: Callable[[Any], bool | None] | None = None,
    goals: Any = None,
    engine: str | None = None,
    address: str | None = None,
    set_goal: Callable[[Any, Any], None] | None = None,
    workers: int | None = None,
    minutes: float | None = None,
    checkpoint_every: int | None = None,
    tensorboard: str | Path | None = None,
    make_rollouts: RolloutFactory | None = None,
) -> Result | TrainResult:
    """Resume a run that was killed, interrupted or ran out of budget. The result is as if it had not stopped.

    One exception: the budget of an exploration ends a rollout early, so a run that continues after it plans at other
    moments. Its result is as valid, with other numbers.

    Parameters
    ----------
    path: the folder of the run.
    budget: new limit on the steps, those done included; by default the old one.
    env, goal_rule, goals, set_goal: what the run was given as an object or a function must be given again. Code that
        only the folder names (an environment ``module:Id``, a rule ``FILE.py:FUNCTION``, goals ``FILE.py:NAME``) runs
        if it is named again here, or with ``trust``.
    step_timeout, progress, observe: as for :func:`adagoal.explore` and :func:`adagoal.train`.
    engine, address: for explorations, where the workers run; they change no number.
    workers, minutes, checkpoint_every, tensorboard, make_rollouts: for training runs, as for :func:`adagoal.train`.

    Examples
    --------
    >>> short = adagoal.explore("chain", radius=2, env_args={"n_states": 3}, budget=20, out="runs/chain")
    >>> str(short.status), str(adagoal.resume("runs/chain", budget=10_000).status)
    ('budget', 'certified')
    """
    folder = require_run_folder(path)
    exploration_only = {"goals": goals, "engine": engine, "address": address}
    training_only: dict[str, Any] = {"set_goal": set_goal, "workers": workers, "minutes": minutes}
    training_only |= {"checkpoint_every": checkpoint_every, "tensorboard": tensorboard, "make_rollouts": make_rollouts}
    shared: dict[str, Any] = {"env": env, "goal_rule": goal_rule, "trust": trust, "step_timeout": step_timeout}
    shared |= {"progress": progress, "observe": observe}
    # Options of the other kind are refused: ignoring them would leave the caller with a run that was not asked for.
    if is_training_folder(folder):
        _refuse_options(exploration_only, "is for explorations; this run is training")
        from adagoal.api.train import resume_training

        return resume_training(folder, budget, **shared, **_given_options(training_only))
    _refuse_options(training_only, "is for training runs; this is an exploration")
    from adagoal.api.explore import resume_exploration

    return resume_exploration(folder, budget, **shared, **_given_options(exploration_only))


def _given_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse_options(options: dict[str, Any], reason: str) -> None:
    for name in _given_options(options):
        raise InputError(reason, name)


def load(path: str | Path) -> Result | TrainResult:
    """Load a run: the :class:`Result` of an exploration, or the :class:`TrainResult` of training.

    Nothing in the folder is executed, and no environment is made.

    Parameters
    ----------
    path: the folder of the run.

    Examples
    --------
    >>> adagoal.load(result.save("runs/grid")).goals == result.goals
    True
    """
    folder = check_folder_path("path", path)
    # Imported by kind, so loading an exploration does not import the packages of training.
    if is_training_folder(folder):
        from adagoal.runs.train_result import load_training

        return load_training(folder)
    from adagoal.runs.result import load_result

    return load_result(folder)
