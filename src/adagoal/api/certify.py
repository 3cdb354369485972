"""Certificates for trained policies: from the folder of a training to the map of its goals."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagoal.core.argument_checks import check_folder_path, check_integer
from adagoal.core.user_code import call_observer
from adagoal.deep import require_deep_extra
from adagoal.deep.certification import Certification, Claim
from adagoal.runs.stop_requests import stop_on_signals
from adagoal.settings.fields import check_arguments, document_settings
from adagoal.settings.training import ClaimSettings, TrainingOptions

if TYPE_CHECKING:
    from adagoal.deep.config import Config
    from adagoal.deep.goal_envs import EnvSource
    from adagoal.deep.policy import GoalPolicy
    from adagoal.runs.folder_reader import SavedRun
    from adagoal.runs.train_result import TrainResult
    from adagoal.runs.training_files import TrainingRecord


@document_settings(ClaimSettings)
def certify(
    training: str | Path | TrainResult,
    *,
    radius: int,
    success: float = 0.9,
    delta: float = 0.05,
    slack: float = 0.05,
    rollouts: int | None = None,
    halvings: int = 6,
    run: int = 0,
    test_goals: str | None = None,
    seed: int = 0,
    env: Any = None,
    trust: bool = False,
    workers: int = 0,
    observe: Callable[[int, int], bool | None] | None = None,
) -> Certification:
    """Find out which goals the policy of a training reaches; nothing is saved.

    Parameters
    ----------
    training: the folder of a training, or what :func:`adagoal.train` returned.
    run: which of the runs trained side by side.
    test_goals: the goal space; by default that of the training's tests.
    seed: decides everything; the number of ``workers`` (0: one per core) does not matter.
    env, trust: as in :func:`adagoal.deep.evaluate`.
    observe: called as ``observe(open cells, rollouts)`` before every round; ends the certification by returning False.
    """
    claim = Claim(radius, success, delta, slack, halvings, rollouts)
    check_integer("seed", seed, 0, 2**31 - 1)
    check_arguments(TrainingOptions, workers=workers)
    require_deep_extra()
    from adagoal.deep import certification
    from adagoal.deep.policy_evaluation import open_certification_rollouts as playing

    policy, config, source, steps = _load_trained_policy(training, run, env, trust)
    goals, processes = test_goals or config.test_goals, workers or os.cpu_count() or 1
    rolling = playing(policy, source, config.horizon, goals, radius, seed, processes)
    with stop_on_signals(at_once=True) as stop, rolling as (space, reach):

        def going(open_cells: int, played: int) -> bool:
            return not stop.is_requested and call_observer(observe, open_cells, played)

        found = certification.certify_cells(claim, space, reach, seed, going)
    facts = {"env": policy.env, "run": run, "steps": steps, "test_goals": goals, "seed": seed}
    return dataclasses.replace(found, about=facts | {"policy": policy.fingerprint()})


def _load_trained_policy(
    training: str | Path | TrainResult, run: int, env: Any, trust: bool
) -> tuple[GoalPolicy, Config, EnvSource, int]:
    """Policy and settings of one of the runs of a training, what makes its environment, and how long it was trained."""
    from adagoal.runs import training_files
    from adagoal.runs.folder_reader import read_saved_run
    from adagoal.runs.train_result import TrainResult

    if isinstance(training, TrainResult):
        check_integer("run", run, 0, len(training.policies) - 1)
        config = training.history.configs[run]
        return training.policies[run], config, training.source, int(training.curve(run)[-1]["steps"])

    def read_in(saved: SavedRun) -> tuple[TrainingRecord, GoalPolicy]:
        about = training_files.read_training_record(saved)
        return about, training_files.read_policy(saved, about, run)

    about, policy = read_saved_run(check_folder_path("training", training), read_in)
    return policy, about.configs[run], about.env_source(env, trust, "adagoal.certify"), about.data["steps"]
