"""Random streams: different purposes, indices and explorations give different numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from adagoal.core.random_streams import (
    StreamPurpose,
    jax_key_data,
    random_stream,
    stream_seed_sequence,
)

INDICES = [index for count in range(4) for index in itertools.product(range(3), repeat=count)]


def first(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))


def test_purposes_and_indices_have_different_streams() -> None:
    drawn = [first(random_stream(seed, purpose, *i)) for seed in range(6) for purpose in StreamPurpose for i in INDICES]
    explorations = [first(np.random.default_rng(seed)) for seed in range(6)]
    assert len({*drawn, *explorations}) == len(drawn) + len(explorations)


def test_trailing_zeros_count() -> None:
    """In contrast to ``default_rng([seed, purpose, 0])``, which equals ``default_rng([seed, purpose])``."""
    assert first(np.random.default_rng([3, 4, 0])) == first(np.random.default_rng([3, 4]))
    for purpose in StreamPurpose:
        assert first(random_stream(0, purpose, 0)) != first(random_stream(0, purpose))
        assert first(random_stream(0, purpose, 7, 0)) != first(random_stream(0, purpose, 7))


def test_jax_keys_differ_as_streams_do() -> None:
    keys = {tuple(jax_key_data(seed, purpose, *i)) for seed in range(3) for purpose in StreamPurpose for i in INDICES}
    assert len(keys) == 3 * len(StreamPurpose) * len(INDICES)


@pytest.mark.parametrize("index", [-1, 2**32])
def test_index_of_more_than_32_bits_is_refused(index: int) -> None:
    spoken_twice = (np.random.SeedSequence(0, spawn_key=key).generate_state(2) for key in ((2**32 + 5,), (5, 1)))
    np.testing.assert_array_equal(*spoken_twice)
    with pytest.raises(ValueError, match=r"must lie in \[0, 2\^32\)"):
        stream_seed_sequence(0, StreamPurpose.POSTERIOR, index)
