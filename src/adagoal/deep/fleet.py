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
from adagoal.core.ctrlc import unheard
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.isolation import safe_path
from adagoal.core.types import Floats, Singles
from adagoal.deep.actor import Actor
from adagoal.deep.config import Config
from adagoal.deep.envs import Dimensions, Source
from adagoal.deep.worker import Episodes, Exam, Order, Played, main

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
TRAINS = "trains"
"""What a script with workers does (:mod:`adagoal.core.guard`)."""


class Collected(NamedTuple):
    """What the workers of S runs have played in a cycle."""

    episodes: Episodes
    """``[S, episodes, ...]``"""
    distances: Floats
    """To the test goals ``[rounds, S, episodes, T]``."""
    away: Floats
    """The same at the start ``[rounds, S, episodes]``."""
    tested: Singles
    """First observations of the tests ``[rounds, S, episodes, observation]``."""
    starts: Singles
    """First observations of the next cycle ``[S, episodes, observation]``."""


class Fleet:
    """Worker processes for S runs of ``episodes`` environments each; slots are dealt out in order."""

    def __init__(self, configs: Sequence[Config], source: Source, sizes: Dimensions, workers: int) -> None:
        guard.check(TRAINS)
        self.shape, self.horizon = (len(configs), configs[0].episodes), sizes.horizon
        self._source = source
        slots = [(run, k) for run in range(self.shape[0]) for k in range(self.shape[1])]
        workers = max(1, min(workers, len(slots)))
        bounds = np.linspace(0, len(slots), workers + 1).astype(int)
        self._parts = [slice(a, b) for a, b in itertools.pairwise(bounds.tolist())]
        self._runs = [sorted({run for run, _ in slots[part]}) for part in self._parts]
        context = multiprocessing.get_context("spawn")
        self._links, self._processes = [], []
        with one_thread(), safe_path(), unheard():
            for part in self._parts:
                here, there = context.Pipe()
                given = there, configs, slots[part], source, sizes
                process = context.Process(target=main, name=guard.OURS, args=given, daemon=True)
                process.start()
                there.close()
                self._links.append(here)
                self._processes.append(process)

    def reset(self, cycle: int) -> Singles:
        """First observations of a cycle ``[S, episodes, observation]``."""
        self._send([cycle] * len(self._links))
        return self._stack(self._receive())

    def start(self, cycle: int, actors: Sequence[Actor], goals: Floats, tests: Floats) -> None:
        """Begin to play: training goals ``[S, episodes, goal]``, test goals ``[rounds, S, episodes, goal]``."""
        flat = goals.reshape(-1, goals.shape[-1])
        flat_tests = tests.reshape(tests.shape[0], len(flat), goals.shape[-1])
        self._send(
            [
                Order(cycle, {run: actors[run] for run in runs}, flat[part], flat_tests[:, part])
                for part, runs in zip(self._parts, self._runs, strict=True)
            ]
        )

    def wait(self) -> Collected:
        """Collect what was played."""
        played: list[Played] = self._receive()
        fields = ("observation", "achieved", "action", "goal", "length", "terminated")
        episodes = Episodes(**{f: self._stack([getattr(p.episodes, f) for p in played]) for f in fields})
        joined = [np.concatenate([getattr(p, name) for p in played], 1) for name in ("distances", "away", "tested")]
        distances, away, tested = (part.reshape(len(part), *self.shape, *part.shape[2:]) for part in joined)
        return Collected(episodes, distances, away, tested, self._stack([p.starts for p in played]))

    def examine(self, cycle: int, actor: Actor, goals: Floats) -> Floats:
        """Distances ``[n, T]`` to the goals ``[n, goal]``, each played for from a start of its own, without noise.

        For a fleet whose workers have one run each, all with the same configuration. The goals are dealt out in blocks
        of ``episodes``, of which n is a multiple; what is played does not depend on the number of workers.
        """
        workers, size = self.shape
        blocks = goals.reshape(-1, size, goals.shape[-1])
        dealt = [list(range(worker, len(blocks), workers)) for worker in range(workers)]
        self._send([Exam(cycle, {worker: actor}, own, blocks[own]) for worker, own in enumerate(dealt)])
        found = np.zeros((*blocks.shape[:2], self.horizon))
        for own, distances in zip(dealt, self._receive(), strict=True):
            found[own] = distances
        return found.reshape(-1, self.horizon)

    def close(self) -> None:
        """End the workers."""
        for link in self._links:
            link.close()
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def _send(self, orders: Sequence[Order | Exam | int]) -> None:
        """One order to each worker."""
        for link, process, order in zip(self._links, self._processes, orders, strict=True):
            with alive(process, self._source):
                link.send(order)

    def _receive(self) -> list[Any]:
        """One answer of each worker."""
        answers = []
        for link, process in zip(self._links, self._processes, strict=True):
            with alive(process, self._source):
                answer = link.recv()
            answers.append(failures.result(answer))
        return answers

    def _stack(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        flat = np.concatenate(parts)
        return flat.reshape(*self.shape, *flat.shape[1:])


@contextmanager
def alive(process: SpawnProcess, source: Source) -> Iterator[None]:
    """Talk to a worker; one that is no more is told in a line."""
    try:
        yield
    except (EOFError, ConnectionError):
        process.join(timeout=10)
        if process.exitcode == guard.NO_GUARD:
            raise guard.missing(TRAINS) from None
        if source.step_timeout is not None and process.exitcode == -signal.SIGALRM:
            slow = f"a step of {source.name} took longer than {source.step_timeout:g} s"
            raise EnvironmentFailure(slow, name="env") from None
        reason = f"a rollout worker died (exit code {process.exitcode}), perhaps for want of memory"
        raise InputError(reason) from None


@contextmanager
def one_thread() -> Iterator[None]:
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
