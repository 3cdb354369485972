"""The processes that play episodes for a certification."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import cloudpickle
import numpy as np

from adagoal.certification.certifier import MIN_BLOCKS_PER_ROUND, ROLLOUTS_PER_BLOCK, PlayFunction
from adagoal.core.errors import InputError
from adagoal.core.types import Bools, Floats
from adagoal.parallel.worker_process import make_rollout_process


class Player(Protocol):
    """Plays blocks of episodes; a block seeds its own resets by (round, block)."""

    def play_blocks(self, blocks: Sequence[tuple[int, Floats]], round_: int) -> list[Bools]:
        """Play blocks (index, values ``[n, V]``); return for each which of its episodes were a success ``[n]``."""


@contextlib.contextmanager
def open_players(make: Callable[[], Player], workers: int, in_process: bool = False) -> Iterator[PlayFunction]:
    """Yield the function that plays values ``[n, V]`` in blocks; worker i of n takes the blocks i, i + n, i + 2n, ...

    The result does not depend on the number of workers. ``in_process`` allows a single worker to be this process.
    """
    if workers == 1 and in_process:
        player = make()
        yield lambda values, round_: np.concatenate(player.play_blocks(list(enumerate(_blocks(values))), round_))
        return
    try:
        pickled = cloudpickle.dumps(make)
    except Exception as error:
        text = f"cannot be sent to worker processes ({type(error).__name__}: {error}); use workers=1"
        raise InputError(text, "policy") from error
    processes = [
        make_rollout_process(functools.partial(_make_from_pickle, pickled))
        for _ in range(min(workers, MIN_BLOCKS_PER_ROUND))
    ]

    def play(values: Floats, round_: int) -> Bools:
        n, blocks = len(processes), list(enumerate(_blocks(values)))
        for i, process in enumerate(processes):
            process.send("play_blocks", blocks[i::n], round_)
        found: list[Any] = [None] * len(blocks)
        for i, process in enumerate(processes):
            found[i::n] = process.receive()
        return np.concatenate(found)

    try:
        for process in processes:
            process.start()
        yield play
    finally:
        # all pipes before the first wait, so the processes end at the same time
        for process in processes:
            if process.pipe is not None:
                process.pipe.close()
        for process in processes:
            process.stop(grace_seconds=10.0)


def _blocks(values: Floats) -> Sequence[Floats]:
    return np.split(values, len(values) // ROLLOUTS_PER_BLOCK)


def _make_from_pickle(pickled: bytes) -> Any:
    # cloudpickle, because players hold functions of the user, which plain pickle cannot send
    return cloudpickle.loads(pickled)()
