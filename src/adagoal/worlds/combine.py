"""The true model of a mixture, which carries the :class:`~adagoal.core.mixture.LinearMixture` that a learner is told.

The weights theta are in the model's probabilities only: nothing that a learner is given holds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.errors import InputError
from adagoal.core.layout import GridLayout
from adagoal.core.mixture import ROW_SUM_TOLERANCE, LinearMixture, mixture_from_kernels
from adagoal.core.types import Floats
from adagoal.worlds.model import TabularMDP


def mixture_from_models(models: Sequence[TabularMDP], B: float | None = None) -> LinearMixture:
    """A mixture of d known models over the same states, actions, start and ends."""
    if len(models) == 0:
        raise InputError("kernels: a mixture needs d >= 1 of them, got none")
    first = models[0]
    for i, m in enumerate(models):
        if (m.n_states, m.n_actions, m.start) != (first.n_states, first.n_actions, first.start):
            raise InputError(
                f"kernels: number {i} has {m.n_states} states, {m.n_actions} actions and the start {m.start}, "
                f"number 0 has {first.n_states}, {first.n_actions} and {first.start}"
            )
        if not np.array_equal(m.terminal, first.terminal):
            raise InputError(f"kernels: number {i} ends in other states than number 0")
    return mixture_from_kernels([m.kernel() for m in models], first.n_actions, B, first.start, first.terminal)


def parse_mixture_weights(theta: ArrayLike, d: int) -> Floats:
    """theta as an array [d] of finite numbers."""
    try:
        weights = np.asarray(theta, float)
    except (TypeError, ValueError):
        weights = np.zeros(0)
    if weights.shape != (d,) or not np.isfinite(weights).all():
        raise InputError(f"theta: must be a list of d = {d} finite numbers, got {theta!r}")
    return weights


def model_from_mixture(
    features: LinearMixture,
    theta: ArrayLike,
    name: str = "mixture",
    labels: tuple[str, ...] = (),
    layout: GridLayout | None = None,
) -> TabularMDP:
    """The true model sum_i theta_i phi_i, which carries the mixture; theta itself is not kept."""
    weights = parse_mixture_weights(theta, features.d)
    norm = float(np.linalg.norm(weights))
    if norm > features.B * (1 + ROW_SUM_TOLERANCE):
        raise InputError(f"B: {features.B:g} is smaller than the norm {norm:g} of theta")
    matrix = features.mixture_kernel(weights)
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    worst = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst] - 1) > ROW_SUM_TOLERANCE:
        raise InputError(f"theta: the features of the pair {worst} sum to {sums[worst]:g} at theta, not to one")
    if matrix.data.min() < -ROW_SUM_TOLERANCE:
        bad = int(features.pair_of_entry[np.argmin(matrix.data)])
        raise InputError(f"theta: the features give the pair {bad} a negative probability at theta")
    matrix.data[matrix.data < 1e-15] = 0.0
    matrix.eliminate_zeros()
    return TabularMDP(
        *(features.n_states, features.n_actions, matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)),
        probabilities=matrix.data / np.repeat(np.asarray(matrix.sum(axis=1)).ravel(), np.diff(matrix.indptr)),
        start=features.start,
        terminal=features.terminal,
        name=name,
        labels=labels,
        layout=layout,
        mixture=features,
    )
