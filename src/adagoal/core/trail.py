"""Every step of a run, in order: the data from which its counts were made.

Three arrays [N] with one entry per step: ``state``, ``action`` and ``next_state``. The reset is a step like any other;
its action is A, the number after the last one of the environment. Those of several workers follow one another, round
by round. That makes 10 bytes a step, in memory and on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import TransitionCounts
from adagoal.core.schema import ArraySchema, ArraySpec
from adagoal.core.types import Longs

TRANSITION_LOG_SCHEMA: ArraySchema = {
    "state": ArraySpec("int32", ("N",), low=0, below="S"),
    "action": ArraySpec("int16", ("N",), low=0, high="A"),
    "next_state": ArraySpec("int32", ("N",), low=0, below="S"),
}


class TransitionLog:
    """The steps so far; :attr:`adagoal.core.counts.Counts.transition_log` is where a world adds to it."""

    def __init__(self, n_actions: int) -> None:
        self._n_actions = n_actions
        self._array_pieces: dict[str, list[NDArray[Any]]] = {
            name: [np.zeros(0, a.dtype)] for name, a in TRANSITION_LOG_SCHEMA.items()
        }

    def append_steps(self, moves: Longs, landed: Longs) -> None:
        """Steps: pairs s * A + a, or -1 - s for a reset in s, and the states after them."""
        real, A = moves >= 0, self._n_actions
        states = np.where(real, moves // A, -1 - moves)
        for name, values in zip(TRANSITION_LOG_SCHEMA, (states, np.where(real, moves % A, A), landed), strict=True):
            self._array_pieces[name].append(values.astype(TRANSITION_LOG_SCHEMA[name].dtype))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """What is saved."""
        self._array_pieces = {name: [np.concatenate(pieces)] for name, pieces in self._array_pieces.items()}
        return {name: pieces[0] for name, pieces in self._array_pieces.items()}

    def restore_steps(self, arrays: Mapping[str, NDArray[Any]], counts: TransitionCounts) -> None:
        """Back to the steps behind some counts: later ones are dropped, and a ``ValueError`` says if some are missing.

        (A checkpoint may be older than what was saved last, where the newer one was damaged.)
        """
        steps = int(counts.visits.sum())
        kept = {name: arrays[name][:steps] for name in TRANSITION_LOG_SCHEMA}
        if not np.array_equal(np.bincount(kept["state"], minlength=counts.n_states), counts.visits):
            raise ValueError("the steps are not those that were counted")
        self._array_pieces = {name: [array] for name, array in kept.items()}
