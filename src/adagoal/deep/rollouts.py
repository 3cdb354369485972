"""Rollouts for training: the protocol ``RolloutBackend``, and worker processes that play batches of environments.

A worker gets the actors' weights and one goal per environment, plays a cycle without any other message, and returns the
episodes, the test results and the starts of the next cycle. Every start and every action is seeded by (seed, cycle,
slot), so a cycle can be replayed without its history; resume is exact for this reason.

Another engine, or an environment that runs on the accelerator, is one class with the methods of
:class:`RolloutBackend`; give it to :func:`adagoal.train` as ``make_rollouts``.
"""

from __future__ import annotations

# Workers import this module. It must not import JAX, which takes seconds and memory in every one of them.
import functools
import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Bools, Floats, Ints, Singles
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import EnvDimensions, EnvSource, EpisodeEnd, GoalEnv
from adagoal.deep.policy import NumpyActor
from adagoal.parallel.worker_process import WorkerDied, make_rollout_process, stop_rollout_processes


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

    def start_cycle(self, cycle: int, actors: Sequence[NumpyActor], goals: Floats, test_goals: Floats) -> None:
        """Start to play goals ``[S, episodes, goal]`` with noise, and tests ``[rounds, S, episodes, goal]`` without."""

    def collect_cycle(self) -> CycleRollouts:
        """Wait for the cycle and return what was played."""

    def close(self) -> None:
        """Release the environments."""


Rounds = slice
"""Some of the rounds of a test."""
ALL_ROUNDS = slice(None)
RolloutFactory = Callable[[Sequence[Config], EnvSource, EnvDimensions, int], RolloutBackend]
"""Arguments: configurations of the runs, environment, its dimensions, number of workers."""


class EnvBatch:
    """The environments of one worker: slot ``(run, k)`` is environment k of run ``run``."""

    def __init__(
        self, configs: Sequence[Config], slots: Sequence[tuple[int, int]], source: EnvSource, sizes: EnvDimensions
    ) -> None:
        self.configs, self.slots, self.horizon, self.observation_size = configs, slots, sizes.horizon, sizes.observation
        self.envs = [GoalEnv(source, sizes) for _ in slots]
        runs = [run for run, _ in slots]
        # slots are in the order of the runs, so each run is one slice and its actor is called once per step
        self.slots_of_run = {run: slice(runs.index(run), runs.index(run) + runs.count(run)) for run in runs}
        self._first_observations: list[tuple[Floats, Floats]] = []

    def start_cycle(self, cycle: int) -> Singles:
        """Reset every environment for a cycle of training; return first observations ``[slots, observation]``."""
        self._episode_rngs = self._make_generators(StreamPurpose.TRAINING_EPISODE, cycle, 0)
        pairs = zip(self.envs, self._episode_rngs, strict=True)
        self._first_observations = [env.reset(int(rng.integers(2**31))) for env, rng in pairs]
        return np.stack([observation for observation, _ in self._first_observations]).astype(np.float32)

    def play_cycle(
        self, cycle: int, actors: dict[int, NumpyActor], goals: Floats, test_goals: Floats, rounds: Rounds = ALL_ROUNDS
    ) -> CycleRollouts:
        """Play training goals ``[slots, goal]``, and tests as :meth:`play_tests` does."""
        episodes, _ = self._play_episodes(actors, goals, self._first_observations, self._episode_rngs)
        return CycleRollouts(
            episodes, *self.play_tests(cycle, actors, test_goals, rounds), next_starts=self.start_cycle(cycle + 1)
        )

    def play_tests(
        self, cycle: int, actors: dict[int, NumpyActor], test_goals: Floats, rounds: Rounds = ALL_ROUNDS
    ) -> tuple[Floats, Floats, Singles]:
        """Play some rounds of the tests ``[all rounds, slots, goal]``.

        Returns the fields ``distances``, ``initial_distances`` and ``test_starts`` of :class:`CycleRollouts`.
        """
        numbers = range(len(test_goals))[rounds]
        distances = np.zeros((len(numbers), len(self.slots), self.horizon))
        initial_distances = np.zeros(distances.shape[:2])
        test_starts = np.zeros((*distances.shape[:2], self.observation_size), np.float32)
        for i, round_ in enumerate(numbers):
            tests, distances[i] = self.play_test_round(actors, test_goals[round_], cycle, round_)
            initial_distances[i] = np.linalg.norm(tests.achieved[:, 0] - test_goals[round_], axis=-1)
            test_starts[i] = tests.observation[:, 0]
        return distances, initial_distances, test_starts

    def play_test_round(
        self,
        actors: dict[int, NumpyActor],
        goals: Floats,
        cycle: int,
        round_: int,
        purpose: StreamPurpose = StreamPurpose.TEST_EPISODE,
    ) -> tuple[EpisodeBatch, Floats]:
        """Play goals ``[slots, goal]`` without noise; return episodes and distances to the goals ``[slots, T]``.

        ``purpose``, ``cycle`` and ``round_`` decide the starts.
        """
        rngs = self._make_generators(purpose, cycle, round_)
        slots = zip(self.envs, rngs, goals, strict=True)
        first = [env.reset(int(rng.integers(2**31)), goal) for env, rng, goal in slots]
        return self._play_episodes(actors, goals, first, None)

    def _make_generators(self, purpose: StreamPurpose, cycle: int, round_: int) -> list[np.random.Generator]:
        return [random_stream(self.configs[run].seed, purpose, cycle, k, round_) for run, k in self.slots]

    def _play_episodes(
        self,
        actors: dict[int, NumpyActor],
        goals: Floats,
        first: list[tuple[Floats, Floats]],
        rngs: list[np.random.Generator] | None,
    ) -> tuple[EpisodeBatch, Floats]:
        """Play one episode per slot from its first observation; without ``rngs`` there is no exploration noise."""
        # Environments measure distances in double precision, and so does this; the learner stores singles.
        count, T = len(self.slots), self.horizon
        now = np.stack([o for o, _ in first])
        observation = np.zeros((count, T + 1, now.shape[1]), np.float32)
        achieved = np.zeros((count, T + 1, goals.shape[1]))
        length = np.full(count, T, np.int32)
        terminated = np.zeros(count, bool)
        for env, goal in zip(self.envs, goals, strict=True):
            env.set_goal(goal)
        observation[:, 0], achieved[:, 0] = now, np.stack([a for _, a in first])
        action_size = next(iter(actors.values())).action_size
        actions = np.zeros((count, T, action_size), np.float32)
        # drawn before the first step: a stream does not depend on how long the episode lasts
        noise = None if rngs is None else self._draw_exploration_noise(rngs, action_size)
        for t in range(T):
            parts = [actors[run](now[part], goals[part]) for run, part in self.slots_of_run.items()]
            action = np.concatenate(parts, dtype=float)
            if noise is not None:
                is_random, normal, uniform = noise
                action = np.where(is_random[:, t], uniform[:, t], (action + normal[:, t]).clip(-1.0, 1.0))
            actions[:, t] = action
            for i, env in enumerate(self.envs):
                # ended before; the arrays have a fixed shape for the compiled learner
                if length[i] <= t:
                    achieved[i, t + 1] = achieved[i, t]
                else:
                    now[i], achieved[i, t + 1], end = env.step(action[i])
                    if end is not EpisodeEnd.CONTINUES:
                        length[i], terminated[i] = t + 1, end is EpisodeEnd.TERMINATED
            observation[:, t + 1] = now
        distance = np.linalg.norm(achieved[:, 1:] - goals[:, None], axis=-1)
        singles = achieved.astype(np.float32), actions, goals.astype(np.float32)
        return EpisodeBatch(observation, *singles, length, terminated), distance

    def _draw_exploration_noise(self, rngs: list[np.random.Generator], size: int) -> tuple[Bools, Floats, Floats]:
        """Return which actions are random ``[slots, T, 1]``, the noise of the others, and the random actions."""
        T, own = self.horizon, [(rng, self.configs[run]) for rng, (run, _) in zip(rngs, self.slots, strict=True)]
        is_random = np.stack([rng.random((T, 1)) < config.random for rng, config in own])
        normal = np.stack([config.noise * rng.normal(size=(T, size)) for rng, config in own])
        return is_random, normal, np.stack([rng.uniform(-1.0, 1.0, (T, size)) for rng in rngs])


@contextmanager
def explain_worker_exit(source: EnvSource) -> Iterator[None]:
    """Turn the end of a rollout process into an error that says what the user can do."""
    try:
        yield
    except WorkerDied as error:
        if source.step_timeout is not None and error.exit_code == -signal.SIGALRM:
            text = f"a step of {source.name} took longer than {source.step_timeout:g} s"
            raise EnvironmentFailure(text, name="env") from None
        raise InputError(f"{error.reason}, perhaps because the machine ran out of memory") from None


class RolloutWorkers:
    """A :class:`~adagoal.deep.rollouts.RolloutBackend` of worker processes, which share all slots in order.

    If there are at least twice as many workers as slots, the others help with the tests. The workers are then several
    copies of the first ones, and each copy plays some rounds of the tests of its slots. Who plays a round changes no
    number.
    """

    def __init__(self, configs: Sequence[Config], source: EnvSource, sizes: EnvDimensions, workers: int) -> None:
        self.shape, self.horizon = (len(configs), configs[0].episodes), sizes.horizon
        self._source = source
        slots = [(run, k) for run in range(self.shape[0]) for k in range(self.shape[1])]
        parts = max(1, min(workers, len(slots)))
        bounds = np.linspace(0, len(slots), parts + 1).astype(int)
        self._slots_of_worker = [slice(a, b) for a, b in itertools.pairwise(bounds.tolist())]
        self._runs_of_worker = [sorted({run for run, _ in slots[part]}) for part in self._slots_of_worker]
        self._copies = max(1, workers // parts)
        self.workers = [
            make_rollout_process(functools.partial(EnvBatch, configs, slots[part], source, sizes))
            for part in self._slots_of_worker * self._copies
        ]
        # does not wait: the learner compiles while the workers import
        for worker in self.workers:
            worker.start()

    def reset(self, cycle: int) -> Singles:
        players = self.workers[: len(self._slots_of_worker)]
        for worker in players:
            worker.send("start_cycle", cycle)
        return self._stack_by_run(self._receive_results(players))

    def start_cycle(self, cycle: int, actors: Sequence[NumpyActor], goals: Floats, test_goals: Floats) -> None:
        flat = goals.reshape(-1, goals.shape[-1])
        flat_tests = test_goals.reshape(test_goals.shape[0], len(flat), goals.shape[-1])
        parts, self._rounds = list(zip(self._slots_of_worker, self._runs_of_worker, strict=True)), len(flat_tests)
        for worker, (part, runs) in zip(self.workers, parts, strict=False):
            own = {run: actors[run] for run in runs}
            worker.send("play_cycle", cycle, own, flat[part], flat_tests[:, part], self._rounds_of_copy(0))
        # without a test they would only receive the actors
        for copy in range(1, self._copies if self._rounds else 1):
            for worker, (part, runs) in zip(self.workers[copy * len(parts) :], parts, strict=False):
                own = {run: actors[run] for run in runs}
                worker.send("play_tests", cycle, own, flat_tests[:, part], self._rounds_of_copy(copy))

    def _rounds_of_copy(self, copy: int) -> Rounds:
        # copy 0 is last, because it has played an episode of training
        return slice((copy - 1) % self._copies, None, self._copies)

    def collect_cycle(self) -> CycleRollouts:
        n_parts = len(self._slots_of_worker)
        parts: list[CycleRollouts] = self._receive_results(self.workers[:n_parts])
        helpers = self._receive_results(self.workers[n_parts:]) if self._rounds else []
        names = vars(parts[0].episodes)
        episodes = EpisodeBatch(**{n: self._stack_by_run([getattr(p.episodes, n) for p in parts]) for n in names})
        # test arrays have the rounds in front, so their slots are axis 1
        tests = {}
        for i, name in enumerate(("distances", "initial_distances", "test_starts")):
            flat = np.concatenate([getattr(part, name) for part in parts], axis=1)
            whole = np.zeros((self._rounds, *flat.shape[1:]), flat.dtype)
            whole[self._rounds_of_copy(0)] = flat
            for copy in range(1, self._copies if helpers else 1):
                own = helpers[(copy - 1) * n_parts : copy * n_parts]
                whole[self._rounds_of_copy(copy)] = np.concatenate([arrays[i] for arrays in own], axis=1)
            tests[name] = whole.reshape(len(whole), *self.shape, *whole.shape[2:])
        return CycleRollouts(episodes, **tests, next_starts=self._stack_by_run([part.next_starts for part in parts]))

    def close(self) -> None:
        stop_rollout_processes(self.workers)

    def _receive_results(self, workers: Sequence[Any]) -> list[Any]:
        with explain_worker_exit(self._source):
            return [worker.receive() for worker in workers]

    def _stack_by_run(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        flat = np.concatenate(parts)
        return flat.reshape(*self.shape, *flat.shape[1:])
