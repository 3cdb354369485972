"""Train until certified: the loop of the paper in the deep world, with a stopping rule that proves its answer.

The paper stops when what is unknown about every goal with D(g) <= L is small. Here a training goes on until every cell
of the test goals that is believed to be within reach is certified (:mod:`adagoal.deep.certification`). A cell is
believed to be within reach where D is at most L for half of its goals or more. Cells that are believed to be out of
reach may be refuted: the answer is the map.

The training pauses after each of its pieces, and the policy of the moment is certified by fresh rollouts. Attempt k
has the share delta / (k (k + 1)), and all shares together are at most delta: with probability 1 - delta no verdict of
any attempt is wrong, so that it does not matter how many attempts there were. The folder is that of a training of all
the steps from the first piece on, so that one that was interrupted is resumed to their end.
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
from adagoal.core.errors import Status
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.types import Floats
from adagoal.deep.certification import Certification, Claim, GoalCell, Verdict
from adagoal.deep.config import Config
from adagoal.deep.env_inspection import inspect_env
from adagoal.deep.goal_envs import EnvDimensions, EnvSource, GoalEnv
from adagoal.deep.goal_samplers import GoalSampler
from adagoal.deep.policy import GoalPolicy
from adagoal.deep.training import TrainingObserver
from adagoal.runs import training_session
from adagoal.runs.run_folder import open_locked_folder
from adagoal.runs.train_result import TrainResult
from adagoal.runs.training_files import TRAINING_KIND, training_file_contents

MAX_CERTIFICATION_ATTEMPTS = 10
"""Attempts that a training has, at most."""
N_JUDGED_GOALS = 1024
"""Test goals, each with a start of its own, whose D says which cells are believed to be within reach: 16 or more for
each of at most 64 cells."""


def train_until_certified(
    config: Config,
    out: str | Path,
    *,
    success: float = 0.9,
    slack: float = 0.05,
    delta: float = 0.05,
    overwrite: bool = False,
    workers: int = 0,
    minutes: float = math.inf,
    checkpoint_every: int = 0,
    step_timeout: float | None = None,
    observe: TrainingObserver | None = None,
    tensorboard: str | Path | None = None,
    source: EnvSource | None = None,
    rule: goal_rules.GoalRule | None = None,
) -> TrainResult:
    """Train one run in the folder ``out`` for at most ``config.steps`` steps, until its policy is certified.

    The result has the certificate of the last attempt, and the status ``certified`` where every cell that is believed
    to be within reach is certified, and there is one. ``success``, ``slack`` and ``delta`` are those of
    :func:`adagoal.certify`, L is the radius of the configuration; the other arguments are those of
    :func:`adagoal.deep.train`.
    """
    training_session.check_training_limits(workers, minutes, 0, checkpoint_every, step_timeout)
    source = replace(source or EnvSource.from_argument(config.env), step_timeout=step_timeout)
    sizes, (space,), _ = inspect_env(source, config.horizon, [("test_goals", config.test_goals)])
    config = config.resolve_for_horizon(sizes.horizon, sizes.is_fetch)
    L = min(int(config.radius), config.horizon)
    asked: dict[str, Any] = {"radius": L, "success": success, "slack": slack}
    Claim(**asked, delta=delta)
    began, found = time.monotonic(), None
    starts, drawn = _sample_starts_and_goals(source, sizes, space, config.seed)
    shared: dict[str, Any] = {"workers": workers, "checkpoint_every": checkpoint_every, "observe": observe}
    shared["step_timeout"] = step_timeout
    shared["tensorboard"] = tensorboard
    for attempt in range(1, MAX_CERTIFICATION_ATTEMPTS + 1):
        shared["pause"] = -(-config.steps * attempt // MAX_CERTIFICATION_ATTEMPTS)
        shared["minutes"] = max(minutes - (time.monotonic() - began) / 60.0, 1e-9)
        if attempt == 1:
            trained = training_session.train([config], out, overwrite=overwrite, source=source, rule=rule, **shared)
        else:
            trained = training_session.resume(out, env=source, goal_rule=rule, trust=True, **shared)
        if trained.curve()[-1]["steps"] < shared["pause"]:  # it has ended before the test that a pause begins with
            return replace(trained, certificate=found)
        found = certify(trained, **asked, delta=delta / (attempt * (attempt + 1)), seed=attempt, workers=workers)
        within = cells_believed_reachable(found, drawn, _estimate_distances(trained.policy, starts, drawn), L)
        if within and all(cell.verdict is Verdict.CERTIFIED for cell in within):
            return _save_certified_status(replace(trained, status=Status.CERTIFIED, certificate=found))
        if not found.status.finished:
            return replace(trained, status=Status.INTERRUPTED, certificate=found)
    return replace(trained, status=Status.BUDGET, certificate=found)


def _save_certified_status(trained: TrainResult) -> TrainResult:
    """The same, after its folder says that it is certified, too."""
    assert trained.folder is not None
    with open_locked_folder(trained.folder, TRAINING_KIND) as folder:
        training_session.save_final_training(
            folder, {}, training_file_contents(trained.status, trained.history, trained.policies, trained.maps)
        )
    return trained


def _sample_starts_and_goals(
    source: EnvSource, sizes: EnvDimensions, space: GoalSampler, seed: int
) -> tuple[Floats, Floats]:
    """Test goals ``[n, G]`` by which cells are judged, and a start ``[n, O]`` for each of them."""
    rng = random_stream(seed, StreamPurpose.JUDGED_GOALS)
    drawn = space(rng, N_JUDGED_GOALS)
    world = GoalEnv(replace(source, step_timeout=None), sizes)  # a timeout would end this process
    starts = np.stack([world.reset(int(rng.integers(2**31)), goal)[0] for goal in drawn])
    world.env.close()
    return starts, drawn


def _estimate_distances(policy: GoalPolicy, starts: Floats, drawn: Floats) -> Floats:
    """D ``[n]`` of the pairs; 0 if the goal rule has trained no critics, so every cell must be certified."""
    if policy.critics is None:
        return np.zeros(len(drawn))
    D, _ = policy.critics(policy.actor.normalise_inputs(starts, drawn), policy.actor(starts, drawn))
    return D


def cells_believed_reachable(found: Certification, drawn: Floats, D: Floats, L: float) -> list[GoalCell]:
    """The cells believed to be within reach, by the D ``[n]`` of goals ``[n, G]``, and those that hold none of them."""
    where = found.locate(drawn)
    inside = [where == place for place in range(len(found.cells))]
    return [cell for cell, own in zip(found.cells, inside, strict=True) if not own.any() or np.median(D[own]) <= L]
