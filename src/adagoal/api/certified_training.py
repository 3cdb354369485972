"""Train until certified: the loop of the paper with deep policies, and a stopping rule that proves its answer.

The paper stops when the error of every goal with D(g) <= L is small. Here training continues until every cell of the
test goals that is believed to be within reach is certified (:mod:`adagoal.certification`). A cell is believed to
be within reach if D is at most L for half of its goals or more. Other cells may be refuted: the answer is the map.

Training pauses after each of its pieces, and fresh rollouts certify the policy of that moment. Attempt k has the share
delta / (k (k + 1)), and all shares together are at most delta. So with probability 1 - delta no verdict of any attempt
is wrong, however many attempts there were. From the first piece on the folder holds a run that is planned for all the
steps, so :func:`adagoal.resume` continues an interrupted run to its end.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adagoal import goal_rules
from adagoal.api.certify import certify
from adagoal.certification.certificate import CellVerdict, Certification, Claim, Verdict
from adagoal.core.array_types import Floats
from adagoal.core.errors import Status
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.deep.config import Config
from adagoal.deep.env_inspection import GoalSampler, inspect_env
from adagoal.deep.goal_envs import EnvDimensions, EnvSource, GoalEnv
from adagoal.deep.policy import GoalPolicy
from adagoal.deep.policy_evaluation import find_episode_steps
from adagoal.deep.training import TrainingObserver
from adagoal.runs.job import SaveFiles, save_or_rescue
from adagoal.runs.run_folder import RunKind, open_locked_folder
from adagoal.runs.train_result import TrainResult
from adagoal.runs.training_session import TrainingLimits, resume_training, start_training

MAX_CERTIFICATION_ATTEMPTS = 10  # pieces of the training run; more attempts stop earlier and cost more rollouts
N_JUDGED_GOALS = 1024  # test goals whose D decides which cells are within reach: 16 or more for each of 64 cells


def train_until_certified(
    config: Config,
    out: str | Path,
    source: EnvSource | None = None,
    rule: goal_rules.GoalRule | None = None,
    *,
    success: float = 0.9,
    slack: float = 0.05,
    delta: float = 0.05,
    overwrite: bool = False,
    minutes: float = math.inf,
    observe: TrainingObserver | None = None,
    **limits: Any,
) -> TrainResult:
    """Train one run in the folder ``out`` for at most ``config.steps`` steps, until its policy is certified.

    The result has the certificate of the last attempt. Its status is ``certified`` if there is a cell that is believed
    to be within reach and all these cells are certified. ``success``, ``slack`` and ``delta`` are those of
    :func:`adagoal.certify`, L is the radius of the configuration, ``limits`` are the fields of
    :class:`adagoal.runs.training_session.TrainingLimits`.
    """
    checked = TrainingLimits(minutes=minutes, **limits)
    source = replace(source or EnvSource.from_argument(config.env), step_timeout=checked.step_timeout)
    sizes, (space,), _ = inspect_env(source, config.horizon, [("test_goals", config.test_goals)])
    config = config.resolve_for_horizon(sizes.horizon, sizes.is_fetch)
    L = min(int(config.radius), find_episode_steps(source, sizes))
    claim: dict[str, Any] = {"radius": L, "success": success, "slack": slack}
    # Refuses a wrong claim before training starts.
    Claim(**claim, delta=delta)
    began, certificate = time.monotonic(), None
    starts, goals = _sample_starts_and_goals(source, sizes, space, config.seed)
    for attempt in range(1, MAX_CERTIFICATION_ATTEMPTS + 1):
        pause = -(-config.steps * attempt // MAX_CERTIFICATION_ATTEMPTS)
        # Positive, because a time limit of 0 is refused.
        minutes_left = max(minutes - (time.monotonic() - began) / 60.0, 1e-9)
        piece: dict[str, Any] = {**limits, "pause": pause, "minutes": minutes_left, "observe": observe}
        if attempt == 1:
            trained = start_training([config], out, source, rule, overwrite=overwrite, **piece)
        else:
            # The environment and the rule are the caller's own, so trusting the folder adds no code.
            trained = resume_training(out, env=source, goal_rule=rule, trust=True, **piece)
        # It was stopped before the test at the pause.
        if trained.curve()[-1]["steps"] < pause:
            return replace(trained, certificate=certificate)
        # These shares sum to delta over any number of attempts. Another seed gives every attempt fresh rollouts: those
        # that have decided when to stop training cannot be used again to certify.
        share = delta / (attempt * (attempt + 1))
        certificate = certify(trained, **claim, delta=share, seed=attempt, workers=checked.workers)
        within = cells_believed_reachable(certificate, goals, _estimate_distances(trained.policy, starts, goals), L)
        if within and all(cell.verdict is Verdict.CERTIFIED for cell in within):
            trained = replace(trained, status=Status.CERTIFIED, certificate=certificate)
            # The folder has the status of the pause, "interrupted" or "done".
            with open_locked_folder(trained.folder or Path(out), RunKind.TRAINING) as folder:
                save_or_rescue(folder, SaveFiles({}, trained.contents()), trained.contents(), "the policy")
            return trained
        if not certificate.status.finished:
            return replace(trained, status=Status.INTERRUPTED, certificate=certificate)
    return replace(trained, status=Status.BUDGET, certificate=certificate)


def _sample_starts_and_goals(
    source: EnvSource, sizes: EnvDimensions, space: GoalSampler, seed: int
) -> tuple[Floats, Floats]:
    """Return starts ``[n, O]`` and test goals ``[n, G]`` by which cells are judged."""
    rng = random_stream(seed, StreamPurpose.JUDGED_GOALS)
    goals = space(rng, N_JUDGED_GOALS)
    # Without a timeout, which would end this process.
    env = GoalEnv(replace(source, step_timeout=None), sizes)
    starts = np.stack([env.reset(int(rng.integers(2**31)), goal)[0] for goal in goals])
    env.env.close()
    return starts, goals


def _estimate_distances(policy: GoalPolicy, starts: Floats, goals: Floats) -> Floats:
    """Return D ``[n]`` of the pairs; 0 if the goal rule has trained no critics, so every cell must be certified."""
    if policy.critics is None:
        return np.zeros(len(goals))
    return policy.critics(policy.actor.normalise_inputs(starts, goals), policy.actor(starts, goals))


def cells_believed_reachable(certificate: Certification, goals: Floats, D: Floats, L: float) -> list[CellVerdict]:
    """Return the cells with a median D of at most L, by the D ``[n]`` of goals ``[n, G]``, and cells without a goal."""
    cell_of_goal = certificate.locate(goals)
    inside = [cell_of_goal == index for index in range(len(certificate.cells))]
    cells = zip(certificate.cells, inside, strict=True)
    return [cell for cell, own in cells if not own.any() or np.median(D[own]) <= L]
