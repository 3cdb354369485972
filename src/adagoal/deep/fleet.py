"""The rollout workers as one object: start a cycle, do something else, collect it."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core import failures, guard
from adagoal.core.ctrlc import block_sigint
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.isolation import safe_import_path
from adagoal.core.types import Floats, Singles
from adagoal.deep.actor import NumpyActor
from adagoal.deep.config import Config
from adagoal.deep.envs import EnvDimensions, EnvSource
from adagoal.deep.worker import EpisodeBatch, EvaluationRequest, RolloutRequest, RolloutResponse, serve_rollouts

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TRAINING_ACTIVITY = "trains"
"""What a script with workers does (:mod:`adagoal.core.guard`)."""


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
        guard.check_script_importable(TRAINING_ACTIVITY)
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
                    target=serve_rollouts, name=guard.WORKER_PROCESS_NAME, args=given, daemon=True
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
            answers.append(failures.unwrap_reply(answer))
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
        if process.exitcode == guard.EXIT_MISSING_GUARD:
            raise guard.missing_guard_error(TRAINING_ACTIVITY) from None
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
