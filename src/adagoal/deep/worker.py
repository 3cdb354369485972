"""Rollout workers: processes that hold environments and play whole episodes with a NumPy actor.

A worker gets the actors' weights and one goal per environment, plays a cycle without talking to anyone,
and answers with the episodes, the test results and the starts of the next cycle. Every start and every
action is seeded by (seed, cycle, slot), so a cycle can be replayed from nothing: that is what makes resume
exact. This module must not import JAX.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from adagoal.core import failures
from adagoal.core.ctrlc import ignore_sigint
from adagoal.core.random import StreamPurpose, random_stream
from adagoal.core.types import Bools, Floats, Ints, Singles
from adagoal.deep.actor import NumpyActor
from adagoal.deep.config import Config
from adagoal.deep.envs import EnvDimensions, EnvSource, EpisodeEnd, GoalEnv

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that may reach a whole group of processes; the one that trains answers them, and closes the workers."""


@dataclass(frozen=True)
class RolloutRequest:
    """What a worker plays next, for each of its environments."""

    cycle: int
    actors: dict[int, NumpyActor]
    """Actor of each run present in the worker."""
    goals: Floats
    """Training goals ``[slots, goal]``."""
    test_goals: Floats
    """Test goals ``[rounds, slots, goal]``; no rounds, no test."""


@dataclass(frozen=True)
class EvaluationRequest:
    """Tests without training: what a worker plays to find out which goals a policy reaches."""

    cycle: int
    """Number of the round of the certification."""
    actors: dict[int, NumpyActor]
    rounds: Sequence[int]
    """Numbers of the rounds, which decide their starts."""
    goals: Floats
    """``[rounds, slots, goal]``"""


@dataclass(frozen=True)
class EpisodeBatch:
    """Episodes ``[B, ...]`` of T steps; what lies after ``length`` repeats the last state."""

    observation: Singles
    """``[B, T + 1, observation]``"""
    achieved: Singles
    """``[B, T + 1, goal]``"""
    action: Singles
    """``[B, T, action]``"""
    goal: Singles
    """``[B, goal]``: the goal the episode aimed at."""
    length: Ints
    """``[B]``"""
    terminated: Bools
    """``[B]``: whether nothing follows the last state; False where the episode was cut off."""


@dataclass(frozen=True)
class RolloutResponse:
    """A worker's answer."""

    episodes: EpisodeBatch
    distances: Floats
    """Distance to the test goal ``[rounds, slots, T]``, 0 rounds if there was no test."""
    away: Floats
    """The same at the start ``[rounds, slots]``."""
    tested: Singles
    """First observations of the tests ``[rounds, slots, observation]``."""
    next_starts: Singles
    """First observations of the next cycle ``[slots, observation]``."""


class EnvBatch:
    """The environments of one worker: slot ``(run, k)`` is environment k of run ``run``."""

    def __init__(
        self, configs: Sequence[Config], slots: Sequence[tuple[int, int]], source: EnvSource, sizes: EnvDimensions
    ) -> None:
        self.configs, self.slots, self.horizon = configs, slots, sizes.horizon
        self.envs = [GoalEnv(source, sizes) for _ in slots]
        runs = [run for run, _ in slots]
        self.slots_of_run = {run: slice(runs.index(run), runs.index(run) + runs.count(run)) for run in runs}
        self._first_observations: list[tuple[Floats, Floats]] = []

    def make_generator(self, index: int, purpose: StreamPurpose, cycle: int, round_: int) -> np.random.Generator:
        run, slot = self.slots[index]
        return random_stream(self.configs[run].seed, purpose, cycle, slot, round_)

    def start_cycle(self, cycle: int) -> Singles:
        """Reset every environment for a training cycle; first observations ``[slots, observation]``."""
        self._episode_rngs = [
            self.make_generator(i, StreamPurpose.TRAINING_EPISODE, cycle, 0) for i in range(len(self.slots))
        ]
        self._first_observations = [
            w.reset(int(r.integers(2**31))) for w, r in zip(self.envs, self._episode_rngs, strict=True)
        ]
        return np.stack([o for o, _ in self._first_observations]).astype(np.float32)

    def play_cycle(self, order: RolloutRequest) -> RolloutResponse:
        episodes, _ = self._play_episodes(order.actors, order.goals, self._first_observations, self._episode_rngs)
        distances = np.zeros((len(order.test_goals), len(self.slots), self.horizon))
        away = np.zeros(distances.shape[:2])
        tested = np.zeros((len(order.test_goals), *episodes.observation[:, 0].shape), np.float32)
        for round_, goals in enumerate(order.test_goals):
            played, distances[round_] = self.play_test_round(order.actors, goals, order.cycle, round_)
            away[round_] = np.linalg.norm(played.achieved[:, 0] - goals, axis=-1)
            tested[round_] = played.observation[:, 0]
        return RolloutResponse(episodes, distances, away, tested, self.start_cycle(order.cycle + 1))

    def play_test_round(
        self,
        actors: dict[int, NumpyActor],
        goals: Floats,
        cycle: int,
        round_: int,
        purpose: StreamPurpose = StreamPurpose.TEST_EPISODE,
    ) -> tuple[EpisodeBatch, Floats]:
        """Play without noise for goals ``[slots, goal]``: episodes, and distances to the goals ``[slots, T]``.

        ``purpose``, ``cycle`` and ``round_`` decide the starts.
        """
        rng = [self.make_generator(i, purpose, cycle, round_) for i in range(len(self.slots))]
        first = [w.reset(int(r.integers(2**31)), goal) for w, r, goal in zip(self.envs, rng, goals, strict=True)]
        return self._play_episodes(actors, goals, first, None)

    def play_evaluation(self, exam: EvaluationRequest) -> Floats:
        """Distances to the goals of all rounds ``[rounds, slots, T]``."""
        distances = np.zeros((len(exam.rounds), len(self.slots), self.horizon))
        for i, round_ in enumerate(exam.rounds):
            _, distances[i] = self.play_test_round(
                exam.actors, exam.goals[i], exam.cycle, round_, StreamPurpose.CERTIFIED_EPISODE
            )
        return distances

    def handle_request(self, order: int | RolloutRequest | EvaluationRequest) -> Singles | RolloutResponse | Floats:
        """What is sent back: a number asks for the starts of that cycle."""
        if isinstance(order, int):
            return self.start_cycle(order)
        return self.play_evaluation(order) if isinstance(order, EvaluationRequest) else self.play_cycle(order)

    def _play_episodes(
        self,
        actors: dict[int, NumpyActor],
        goals: Floats,
        first: list[tuple[Floats, Floats]],
        rng: list[np.random.Generator] | None,
    ) -> tuple[EpisodeBatch, Floats]:
        count, T = len(self.slots), self.horizon
        now = np.stack([o for o, _ in first])
        observation = np.zeros((count, T + 1, now.shape[1]), np.float32)
        achieved = np.zeros((count, T + 1, goals.shape[1]))
        length = np.full(count, T, np.int32)
        terminated = np.zeros(count, bool)
        for world, goal in zip(self.envs, goals, strict=True):
            world.set_goal(goal)
        observation[:, 0], achieved[:, 0] = now, np.stack([a for _, a in first])
        width = next(iter(actors.values())).action_size
        actions = np.zeros((count, T, width), np.float32)
        noise = None if rng is None else self._draw_exploration_noise(rng, width)
        for t in range(T):
            action = self._compute_actions(actors, now, goals)
            if noise is not None:
                random, normal, uniform = noise
                action = np.where(random[:, t], uniform[:, t], (action + normal[:, t]).clip(-1.0, 1.0))
            actions[:, t] = action
            for i, world in enumerate(self.envs):
                if length[i] <= t:
                    achieved[i, t + 1] = achieved[i, t]
                else:
                    now[i], achieved[i, t + 1], end = world.step(action[i])
                    if end is not EpisodeEnd.CONTINUES:
                        length[i], terminated[i] = t + 1, end is EpisodeEnd.TERMINATED
            observation[:, t + 1] = now
        distance = np.linalg.norm(achieved[:, 1:] - goals[:, None], axis=-1)
        singles = achieved.astype(np.float32), actions, goals.astype(np.float32)
        return EpisodeBatch(observation, *singles, length, terminated), distance

    def _compute_actions(self, actors: dict[int, NumpyActor], now: Floats, goals: Floats) -> Floats:
        """The actors' actions of all slots ``[slots, action]``."""
        return np.concatenate(
            [actors[run](now[part], goals[part]) for run, part in self.slots_of_run.items()], dtype=float
        )

    def _draw_exploration_noise(self, rng: list[np.random.Generator], width: int) -> tuple[Bools, Floats, Floats]:
        """Exploration of a cycle: where to act at random ``[slots, T, 1]``, what to add, and the random actions."""
        configs = [self.configs[run] for run, _ in self.slots]
        random = np.stack([r.random((self.horizon, 1)) < c.random for r, c in zip(rng, configs, strict=True)])
        normal = np.stack([c.noise * r.normal(size=(self.horizon, width)) for r, c in zip(rng, configs, strict=True)])
        return random, normal, np.stack([r.uniform(-1.0, 1.0, (self.horizon, width)) for r in rng])


def serve_rollouts(
    link: Connection,
    configs: Sequence[Config],
    slots: Sequence[tuple[int, int]],
    source: EnvSource,
    sizes: EnvDimensions,
) -> None:
    """Run a worker process: answer orders until the other end closes.

    If the environments cannot be made, every order is answered with that exception.
    """
    ignore_sigint(IGNORED_SIGNALS)
    own = failures.call_or_capture(EnvBatch, configs, slots, source, sizes)
    failures.serve_requests(link, lambda order: failures.unwrap_reply(own).handle_request(order))
