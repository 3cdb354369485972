"""Train a goal-conditioned policy with a goal rule, and load a trained one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagoal import goal_rules
from adagoal.core.argument_checks import check_folder_path
from adagoal.core.errors import InputError
from adagoal.deep import require_deep_extra
from adagoal.deep.config import (
    AUTO_RECIPE,
    DECLARABLE_GOAL_FIELDS,
    FUNCTION_RULE_PREFIX,
    KNOWN_GOAL_FIELDS,
    RECIPES,
    Config,
    describe_auto_recipe,
    resolve_recipe,
)
from adagoal.settings.fields import check_arguments, declared_settings
from adagoal.settings.training import TrainingOptions

if TYPE_CHECKING:
    from adagoal.deep.policy import GoalPolicy
    from adagoal.deep.training_history import TrainingHistory
    from adagoal.runs.result import Result
    from adagoal.runs.train_result import TrainResult


def train(
    env: Any,
    goal_rule: str | goal_rules.GoalRule | None = None,
    *,
    recipe: str = AUTO_RECIPE,
    seeds: int = 1,
    set_goal: Callable[[Any, Any], None] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    workers: int = 0,
    minutes: float = math.inf,
    checkpoint_every: int = 0,
    step_timeout: float | None = None,
    progress: bool = False,
    observe: Callable[[TrainingHistory], bool | None] | None = None,
    tensorboard: str | Path | None = None,
    until: str | None = None,
    success: float | None = None,
    slack: float | None = None,
    delta: float | None = None,
    **given: Any,
) -> TrainResult:
    """Train a goal-conditioned policy; the result acts with ``result.policy(observation, goal)``.

    Parameters
    ----------
    env: a Gymnasium id, ``module:Id``, ``point-mass``, a Gymnasium environment, or a function that makes one. Workers
        make their own: an environment from its ``spec``, or by copying it where it has none.
    goal_rule: a rule of :mod:`adagoal.goal_rules` by name, ``FILE.py:FUNCTION``, or a function of what is known; by
    default
        that of the recipe.
    recipe: named settings (:data:`adagoal.deep.RECIPES`), which ``given`` ones override; ``"auto"`` is ``"adagoal"``
        where JAX has a GPU and ``"light"`` where it has none.
    seeds: runs side by side, with consecutive seeds.
    set_goal: ``set_goal(env, goal)`` tells an environment its goal, where :mod:`adagoal.deep.goal_envs` does not know
    how. out, overwrite, workers, minutes, checkpoint_every, step_timeout, observe, tensorboard: as for
        :func:`adagoal.deep.train`.
    progress: show how far the training is, on standard error: live on a terminal, a line for each test elsewhere.
    until: ``"certified"`` ends the training earlier, when all cells of test goals that are believed to be within the
        radius are certified (:mod:`adagoal.api.certified_training`); ``result.certificate`` is the map. It needs
        ``out``.
    success, slack, delta: of ``until="certified"``, as for :func:`adagoal.certify`.
    given: the settings of :class:`adagoal.deep.Config`, by name: ``steps=100_000, train_goals="scale=2"``.
    """
    require_deep_extra()
    out = None if out is None else check_folder_path("out", out)  # now, because the environment may change the folder
    tensorboard = None if tensorboard is None else check_folder_path("tensorboard", tensorboard)
    from adagoal.api.certified_training import train_until_certified
    from adagoal.deep.goal_envs import EnvSource
    from adagoal.runs import training_session
    from adagoal.runs.progress_display import observe_with_display
    from adagoal.runs.training_observers import TrainingProgress

    unknown = given.keys() - declared_settings(Config).keys() | given.keys() & {"env"}
    if unknown:
        raise InputError("there is no setting of this name; see adagoal.deep.Config", min(unknown))
    named_recipe = resolve_recipe(recipe)
    common = RECIPES[named_recipe]
    check_arguments(TrainingOptions, seeds=seeds)
    asked = _check_claim_arguments(until, seeds, out, {"success": success, "slack": slack, "delta": delta})
    rule = goal_rule if callable(goal_rule) else None
    if callable(goal_rule):
        _check_rule_fields(goal_rule)
        goal_rule = FUNCTION_RULE_PREFIX + getattr(goal_rule, "__name__", "custom")
    source = EnvSource.from_argument(env, set_goal)
    named = {} if goal_rule is None else {"goal_rule": goal_rule}
    first = Config(source.name, **{**common, **named, **given})
    shared: dict[str, Any] = {
        "overwrite": overwrite,
        "workers": workers,
        "minutes": minutes,
        "checkpoint_every": checkpoint_every,
        "step_timeout": step_timeout,
        "tensorboard": tensorboard,
        "source": source,
        "rule": rule,
    }
    shown = TrainingProgress(opening=describe_auto_recipe(recipe, named_recipe)) if progress else None
    with observe_with_display(shown, observe) as told:
        shared["observe"] = told
        if until is not None and out is not None:
            return train_until_certified(first, out, **asked, **shared)
        return training_session.train(
            [dataclasses.replace(first, seed=first.seed + i) for i in range(seeds)], out, **shared
        )


def _check_claim_arguments(
    until: str | None, seeds: int, out: str | Path | None, claim: dict[str, float | None]
) -> dict[str, Any]:
    """What is claimed of a training until certified, beside the defaults."""
    asked = {name: value for name, value in claim.items() if value is not None}
    if until not in (None, "certified"):
        raise InputError(f"must be 'certified', got {until!r}", "until")
    if asked and until is None:
        raise InputError("is for a training until certified", min(asked))
    if seeds > 1 and until is not None:
        raise InputError("one run at a time can be certified", "seeds")
    if until is not None and out is None:
        raise InputError("a training until certified needs a folder", "out")
    return asked


def _check_rule_fields(rule: goal_rules.GoalRule) -> None:
    missing = goal_rules.required_fields(rule, KNOWN_GOAL_FIELDS) - DECLARABLE_GOAL_FIELDS
    if missing:
        text = f"needs {', '.join(sorted(missing))}, which is counted goal by goal; deep goals are continuous"
        raise InputError(text, name="goal_rule")


def load(path: str | Path) -> Result | GoalPolicy:
    """What a folder holds: the :class:`Result` of an exploration, or the :class:`Policy` of a training's first run."""
    from adagoal.runs import result, training_files

    folder = check_folder_path("path", path)
    return training_files.load(folder) if training_files.is_training_folder(folder) else result.load_result(folder)
