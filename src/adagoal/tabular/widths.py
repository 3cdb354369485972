"""One pair, seen from all columns of the visits at once: the inner loops of :mod:`adagoal.tabular.resolvent`."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from adagoal.core.backup import VECTOR_MATH_OPTIONS

FAST_SUM_OPTIONS: dict[str, Any] = VECTOR_MATH_OPTIONS | {"fastmath": {"nnan", "nsz", "reassoc"}}
"""Sums in any order."""


@numba.njit(**VECTOR_MATH_OPTIONS)
def column_moments(x, model, place, F, sd, span, mean):  # type: ignore[no-untyped-def]
    """Standard deviation, range and mean of every column of F [N, m] over the observed successors of the pair x.

    Up to four successors are one loop that keeps everything in registers (as in :mod:`adagoal.planning.closed`).
    """
    o, first = model.support[x], np.uintp(place[model.successor[x, 0]])
    if o <= 4:
        i1, w1 = _successor_and_weight(x, 1, model, place)
        i2, w2 = _successor_and_weight(x, 2, model, place)
        i3, w3 = _successor_and_weight(x, 3, model, place)
        for y in range(F.shape[1]):
            d1, d2, d3 = F[i1, y] - F[first, y], F[i2, y] - F[first, y], F[i3, y] - F[first, y]
            m = w1 * d1 + w2 * d2 + w3 * d3
            sd[y] = math.sqrt(max(w1 * d1 * d1 + w2 * d2 * d2 + w3 * d3 * d3 - m * m, 0.0))
            span[y] = max(max(d1, d2), max(d3, 0.0)) - min(min(d1, d2), min(d3, 0.0))
            mean[y] = m + F[first, y]
        return
    low, high = np.zeros(F.shape[1]), np.zeros(F.shape[1])  # beside the first successor
    mean[:], sd[:] = 0.0, 0.0
    for k in range(1, o):
        i, w = _successor_and_weight(x, k, model, place)
        for y in range(F.shape[1]):
            d = F[i, y] - F[first, y]
            mean[y] += w * d
            sd[y] += w * d * d
            low[y], high[y] = min(low[y], d), max(high[y], d)
    for y in range(F.shape[1]):
        sd[y] = math.sqrt(max(sd[y] - mean[y] * mean[y], 0.0))
        mean[y] += F[first, y]
        span[y] = high[y] - low[y]


@numba.njit(**VECTOR_MATH_OPTIONS)
def _successor_and_weight(x, k, model, place):  # type: ignore[no-untyped-def]
    """The place of the k-th successor of a pair and its weight; beyond the last one the first with weight zero."""
    inside = k < model.support[x]
    return np.uintp(place[model.successor[x, k if inside else 0]]), model.p_split[x, k] if inside else 0.0


@numba.njit(**FAST_SUM_OPTIONS)
def weighted_error(one, other, chain, quiet_log):  # type: ignore[no-untyped-def]
    """A bound on sum_y weights(y) |xi(y)| with weights = |one - other|, both [N].

    The observed successors add sum_y weights(y) seen(y). The others add top sum_y weights(y) q_y, where the pairs of
    the quiet window share their unseen mass.
    """
    seen, each, alone, shared = 0.0, 0.0, 0.0, 0.0
    for y in range(len(one)):
        weight = abs(one[y] - other[y])
        seen += weight * chain.seen[y]
        each += weight * chain.masses[0, y]
        alone += weight * chain.masses[1, y]
        shared = max(shared, weight * chain.masses[2, y])
    return seen + chain.top * min(each, alone + shared * quiet_log)


@numba.njit(**FAST_SUM_OPTIONS)
def advantage_noise(r, q, top, beta, sd, span, mean):  # type: ignore[no-untyped-def]
    """What a pair with these widths [N + 1], the value last, adds to the advantage of lemma 8."""
    N = len(beta)
    spread, reach, size = sd[N], span[N], mean[N]
    for y in range(N):
        spread += sd[y] * beta[y]
        reach += span[y] * beta[y]
        size += mean[y] * beta[y]
    return math.sqrt(2.0 * r) * spread + r * reach + q * min(size, top)
