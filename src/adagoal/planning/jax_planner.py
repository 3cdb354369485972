"""Values of a known model in JAX: value iteration for many goals at once (:mod:`adagoal.planning.value_iteration` on a
GPU).

The same equations, with waiting in a state eliminated, in float64; all states are updated at once. The operator never
increases a residual, so that the change of one sweep bounds the residual of the values that it leaves. A sweep carries
news one step, and is a few hundred times faster than on a processor: there may be up to ``PATIENCE`` times as many, and
only every ``CHECK``-th is looked at.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adagoal.core.types import Floats
from adagoal.planning import jax_bounds
from adagoal.planning.backends import NUMBA_BACKEND
from adagoal.planning.jax_bounds import (
    UNROLLED_SUCCESSORS,
    DeviceRows,
    SuccessorList,
    best_actions,
    group_rows_by_width,
)
from adagoal.planning.model_arrays import SparseModel, TargetGoals

PATIENCE = 64
SWEEPS_PER_CHECK = 32
MAX_DEVICE_VALUES = 2**27
"""Entries [S, goals] on the device at a time: 1 GiB."""


def run_value_iteration_jax(
    model: SparseModel, targets: TargetGoals, V: Floats, cap: float, tolerance: float, sweeps: int
) -> tuple[Floats, Floats]:
    """V [S, G] after value iteration from V, and a bound [G] on each goal's Bellman residual."""
    S, residual = len(V), np.zeros(targets.size)
    with jax.enable_x64(True):
        rows = _rows_without_staying(model)
        again = np.where(model.reset & (np.arange(S) != model.start), 1.0, np.inf)
        for first in range(0, targets.size, max(1, MAX_DEVICE_VALUES // S)):
            part = slice(first, first + max(1, MAX_DEVICE_VALUES // S))
            column = targets.column - first  # what is not in this part is the place of no column
            limits = cap, tolerance, PATIENCE * sweeps // SWEEPS_PER_CHECK
            V[:, part], residual[part] = iterate_on_device(rows, V[:, part], column, again, model.start, *limits)
    return V, residual


def _rows_without_staying(model: SparseModel) -> tuple[DeviceRows, ...]:
    """The rows without staying: weights p(s' | s, a) / leaving probability, and the cost 1 / leaving probability."""
    S, count = model.terminal.size, np.diff(model.indptr)
    pair = np.repeat(np.arange(count.size), count)
    A = count.size // S
    p = np.where(model.successors == pair // A, 0.0, model.probabilities)
    leaving = np.bincount(pair, p, count.size)
    usable = (leaving > 0.0) & ~np.repeat(model.terminal, A)
    cost = np.divide(1.0, leaving, out=np.full(count.size, np.inf), where=usable)
    weight = p * np.where(usable, cost, 0.0)[pair]
    return group_rows_by_width(
        SuccessorList(model.indptr[:-1], count, model.successors, weight), (cost,), S, np.float64
    )


def _action_values(rows: DeviceRows, a: int, V: jax.Array, own: jax.Array) -> jax.Array:
    """Q [N, B] of action a. V may be infinite, also where the weight is 0."""
    successor, weight = rows.successor[a], rows.weight[a][:, :, None]
    cost = rows.terms[0][a][:, None]
    if len(successor) <= UNROLLED_SUCCESSORS:
        return cost + sum(jnp.where(w > 0.0, w * V[row], 0.0) for w, row in zip(weight, successor, strict=True))
    return cost + jnp.where(weight > 0.0, weight * V[successor], 0.0).sum(axis=0)


@jax.jit
def iterate_on_device(rows, V, column, again, start, cap, tolerance, rounds):  # type: ignore[no-untyped-def]
    """V [S, B] and the residuals [B] after at most ``rounds`` times CHECK sweeps.

    column: [S, W] the columns whose goals hold each state; again: [S] what the reset costs.
    """
    inside = (column[:, :, None] == jnp.arange(V.shape[1])).any(axis=1)

    def sweep(V: jax.Array) -> jax.Array:
        reset = jnp.minimum(cap, again[:, None] + V[start])
        best, _ = best_actions(rows, _action_values, V, reset, jnp.zeros(V.shape, jnp.int16))
        return jnp.where(inside, 0.0, best)

    def more(carry: Any) -> Any:
        return (carry[0] < rounds) & (carry[2] > tolerance).any()

    def sweeps(carry: Any) -> Any:
        V = jax.lax.fori_loop(0, SWEEPS_PER_CHECK - 1, lambda _, V: sweep(V), carry[1])
        last = sweep(V)
        return carry[0] + 1, last, jnp.where(last == V, 0.0, jnp.abs(last - V)).max(axis=0)

    _, V, change = jax.lax.while_loop(more, sweeps, (0, V, jnp.full(V.shape[1], jnp.inf)))
    return V, change


# The planner on a GPU, through JAX (extra ``gpu``): the certified bounds, and the values of a known model.


JAX_BACKEND = NUMBA_BACKEND._replace(
    lower_bounds=jax_bounds.improve_lower_bounds_jax,
    upper_bounds=jax_bounds.improve_upper_bounds_jax,
    exact_values=run_value_iteration_jax,
    block_size=256,
    min_block_values=2**21,
    relative_cost=0.5,
)
"""Sweeps on JAX's first device, whatever that is: the processor, where the tests are run. Smaller blocks are left to
Numba: their transfer costs more than their sweeps, and code is compiled for every size."""


def has_jax_gpu() -> bool:
    """Whether that is a GPU."""
    return bool(jax.default_backend() == "gpu")
