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

from adagoal import goals
from adagoal.api.certify import certify
from adagoal.core.random import Purpose, stream
from adagoal.core.status import Status
from adagoal.core.types import Floats
from adagoal.deep.certification import Cell, Certification, Claim, Verdict
from adagoal.deep.config import Config
from adagoal.deep.envs import Dimensions, Source, World
from adagoal.deep.goalspace import GoalSpace
from adagoal.deep.policy import Policy
from adagoal.deep.survey import survey
from adagoal.deep.training import Observer
from adagoal.runs import keeping, training
from adagoal.runs.folder import hold
from adagoal.runs.trained import TrainResult
from adagoal.runs.training_files import contents
from adagoal.runs.training_schema import KIND

PIECES = 10
"""Attempts that a training has, at most."""
JUDGED = 1024
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
    observe: Observer | None = None,
    tensorboard: str | Path | None = None,
    source: Source | None = None,
    rule: goals.Rule | None = None,
) -> TrainResult:
    """Train one run in the folder ``out`` for at most ``config.steps`` steps, until its policy is certified.

    The result has the certificate of the last attempt, and the status ``certified`` where every cell that is believed
    to be within reach is certified, and there is one. ``success``, ``slack`` and ``delta`` are those of
    :func:`adagoal.certify`, L is the radius of the configuration; the other arguments are those of
    :func:`adagoal.deep.train`.
    """
    training.check_limits(workers, minutes, 0, checkpoint_every, step_timeout)
    source = replace(source or Source.of(config.env), step_timeout=step_timeout)
    sizes, (space,), _ = survey(source, config.horizon, [("test_goals", config.test_goals)])
    config = config.on_time_scale(sizes.horizon, sizes.fetch)
    L = min(int(config.radius), config.horizon)
    asked: dict[str, Any] = {"radius": L, "success": success, "slack": slack}
    Claim(**asked, delta=delta)
    began, found = time.monotonic(), None
    starts, drawn = _sample(source, sizes, space, config.seed)
    shared: dict[str, Any] = {"workers": workers, "checkpoint_every": checkpoint_every, "observe": observe}
    shared["step_timeout"] = step_timeout
    shared["tensorboard"] = tensorboard
    for attempt in range(1, PIECES + 1):
        shared["pause"] = -(-config.steps * attempt // PIECES)
        shared["minutes"] = max(minutes - (time.monotonic() - began) / 60.0, 1e-9)
        if attempt == 1:
            trained = training.train([config], out, overwrite=overwrite, source=source, rule=rule, **shared)
        else:
            trained = training.resume(out, env=source, goal_rule=rule, trust=True, **shared)
        if trained.curve()[-1]["steps"] < shared["pause"]:  # it has ended before the test that a pause begins with
            return replace(trained, certificate=found)
        found = certify(trained, **asked, delta=delta / (attempt * (attempt + 1)), seed=attempt, workers=workers)
        within = believed(found, drawn, _distances(trained.policy, starts, drawn), L)
        if within and all(cell.verdict is Verdict.CERTIFIED for cell in within):
            return _certified(replace(trained, status=Status.CERTIFIED, certificate=found))
        if not found.status.finished:
            return replace(trained, status=Status.INTERRUPTED, certificate=found)
    return replace(trained, status=Status.BUDGET, certificate=found)


def _certified(trained: TrainResult) -> TrainResult:
    """The same, after its folder says that it is certified, too."""
    assert trained.folder is not None
    with hold(trained.folder, KIND) as folder:
        keeping.save_last(folder, {}, contents(trained.status, trained.history, trained.policies, trained.maps))
    return trained


def _sample(source: Source, sizes: Dimensions, space: GoalSpace, seed: int) -> tuple[Floats, Floats]:
    """Test goals ``[n, G]`` by which cells are judged, and a start ``[n, O]`` for each of them."""
    rng = stream(seed, Purpose.JUDGED_GOALS)
    drawn = space(rng, JUDGED)
    world = World(replace(source, step_timeout=None), sizes)  # a timeout would end this process
    starts = np.stack([world.reset(int(rng.integers(2**31)), goal)[0] for goal in drawn])
    world.env.close()
    return starts, drawn


def _distances(policy: Policy, starts: Floats, drawn: Floats) -> Floats:
    """D ``[n]`` of the pairs; 0 if the goal rule has trained no critics, so every cell must be certified."""
    if policy.critics is None:
        return np.zeros(len(drawn))
    D, _ = policy.critics(policy.actor.normalised(starts, drawn), policy.actor(starts, drawn))
    return D


def believed(found: Certification, drawn: Floats, D: Floats, L: float) -> list[Cell]:
    """The cells believed to be within reach, by the D ``[n]`` of goals ``[n, G]``, and those that hold none of them."""
    where = found.locate(drawn)
    inside = [where == place for place in range(len(found.cells))]
    return [cell for cell, own in zip(found.cells, inside, strict=True) if not own.any() or np.median(D[own]) <= L]
