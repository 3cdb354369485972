"""Running mean and standard deviation (Chan's merge), with the floor and clip of the reference HER.

The clip has a price for goals. With ``normaliser="achieved"`` their mean and deviation are those of achieved goals, so
all coordinates beyond :data:`MAX_NORMALISED_VALUE` standard deviations of what was achieved look the same to actor and critics.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

MIN_DEVIATION = 0.01
"""Standard deviations are at least this, in the units of the environment."""
MAX_NORMALISED_VALUE = 5.0
"""Normalised coordinates lie in [-CLIP, CLIP]."""


class RunningMoments(NamedTuple):
    """Weighted moments of vectors: total weight [], mean [d], sum of squared deviations [d]."""

    weight: Any
    mean: Any
    squares: Any


def empty_moments(size: int) -> RunningMoments:
    """Those of no vector, of NumPy."""
    return RunningMoments(*(np.zeros(shape, np.float32) for shape in ((), size, size)))


def merge_moments(old: RunningMoments, x: Array, weight: Array) -> RunningMoments:
    """Add vectors ``x [n, d]`` with weights ``[n]``; a total weight of 0 changes nothing."""
    total = weight.sum()
    mean = (weight[:, None] * x).sum(0) / jnp.maximum(total, 1e-8)
    squares = (weight[:, None] * (x - mean) ** 2).sum(0)
    both = jnp.maximum(old.weight + total, 1e-8)
    shift = mean - old.mean
    return RunningMoments(
        old.weight + total,
        old.mean + shift * total / both,
        old.squares + squares + shift**2 * old.weight * total / both,
    )


def moments_deviation(moments: RunningMoments) -> Array:
    """Standard deviation ``[d]``, at least :data:`MIN_DEVIATION`; 1 before the first vector."""
    deviation = jnp.sqrt(moments.squares / jnp.maximum(moments.weight, 1e-8))
    return jnp.where(moments.weight > 0, jnp.maximum(deviation, MIN_DEVIATION), 1.0)


def normalise_vectors(moments: RunningMoments, x: Array) -> Array:
    return jnp.clip((x - moments.mean) / moments_deviation(moments), -MAX_NORMALISED_VALUE, MAX_NORMALISED_VALUE)
