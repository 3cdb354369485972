"""Random streams and JAX keys by (seed, purpose, indices), and checks of saved generator states.

Different arguments give independent streams. Explorations draw from ``default_rng(seed)``, which has no spawn key and
so differs from all of these streams.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class StreamPurpose(IntEnum):
    """What a stream is for; the comment names its indices."""

    COPY_EPISODES = 0  # of one copy of an environment; 0 and 1 are the keys of ``SeedSequence.spawn(2)``
    COPY_ENVIRONMENT = 1
    COPY_LIFE = 2  # copy, life
    POSTERIOR = 3  # plan
    TRIAL = 4
    INITIAL_WEIGHTS = 5
    UPDATES = 6
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
    AFTER_DATA = 22  # digest of the recorded transitions


def stream_seed_sequence(seed: int, purpose: StreamPurpose, *indices: int) -> np.random.SeedSequence:
    """Return the seed sequence of a stream; indices lie in [0, 2^32)."""
    # NumPy splits a larger index into two words, so (2**32 + 5,) would be the same stream as (5, 1).
    if not all(0 <= index < 2**32 for index in indices):
        raise ValueError(f"indices of a random stream must lie in [0, 2^32), got {indices}")
    # Spawn keys, not entropy: NumPy pads entropy with zeros, so default_rng([s, 4]) and default_rng([s, 4, 0]) are one
    # stream, while spawn_key=(4,) and spawn_key=(4, 0) differ.
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *indices))


def random_stream(seed: int, purpose: StreamPurpose, *indices: int) -> np.random.Generator:
    """Return the generator of a stream.

    >>> random_stream(0, StreamPurpose.TEST_GOALS, 7).integers(10, size=3)
    array([...])
    """
    return np.random.default_rng(stream_seed_sequence(seed, purpose, *indices))


def jax_key_data(seed: int, purpose: StreamPurpose, *indices: int) -> NDArray[np.uint32]:
    """Return the two words of a JAX random key."""
    return stream_seed_sequence(seed, purpose, *indices).generate_state(2).astype(np.uint32)


def check_rng_state(state: Any) -> None:
    """Raise a ``ValueError`` unless this is the state of a known generator."""
    kind = state.get("bit_generator") if isinstance(state, dict) else None
    # A tuple, not a set: a forged kind may be unhashable. The list keeps getattr below from calling anything else.
    if kind not in ("MT19937", "Philox", "PCG64", "PCG64DXSM", "SFC64"):
        raise ValueError("the state of the random generator is of an unknown kind")
    restore_rng_state(np.random.Generator(getattr(np.random, kind)(0)), state)


def restore_rng_state(generator: np.random.Generator, state: Any) -> None:
    """Restore a saved state; raise a ``ValueError`` if it is not a state of this kind of generator."""
    bits = generator.bit_generator
    try:
        kind = state["bit_generator"]
        if kind != type(bits).__name__:
            raise ValueError(f"is of a {str(kind)[:40]}")
        limits = [(state.get("has_uint32", 0), 1), (state.get("uinteger", 0), 2**32 - 1)]
        # NumPy checks types and sizes, but not positions: one beyond the buffer would read foreign memory.
        if kind == "MT19937":
            limits.append((state["state"]["pos"], 624))
        elif kind == "Philox":
            limits.append((state["buffer_pos"], 4))
        elif kind not in ("PCG64", "PCG64DXSM", "SFC64"):
            raise ValueError(f"is of a {str(kind)[:40]}")
        for value, high in limits:
            if not isinstance(value, int) or not 0 <= value <= high:
                raise ValueError(f"holds {str(value)[:40]} instead of a number in 0..{high}")
        bits.state = state
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise ValueError(f"the state of the random generator is not one ({error})") from None


def rng_states_equal(one: Any, other: Any) -> bool:
    """Return whether two states are equal; the states of some generators hold arrays."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(rng_states_equal(one[name], other[name]) for name in one)
    return bool(np.array_equal(one, other))
