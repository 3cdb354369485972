"""``adagoal.certify``: find out which goals a trained policy reaches, with a guarantee."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagoal.api.argument_names import refuse_unknown_arguments
from adagoal.core.argument_checks import check_folder_path, check_integer
from adagoal.core.user_code import call_observer
from adagoal.deep import require_deep_extra
from adagoal.deep.certification import Certification, Claim
from adagoal.runs.job import stop_on_signals
from adagoal.settings.fields import check_arguments, document_settings
from adagoal.settings.training import ClaimSettings, TrainingOptions

if TYPE_CHECKING:
    from adagoal.deep.config import Config
    from adagoal.deep.goal_envs import EnvSource
    from adagoal.deep.policy import GoalPolicy
    from adagoal.runs.folder_reader import SavedRun
    from adagoal.runs.train_result import TrainResult
    from adagoal.runs.training_files import TrainingRecord


@refuse_unknown_arguments
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
    """Certify, refute or leave open the cells of the goal space of a trained policy; nothing is saved.

    Parameters
    ----------
    training: the folder of a run of ``adagoal.train``, or the result of :func:`adagoal.train`.
    run: index of the run, if trained with several seeds.
    test_goals: the goal space; by default that of the run's tests.
    seed: of goals and starts; the result does not depend on the number of ``workers`` (0: one per core).
    env, trust: as in :meth:`adagoal.deep.TrainResult.evaluate`.
    observe: called as ``observe(open cells, rollouts)`` before every round; False ends the certification.

    Examples
    --------
    >>> certification = adagoal.certify("runs/push", radius=50)  # doctest: +SKIP
    >>> certification.share("certified")  # doctest: +SKIP
    """
    claim = Claim(radius, success, delta, slack, halvings, rollouts)
    check_integer("seed", seed, 0, 2**31 - 1)
    check_arguments(TrainingOptions, workers=workers)
    # After the checks, so a wrong argument is reported without waiting for JAX.
    require_deep_extra()
    from adagoal.deep import certification
    from adagoal.deep.policy_evaluation import open_certification_rollouts

    policy, config, source, steps = _load_trained_policy(training, run, env, trust)
    goals, n_workers = test_goals or config.test_goals, workers or os.cpu_count() or 1
    rollout_pool = open_certification_rollouts(policy, source, config.horizon, goals, radius, seed, n_workers)
    # At once, because nothing is saved that a second Ctrl-C could damage.
    with stop_on_signals(at_once=True) as stop, rollout_pool as (sample, reach):

        def proceed(open_cells: int, played: int) -> bool:
            return not stop.is_requested and call_observer(observe, open_cells, played)

        result = certification.certify_cells(claim, sample, reach, seed, proceed)
    about = {"env": policy.env, "run": run, "steps": steps, "test_goals": goals, "seed": seed}
    return dataclasses.replace(result, about=about | {"policy": policy.fingerprint()})


def _load_trained_policy(
    training: str | Path | TrainResult, run: int, env: Any, trust: bool
) -> tuple[GoalPolicy, Config, EnvSource, int]:
    """Return the policy, the settings, the environment and the training steps of a run."""
    from adagoal.runs import training_files
    from adagoal.runs.folder_reader import read_saved_run
    from adagoal.runs.train_result import TrainResult

    call = "adagoal.certify({}, env=...)"
    if isinstance(training, TrainResult):
        check_integer("run", run, 0, len(training.policies) - 1)
        config = training.history.configs[run]
        source = training.env_source(env, trust, call)
        return training.policies[run], config, source, int(training.curve(run)[-1]["steps"])

    # Both files in one read, so a save in between cannot mix the settings and the policy of two moments.
    def read(saved: SavedRun) -> tuple[TrainingRecord, GoalPolicy]:
        record = training_files.read_training_record(saved)
        return record, training_files.read_policy(saved, record, run)

    record, policy = read_saved_run(check_folder_path("training", training), read)
    source = record.env_source(env, trust, call)
    return policy, record.configs[run], source, record.data["steps"]
