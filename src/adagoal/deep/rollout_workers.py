"""Rollout workers: processes that hold environments and play whole episodes with a NumPy actor.

A worker gets the actors' weights and one goal per environment, plays a cycle without talking to anyone,
and answers with the episodes, the test results and the starts of the next cycle. Every start and every
action is seeded by (seed, cycle, slot), so a cycle can be replayed from nothing: that is what makes resume
exact. This module must not import JAX.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core import processes
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.processes import block_sigint, ignore_sigint, safe_import_path
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.types import Bools, Floats, Ints, Singles
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions, EnvSource, EpisodeEnd, GoalEnv
from adagoal.deep.numpy_networks import NumpyActor

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
    own = processes.call_or_capture(EnvBatch, configs, slots, source, sizes)
    processes.serve_requests(link, lambda order: processes.unwrap_reply(own).handle_request(order))


# The rollout workers as one object: start a cycle, do something else, collect it.


_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TRAINING_ACTIVITY = "trains"
"""What a script with workers does (:mod:`adagoal.core.processes`)."""


class CycleRollouts(NamedTuple):
    """What the workers of S runs have played in a cycle."""

    episodes: EpisodeBatch
    """``[S, episodes, ...]``"""
    distances: Floats
    """To the test goals ``[rounds, S, episodes, T]``."""
    away: Floats
    """The same at the start ``[rounds, S, episodes]``."""
    tested: Singles
    """First observations of the tests ``[rounds, S, episodes, observation]``."""
    next_starts: Singles
    """First observations of the next cycle ``[S, episodes, observation]``."""


class RolloutWorkers:
    """Worker processes for S runs of ``episodes`` environments each; slots are dealt out in order."""

    def __init__(self, configs: Sequence[Config], source: EnvSource, sizes: EnvDimensions, workers: int) -> None:
        processes.check_script_importable(TRAINING_ACTIVITY)
        self.shape, self.horizon = (len(configs), configs[0].episodes), sizes.horizon
        self._source = source
        slots = [(run, k) for run in range(self.shape[0]) for k in range(self.shape[1])]
        workers = max(1, min(workers, len(slots)))
        bounds = np.linspace(0, len(slots), workers + 1).astype(int)
        self._slots_of_worker = [slice(a, b) for a, b in itertools.pairwise(bounds.tolist())]
        self._runs_of_worker = [sorted({run for run, _ in slots[part]}) for part in self._slots_of_worker]
        context = multiprocessing.get_context("spawn")
        self._connections, self._processes = [], []
        with limit_blas_threads(), safe_import_path(), block_sigint():
            for part in self._slots_of_worker:
                here, there = context.Pipe()
                given = there, configs, slots[part], source, sizes
                process = context.Process(
                    target=serve_rollouts, name=processes.WORKER_PROCESS_NAME, args=given, daemon=True
                )
                process.start()
                there.close()
                self._connections.append(here)
                self._processes.append(process)

    def reset(self, cycle: int) -> Singles:
        """First observations of a cycle ``[S, episodes, observation]``."""
        self._send_requests([cycle] * len(self._connections))
        return self._stack_by_run(self._receive_responses())

    def start_cycle(self, cycle: int, actors: Sequence[NumpyActor], goals: Floats, tests: Floats) -> None:
        """Begin to play: training goals ``[S, episodes, goal]``, test goals ``[rounds, S, episodes, goal]``."""
        flat = goals.reshape(-1, goals.shape[-1])
        flat_tests = tests.reshape(tests.shape[0], len(flat), goals.shape[-1])
        self._send_requests(
            [
                RolloutRequest(cycle, {run: actors[run] for run in runs}, flat[part], flat_tests[:, part])
                for part, runs in zip(self._slots_of_worker, self._runs_of_worker, strict=True)
            ]
        )

    def collect_cycle(self) -> CycleRollouts:
        """Collect what was played."""
        played: list[RolloutResponse] = self._receive_responses()
        fields = ("observation", "achieved", "action", "goal", "length", "terminated")
        episodes = EpisodeBatch(**{f: self._stack_by_run([getattr(p.episodes, f) for p in played]) for f in fields})
        joined = [np.concatenate([getattr(p, name) for p in played], 1) for name in ("distances", "away", "tested")]
        distances, away, tested = (part.reshape(len(part), *self.shape, *part.shape[2:]) for part in joined)
        return CycleRollouts(episodes, distances, away, tested, self._stack_by_run([p.next_starts for p in played]))

    def evaluate_goals(self, cycle: int, actor: NumpyActor, goals: Floats) -> Floats:
        """Distances ``[n, T]`` to the goals ``[n, goal]``, each played for from a start of its own, without noise.

        For a fleet whose workers have one run each, all with the same configuration. The goals are dealt out in blocks
        of ``episodes``, of which n is a multiple; what is played does not depend on the number of workers.
        """
        workers, size = self.shape
        blocks = goals.reshape(-1, size, goals.shape[-1])
        dealt = [list(range(worker, len(blocks), workers)) for worker in range(workers)]
        self._send_requests(
            [EvaluationRequest(cycle, {worker: actor}, own, blocks[own]) for worker, own in enumerate(dealt)]
        )
        found = np.zeros((*blocks.shape[:2], self.horizon))
        for own, distances in zip(dealt, self._receive_responses(), strict=True):
            found[own] = distances
        return found.reshape(-1, self.horizon)

    def close(self) -> None:
        """End the workers."""
        for link in self._connections:
            link.close()
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def _send_requests(self, orders: Sequence[RolloutRequest | EvaluationRequest | int]) -> None:
        """One order to each worker."""
        for link, process, order in zip(self._connections, self._processes, orders, strict=True):
            with explain_worker_exit(process, self._source):
                link.send(order)

    def _receive_responses(self) -> list[Any]:
        """One answer of each worker."""
        answers = []
        for link, process in zip(self._connections, self._processes, strict=True):
            with explain_worker_exit(process, self._source):
                answer = link.recv()
            answers.append(processes.unwrap_reply(answer))
        return answers

    def _stack_by_run(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        flat = np.concatenate(parts)
        return flat.reshape(*self.shape, *flat.shape[1:])


@contextmanager
def explain_worker_exit(process: SpawnProcess, source: EnvSource) -> Iterator[None]:
    """Talk to a worker; one that is no more is told in a line."""
    try:
        yield
    except (EOFError, ConnectionError):
        process.join(timeout=10)
        if process.exitcode == processes.EXIT_MISSING_GUARD:
            raise processes.missing_guard_error(TRAINING_ACTIVITY) from None
        if source.step_timeout is not None and process.exitcode == -signal.SIGALRM:
            slow = f"a step of {source.name} took longer than {source.step_timeout:g} s"
            raise EnvironmentFailure(slow, name="env") from None
        reason = f"a rollout worker died (exit code {process.exitcode}), perhaps for want of memory"
        raise InputError(reason) from None


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Workers inherit one BLAS thread each: they are the parallelism."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
