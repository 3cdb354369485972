"""What training asks of a rollout engine: play episodes for chosen goals, and return them as arrays.

:class:`adagoal.deep.rollout_workers.RolloutWorkers` plays them in worker processes. Another engine, or an environment
that runs on the accelerator, is one class with these methods; give it to :class:`adagoal.deep.training.Training` as
``make_rollouts``. This module must not import JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from adagoal.core.types import Bools, Floats, Ints, Singles
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions, EnvSource
from adagoal.deep.numpy_networks import NumpyActor


@dataclass(frozen=True)
class EpisodeBatch:
    """Episodes ``[B, ...]`` of T steps; entries after ``length`` repeat the last state."""

    observation: Singles  # [B, T + 1, observation]
    achieved: Singles  # [B, T + 1, goal]
    action: Singles  # [B, T, action]
    goal: Singles  # [B, goal] that the episode aimed at
    length: Ints  # [B]
    terminated: Bools  # [B] True if the environment ended the episode, False if it was cut off


class CycleRollouts(NamedTuple):
    """What was played in a cycle, for the environments ``[B]``: all S runs and their episodes, ``[S, episodes]``."""

    episodes: EpisodeBatch
    distances: Floats  # to the test goal after each step [rounds, B, T]; no rounds if there was no test
    initial_distances: Floats  # the same at the start [rounds, B]
    test_starts: Singles  # first observations of the tests [rounds, B, observation]
    next_starts: Singles  # first observations of the next cycle [B, observation]


class RolloutBackend(Protocol):
    """Environments of S runs with ``episodes`` each.

    Seed and cycle decide everything that is random, so training resumes exactly from a checkpoint of the learner.
    """

    def reset(self, cycle: int) -> Singles:
        """Return the first observations of a cycle ``[S, episodes, observation]``."""
        ...

    def start_cycle(self, cycle: int, actors: Sequence[NumpyActor], goals: Floats, test_goals: Floats) -> None:
        """Start to play, without waiting: training goals ``[S, episodes, goal]`` from the starts of the cycle, with
        exploration noise, and test goals ``[rounds, S, episodes, goal]`` without noise."""
        ...

    def collect_cycle(self) -> CycleRollouts:
        """Wait for the cycle and return what was played."""
        ...

    def evaluate_goals(self, round_: int, actor: NumpyActor, goals: Floats) -> Floats:
        """Play for each goal ``[n, goal]`` from a start of its own, without noise; return distances ``[n, T]``.

        n is a multiple of ``episodes``. Training does not call this; certification does.
        """
        ...

    def close(self) -> None:
        """Release the environments."""
        ...


RolloutFactory = Callable[[Sequence[Config], EnvSource, EnvDimensions, int], RolloutBackend]
"""Arguments: configurations of the runs, environment, its dimensions, number of workers."""
