"""Random streams by (seed, purpose, indices): different arguments give independent streams.

NumPy pads entropy with zeros, so ``default_rng([s, 4])`` and ``default_rng([s, 4, 0])`` are one stream. Words of a
spawn key come after the padding, where a zero counts: ``spawn_key=(4,)`` and ``spawn_key=(4, 0)`` differ.

Explorations draw from ``default_rng(seed)``, which has no spawn key and so equals none of these streams.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

MAX_STREAM_INDEX = 2**32
"""NumPy splits a larger index into several words, so ``(WORD + 5,)`` would be ``(5, 1)``."""


class StreamPurpose(IntEnum):
    """What a stream is for; the comment names the indices."""

    COPY_EPISODES = 0  # of one copy of an environment; 0 and 1 are the keys of ``SeedSequence.spawn(2)``
    COPY_ENVIRONMENT = 1
    COPY_LIFE = 2  # copy, life
    POSTERIOR = 3  # plan
    TRIAL = 4
    INITIAL_WEIGHTS = 5
    UPDATES = 6
    NORMALISER_GOALS = 7
    TRAINING_EPISODE = 8  # cycle, slot, round
    TEST_EPISODE = 9  # cycle, slot, round
    TRAINING_GOALS = 10  # cycle
    TEST_GOALS = 11  # cycle
    EXPERIENCE = 12  # cycle
    CANDIDATE_VALUES = 13  # cycle
    PAIR_VALUES = 14
    MAP_VALUES = 15
    EVALUATION_GOALS = 16
    EVALUATION_EPISODE = 17  # cycle, slot, round
    CELLS = 18
    CERTIFIED_GOALS = 19  # round of the certification
    CERTIFIED_EPISODE = 20  # round of the certification, slot, block
    JUDGED_GOALS = 21


def stream_seed_sequence(seed: int, purpose: StreamPurpose, *indices: int) -> np.random.SeedSequence:
    """Return the seed sequence of a stream; indices lie in [0, 2^32)."""
    if not all(0 <= index < MAX_STREAM_INDEX for index in indices):
        raise ValueError(f"indices of a random stream must lie in [0, 2^32), got {indices}")
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *indices))


def random_stream(seed: int, purpose: StreamPurpose, *indices: int) -> np.random.Generator:
    """Return the generator of a stream.

    >>> stream(0, Purpose.TEST_GOALS, 7).integers(10, size=3)
    array([...])
    """
    return np.random.default_rng(stream_seed_sequence(seed, purpose, *indices))


def jax_key_data(seed: int, purpose: StreamPurpose, *indices: int) -> NDArray[np.uint32]:
    """Return the two words of a random key of JAX."""
    return stream_seed_sequence(seed, purpose, *indices).generate_state(2).astype(np.uint32)
