"""Train a goal-conditioned policy with a goal rule, or resume training."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagoal import goal_rules
from adagoal.core.errors import InputError
from adagoal.core.run_settings import TrainingOptions
from adagoal.core.validation import check_arguments, check_folder_path, declared_settings, unknown_argument_error
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

if TYPE_CHECKING:
    from adagoal.deep.rollouts import RolloutFactory
    from adagoal.deep.training_history import TrainingHistory
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
    workers: int | None = None,
    minutes: float = math.inf,
    checkpoint_every: int | None = None,
    step_timeout: float | None = None,
    progress: bool | None = None,
    observe: Callable[[TrainingHistory], bool | None] | None = None,
    tensorboard: str | Path | None = None,
    make_rollouts: RolloutFactory | None = None,
    until: str | None = None,
    success: float | None = None,
    slack: float | None = None,
    delta: float | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a goal-conditioned policy; the result acts with ``result.policy(observation, goal)``.

    Parameters
    ----------
    env: a Gymnasium id, ``module:Id``, ``point-mass``, a Gymnasium environment, or a function that makes one. Workers
        make their own: from the ``spec`` of an environment, or by copying it if it has none. Instead, one
        :class:`adagoal.deep.Config` or a list of them can be given: complete settings, one per run side by side.
    goal_rule: a rule of :mod:`adagoal.goal_rules` by name, ``FILE.py:FUNCTION``, or a function of what is known; by
        default that of the recipe.
    recipe: named settings (:data:`adagoal.deep.RECIPES`), which ``settings`` override; ``"auto"`` is ``"adagoal"`` if
        JAX has a GPU, and otherwise ``"light"``.
    seeds: number of runs side by side, with consecutive seeds.
    set_goal: ``set_goal(env, goal)`` sets the goal of an environment, if :mod:`adagoal.deep.goal_envs` does not know
        how.
    out: folder for checkpoints and the result; :func:`adagoal.resume` continues a run that was killed.
    overwrite: replace a run that is in the folder already, as soon as this one has its first checkpoint.
    workers: number of rollout processes; by default one per core. A script needs the guard
        ``if __name__ == "__main__":`` around the call, because every worker imports it.
    minutes: time limit; after it the status is ``budget``.
    checkpoint_every: cycles between two checkpoints; by default as often as the time of a save allows.
    step_timeout: seconds after which a step of the environment counts as hanging. The run then ends with an error, and
        everything learnt is saved.
    progress: show a progress bar on standard error, or a line for each test if it is not a terminal; by default in
        notebooks only.
    observe: called with the history after every cycle; if it returns False, the run ends.
    tensorboard: folder for the numbers of every cycle (:class:`adagoal.runs.training_session.TensorBoardObserver`).
    make_rollouts: makes the rollout backend, which plays the episodes, by default in worker processes
        (:class:`adagoal.deep.rollouts.RolloutBackend`). :func:`adagoal.resume` takes it, too.
    until: ``"certified"`` ends training earlier, when all cells of test goals that are believed to be within the
        radius are certified (:mod:`adagoal.api.certified_training`); ``result.certificate`` is the map. It needs
        ``out``.
    success, slack, delta: of ``until="certified"``, as for :func:`adagoal.certify`.
    settings: fields of :class:`adagoal.deep.Config` by name: ``steps=100_000, train_goals="scale=2"``.

    Examples
    --------
    >>> trained = adagoal.train("point-mass", steps=20_000, out="runs/point-mass")  # doctest: +SKIP
    >>> trained.success  # doctest: +SKIP
    """
    # The environment is an argument of its own, so it is no setting here although Config has such a field.
    known = declared_settings(Config).keys() - {"env"}
    for name in settings:
        if name not in known:
            raise unknown_argument_error("train", name, [*inspect.signature(train).parameters, *known])
    require_deep_extra(env if isinstance(env, str) else "deep training")
    # Absolute now, because the environment may change the current folder.
    out = None if out is None else check_folder_path("out", out)
    from adagoal.api.certified_training import train_until_certified
    from adagoal.deep.goal_envs import EnvSource
    from adagoal.runs.progress_display import TrainingProgress, observe_with_display
    from adagoal.runs.training_session import start_training

    check_arguments(TrainingOptions, seeds=seeds)
    opening = ""
    if configs := _parse_configs(env):
        # A Config is complete. Merging arguments into it would leave open which of the two counts.
        given = {**settings, "goal_rule": goal_rule, "recipe": None if recipe == AUTO_RECIPE else recipe}
        for name, value in {**given, "seeds": None if seeds == 1 else seeds}.items():
            if value is not None:
                raise InputError("cannot be combined with a Config; set it there", name)
        source, rule = EnvSource.from_argument(configs[0].env, set_goal), None
    else:
        named_recipe = resolve_recipe(recipe)
        opening = describe_auto_recipe(recipe, named_recipe)
        rule = goal_rule if callable(goal_rule) else None
        if callable(goal_rule):
            # Counts per goal exist for finite goals only.
            if missing := goal_rules.required_fields(goal_rule, KNOWN_GOAL_FIELDS) - DECLARABLE_GOAL_FIELDS:
                text = f"needs {', '.join(sorted(missing))}, which continuous goals do not have; choose another rule"
                raise InputError(text, name="goal_rule")
            goal_rule = FUNCTION_RULE_PREFIX + getattr(goal_rule, "__name__", "custom")
        source = EnvSource.from_argument(env, set_goal)
        chosen_rule = {} if goal_rule is None else {"goal_rule": goal_rule}
        first = Config(source.name, **{**RECIPES[named_recipe], **chosen_rule, **settings})
        # Runs side by side differ in their seeds only, so they share one compiled program.
        configs = [replace(first, seed=first.seed + i) for i in range(seeds)]
    claim = _check_claim_arguments(until, len(configs), out, {"success": success, "slack": slack, "delta": delta})
    limits: dict[str, Any] = {"workers": workers, "minutes": minutes, "checkpoint_every": checkpoint_every}
    limits |= {"step_timeout": step_timeout, "tensorboard": tensorboard, "overwrite": overwrite}
    limits |= {} if make_rollouts is None else {"make_rollouts": make_rollouts}
    with observe_with_display(lambda: TrainingProgress(opening=opening), progress, observe) as observer:
        if until is not None and out is not None:
            return train_until_certified(configs[0], out, source, rule, observe=observer, **claim, **limits)
        return start_training(configs, out, source, rule, observe=observer, **limits)


def resume_training(
    folder: str | Path,
    budget: int | None = None,
    *,
    progress: bool | None = None,
    observe: Callable[[TrainingHistory], bool | None] | None = None,
    **options: Any,
) -> TrainResult:
    """Resume training; see :func:`adagoal.resume` for the arguments."""
    require_deep_extra()
    from adagoal.runs import training_session
    from adagoal.runs.progress_display import TrainingProgress, observe_with_display

    with observe_with_display(TrainingProgress, progress, observe) as observer:
        return training_session.resume_training(folder, budget or 0, observe=observer, **options)


def _parse_configs(env: Any) -> list[Config]:
    """Return the configurations if ``env`` is one or a list of them, otherwise an empty list."""
    candidates = list(env) if isinstance(env, Sequence) and not isinstance(env, str) else [env]
    return candidates if all(isinstance(each, Config) for each in candidates) else []


def _check_claim_arguments(
    until: str | None, n_runs: int, out: Path | None, claim: dict[str, float | None]
) -> dict[str, Any]:
    """Return the arguments of a claim that were given."""
    given = {name: value for name, value in claim.items() if value is not None}
    if until not in (None, "certified"):
        raise InputError(f"must be 'certified', got {until!r}", "until")
    if given and until is None:
        raise InputError("works only in training until certified; leave it out", min(given))
    if n_runs > 1 and until is not None:
        raise InputError("training until certified takes one seed at a time; leave seeds out", "seeds")
    if until is not None and out is None:
        raise InputError("missing; training until certified needs a folder", "out")
    return given
